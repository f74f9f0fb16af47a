"""Log lines as key=value or as JSON, one event a line.

Rule: a line says when, how serious, what happened, and the values that belong to it. A value never breaks the line.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


def set_up(form: LogFormat, level: str = "info", stream: TextIO | None = None) -> None:
    """Write the log of the scheduler to stderr in this form."""
    output = logging.StreamHandler(stream or sys.stderr)
    output.setFormatter(_Json() if form is LogFormat.JSON else _Text())
    log = logging.getLogger("stead")
    log.handlers = [output]
    log.setLevel(level.upper())
    log.propagate = False


def _parts(record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    extra = {key: value for key, value in record.__dict__.items() if key not in _OWN}
    found = {"time": at, "level": record.levelname.lower(), "msg": record.getMessage(), **extra}
    if record.exc_info and record.exc_info[1] is not None:
        found["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    return found


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _parts(record).items())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_parts(record), default=str, ensure_ascii=False)


def _quoted(value: object) -> str:
    text = str(value)
    is_plain = text and text.isprintable() and not any(character in text for character in ' ="\\')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
