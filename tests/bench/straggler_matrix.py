"""Accuracy of straggler detection: precision and recall over scenarios, loads, group sizes, with and without GPM.

    python -m tests.bench.straggler_matrix [--cycles 300] [--processes 2] [--write docs/straggler-accuracy.md]

Every cell is a simulated node whose GPUs are read through the real reader, a cycle a second, with measurement noise.
The fault begins after a fifth of the cycles and ends after four fifths.  The truth is the simulator's own: by how
much a GPU prolongs the steps of its group at that instant.

A claim names a GPU, its replica and a cause.  It is true if the GPU prolongs the steps by ``MATTERS`` or more for
that cause; it is required as well after ``SETTLE`` cycles.  Between ``HARMLESS`` and ``MATTERS``, and for ``SETTLE``
cycles after a change, a claim of the right GPU and cause is neither true nor false.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import pathlib
import random
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import initialise, open_card
from exporter.model import CardReading, CardState, Cause, GpuAssignment, GpuLabels, Signal, SourceStatus
from exporter.runtime.stragglers import StragglerTracker
from exporter.simulate.degradation import step_slowdown
from exporter.simulate.gpu import POWER_CAP, SW_THERMAL
from exporter.simulate.products import H100, H100_PCIE, LLAMA_70B, LLAMA_70B_EIGHT, QWEN_32B
from exporter.simulate.records import Fault, GpuProduct, ReplicaSpec, Scenario, Traffic
from exporter.simulate.world import LINK_TROUBLE, World
from tests.support.builders import Clock
from tests.support.records import replace
from tests.support.simulated_driver import simulated_driver

MATTERS, HARMLESS = 1.10, 1.03  # true slowdown of the group's steps
BUSY = 0.2  # ratio of time with work in which a straggler is required to be found
SETTLE = 15  # cycles
NOISE = 0.02  # standard deviation of measured work, relative
PRECISION, RECALL = 0.99, 0.95
GPUS = 8
SIZES = (2, 4, 8)
FAULTY = 1  # index of the GPU with the fault

GPM = frozenset({Signal.SM_ACTIVE, Signal.SM_OCCUPANCY, Signal.TENSOR_ACTIVE, Signal.DRAM_ACTIVE})
NOISY = (*GPM, Signal.UTILIZATION, Signal.MEMORY_ACTIVITY)
MODELS = {2: QWEN_32B, 4: LLAMA_70B, 8: LLAMA_70B_EIGHT}
STEP_SCALES = {2: 1.5, 4: 1.5, 8: 3.6}  # over PCIe


class Load(NamedTuple):
    """What clients ask: requests a second of a group on NVLink, and their lengths in tokens."""

    name: str
    rate: float
    prompt: int = 900
    output: int = 260

    def traffic(self, product: GpuProduct) -> Traffic:
        rate = self.rate if product.nvlinks else 0.4 * self.rate
        return Traffic(rate=rate, prompt=self.prompt, output=self.output)


LOADS = (
    Load("idle", 1e-6),
    Load("light", 0.15),
    Load("steady", 2.0),
    Load("saturated", 8.0),
    Load("long prompts", 0.8, prompt=6000, output=40),
    Load("long answers", 1.0, prompt=100, output=1200),
)


@dataclass(frozen=True)
class Case:
    """One scenario.  ``cause`` is what must be found while the fault matters; None: nothing must be found."""

    name: str
    kind: str = ""
    strength: float = 1.0
    cause: Cause | None = None
    whole_group: bool = False
    product: GpuProduct = H100
    busy_ratio: tuple[float, ...] = (1.0,) * GPUS
    with_gpm_only: bool = False  # without GPM nothing shows the fault; see the page

    def faults(self, size: int, begin: float, end: float) -> tuple[Fault, ...]:
        if not self.kind:
            return ()
        gpus = range(size) if self.whole_group else (FAULTY,)
        ramp = 1e9 if self.kind == "lost" else 20.0
        return tuple(
            Fault(kind=self.kind, gpu=gpu, at=begin, until=end, ramp=ramp, strength=self.strength) for gpu in gpus
        )


CASES = (
    Case("thermal throttling", "heat", 0.30, Cause.THERMAL),
    Case("power limit 35 %", "cap", 0.35, Cause.POWER_CAP),
    Case("power limit 50 %", "cap", 0.50, Cause.POWER_CAP),
    Case("power brake to 70 %", "brake", 0.70, Cause.POWER_BRAKE),
    Case("power brake to 85 %", "brake", 0.85, Cause.POWER_BRAKE),
    Case("other tenant 35 %", "tenant", 0.35, Cause.OTHER_TENANT, with_gpm_only=True),
    Case("other tenant 15 %", "tenant", 0.15, Cause.OTHER_TENANT, with_gpm_only=True),
    Case("PCIe with a quarter of its lanes", "lanes", 0.25, Cause.PCIE, product=H100_PCIE),
    Case("NVLink that retries", "lost", 1.0, Cause.NVLINK),
    Case("healthy"),
    Case("healthy over PCIe", product=H100_PCIE),
    Case("memory of one GPU full", "memory"),
    Case("all GPUs at a power limit of 50 %", "cap", 0.50, Cause.POWER_CAP, whole_group=True),
    Case("all GPUs hot", "heat", 0.30, Cause.THERMAL, whole_group=True),
    Case("uneven utilisation", busy_ratio=(1.0, 0.95, 0.9, 0.88, 0.86, 0.84, 0.82, 0.8)),
)


class Cell(NamedTuple):
    """One simulated node: both kinds of GPUs, with and without GPM, are judged on the same readings."""

    case: Case
    load: Load
    size: int


@dataclass
class Score:
    """Claims and requirements, counted by cycle."""

    true: int = 0
    false: int = 0
    found: int = 0  # of those required
    missed: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    delays: list[float] = field(default_factory=list)  # seconds from the first cycle that matters to the claim
    cycles: int = 0

    def add(self, other: Score) -> None:
        self.true += other.true
        self.false += other.false
        self.found += other.found
        self.missed += other.missed
        self.wrong += other.wrong
        self.delays += other.delays
        self.cycles += other.cycles

    @property
    def precision(self) -> float | None:
        claims = self.true + self.false
        return self.true / claims if claims else None

    @property
    def recall(self) -> float | None:
        required = self.found + self.missed
        return self.found / required if required else None


def scenario(cell: Cell, cycles: int) -> Scenario:
    """Return the node of a cell: groups of one size, the fault in the first group."""
    case, load, size = cell
    groups = [tuple(range(first, first + size)) for first in range(0, GPUS, size)]
    scale = 1.0 if case.product.nvlinks else STEP_SCALES[size]
    fraction = 0.86 if case.kind == "memory" else 0.90
    return Scenario(
        name=f"{case.name}/{load.name}/{size}",
        summary="",
        product=case.product,
        busy_ratio=case.busy_ratio,
        replicas=tuple(
            ReplicaSpec(
                name=f"r{number}", model=MODELS[size], traffic=load.traffic(case.product), ranks=(group,),
                step_scale=scale, memory_fraction=fraction,
            )
            for number, group in enumerate(groups)
        ),
        faults=case.faults(size, cycles / 5, cycles * 4 / 5),
    )  # fmt: skip


class Truth:
    """The GPUs that prolong the steps of their group now, by the simulator's own state."""

    def __init__(self, cell: Cell, world: World) -> None:
        self._case, self._world = cell.case, world
        self._busy: dict[str, deque[float]] = {}
        self._recent: deque[set[tuple[str, int]]] = deque(maxlen=SETTLE)  # that prolonged the steps at all
        self._steady: Counter[tuple[str, int]] = Counter()  # cycles for which it has mattered without a pause

    def update(self) -> tuple[set[tuple[str, int]], set[tuple[str, int]], set[tuple[str, int]]]:
        """Return (required, mattering, tolerated) as (replica, GPU); each holds the one before it."""
        slowdowns = dict(self._slowdowns())
        matters = {key for key, slowdown in slowdowns.items() if slowdown >= MATTERS}
        self._recent.append({key for key, slowdown in slowdowns.items() if slowdown >= HARMLESS})
        for key in [key for key in self._steady if key not in matters]:
            del self._steady[key]
        self._steady.update(matters)
        required = {key for key in matters if self._steady[key] > SETTLE}
        return required, matters, set().union(*self._recent)

    def _slowdowns(self) -> Iterator[tuple[tuple[str, int], float]]:
        world, case = self._world, self._case
        for replica in world.replicas:
            name, (group,) = replica.spec.name, replica.spec.ranks
            busy = self._busy.setdefault(name, deque(maxlen=10))
            busy.append(replica.ranks[0].activity.busy)
            if case.cause is None or statistics.fmean(busy) < BUSY:
                continue
            for index in group:
                slowdown = self._slowdown(index, [other for other in group if other != index])
                if slowdown > 1.0:
                    yield (name, index), slowdown

    def _slowdown(self, index: int, others: list[int]) -> float:
        world, case, gpu = self._world, self._case, self._world.gpus[index]
        active = [
            fault for fault in world.faults if fault.gpu == index and fault.at <= world.now < (fault.until or 1e9)
        ]
        if case.kind == "lost":
            return LINK_TROUBLE if active else 1.0
        if case.kind in {"lanes", "tenant"}:
            return step_slowdown(active[0]) if active else 1.0
        held = gpu.reasons & (SW_THERMAL if case.kind == "heat" else POWER_CAP if case.kind == "cap" else ~0)
        if not held:
            return 1.0
        usual = statistics.median(world._clock_factor(other) for other in others)
        return usual / world._clock_factor(index)


class Observer:
    """A tracker that sees the readings, with work signals or without, and its score."""

    def __init__(self, *, gpm: bool) -> None:
        self.gpm, self.tracker, self.score = gpm, StragglerTracker(), Score()
        self._waiting: dict[tuple[str, int], float] = {}

    def update(self, gpus: list[CardState], assignments: tuple[GpuAssignment, ...], truth, cause, now) -> None:
        if not self.gpm:
            gpus = [replace(gpu, reading=_without_gpm(gpu.reading)) for gpu in gpus]
        indices = {gpu.facts.uuid: gpu.facts.index for gpu in gpus}
        stragglers = self.tracker.update(gpus, assignments).found
        claims = {(straggler.replica, indices[straggler.uuid]): straggler.cause for straggler in stragglers}
        required, matters, tolerated = truth
        score = self.score
        score.cycles += 1
        for key, claimed in claims.items():
            if key in matters and claimed is cause:
                score.true += 1
            elif not (key in tolerated and claimed is cause):
                score.false += 1
                score.wrong[f"{claimed.value}{' (right GPU)' if key in tolerated else ''}"] += 1
        for key in required:
            hit = claims.get(key) is cause
            score.found += hit
            score.missed += not hit
        for key in matters:
            began = self._waiting.setdefault(key, now)
            if claims.get(key) is cause and began >= 0.0:
                score.delays.append(now - began)
                self._waiting[key] = -1.0
        self._waiting = {key: at for key, at in self._waiting.items() if key in matters}


def _without_gpm(reading: CardReading | None) -> CardReading | None:
    if reading is None:
        return None
    return replace(reading, signals={name: value for name, value in reading.signals.items() if name not in GPM})


def run(cell: Cell, cycles: int, seed: int = 0) -> tuple[Score, Score]:
    """Return the scores of one cell, with GPM and without."""
    clock, noise = Clock(0.0), random.Random(f"{cell.case.name}{cell.load.name}{cell.size}{seed}")
    world = World(scenario(cell, cycles), seed=seed)
    pids = {replica.spec.name: (100 + number,) for number, replica in enumerate(world.replicas)}
    driver = simulated_driver(clock, world, pids=pids)
    facts, count = initialise(driver)
    opened = [open_card(driver, index) for index in range(count)]
    readers = [(gpu, GpuReader(driver, calls, gpu, facts.driver_version)) for calls, gpu in opened]
    assignments = tuple(
        GpuAssignment(uuid=opened[index][1].uuid, replica=replica.spec.name)
        for replica in world.replicas
        for group in replica.spec.ranks
        for index in group
    )
    truth, observers = Truth(cell, world), (Observer(gpm=True), Observer(gpm=False))
    for cycle in range(cycles):
        clock.tick(1.0)
        gpus = []
        for gpu, reader in readers:
            reading = _noisy(reader.read(slow=cycle % 5 == 0, clock=clock), noise)
            gpus.append(
                CardState(
                    facts=gpu, status=SourceStatus(source=f"gpu:{gpu.uuid}", up=True), reading=reading,
                    last_read_at=reading.at, labels=GpuLabels(str(gpu.index), gpu.uuid),
                )
            )  # fmt: skip
        now = truth.update()
        for observer in observers:
            observer.update(gpus, assignments, now, cell.case.cause, clock())
    return observers[0].score, observers[1].score


def _noisy(reading: CardReading, noise: random.Random) -> CardReading:
    signals = dict(reading.signals)
    for signal in NOISY:
        if signals.get(signal):
            signals[signal] = min(1.0, signals[signal] * noise.gauss(1.0, NOISE))
    return replace(reading, signals=signals)


def cells() -> list[Cell]:
    """Return every cell of the matrix."""
    return [Cell(case, load, size) for case in CASES for load in LOADS for size in SIZES]


def _run(job: tuple[Cell, int]) -> tuple[Cell, Score, Score]:
    return (job[0], *run(*job))


# ── The page ────────────────────────────────────────────────────────────────────────────────────────────────────


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _table(heading: str, rows: dict[str, dict[bool, Score]]) -> list[str]:
    lines = [
        f"| {heading} | precision with GPM | recall | seconds | false claims | precision without GPM | recall | seconds | false claims |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, scores in rows.items():
        shown = []
        for gpm in (True, False):
            score = scores[gpm]
            delay = f"{statistics.median(score.delays):.0f}" if score.delays else "–"
            shown += [_ratio(score.precision), _ratio(score.recall), delay, f"{score.false} / {score.cycles}"]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return lines


def _by(
    results: list[tuple[Cell, Score, Score]], name: Callable[[Cell], str], *, blind: bool = False
) -> dict[str, dict[bool, Score]]:
    """Sum the scores by name; ``blind``: with those of scenarios that nothing shows without GPM."""
    rows: dict[str, dict[bool, Score]] = {}
    for cell, with_gpm, without in results:
        row = rows.setdefault(name(cell), {True: Score(), False: Score()})
        row[True].add(with_gpm)
        if blind or not cell.case.with_gpm_only:
            row[False].add(without)
    return rows


def page(results: list[tuple[Cell, Score, Score]], cycles: int) -> str:
    """Return the page for the documentation."""
    total = _by(results, lambda _: "all")["all"]
    figures = [f"{_ratio(total[gpm].precision)} / {_ratio(total[gpm].recall)}" for gpm in (True, False)]
    everything = _ratio(_by(results, lambda _: "all", blind=True)["all"][False].recall)
    return "\n".join(
        [
            "# Straggler accuracy",
            "",
            "Generated by `.venv/bin/python -m tests.bench.straggler_matrix --write docs/straggler-accuracy.md`; do not edit.",
            "",
            f"- **Precision / recall with GPM: {figures[0]}; without: {figures[1]}** (required: {PRECISION} / {RECALL}).",
            f"- The matrix: {len(results)} simulated nodes of {GPUS} GPUs, {cycles} cycles of one second each. The fault lasts from",
            "  one fifth of the time to four fifths. Every node is judged twice: with the work signals of GPM (Hopper and",
            f"  newer) and without. Measurement noise of {NOISE:.0%} is added to utilisation and work.",
            "- A claim names a GPU, its replica and a cause, and is true only if all three are right. It is counted once a cycle.",
            f"- The truth is the simulator's: a straggler prolongs its group's steps by at least {MATTERS - 1:.0%} for the claimed",
            f"  cause. It must be found {SETTLE} cycles after that begins, if the group is busy at least {BUSY:.0%} of the time.",
            f"- Below {HARMLESS - 1:.0%} nothing may be claimed; in between, and within {SETTLE} cycles of a change, the right claim is",
            "  neither true nor false.",
            "- Seconds: median time from the first cycle that matters to the claim. False claims: of all cycles. –: none.",
            "",
            "What is missed, by reason:",
            "",
            "- **Not measurable without GPM: another tenant.** Utilisation is 100 % with and without it, so nothing shows it",
            f"  unless it keeps the memory busier. These nodes count in no sum without GPM; with them the recall without GPM is {everything}.",
            "- **Cannot be known: a narrow PCIe link while little is transferred.** The driver reports bytes, not the time that",
            "  they take. Where they would cost less than 5 % of a step, a claim would name every GPU with such a link that",
            "  nobody waits for. The simulator prolongs every step by the same factor, whatever is transferred, so these cycles",
            "  count as missed. They are most of what is missed at light load, where the link is never found, and with long",
            "  prompts, where the claim is withdrawn between two prompts. Of a GPU that works for 30 seconds without a pause the",
            "  link itself is the finding and the alert `GpuPcieDowngraded`, whatever is transferred.",
            "- **Not judged: a group that rests** for more than half of the last ten cycles. At light load the claim about another",
            "  tenant is withdrawn between two requests: the rest of what is missed there.",
            "- **Not told from chance: a group in which all GPUs are hot.** The clock of each falls and rises at its own time, so",
            "  the scatter of the others hides the one that is slowest at the moment. Without GPM, a pair in which both report a",
            "  clock event needs a clock that is lower by a fifth. Each GPU that throttles while it is busy is the finding and",
            "  the alert `GpuThermalThrottling`.",
            "",
            "## By scenario",
            "",
            *_table("scenario", _by(results, lambda cell: cell.case.name, blind=True)),
            "",
            "## By load",
            "",
            *_table("load", _by(results, lambda cell: cell.load.name)),
            "",
            "## By group size",
            "",
            *_table("GPUs", _by(results, lambda cell: str(cell.size))),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="print every cell with a false or missed claim")
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # a line for each straggler found
    chosen = [cell for cell in cells() if given.only in cell.case.name]
    started = time.monotonic()
    with multiprocessing.Pool(given.processes) as pool:
        results = list(pool.imap(_run, [(cell, given.cycles) for cell in chosen], chunksize=1))
    text = page(results, given.cycles)
    print(text)
    if given.verbose:
        for cell, *scores in results:
            for gpm, score in zip(("GPM", "no GPM"), scores, strict=True):
                if score.false or score.missed:
                    print(
                        f"{cell.case.name:34} {cell.load.name:13} {cell.size} {gpm:7} true {score.true:4} "
                        f"false {score.false:4} found {score.found:4} missed {score.missed:4} {dict(score.wrong)}"
                    )
    print(f"{len(results)} nodes in {time.monotonic() - started:.0f} s", file=sys.stderr)
    if given.write is not None:
        given.write.write_text(text)
    total = _by(results, lambda _: "all")["all"]
    met = all((score.precision or 1.0) >= PRECISION and (score.recall or 1.0) >= RECALL for score in total.values())
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
