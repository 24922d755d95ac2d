"""Change fields of an immutable record, whichever library made its class."""

from __future__ import annotations

import dataclasses

import msgspec


def replace(record, **changes):
    """Return a copy of a dataclass or a msgspec struct with some fields changed."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)
