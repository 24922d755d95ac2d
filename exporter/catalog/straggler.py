"""Metrics of stragglers: the GPU that the others of its group wait for."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.spec import GPU, GROUP, Sample, Unit
from exporter.model import Snapshot, Straggler


def _found(snapshot: Snapshot) -> Iterator[tuple[tuple[str, str], Straggler]]:
    labels = {card.facts.uuid: card.labels for card in snapshot.cards}
    for straggler in snapshot.stragglers.found:
        if straggler.uuid in labels:
            yield labels[straggler.uuid], straggler


def _stragglers(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, straggler in _found(snapshot):
        yield (*labels, straggler.replica, straggler.cause.value), 1.0


def _slowdowns(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, straggler in _found(snapshot):
        if straggler.slowdown is not None:
            yield (*labels, straggler.replica), straggler.slowdown


def _judged(snapshot: Snapshot) -> Iterator[Sample]:
    for replica, judged in snapshot.stragglers.judged.items():
        yield ("replica", replica), float(judged)


STRAGGLER = (
    GPU.gauge(
        "straggler",
        _stragglers,
        "1 on the GPU that the others of its group wait for, with the cause: power_brake, thermal, power_cap, "
        "clock_lock, other_tenant, pcie, nvlink, memory_pressure, unknown. Judged by work (SM, tensor and memory "
        "activity, clocks, links), not by utilisation, and only if it lasts. Absent without a straggler, and while "
        "gpu_straggler_judged is 0.",
        "replica",
        "cause",
    ),
    GPU.gauge(
        "straggler_slowdown",
        _slowdowns,
        "Time of the straggler for the same work over the median of the other GPUs of its group; a lower "
        "bound. Absent where it cannot be measured (GPUs without GPM, some causes).",
        "replica",
        unit=Unit.RATIO,
    ),
    GROUP.gauge(
        "straggler_judged",
        _judged,
        "1 while the GPUs of the replica can be compared, so that no gpu_straggler means no straggler; 0 while "
        "they idle, do not work in lockstep, or report too little. Absent for replicas without two GPUs in lockstep.",
    ),
)
