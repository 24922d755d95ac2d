"""Metrics of the imbalance between the GPUs of a group."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.gpu_reads import gauge
from exporter.catalog.spec import GROUP, Metric, MetricKind, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import Signal, Snapshot, Spread


def _spread(attribute: str, signal: Signal | None = None) -> ReadSamples:
    """Return a reader of one figure of imbalance: of one signal, or of all with the signal as last label."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for group in snapshot.imbalance:
            chosen = group.spreads if signal is None else {s: v for s, v in group.spreads.items() if s is signal}
            for which, spread in chosen.items():
                value: float | None = getattr(spread, attribute)
                if value is not None:
                    name = (which.value,) if signal is None else ()
                    yield (group.scope, group.group, *name), value

    assert attribute in Spread.__struct_fields__  # a misspelt one would silently read nothing
    return read


def _deviation(snapshot: Snapshot) -> Iterator[Sample]:
    labels = {card.facts.uuid: card.labels for card in snapshot.cards}
    for group in snapshot.imbalance:
        if group.scope == "replica":
            for signal, by_card in group.deviations.items():
                for uuid, value in by_card.items():
                    yield (*labels[uuid], group.group, signal.value), value


IMBALANCE = (
    Metric(
        subject=GROUP,
        noun="utilization_stddev",
        kind=MetricKind.GAUGE,
        unit=Unit.RATIO,
        help="Population standard deviation of utilisation within the group; scope node pools the groups, each "
        "around its own mean. At most 0.5.",
        read=_spread("stddev", Signal.UTILIZATION),
    ),
    Metric(
        subject=GROUP,
        noun="utilization_spread",
        kind=MetricKind.GAUGE,
        unit=Unit.RATIO,
        help="Maximum minus minimum utilisation within the group; scope node has the largest of all groups.",
        read=_spread("spread", Signal.UTILIZATION),
    ),
    Metric(
        subject=GROUP,
        noun="imbalance_coefficient_of_variation",
        kind=MetricKind.GAUGE,
        labels=("signal",),
        help="Standard deviation over mean of a signal; scope node compares each GPU with its own group's mean.",
        series=SeriesSet.FULL,
        read=_spread("coefficient_of_variation"),
    ),
    Metric(
        subject=GROUP,
        noun="imbalance_max_to_mean",
        kind=MetricKind.GAUGE,
        unit=Unit.RATIO,
        labels=("signal",),
        help="Maximum over mean of a signal within the group: 1 is balanced; scope node has the largest of them.",
        read=_spread("max_to_mean"),
    ),
    gauge(
        "group_deviation",
        Unit.RATIO,
        _deviation,
        "Relative deviation of the GPU's signal from its group's median: -0.2 is a fifth below.",
        "group",
        "signal",
        series=SeriesSet.FULL,
    ),
)
