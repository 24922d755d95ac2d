"""Why a GPU of a group is slow, from what the driver reports of it compared with the others.

Nothing here makes a GPU a straggler: ``derive.straggler`` decides when these questions are asked, and in which order
the answers count.  Clocks are compared relative to the maximum where all GPUs report it, so that models may differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from exporter.derive.straggler_evidence import GpuEvidence
from exporter.model import Cause
from exporter.model.median import median

MORE_WORK = 1.15  # of another tenant, over the median of the group
MORE_BUSY = 1.20  # the same of busy cycles, which scatter more
LESS_WORK = 0.80  # of one kind: the GPU does different work, not more
LOWER_CLOCK = 0.97
AT_LIMIT = 0.98  # of the power limit
NEAR = 2.0  # degrees to the slowdown limit
LINK_COST = 1.05  # estimated time of a step over that with the others' link
LINK_YIELD = 0.8  # of a link's rate that transfers reach
NARROWER = 0.75  # of the others' PCIe capacity
# Bytes per second of one link in one direction: of NVLink 5, the fastest; on others the same traffic costs more.
NVLINK_RATE = 50e9
LINK_RECOVERIES = 1.0  # per second: each interrupts the link, and a group takes many steps a second
FULL, ROOM = 0.01, 0.08  # ratio of memory free
BEYOND = 4.0  # scaled median deviations
SCATTER = 1.4826  # of a median deviation to a standard deviation

_THERMAL_EVENTS = ("sw_thermal_slowdown", "hw_thermal_slowdown")
_REDUCING_EVENTS = (*_THERMAL_EVENTS, "sw_power_cap", "hw_slowdown", "hw_power_brake_slowdown")


class LinkCost(Struct, frozen=True, kw_only=True):
    """A link that the group waits for; ``slowdown``: the estimated time of a step over that with the others' link."""

    cause: Cause
    slowdown: float | None = None


def cause_of(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> Cause:
    """Return why a GPU with a measured slowdown is slow."""
    cause = reduced_clock(gpu, others)
    if cause is not None:
        return cause
    link = slow_link(gpu, others)
    if link is not None:
        return link.cause
    return Cause.MEMORY_PRESSURE if _memory_full(gpu, others) else Cause.UNKNOWN


# ── Clocks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def reduced_clock(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> Cause | None:
    """Return what reduces the GPU's clock below the others'; None if it is not lower, or the cause is not known."""
    clock, usual = clocks(gpu, others)
    lower = clock is not None and usual is not None and clock <= LOWER_CLOCK * usual
    if not lower and (clock is not None or not gpu.events):
        return None
    cause = _reported(gpu)
    if cause is not None or not lower or not gpu.events or gpu.events.get("gpu_idle"):
        return cause
    # A GPU at its limit is held by it, even if no reading has caught the event.
    return Cause.THERMAL if _near_slowdown(gpu) else Cause.POWER_CAP if _at_power_limit(gpu) else Cause.CLOCK_LOCK


def only_one_reduced(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> bool:
    """Return whether a clock event reduces this GPU's clock and none of the others'."""
    return _has_reducing_event(gpu) and not any(map(_has_reducing_event, others))


def _has_reducing_event(gpu: GpuEvidence) -> bool:
    return any(gpu.events.get(event) for event in _REDUCING_EVENTS)


def _reported(gpu: GpuEvidence) -> Cause | None:
    """Return the cause that the GPU's events name; without events, that of its limits."""
    events = gpu.events
    if events.get("hw_power_brake_slowdown"):
        return Cause.POWER_BRAKE
    if any(events.get(event) for event in _THERMAL_EVENTS) or (
        _near_slowdown(gpu) and (events.get("hw_slowdown") or not events)
    ):
        return Cause.THERMAL
    if events.get("sw_power_cap") or (_at_power_limit(gpu) and not events):
        return Cause.POWER_CAP
    return Cause.POWER_BRAKE if events.get("hw_slowdown") else None


def _near_slowdown(gpu: GpuEvidence) -> bool:
    return gpu.margin is not None and gpu.margin <= NEAR


def _at_power_limit(gpu: GpuEvidence) -> bool:
    return gpu.power_ratio is not None and gpu.power_ratio >= AT_LIMIT


def clocks(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> tuple[float | None, float | None]:
    """Return the GPU's clock and the others' median, relative to the maximum where all of them report it."""
    known = [other.clock for other in others if other.clock is not None]
    if gpu.clock is None or not known:
        return gpu.clock, None
    if gpu.clock_max is not None and all(other.clock_max is not None for other in others):
        ratios = [other.clock / other.clock_max for other in others if other.clock and other.clock_max]
        return gpu.clock / gpu.clock_max, median(ratios)
    return gpu.clock, median(known)


def relative_clocks(group: Sequence[GpuEvidence]) -> list[float]:
    """Return the clocks of GPUs that all have one, relative to the maximum where all of them report it."""
    if all(gpu.clock_max is not None for gpu in group):
        return [gpu.clock / gpu.clock_max for gpu in group if gpu.clock and gpu.clock_max]
    return [gpu.clock for gpu in group if gpu.clock]


# ── Other tenants ───────────────────────────────────────────────────────────────────────────────────────────────


def gpus_with_other_tenants(
    group: Sequence[GpuEvidence], works: Sequence[Sequence[float]], busy: Sequence[float] = ()
) -> list[GpuEvidence]:
    """Return the GPUs that do more work than their group and run a process that the others do not.

    ``works``: for each kind of work, that of each GPU; more of one kind is enough, but a GPU that does less of
    another does different work.  ``busy``: the busy cycles of each GPU relative to the maximum clock, empty where not
    known; they show work of a kind that is not measured.
    """
    found = []
    for place, gpu in enumerate(group):
        more = any(_does_more(kind, place, MORE_WORK) for kind in works) or (
            busy and _does_more(busy, place, MORE_BUSY)
        )
        if more and not any(_does_less(kind, place) for kind in works):
            others = [*group[:place], *group[place + 1 :]]
            if gpu.replicas > median([float(other.replicas) for other in others]) or _has_visitor(gpu, others):
                found.append(gpu)
    return found


def _does_more(work: Sequence[float], place: int, factor: float) -> bool:
    others = [*work[:place], *work[place + 1 :]]
    usual = median(others)
    return usual > 0.0 and work[place] >= factor * usual and stands_out(work[place], others)


def _does_less(work: Sequence[float], place: int) -> bool:
    return work[place] < LESS_WORK * median([*work[:place], *work[place + 1 :]])


def _has_visitor(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> bool:
    """Return whether more processes run on this GPU alone than is usual.

    One process may drive the whole group, or one each GPU; and workers open contexts on GPUs that are not theirs.
    The others are therefore compared among themselves, except where there is only one.
    """
    alone = len(_only_on(gpu, others))
    usual = [_only_on(other, [third for third in others if third is not other] or [gpu]) for other in others]
    return alone > median([float(len(processes)) for processes in usual])


def _only_on(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> frozenset[int]:
    return (gpu.processes or frozenset()).difference(*[other.processes or frozenset() for other in others])


# ── Links ───────────────────────────────────────────────────────────────────────────────────────────────────────


def slow_link(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> LinkCost | None:
    """Return the link of this GPU that the group certainly waits for, or None."""
    cost = _narrow_pcie(gpu, others)
    if cost >= LINK_COST:
        return LinkCost(cause=Cause.PCIE, slowdown=cost)
    if recovering_nvlink(gpu, others):
        return LinkCost(cause=Cause.NVLINK)
    return _fewer_nvlinks(gpu, others)


def recovering_nvlink(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> bool:
    """Return whether NVLinks of this GPU recover again and again, and those of the others do not."""
    recoveries = gpu.nvlink_recovery_rate or 0.0
    usual = median([other.nvlink_recovery_rate or 0.0 for other in others])
    return recoveries >= LINK_RECOVERIES and recoveries > 10.0 * usual


def _narrow_pcie(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> float:
    """Return the estimated cost of the GPU's PCIe link; 1 if it is as good as the others'."""
    capacities = [other.pcie_capacity for other in others if other.pcie_capacity is not None]
    if gpu.pcie_capacity is None or gpu.pcie_rate is None or not capacities:
        return 1.0
    usual = median(capacities)
    if gpu.pcie_capacity > NARROWER * usual:
        return 1.0
    return _cost(gpu, gpu.pcie_rate, gpu.pcie_capacity, usual)


def _fewer_nvlinks(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> LinkCost | None:
    """Return the cost of NVLinks that are down; without any link left, traffic takes a far slower path.

    A link that was not read is not down: then only those count that were read as inactive.
    """
    known = [float(other.nvlinks) for other in others if other.nvlinks is not None]
    usual = median(known) if known else 0.0
    active = usual - gpu.nvlinks_down if gpu.nvlinks is None else gpu.nvlinks
    if usual <= 0.0 or active >= usual:
        return None
    if active <= 0.0:
        return LinkCost(cause=Cause.NVLINK)
    rates = [other.nvlink_rate for other in (gpu, *others) if other.nvlink_rate is not None]
    cost = _cost(gpu, median(rates), active * NVLINK_RATE, usual * NVLINK_RATE) if rates else 1.0
    return LinkCost(cause=Cause.NVLINK, slowdown=cost) if cost >= LINK_COST else None


def _cost(gpu: GpuEvidence, rate: float, capacity: float, usual: float) -> float:
    """Return how much longer a step takes with ``capacity`` than with the others' ``usual`` one.

    Transfers at ``rate`` take the share s = rate / capacity of the time, and would take s x capacity / usual: the
    rest is lost.  Traffic and time are those of the steps: while no kernel is resident, nothing is transferred.
    """
    resident = max(gpu.resident or 1.0, 0.05)
    share = min(1.0, rate / (LINK_YIELD * capacity) / resident)
    return 1.0 / (1.0 - share * (1.0 - capacity / usual))


# ── Memory and statistics ───────────────────────────────────────────────────────────────────────────────────────


def _memory_full(gpu: GpuEvidence, others: Sequence[GpuEvidence]) -> bool:
    free = [other.memory_free for other in others if other.memory_free is not None]
    return gpu.memory_free is not None and gpu.memory_free <= FULL and bool(free) and median(free) >= ROOM


def stands_out(value: float, others: Sequence[float]) -> bool:
    """Return whether a value exceeds the median of the others by more than their scatter."""
    middle = median(others)
    return value - middle > BEYOND * SCATTER * median([abs(other - middle) for other in others])
