"""What findings and verdicts need of the past: how long a condition has held.

A finding is shown once its condition has held for its own time, and goes when the condition has been absent for as
long as a poll may be missing.  A verdict changes only after the new one has held for its own time, in both
directions, so that neither one late poll ejects a replica nor one good poll brings it back.

After a gap between two snapshots the daemon itself was stopped (SIGSTOP, a frozen control group or machine), and what
the sources show is its own absence.  Until they had time to be read again, findings and verdicts stay as they were,
and that time counts for no holding time.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from exporter.derive.delta import levels
from exporter.diagnosis.conditions import hold, linger
from exporter.diagnosis.diagnose import arrange, find
from exporter.diagnosis.history import DiagnosisHistory
from exporter.diagnosis.verdicts import NO_PROGRESS, RELEASED, verdicts
from exporter.model import Quantity, ReplicaState, Snapshot
from exporter.model.finding import STARTING, Finding, SubjectKind, Verdict, Verdicts, VerdictState

# Seconds that a verdict must hold until it is shown.
VERDICT_HOLD = {VerdictState.SERVE: 10.0, VerdictState.DRAIN: 5.0, VerdictState.EJECT: 5.0, VerdictState.UNKNOWN: 0.0}
RESUME_SECONDS = 8.0  # after a gap until it is judged again: an exchange that the gap broke off, and the next one


class _Held(Struct):
    """One condition: since when it holds (monotonic and Unix time), and when it was seen last."""

    since: float
    since_unix: float
    seen: float
    finding: Finding


class _Pending(Struct):
    shown: Verdict
    wanted: Verdict
    since: float


class Diagnosis:
    """Evaluates each snapshot in turn; owned by the thread that publishes."""

    def __init__(self, *, gap: float = inf) -> None:
        """``gap``: seconds between two snapshots, above which the daemon itself was stopped between them."""
        self._gap = gap
        self._seen_at: float | None = None  # the newest snapshot
        self._resumed_at, self._is_resuming = -inf, False
        self._stopped = 0.0  # seconds that count for no holding time
        self._judged: tuple[tuple[Finding, ...], Verdicts] = ((), Verdicts())
        self._history = DiagnosisHistory()
        self._held: dict[tuple[str, str], _Held] = {}
        self._replicas: dict[str, _Pending] = {}
        self._gpus: dict[str, _Pending] = {}
        self._node: dict[str, _Pending] = {}
        self._removed: frozenset[str] = frozenset()

    def judge(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with its findings and verdicts."""
        past = self._history.update(snapshot)
        if self._has_just_resumed(snapshot.at):
            findings, known_verdicts = self._judged
            return replace(snapshot, findings=findings, verdicts=known_verdicts)
        now = snapshot.at - self._stopped
        for finding in find(snapshot, past):
            held = self._held.get(finding.key)
            if held is None:
                self._held[finding.key] = _Held(now, snapshot.unix_time, now, finding)
            else:
                held.seen, held.finding = now, finding
        gone = _given_away(snapshot)
        self._held = {
            key: held
            for key, held in self._held.items()
            if held.seen == now or (now - held.seen <= linger(key[0]) and not _is_over(held.finding, snapshot, gone))
        }
        shown = [
            replace(held.finding, since=held.since_unix)
            for held in self._held.values()
            if held.seen - held.since >= hold(held.finding.id)  # else lingering alone would show it
        ]
        raw = verdicts(snapshot, past)
        unjudged = {replica.name for replica in snapshot.replicas if _is_progress_unknown(replica)}
        replicas = _hold(self._replicas, raw.replicas, now, unjudged)
        gpus = _hold(self._gpus, raw.gpus, now)
        known = any(verdict.state is not VerdictState.UNKNOWN for verdict in (*replicas.values(), *gpus.values()))
        removed = frozenset(facts.uuid for facts in snapshot.removed)
        if removed - self._removed and raw.node.state is VerdictState.SERVE:
            self._node.clear()  # what held it back is no part of the node any more
        self._removed = removed
        node = _hold(self._node, {"": raw.node}, now, () if known else ("",))[""]
        self._judged = arrange(shown), Verdicts(replicas=replicas, gpus=gpus, node=node)
        return replace(snapshot, findings=self._judged[0], verdicts=self._judged[1])

    def _has_just_resumed(self, at: float) -> bool:
        step = 0.0 if self._seen_at is None else at - self._seen_at
        self._seen_at = at
        if step > self._gap:
            self._resumed_at = at
        was_resuming, self._is_resuming = self._is_resuming, at - self._resumed_at < RESUME_SECONDS
        if was_resuming or self._is_resuming:
            self._stopped += step
        return self._is_resuming


def _given_away(snapshot: Snapshot) -> frozenset[str]:
    """Return the GPUs that are released or removed on purpose: nobody knows whether they are still as they were."""
    released = {card.facts.uuid for card in snapshot.cards if card.status.reason == RELEASED}
    return frozenset(released | {facts.uuid for facts in snapshot.removed})


def _is_over(finding: Finding, snapshot: Snapshot, gone: Container[str]) -> bool:
    """Return whether a finding without its condition ends at once: its GPUs are gone, or answer again."""
    if finding.id == "GpuDriverUnreadable":
        return all(card.reading is not None for card in snapshot.cards)
    if finding.subject.kind is not SubjectKind.GPU:
        return False
    name = finding.subject.name
    answers = finding.id == "SourceHung" and any(
        card.facts.uuid == name and card.reading is not None for card in snapshot.cards
    )
    return name in gone or answers


def _is_progress_unknown(replica: ReplicaState) -> bool:
    """Return whether progress is not known yet; of an engine that does not show it, it never will be."""
    reading = replica.reading
    if replica.frozen is not None or reading is None or reading.frozen_after is None:
        return False
    return bool(levels(reading, Quantity.REQUESTS_RUNNING))


def _hold(
    pending: dict[str, _Pending], raw: Mapping[str, Verdict], now: float, unjudged: Container[str] = ()
) -> dict[str, Verdict]:
    """Return the verdicts to show, and keep in ``pending`` what waits to replace them.

    What is ``unjudged`` stays unknown instead of becoming serve; what serves or is ejected already is not taken back.
    """
    for name in pending.keys() - raw.keys():
        del pending[name]
    for name, verdict in raw.items():
        entry = pending.get(name)
        is_unknown = entry is None or entry.shown.state is VerdictState.UNKNOWN
        if is_unknown and verdict.state is VerdictState.SERVE and name in unjudged:
            verdict = STARTING  # noqa: PLW2901 - all that follows judges this one
        if entry is None:  # the first snapshot knows nothing of the past, and must not eject
            first = verdict if verdict.state is VerdictState.SERVE else STARTING
            entry = pending[name] = _Pending(first, verdict, now)
        if verdict.state is entry.shown.state:
            entry.shown, entry.wanted, entry.since = verdict, verdict, now
        elif verdict.state is not entry.wanted.state:
            entry.wanted, entry.since = verdict, now
        else:
            entry.wanted = verdict
        if entry.wanted.state is not entry.shown.state and now - entry.since >= _time_to(entry):
            entry.shown = entry.wanted
    return {name: entry.shown for name, entry in pending.items()}


def _time_to(entry: _Pending) -> float:
    """Return how long the wanted verdict must hold: from unknown nothing is taken back by serving."""
    if entry.wanted.state is VerdictState.SERVE and entry.shown.state is VerdictState.UNKNOWN:
        return 0.0
    if entry.wanted.reason == NO_PROGRESS and entry.shown.state is not VerdictState.UNKNOWN:
        return 0.0  # it has been judged over 20 s already; with engines polled each 5 s, 5 s more would exceed 30
    return VERDICT_HOLD[entry.wanted.state]
