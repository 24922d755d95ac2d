"""What a KV-cache store is: a table of fields that says where our quantities stand on its pages.

A store keeps KV caches for engines, in a process of its own or in theirs.  It serves no requests: it is no replica
and has no verdict.
"""

from __future__ import annotations

import re

from msgspec import Struct

from exporter.model.store import StoreQuantity


class _StoreRow(Struct, frozen=True):
    """The positional arguments of a row; the others are named."""

    quantity: StoreQuantity
    names: tuple[str, ...]


class StoreField(_StoreRow, frozen=True, kw_only=True):
    """One row of a store's table: the first of ``names`` that is on the page counts, all its series added up.

    ``word``: the tier or the kind of error; where series carry the label ``label``, its value instead.
    """

    word: str = ""
    label: str = ""


class Store(Struct, frozen=True, kw_only=True):
    """A kind of store: how to recognise its page and what its names mean."""

    kind: str
    title: str  # as its makers write it
    marks: tuple[str, ...]  # beginnings of sample names that only this kind has
    fields: tuple[StoreField, ...]
    counts: str  # what a query is
    hint: str  # where its metrics are
    absent: str = ""  # what it never tells

    def wanted_names(self) -> frozenset[str]:
        """Return every sample name whose value is needed."""
        return frozenset(name for row in self.fields for name in row.names)

    def matches(self, body: bytes) -> bool:
        """Return whether a sample of this kind is on the page; comments and label values do not count."""
        names = b"|".join(re.escape(mark.encode()) for mark in self.marks)
        return re.search(rb"^(?:" + names + rb")[a-zA-Z0-9_:]*[{ ]", body, re.MULTILINE) is not None
