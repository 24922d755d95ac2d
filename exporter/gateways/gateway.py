"""What a gateway is: a table of fields that says where our quantities stand on its pages.

A field says which number of a backend (or of a whole pool) it fills, under which names, newest first: the first name
on the page wins, so that a page with old and new names is not counted twice.  Several fields of one number add up.
Pages that are no Prometheus text are translated into it first, so that they need no second interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum

from msgspec import Struct

from exporter.model.outcome import OutcomeWords, RequestOutcome


class Measure(str, Enum):
    """A number of a backend or pool; the value is its name in ``BackendLoad``."""

    REQUESTS = "requests"
    ERRORS = "errors"
    ACTIVE = "active"
    QUEUED = "queued"
    RATE = "rate"
    UP = "up"
    STALE_ENDPOINTS = "stale_endpoints"
    POLL_ERRORS = "poll_errors"
    DECODE_ONLY = "decode_only"
    DISAGGREGATED = "disaggregated"


# Classes of HTTP status as proxies write them: 5xx, or 5.
STATUS_CLASS = OutcomeWords(otherwise=RequestOutcome.SUCCESS, status=True)


class _GatewayRow(Struct, frozen=True):
    """The positional arguments of a row; the others are named."""

    target: Measure
    names: tuple[str, ...]


class GatewayField(_GatewayRow, frozen=True, kw_only=True):
    """One row of a gateway's table.

    ``backend``, ``pool``: labels that name them, the first one that a series has; without ``backend`` the number is
    the pool's.  ``where`` keeps only some series, and ``outcomes`` those whose ``labels``, the first that is set,
    mean an error.  ``less`` is taken off: what this very scrape adds.  A backend is up when one of its numbers is
    one of ``up``.
    """

    backend: tuple[str, ...] = ()
    pool: tuple[str, ...] = ()
    where: Callable[[Mapping[str, str]], bool] | None = None
    labels: tuple[str, ...] = ()
    outcomes: OutcomeWords | None = None
    less: float = 0.0
    up: tuple[float, ...] = (1.0,)


class Gateway(Struct, frozen=True, kw_only=True):
    """A kind of gateway: how to recognise its page and what its names mean."""

    kind: str
    title: str  # as its makers write it
    marks: tuple[str, ...]  # beginnings of sample names that only this kind has
    fields: tuple[GatewayField, ...]
    started: tuple[str, ...] = ("process_start_time_seconds",)  # Unix time
    uptime: str = ""
    # A backend has no series of requests before its first one: if only other series name it, it has had none.
    counts_from_first: bool = False
    translate: Callable[[bytes], bytes | None] | None = None  # None from it: not this text
    hint: str = ""  # what to do when the page has no series of this gateway

    def wanted_names(self) -> frozenset[str]:
        """Return every sample name whose value is needed."""
        return frozenset({*self.started, self.uptime, *(n for row in self.fields for n in row.names)} - {""})

    def to_exposition(self, body: bytes) -> bytes:
        """Return the page as exposition text: translated if it is another text of this kind, else as it is."""
        return (self.translate(body) if self.translate is not None else None) or body

    def matches(self, body: bytes) -> bool:
        """Return whether a sample of this kind is on the page; comments and label values do not count."""
        names = b"|".join(re.escape(mark.encode()) for mark in self.marks)
        return re.search(rb"^(?:" + names + rb")[a-zA-Z0-9_:]*[{ ]", body, re.MULTILINE) is not None
