"""Which GPU of a group the others wait for in one cycle, and why: judged by work, never by utilisation.

The GPUs of a group take every step together: each does the same work, then all meet in a collective.  A GPU that
arrives early waits in a kernel, so the driver reports 100 % utilisation on all of them, and the time of a step is the
same for all.  What differs is how long each GPU works for the same work.

No GPU is a straggler without a measured slowdown, or a cause that makes one certain.

**Measured (GPUs with GPM, Hopper and newer).**  Work per second is the memory bandwidth used (DRAM_ACTIVE) and the
tensor cycles (TENSOR_ACTIVE x SM clock); the time spent on it is the ratio of time in which the SMs are busy
(SM_ACTIVE).

- Lockstep: work per second is the same on all GPUs, within ``SAME_WORK``.  A group in which most GPUs do not agree
  is not judged: the work is distributed unevenly (a scheduler's skew over ranks, a hot expert), or stages of a
  pipeline do different work, and no GPU causes that.
- The slowness of a GPU in lockstep is its busy time per unit of work, over the median of the others'.  The straggler
  is busy longer for the same work; the GPUs that wait are busy less.  Waiting keeps some SMs busy, so the slowness is
  a lower bound of the time lost; a GPU that is resident longer than the others is corrected for that (``SPINNING``).
- A GPU is a suspect from ``SLOW`` on (in pairs, where nothing shows how far GPUs scatter: ``SLOW_PAIR``) if it stands
  out from the scatter of the others, and is the slowest or close to it.  Without a visible cause it takes
  ``SLOW_UNEXPLAINED`` and three GPUs; the cause is then "unknown".
- A GPU that does more work than its group, and runs a process that the others do not, has another tenant.

**By clocks (GPUs without GPM).**  Part of every step is bound by the SM clock, so a GPU whose clock is
``SLOW_CLOCK`` below the others', beyond their scatter, certainly delays them.  A clock event, or the absence of
one, gives the cause.  In a pair it takes ``SLOW_CLOCK_PAIR``, unless an event reduces the clock of one GPU only.
That the group works in lockstep is seen from utilisation, which can only exonerate.  The time lost is not known, so
there is no slowdown.  Another tenant shows only where it makes the GPU's memory busier than the others'.

**By links**, which all GPUs wait for alike, the straggler too; only if no GPU is measured to be slow:

- ``pcie``: a link with fewer lanes or of a lower generation than the others', with so much traffic that the
  difference certainly costs ``LINK_COST`` of a step.  The estimate is the slowdown.  A group that communicates over
  PCIe alike has no straggler.  Where the driver's byte counters are too narrow for the link, and the GPU measures
  no rates itself, this is not known.
- ``nvlink``: links that recover again and again on this GPU only, no active link left, or so few that the traffic
  costs ``LINK_COST``.  Recoveries count also while the group is resident and does next to no work.  A link whose
  state was not read does not count as down.

The cause of a GPU with a measured slowdown is the first that holds: another tenant; if its clock is below the
others', power brake, thermal, power cap, and clocks set by somebody; then its links, full memory, and unknown.
Neither an event nor full memory alone makes a straggler: busy GPUs reach their power limit, a group may be capped
or hot alike, and full memory slows nothing until an allocation fails.

Limits.  If most of a group is slow, the rest looks fast and there is no straggler.  A host that feeds one worker too
slowly (its CPU, its disk) does not show on GPUs.  Kernels that occupy every SM while they wait hide the difference.
Lockstep over several ranks (experts distributed over data-parallel ranks) is not seen where ranks are known.  In a
pair, a second process on one GPU and a skewed scheduler look alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from exporter.derive.straggler_cause import (
    cause_of,
    gpus_with_other_tenants,
    only_one_reduced,
    recovering_nvlink,
    reduced_clock,
    relative_clocks,
    slow_link,
    stands_out,
)
from exporter.derive.straggler_evidence import GpuEvidence
from exporter.model import EMPTY, Cause
from exporter.model.median import median

SLOW = 1.06
SLOW_PAIR = 1.10
SLOW_UNEXPLAINED = 1.20
SLOW_CLOCK = 1.08
SLOW_CLOCK_PAIR = 1.20
SLOWEST = 0.97  # of the slowness of the slowest GPU: waited for alike
SAME_WORK = 0.20  # of the median
SAME_RESIDENCE = 0.15  # of the time
SPINNING = 0.25  # of the SMs that waiting keeps busy, at most

# Below these a group does too little to be judged.
WORKING, MOVING = 0.10, 0.02  # maximum of SM_ACTIVE; median of DRAM_ACTIVE, or of tensor cycles
RESIDENT = 0.30  # utilisation, without GPM


class Suspicion(Struct, frozen=True, kw_only=True):
    """Why the group waits for a GPU in this cycle."""

    cause: Cause
    slowdown: float | None = None


class Judgement(Struct, frozen=True, kw_only=True):
    """One group in one cycle.  ``judged`` is False if it does not work in lockstep, or reports too little."""

    judged: bool = False
    suspects: Mapping[str, Suspicion] = EMPTY  # by uuid


def judge(group: Sequence[GpuEvidence]) -> Judgement:
    """Evaluate the GPUs that work in lockstep; at least two of them, in any order."""
    if len(group) < 2:
        return Judgement()
    measured = [gpu for gpu in group if gpu.busy is not None and (gpu.dram, _tensor_cycles(gpu)) != (None, None)]
    enough = len(measured) >= 2 and 2 * len(measured) > len(group)
    found = _by_work(measured) if enough else _by_clock(group)
    if found is None:
        stalled = _by_recoveries(group)
        return Judgement(judged=bool(stalled), suspects=stalled)
    return Judgement(judged=True, suspects=found or _by_links(group))


# ── By work ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _by_work(group: Sequence[GpuEvidence]) -> Mapping[str, Suspicion] | None:
    """Return the GPUs that need longer for the same work; None if the group cannot be judged."""
    if max(gpu.busy or 0.0 for gpu in group) < WORKING:
        return None
    kinds = [
        [gpu.dram for gpu in group],
        [_tensor_cycles(gpu) for gpu in group],
    ]
    works = [[value for value in kind if value is not None] for kind in kinds if None not in kind]
    works = [work for work in works if median(work) >= MOVING]
    if not works:
        return None
    in_step = [all(_is_same_work(work, place) for work in works) for place in range(len(group))]
    visited = gpus_with_other_tenants(group, works, _busy_cycles(group))
    if 2 * sum(in_step) <= len(group) and not visited:
        return None
    suspects = {gpu.uuid: Suspicion(cause=Cause.OTHER_TENANT) for gpu in visited}
    steady = [place for place in range(len(group)) if in_step[place] and group[place].uuid not in suspects]
    return suspects | _slow([group[place] for place in steady], [works[0][place] for place in steady])


def _is_same_work(work: Sequence[float], place: int) -> bool:
    """Return whether a GPU does the same work as its group; the median of two is halfway between them."""
    middle = median(work)
    return abs(work[place] - middle) <= (SAME_WORK if len(work) > 2 else SAME_WORK / 2) * middle


def _tensor_cycles(gpu: GpuEvidence) -> float | None:
    """Return the tensor work per second, relative to that at the maximum clock."""
    if gpu.tensor is None or gpu.clock is None or gpu.clock_max is None:
        return None
    return gpu.tensor * gpu.clock / gpu.clock_max


def _busy_cycles(group: Sequence[GpuEvidence]) -> Sequence[float]:
    """Return the cycles in which SMs work, relative to the maximum clock; empty if a clock is not known."""
    clocks = [gpu.clock / gpu.clock_max for gpu in group if gpu.clock is not None and gpu.clock_max is not None]
    if len(clocks) < len(group):
        return ()
    return [busy * clock for busy, clock in zip(_working_time(group), clocks, strict=True)]


def _working_time(group: Sequence[GpuEvidence]) -> list[float]:
    """Return the ratio of time in which SMs work, less what a longer wait than the others' keeps busy."""
    known = [gpu.resident for gpu in group if gpu.resident is not None]
    usual = median(known) if known else 1.0
    spinning = [SPINNING * max(0.0, (gpu.resident or 0.0) - usual) for gpu in group]
    return [max(0.0, (gpu.busy or 0.0) - spun) for gpu, spun in zip(group, spinning, strict=True)]


def _slow(group: Sequence[GpuEvidence], work: Sequence[float]) -> dict[str, Suspicion]:
    """Compare the busy time per unit of work."""
    if len(group) < 2:
        return {}
    slowness = _slowness([busy / done for busy, done in zip(_working_time(group), work, strict=True)])
    slowest = max(slowness)
    found = {}
    for place, ratio in enumerate(slowness):
        if ratio >= (SLOW if len(group) > 2 else SLOW_PAIR) and ratio >= SLOWEST * slowest:
            cause = cause_of(group[place], [*group[:place], *group[place + 1 :]])
            if cause is not Cause.UNKNOWN or (ratio >= SLOW_UNEXPLAINED and len(group) > 2):
                found[group[place].uuid] = Suspicion(cause=cause, slowdown=ratio)
    return found


def _slowness(costs: Sequence[float]) -> list[float]:
    """Return each cost over the median of the others; 1 for one that does not stand out."""
    slowness = []
    for place, cost in enumerate(costs):
        others = [*costs[:place], *costs[place + 1 :]]
        middle = median(others)
        slowness.append(cost / middle if middle > 0.0 and stands_out(cost, others) else 1.0)
    return slowness


# ── By clocks ───────────────────────────────────────────────────────────────────────────────────────────────────


def _by_clock(group: Sequence[GpuEvidence]) -> Mapping[str, Suspicion] | None:
    """Return the GPUs with a lower clock; None if the group cannot be judged."""
    known = [gpu for gpu in group if gpu.clock is not None and gpu.resident is not None]
    if len(known) < 2 or 2 * len(known) <= len(group):
        return None
    usual = median([gpu.resident or 0.0 for gpu in known])
    steady = [gpu for gpu in known if abs((gpu.resident or 0.0) - usual) <= SAME_RESIDENCE]
    if usual < RESIDENT or 2 * len(steady) <= len(known):
        return None
    activity = [gpu.memory_activity for gpu in steady]
    visited = (
        gpus_with_other_tenants(steady, [[value for value in activity if value is not None]])
        if None not in activity
        else []
    )
    if visited:
        return {gpu.uuid: Suspicion(cause=Cause.OTHER_TENANT) for gpu in visited}
    ratios = _slowness([1.0 / clock for clock in relative_clocks(steady)])
    slowest = max(ratios, default=0.0)
    found = {}
    for place, (gpu, ratio) in enumerate(zip(steady, ratios, strict=True)):
        others = [*steady[:place], *steady[place + 1 :]]
        compared = len(steady) > 2 or only_one_reduced(gpu, others)
        if ratio >= max(SLOW_CLOCK if compared else SLOW_CLOCK_PAIR, SLOWEST * slowest):
            cause = reduced_clock(gpu, others)
            if cause is not None:
                found[gpu.uuid] = Suspicion(cause=cause)
    return found


# ── By links ────────────────────────────────────────────────────────────────────────────────────────────────────


def _by_links(group: Sequence[GpuEvidence]) -> Mapping[str, Suspicion]:
    """Return the GPUs with a link that a working group certainly waits for."""
    first = group[0]
    if all(
        gpu.pcie_capacity == first.pcie_capacity and gpu.nvlinks == first.nvlinks and not gpu.nvlink_recovery_rate
        for gpu in group
    ):
        return EMPTY  # nearly always: nothing to compare
    found = {}
    for place, gpu in enumerate(group):
        link = slow_link(gpu, [*group[:place], *group[place + 1 :]])
        if link is not None:
            found[gpu.uuid] = Suspicion(cause=link.cause, slowdown=link.slowdown)
    return found


def _by_recoveries(group: Sequence[GpuEvidence]) -> Mapping[str, Suspicion]:
    """Return the GPUs whose recovering links a group waits for that is resident and does next to no work."""
    if not any(gpu.nvlink_recovery_rate for gpu in group):
        return EMPTY
    if median([gpu.resident or 0.0 for gpu in group]) < RESIDENT:
        return EMPTY
    return {
        gpu.uuid: Suspicion(cause=Cause.NVLINK)
        for place, gpu in enumerate(group)
        if recovering_nvlink(gpu, [*group[:place], *group[place + 1 :]])
    }
