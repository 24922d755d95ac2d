"""The grammar of HTTP/1.1 heads (RFC 9112), for client and server.

Strict: two readers that disagree about where a message ends are a hole (request smuggling).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"

_FIELD = re.compile(rb"(" + TOKEN + rb"):([\t -~\x80-\xff]*)")

Fields = Mapping[str, list[str]]


class MalformedError(ValueError):
    """A field line that is not of the grammar; the message quotes nothing of it."""


def parse_fields(lines: Iterable[bytes]) -> dict[str, list[str]]:
    """Return the values by lower-case field name, in order, without blanks around them.

    ``lines``: without their ends.  Raises MalformedError, for a folded line too.
    """
    fields: dict[str, list[str]] = {}
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise MalformedError("a header line is not of the form Name: value")
        fields.setdefault(match[1].decode("ascii").lower(), []).append(match[2].decode("latin-1").strip(" \t"))
    return fields


def connection_options(fields: Fields) -> set[str]:
    """Return the lower-case words of all Connection fields."""
    return {option.strip(" \t").lower() for value in fields.get("connection", ()) for option in value.split(",")}
