"""Metrics of the layer at which imbalance arises."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import MODEL, ReadSamples, Sample, Unit
from exporter.model import Quantity, Signal, Snapshot

# The signals that everybody asks for first; the others are in the full set of series.
_COMMON = frozenset(
    {
        Signal.UTILIZATION.value,
        Signal.MEMORY_USED.value,
        Signal.POWER.value,
        Quantity.REQUESTS_RUNNING.value,
        Quantity.REQUESTS_WAITING.value,
        "generation_token_rate",
    }
)


def _shares(*, full: bool) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for row in snapshot.variance_breakdowns:
            if full or row.signal in _COMMON:
                for layer, share in row.shares.items():
                    yield (row.model, row.signal, layer), share

    return read


def _variation(*, full: bool) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for row in snapshot.variance_breakdowns:
            if row.coefficient_of_variation is not None and (full or row.signal in _COMMON):
                yield (row.model, row.signal), row.coefficient_of_variation

    return read


VARIANCE = (
    MODEL.gauge(
        "imbalance_share",
        _shares(full=False),
        "Share of a signal's variance that arises at a layer: between replicas (caused by the gateway), between "
        "ranks of a replica (by the engine's scheduler), between GPUs of a rank (by hardware or workers). Shares of "
        "sums of squares, with sum 1; a layer with nothing to compare is absent. For the size of the imbalance see "
        "llm_imbalance_coefficient_of_variation.",
        "signal",
        "layer",
        unit=Unit.RATIO,
        read_full=_shares(full=True),
    ),
    MODEL.gauge(
        "imbalance_coefficient_of_variation",
        _variation(full=False),
        "Standard deviation over mean of a signal between all GPUs of the model on this node (request load: "
        "between all ranks). Shares of a small one do not matter.",
        "signal",
        read_full=_variation(full=True),
    ),
)
