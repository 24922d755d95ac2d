"""What the page says about the layer at which unevenness arises."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import MODEL, Metric, MetricKind, ReadSamples, Sample, Unit
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
    Metric(
        subject=MODEL,
        noun="imbalance_share",
        kind=MetricKind.GAUGE,
        unit=Unit.RATIO,
        labels=("signal", "layer"),
        help="Share of a signal's unevenness that lies at a layer: between replicas (the gateway makes it), between "
        "ranks of a replica (the engine's scheduler), between cards of a rank (hardware or workers). Shares of sums "
        "of squares, adding up to 1; a layer with nothing to compare is absent. Says where, not how much: see "
        "llm_imbalance_coefficient_of_variation.",
        read=_shares(full=False),
        read_full=_shares(full=True),
    ),
    Metric(
        subject=MODEL,
        noun="imbalance_coefficient_of_variation",
        kind=MetricKind.GAUGE,
        labels=("signal",),
        help="Standard deviation over mean of a signal between all cards of the model on this node (request load: "
        "between all ranks). A share of a small one is no trouble.",
        read=_variation(full=False),
        read_full=_variation(full=True),
    ),
)
