"""Stores of KV caches beside the engines: what their metrics report, and what is derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from exporter.model.source import EMPTY, SourceStatus


class StoreQuantity(str, Enum):
    """A number of a store, by a word: a tier of memory, or a kind of error; "" where there is none."""

    QUERIES = "queries"  # counter: lookups, in tokens or objects as the store counts them
    HITS = "hits"  # counter, in the unit of the queries
    TIER_HITS = "tier_hits"  # tier → counter
    EVICTIONS = "evictions"  # counter: objects
    ERRORS = "errors"  # kind → counter
    USED = "used"  # tier → bytes
    CAPACITY = "capacity"  # tier → bytes
    USAGE = "usage"  # tier → ratio, of stores that tell no capacity


class StoreReading(Struct, frozen=True, kw_only=True):
    """One parsed page of a store, free of upstream names."""

    at: float
    kind: str
    quantities: Mapping[StoreQuantity, Mapping[str, float]]
    complete: bool = True
    parse_warnings: Mapping[str, int] = EMPTY


class StoreLabels(NamedTuple):
    """The labels of every series about a store; ``kind`` is "" until a page was recognised."""

    store: str
    kind: str


class StoreState(Struct, frozen=True, kw_only=True):
    """A store in a snapshot.  ``hit_ratio``: window → hits over queries; without a window in which none was made."""

    name: str
    labels: StoreLabels
    status: SourceStatus
    reading: StoreReading | None
    last_read_at: float | None
    hit_ratio: Mapping[str, float] = EMPTY
    usage: Mapping[str, float] = EMPTY  # tier → ratio
