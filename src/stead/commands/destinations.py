"""Which cluster or service a command uses, and which token it sends there.

Rule: a token belongs to an address. A context's token goes to the scheme, host and port of that context; STEAD_TOKEN
goes to STEAD_ADDRESS or, if that is not a service, to the address on the command line; the token of this machine's own
service goes to this machine. Ray's token goes only to Ray. To any other address, no token is sent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from stead.commands.saved_services import SavedService, SavedServices, could_be_name
from stead.errors import Invalid, did_you_mean
from stead.operate.origins import Origin, origin_of

ADDRESS = "STEAD_ADDRESS"
TOKEN = "STEAD_TOKEN"


@dataclass(frozen=True, slots=True)
class Destination:
    """A service or a Ray cluster; without an address, the Ray cluster that Ray itself finds."""

    address: str | None
    saved: SavedService | None = None  # the named or default context
    on_command_line: bool = False

    @property
    def is_service(self) -> bool:
        return self.address is not None and is_service(self.address)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The token for a service, and how the service is trusted; see `SavedService`."""

    token: str = field(default="", repr=False)
    ca: str = ""
    insecure: bool = False


def is_service(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def destination(address: str | None) -> Destination:
    """The address on the command line, else STEAD_ADDRESS, else the default context, else what Ray finds."""
    if address:
        return named(address, on_command_line=True)
    if variable := os.environ.get(ADDRESS):
        return named(variable)
    default = SavedServices().default()
    return Destination(default.address, default) if default else Destination(None)


def named(address: str, on_command_line: bool = False) -> Destination:
    """An address, or the name of a context."""
    if not could_be_name(address):
        return Destination(address, None, on_command_line)
    services = SavedServices()
    saved = services.find(address)
    if saved is None:
        names = [service.name for service in services.all()]
        known = f"a context ({', '.join(names)})" if names else "a context (none is saved)"
        good = f"{known}, HOST:PORT of a Ray cluster, or http://HOST:PORT of a service"
        raise Invalid(f"address {address!r} is unknown{did_you_mean(address, names)}; it can be {good}")
    return Destination(saved.address, saved, on_command_line)


def credentials(to: Destination) -> Credentials:
    """The credentials for a service. A named context has its own token; for a plain address, STEAD_TOKEN comes
    first."""
    assert to.address is not None
    origin = origin_of(to.address)
    known = to.saved or SavedServices().at(to.address)
    token = to.saved.token if to.saved else ""
    token = token or _variable_token(origin, to.on_command_line)
    token = token or (known.token if known else "")
    token = token or _operator_token(origin)
    return Credentials(token, known.ca, known.insecure) if known else Credentials(token)


def _variable_token(origin: Origin, on_command_line: bool) -> str:
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        return ""
    address = os.environ.get(ADDRESS, "")
    if could_be_name(address) and (saved := SavedServices().find(address)):
        address = saved.address
    belongs = origin_of(address) == origin if is_service(address) else on_command_line
    return token if belongs else ""


def _operator_token(origin: Origin) -> str:
    """The token that this user's service on this machine created, if any."""
    if not origin.is_loopback:
        return ""
    from stead.service.keys import Keys

    return Keys().known_operator_token()
