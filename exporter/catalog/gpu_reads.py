"""Readers for metrics of GPUs: one signal, several signals as one family, or whole readings.

A GPU without a fresh reading has no samples.  ``gauge`` and ``counter`` declare the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exporter.catalog.spec import Labels, ReadSamples, Sample
from exporter.model import CardReading, Signal, Snapshot

Which = Mapping[tuple[str, ...], Signal]  # label values → signal


def words(by_label: Which) -> str:
    """Return the values of the label, for a help text."""
    return ", ".join("/".join(values) for values in by_label)


def signal(which: Signal) -> ReadSamples:
    """Return a reader of one signal of each GPU."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for card in snapshot.cards:
            if card.reading is not None and which in card.reading.signals:
                yield card.labels, card.reading.signals[which]

    return read


def signals(by_label: Which) -> ReadSamples:
    """Return a reader of several signals as one family."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for card in snapshot.cards:
            if card.reading is not None:
                found = card.reading.signals
                for values, which in by_label.items():
                    if which in found:
                        yield (*card.labels, *values), found[which]

    return read


def readings(snapshot: Snapshot) -> Iterator[tuple[Labels, CardReading]]:
    """Return the labels and the reading of each GPU that has a fresh one."""
    for card in snapshot.cards:
        if card.reading is not None:
            yield card.labels, card.reading
