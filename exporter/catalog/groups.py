"""Metrics of the imbalance between the GPUs of a group."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import GPU, GROUP, ReadSamples, Sample, SeriesSet, Unit
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
    GROUP.gauge(
        "utilization_stddev",
        _spread("stddev", Signal.UTILIZATION),
        "Population standard deviation of utilisation within the group; scope node pools the groups, each "
        "around its own mean. At most 0.5.",
        unit=Unit.RATIO,
    ),
    GROUP.gauge(
        "utilization_spread",
        _spread("spread", Signal.UTILIZATION),
        "Maximum minus minimum utilisation within the group; scope node has the largest of all groups.",
        unit=Unit.RATIO,
    ),
    GROUP.gauge(
        "imbalance_coefficient_of_variation",
        _spread("coefficient_of_variation"),
        "Standard deviation over mean of a signal; scope node compares each GPU with its own group's mean.",
        "signal",
        series=SeriesSet.FULL,
    ),
    GROUP.gauge(
        "imbalance_max_to_mean",
        _spread("max_to_mean"),
        "Maximum over mean of a signal within the group: 1 is balanced; scope node has the largest of them.",
        "signal",
        unit=Unit.RATIO,
    ),
    GPU.gauge(
        "group_deviation",
        _deviation,
        "Relative deviation of the GPU's signal from its group's median: -0.2 is a fifth below.",
        "group",
        "signal",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
)
