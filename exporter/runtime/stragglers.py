"""Follows each group of GPUs from cycle to cycle, and reports only what lasts.

A cycle counts when some GPU of the group was read anew.  Of the last ``CYCLES`` cycles that could be judged, no older
than ``AGE`` cycles, a GPU must have been suspected in ``ENTER`` before it is called a straggler, and stays one until
it was suspected in fewer than ``LEAVE``: a group that rests between requests shows as much in more time.  The group
counts as judged while at least ``JUDGED`` of the last ``CYCLES`` could be judged; once it idles, verdict and all are
withdrawn, as they are at once where GPUs are not read any more.  A pause longer than ``GAP`` (and than three usual
ones between cycles) starts the group anew, and so do other members.

Owned by the thread that publishes, and fed once per snapshot; not locked.  What it keeps is bounded by the GPUs and
groups of the newest snapshot.  The judgement itself stands in ``derive.straggler``.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec import Struct, field

from exporter.derive.straggler import Judgement, Suspicion, judge
from exporter.derive.straggler_evidence import CounterSample, GpuEvidence, collect_evidence, sample_counters
from exporter.logs import log_event
from exporter.model import CardReading, CardState, Cause, GpuAssignment, Straggler, Stragglers

logger = logging.getLogger(__name__)

CYCLES, ENTER, LEAVE, JUDGED = 10, 6, 3, 5
AGE = 30  # cycles
GAP = 30.0  # seconds


class _GroupKey(NamedTuple):
    replica: str
    ranks: frozenset[str]


class _ReadGpu(NamedTuple):
    """The newest reading of a GPU, and its counters."""

    reading: CardReading
    counters: CounterSample


_ORDER = {cause: place for place, cause in enumerate(Cause)}


class _GroupHistory(Struct):
    """One group: its members, its last cycles, and the stragglers among them."""

    members: frozenset[str]
    at: float = 0.0  # of the newest cycle
    pause: float = 0.0  # before it
    cycles: deque[Judgement] = field(default_factory=lambda: deque(maxlen=AGE))
    stragglers: dict[str, Straggler] = field(default_factory=dict)

    @property
    def judged(self) -> bool:
        return sum(cycle.judged for cycle in islice(reversed(self.cycles), CYCLES)) >= JUDGED


class StragglerTracker:
    """Computes the stragglers of each snapshot, and keeps what the next one needs."""

    def __init__(self) -> None:
        self._assignments: Sequence[GpuAssignment] | None = None
        self._groups: dict[_GroupKey, frozenset[str]] = {}
        self._users: dict[str, int] = {}  # uuid → replicas on it
        self._histories: dict[_GroupKey, _GroupHistory] = {}
        self._evidence: dict[str, GpuEvidence] = {}
        self._read: dict[str, _ReadGpu] = {}  # by uuid

    def update(self, gpus: Sequence[CardState], assignments: Sequence[GpuAssignment]) -> Stragglers:
        """Return the stragglers; to be called once for each snapshot, in its order."""
        if assignments is not self._assignments:
            self._regroup(assignments)
        fresh = self._collect(gpus)
        present = {gpu.facts.uuid for gpu in gpus}
        judged: dict[str, bool] = {}
        stragglers: list[Straggler] = []
        histories: dict[_GroupKey, _GroupHistory] = {}
        for key, uuids in self._groups.items():
            members = uuids & present
            if len(members) < 2:
                continue
            history = histories[key] = self._history_of(key, members)
            if not fresh.isdisjoint(members):
                self._cycle(key, history)
            read = members & self._read.keys()
            judged[key.replica] = judged.get(key.replica, False) or (history.judged and len(read) > 1)
            stragglers += [
                straggler for straggler in history.stragglers.values() if straggler.uuid in read and len(read) > 1
            ]
        for key in self._histories.keys() - histories.keys():
            _log_changes(key.replica, self._histories[key].stragglers, {})
        self._histories = histories
        stragglers.sort(key=lambda straggler: (straggler.replica, straggler.uuid))
        return Stragglers(judged=judged, found=tuple(stragglers))

    def _regroup(self, assignments: Sequence[GpuAssignment]) -> None:
        """Form the groups: GPUs with the same ranks of a replica; all of its GPUs where no rank is known."""
        ranks: dict[tuple[str, str], set[str]] = {}
        for assignment in assignments:
            ranks.setdefault((assignment.replica, assignment.uuid), set()).add(assignment.rank)
        groups: dict[_GroupKey, set[str]] = {}
        users: Counter[str] = Counter()
        for (replica, uuid), names in sorted(ranks.items()):
            groups.setdefault(_GroupKey(replica, frozenset(names)), set()).add(uuid)
            users[uuid] += 1
        self._groups = {key: frozenset(uuids) for key, uuids in groups.items() if len(uuids) > 1}
        self._users, self._assignments, self._evidence = dict(users), assignments, {}

    def _collect(self, gpus: Sequence[CardState]) -> set[str]:
        """Collect the evidence of every GPU that was read anew; drop the GPUs that are gone."""
        wanted = frozenset[str]().union(*self._groups.values())
        read: dict[str, _ReadGpu] = {}
        kept: dict[str, GpuEvidence] = {}
        fresh = set()
        for gpu in gpus:
            uuid, reading = gpu.facts.uuid, gpu.reading
            if reading is None or uuid not in wanted:
                continue
            before = self._read.get(uuid)
            known = self._evidence.get(uuid)
            if before is not None and before.reading is reading and known is not None:
                read[uuid], kept[uuid] = before, known
                continue
            counters_before = before.counters if before else None
            counters = sample_counters(reading, counters_before)
            kept[uuid] = collect_evidence(uuid, reading, counters, counters_before, self._users[uuid])
            read[uuid] = _ReadGpu(reading, counters)
            fresh.add(uuid)
        self._read, self._evidence = read, kept
        return fresh

    def _history_of(self, key: _GroupKey, members: frozenset[str]) -> _GroupHistory:
        """Return the group's history; a new one for other members."""
        history = self._histories.get(key)
        if history is not None and history.members == members:
            return history
        if history is not None:
            _log_changes(key.replica, history.stragglers, {})
        return _GroupHistory(members=members)

    def _cycle(self, key: _GroupKey, history: _GroupHistory) -> None:
        at = max(self._read[uuid].reading.at for uuid in history.members if uuid in self._read)
        pause = at - history.at if history.cycles else 0.0
        if pause > max(GAP, 3.0 * history.pause):
            history.cycles.clear()
        history.at, history.pause = at, pause
        history.cycles.append(
            judge([self._evidence[uuid] for uuid in sorted(history.members) if uuid in self._evidence])
        )
        stragglers = _stragglers(key.replica, history)
        _log_changes(key.replica, history.stragglers, stragglers)
        history.stragglers = stragglers


def _stragglers(replica: str, history: _GroupHistory) -> dict[str, Straggler]:
    """Return the stragglers that follow from the last cycles of a group."""
    if not history.judged:
        return {}
    against: dict[str, list[Suspicion]] = {}
    for cycle in islice((cycle for cycle in reversed(history.cycles) if cycle.judged), CYCLES):
        for uuid, suspicion in cycle.suspects.items():
            against.setdefault(uuid, []).append(suspicion)
    return {
        uuid: Straggler(
            uuid=uuid, replica=replica, cause=_most_common_cause(suspicions), slowdown=_slowdown(history.cycles, uuid)
        )
        for uuid, suspicions in against.items()
        if len(suspicions) >= (LEAVE if uuid in history.stragglers else ENTER)
    }


def _most_common_cause(suspicions: Sequence[Suspicion]) -> Cause:
    """Return the cause named most often; of several, the one that comes first in ``Cause``."""
    named = Counter(suspicion.cause for suspicion in suspicions)
    return min(named, key=lambda cause: (-named[cause], _ORDER[cause]))


def _slowdown(cycles: Iterable[Judgement], uuid: str) -> float | None:
    """Return how much longer the work of all cycles took because of a GPU; None where no cycle measured it.

    A cycle of slowdown s does 1/s of the work, so this is the harmonic mean: traffic over a link comes in bursts, and
    one cycle may show four times what the next shows.
    """
    suspicions = [cycle.suspects[uuid] for cycle in cycles if uuid in cycle.suspects]
    known = [suspicion.slowdown for suspicion in suspicions if suspicion.slowdown is not None]
    return len(known) / sum(1.0 / slowdown for slowdown in known) if known else None


def _log_changes(replica: str, before: Mapping[str, Straggler], after: Mapping[str, Straggler]) -> None:
    """Log which GPUs become stragglers, and which no longer are."""
    for uuid, straggler in after.items():
        old = before.get(uuid)
        if old is None or old.cause is not straggler.cause:
            slowdown = None if straggler.slowdown is None else round(straggler.slowdown, 2)
            log_event(
                logger, logging.WARNING, "straggler", "the other GPUs of the group wait for it",
                replica=replica, uuid=uuid, cause=straggler.cause.value, slowdown=slowdown,
            )  # fmt: skip
    for uuid in before.keys() - after.keys():
        log_event(logger, logging.INFO, "straggler_over", replica=replica, uuid=uuid)
