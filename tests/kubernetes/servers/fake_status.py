"""The errors of the fake API server, with the bodies of the real one.

Rule: every answer that is not a success is a `Failure`; its body is a Status object as kube-apiserver writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Failure(Exception):
    """An error that the server reports to its client."""

    def __init__(
        self,
        code: int,
        message: str,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        reason = REASONS.get(code) if reason is None else reason
        self.body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({"details": dict(details)} if details is not None else {}),
            "code": code,
        }


def success(details: Mapping[str, Any] | None = None, code: int | None = None) -> dict[str, Any]:
    """The Status of a deletion or a binding."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        **({"details": dict(details)} if details else {}),
        **({"code": code} if code else {}),
    }


def bad_request(message: str) -> Failure:
    return Failure(400, message)


def not_found(plural: str, group: str, name: str) -> Failure:
    return Failure(404, f"{_qualified(plural, group)} {quoted(name)} not found", details=_details(plural, group, name))


def already_exists(plural: str, group: str, name: str) -> Failure:
    message = f"{_qualified(plural, group)} {quoted(name)} already exists"
    return Failure(409, message, "AlreadyExists", _details(plural, group, name))


def conflict(plural: str, group: str, name: str, why: str) -> Failure:
    message = f"Operation cannot be fulfilled on {_qualified(plural, group)} {quoted(name)}: {why}"
    return Failure(409, message, details=_details(plural, group, name))


def changed_meanwhile(plural: str, group: str, name: str) -> Failure:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(plural, group, name, why)


def forbidden(plural: str, group: str, name: str, why: str, causes: Sequence[Mapping[str, str]] = ()) -> Failure:
    message = f"{_qualified(plural, group)} {quoted(name)} is forbidden: {why}"
    more = {"causes": list(causes)} if causes else {}
    return Failure(403, message, details={**_details(plural, group, name), **more})


def invalid(kind: str, group: str, name: str, causes: Sequence[tuple[str, str, str]]) -> Failure:
    """`causes` are (reason, field, message), such as ("FieldValueRequired", "spec.containers", "Required value")."""
    described = list(dict.fromkeys(f"{field}: {message}" for _, field, message in causes))
    text = described[0] if len(described) == 1 else f"[{', '.join(described)}]"
    listed = [{"reason": reason, "message": message, "field": field} for reason, field, message in causes]
    qualified = f"{kind}.{group}" if group else kind
    details = {**_details(kind, group, name), "causes": listed}
    return Failure(422, f"{qualified} {quoted(name)} is invalid: {text}", details=details)


def expired(asked: int, oldest: int) -> Failure:
    return Failure(410, f"too old resource version: {asked} ({oldest})")


def expired_page() -> Failure:
    return Failure(
        410,
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    )


def too_large(asked: int, current: int) -> Failure:
    message = f"Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Failure(504, f"Timeout: {message}", details={"causes": [cause], "retryAfterSeconds": 1})


def quoted(name: str) -> str:
    return f'"{name}"'


def _qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _details(kind: str, group: str, name: str) -> dict[str, Any]:
    return {"name": name, **({"group": group} if group else {}), "kind": kind}
