"""Structured log lines: one constant event name, fields beside it, rendered as logfmt or as JSON.

Both renderings hold the same keys, one per field, so that ``| logfmt`` and ``| json`` in Loki, or jq, read them
alike.  An exception becomes the fields ``error`` and ``traceback``: a line is a record, whatever happened.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import sys
import time
from collections.abc import Mapping

Field = str | int | float | bool | None

_MAX_TRACEBACK = 8192  # characters; the end of one says what happened
_BARE = re.compile(r"[!#-<>-~]+")  # printable ASCII without space, quote and equals sign


class LogEvent:
    """The message of a log record: its name, a sentence for people, and its fields.  ``str`` is its logfmt text."""

    __slots__ = ("fields",)

    def __init__(self, name: str, msg: str, fields: Mapping[str, Field]) -> None:
        """Fields that are None are left out."""
        known = {key: value for key, value in fields.items() if value is not None}
        self.fields: dict[str, Field] = {"event": name, **known, **({"msg": msg} if msg else {})}

    def __str__(self) -> str:
        """Return the fields as logfmt."""
        return logfmt(self.fields)


def log_event(logger: logging.Logger, level: int, event: str, msg: str = "", /, **fields: Field) -> None:
    """Log an event; ``event`` is a constant word to query by, ``msg`` a sentence that adds what the word lacks."""
    if logger.isEnabledFor(level):
        logger.log(level, LogEvent(event, msg, fields), stacklevel=2)


def log_exception(logger: logging.Logger, event: str, msg: str = "", /, **fields: Field) -> None:
    """Log an event as an error, with the exception that is being handled.

    No descriptors left is a limit of this process, not a mistake of the program: no traceback, and how to raise it.
    """
    error = sys.exc_info()[1]
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        hint = "raise the limit of open files (ulimit -n, LimitNOFILE)"
        fields |= {"reason": "descriptor_limit", "error": error.strerror, "hint": hint}
        logger.error(LogEvent(event, msg, fields), stacklevel=2)
        return
    logger.error(LogEvent(event, msg, fields), exc_info=True, stacklevel=2)  # noqa: LOG014 - callers handle one


def log_up(logger: logging.Logger, source: str, /, **fields: Field) -> None:
    """Log that a source is read again, or for the first time."""
    log_event(logger, logging.INFO, "state_changed", source=source, state="up", **fields)


def log_down(logger: logging.Logger, source: str, reason: str, error: str = "", /, **fields: Field) -> None:
    """Log that a source cannot be read; ``reason`` is the closed word of its health, ``error`` the details."""
    known: dict[str, Field] = {"source": source, "state": "down", "reason": reason, **fields, "error": error or None}
    log_event(logger, logging.WARNING, "state_changed", **known)


def logfmt(fields: Mapping[str, Field]) -> str:
    """Return ``key=value`` pairs with one space between them, each value quoted where a parser needs it."""
    return " ".join(f"{key}={_logfmt_value(value)}" for key, value in fields.items())


def _logfmt_value(value: Field) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if _BARE.fullmatch(text):
        return text
    # What is not printable is escaped, so that no name breaks a line or a terminal.
    return json.dumps(text, ensure_ascii=not text.isprintable())


class _Formatter(logging.Formatter):
    """Collect the fields of a record; times are UTC, so that the lines of a fleet can be compared."""

    def fields(self, record: logging.LogRecord) -> dict[str, Field]:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Field] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        event = record.msg
        fields.update(event.fields if isinstance(event, LogEvent) else {"msg": record.getMessage()})
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, _ = record.exc_info
            fields["error"] = f"{kind.__name__}: {error}"
            fields["traceback"] = self.formatException(record.exc_info)[-_MAX_TRACEBACK:]
        return fields


class LogfmtFormatter(_Formatter):
    """One line of ``key=value`` pairs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as logfmt."""
        return logfmt(self.fields(record))


class JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON; numbers stay numbers."""
        fields = self.fields(record)
        text = json.dumps(fields, ensure_ascii=False)
        return text if text.isprintable() else json.dumps(fields)


def formatter(name: str) -> logging.Formatter:
    """Return the formatter for a value of the setting ``log.format``: ``logfmt`` or ``json``."""
    return JsonFormatter() if name == "json" else LogfmtFormatter()
