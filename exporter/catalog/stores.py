"""Metrics of KV-cache stores: LMCache, Mooncake."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import STORE, ReadSamples, Sample, Unit
from exporter.model import Snapshot
from exporter.model.store import StoreQuantity


def _up(snapshot: Snapshot) -> Iterator[Sample]:
    for store in snapshot.stores:
        yield store.labels, float(store.reading is not None)


def _total(quantity: StoreQuantity) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for labels, number in _by_word(quantity)(snapshot):
            yield labels[:-1], number

    return read


def _by_word(quantity: StoreQuantity) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for store in snapshot.stores:
            words = store.reading.quantities.get(quantity, {}) if store.reading is not None else {}
            for word, number in words.items():
                yield (*store.labels, word), number

    return read


def _hit_ratio(snapshot: Snapshot) -> Iterator[Sample]:
    for store in snapshot.stores:
        for window, ratio in store.hit_ratio.items():
            yield (*store.labels, window), ratio


def _usage(snapshot: Snapshot) -> Iterator[Sample]:
    for store in snapshot.stores:
        for tier, ratio in store.usage.items():
            yield (*store.labels, tier), ratio


STORE_METRICS = (
    STORE.gauge(
        "up",
        _up,
        "1 while the store's metrics are read successfully, else 0.",
    ),
    STORE.counter(
        "queries",
        _total(StoreQuantity.QUERIES),
        "What engines looked up in the store: tokens with LMCache, objects with Mooncake.",
    ),
    STORE.counter("hits", _total(StoreQuantity.HITS), "What of it was found, in the same unit."),
    STORE.counter(
        "tier_hits",
        _by_word(StoreQuantity.TIER_HITS),
        "Hits by the tier that had them; one that several tiers have may count in each.",
        "tier",
    ),
    STORE.gauge(
        "hit",
        _hit_ratio,
        "Hits over queries during the window; absent without queries.",
        "window",
        unit=Unit.RATIO,
    ),
    STORE.gauge("used", _by_word(StoreQuantity.USED), "Bytes that the store holds.", "tier", unit=Unit.BYTES),
    STORE.gauge("capacity", _by_word(StoreQuantity.CAPACITY), "Bytes that it can hold.", "tier", unit=Unit.BYTES),
    STORE.gauge(
        "usage",
        _usage,
        "Usage of the store; a full one evicts, which is normal while hits stay high.",
        "tier",
        unit=Unit.RATIO,
    ),
    STORE.counter("evictions", _total(StoreQuantity.EVICTIONS), "Objects that were evicted to make room."),
    STORE.counter(
        "errors",
        _by_word(StoreQuantity.ERRORS),
        "Operations of the store that failed; a lookup that finds nothing is a miss and no error.",
        "operation",
    ),
)
