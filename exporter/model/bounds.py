"""Bounds that hold for fields of records: for people to read, and for msgspec to refuse what breaks them.

Only what arrives from another process is checked against them (see ``exporter.driver.protocol``); a record that is
made here is not.
"""

from __future__ import annotations

import sys
from typing import Annotated

from msgspec import Meta

MAX_TEXT = 512  # characters: what a log line or a label can carry

Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]  # NaN fails both
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Uuid = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
_WORD = "[A-Za-z_][A-Za-z0-9_]{0,31}"
Word = Annotated[str, Meta(pattern=rf"\A{_WORD}\Z")]  # a reason: it becomes a label value
OptionalWord = Annotated[str, Meta(pattern=rf"\A(?:{_WORD})?\Z")]


def one_of(*words: str) -> Meta:
    """Return the bound of a text that is one of some words."""
    return Meta(pattern=rf"\A(?:{'|'.join(words)})\Z")
