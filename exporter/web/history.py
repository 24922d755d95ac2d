"""What the web page shows of the past: ten minutes of curves in fixed arrays, and the newest events.

A curve is 120 floats of 4 bytes, one for each 5 seconds; a GPU has 6 curves (2,880 bytes), a replica 7 (3,360 bytes).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import nan

from msgspec import Struct

from exporter.diagnosis.verdict_names import VERDICT_NAMES
from exporter.diagnosis.view import requests
from exporter.diagnosis.xid_meanings import meaning
from exporter.model import Quantity, ReplicaState, Signal, Snapshot, Stage, WindowFigures
from exporter.model.finding import Finding, Severity, Verdict, VerdictState, gpu_name
from exporter.model.text import Text
from exporter.web.texts import REASONS

STEP = 5.0  # seconds between two points
POINTS = 120
MAX_GPUS = 128
MAX_REPLICAS = 128
MAX_EVENTS = 40
P50, P99 = 0.5, 0.99

SubjectKey = tuple[str, str]  # ("gpu", uuid) or ("replica", name)


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened, for people; ``severity`` is none where it is good news or neither."""

    unix_time: float
    severity: Severity
    text: Text
    is_kept: bool = False  # rather than newer ones that are not


class _Curves(Struct):
    values: array[float]  # one series after the other; each a ring of POINTS
    slot: int  # the newest that was written


def shortest_window(replica: ReplicaState) -> WindowFigures | None:
    """Return the figures of the shortest window, None without any."""
    figures = [found for label, found in replica.windows.items() if label != "lifetime"]
    return min(figures, key=lambda found: found.seconds, default=None)


def kv_usage(replica: ReplicaState) -> float | None:
    """Return the KV cache usage of the fullest rank; a ratio."""
    ranks = replica.reading.ranks.values() if replica.reading is not None else ()
    return max((rank[Quantity.KV_CACHE_USAGE] for rank in ranks if Quantity.KV_CACHE_USAGE in rank), default=None)


def latency(figures: WindowFigures | None, stage: Stage, quantile: float) -> float | None:
    """Return a latency in seconds, None where it is not known."""
    summary = figures.latency.get(stage) if figures is not None else None
    return summary.quantiles.get(quantile) if summary is not None else None


def memory_ratio(signals: Mapping[Signal, float]) -> float | None:
    """Return the share of a GPU's memory that is used."""
    used, total = signals.get(Signal.MEMORY_USED), signals.get(Signal.MEMORY_TOTAL)
    return used / total if used is not None and total else None


GPU_SERIES: Mapping[str, Callable[[Mapping[Signal, float]], float | None]] = {
    "utilization": lambda signals: signals.get(Signal.UTILIZATION),
    "sm_active": lambda signals: signals.get(Signal.SM_ACTIVE),
    "memory": memory_ratio,
    "temperature": lambda signals: signals.get(Signal.TEMPERATURE_GPU),
    "power": lambda signals: signals.get(Signal.POWER),
    "clock": lambda signals: signals.get(Signal.CLOCK_SM),
}
REPLICA_SERIES: Mapping[str, Callable[[ReplicaState, WindowFigures | None], float | None]] = {
    "running": lambda replica, _: requests(replica, Quantity.REQUESTS_RUNNING),
    "waiting": lambda replica, _: requests(replica, Quantity.REQUESTS_WAITING),
    "ttft": lambda _, figures: latency(figures, Stage.TIME_TO_FIRST_TOKEN, P99),
    "itl": lambda _, figures: latency(figures, Stage.INTER_TOKEN, P50),
    "hit_ratio": lambda _, figures: figures.hit_ratio if figures is not None else None,
    "kv": lambda replica, _: kv_usage(replica),
    "tokens": lambda _, figures: figures.generation_token_rate if figures is not None else None,
}
_SERIES = {"gpu": tuple(GPU_SERIES), "replica": tuple(REPLICA_SERIES)}


class NodeHistory:
    """Follows successive snapshots.  ``update`` is called by one thread; any may read."""

    def __init__(self) -> None:
        self.slot = -1  # the number of the newest point
        self.events: tuple[Event, ...] = ()  # the newest first
        self._curves: dict[SubjectKey, _Curves] = {}
        self._before: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Record one point of every curve, at most one in ``STEP`` seconds, and what is new since the last call."""
        slot = int(snapshot.at // STEP)
        if slot != self.slot:
            self._record(snapshot, slot)
            self.slot = slot
        news = list(_events(self._before, snapshot))
        if news:
            self.events = _newest([*news, *self.events])
        self._before = snapshot

    def curve(self, kind: str, name: str, series: str) -> Sequence[float]:
        """Return the points of one series, the oldest first, NaN where none was read; empty where there is none."""
        curves = self._curves.get((kind, name))
        if curves is None:
            return ()
        start = _SERIES[kind].index(series) * POINTS
        cut = start + (self.slot + 1) % POINTS
        return (curves.values[cut : start + POINTS] + curves.values[start:cut]).tolist()

    @property
    def size(self) -> int:
        """Bytes of all points."""
        return sum(curves.values.itemsize * len(curves.values) for curves in self._curves.values())

    def _record(self, snapshot: Snapshot, slot: int) -> None:
        for card in snapshot.cards[:MAX_GPUS]:
            signals = card.reading.signals if card.reading is not None else {}
            self._write(("gpu", card.facts.uuid), slot, [read(signals) for read in GPU_SERIES.values()])
        for replica in snapshot.replicas[:MAX_REPLICAS]:
            figures = shortest_window(replica) if replica.reading is not None else None
            values = [read(replica, figures) for read in REPLICA_SERIES.values()]
            self._write(("replica", replica.name), slot, values)
        for key, curves in list(self._curves.items()):
            if slot - curves.slot >= POINTS:
                del self._curves[key]
            elif curves.slot != slot:
                _clear(curves.values, self.slot, slot)

    def _write(self, key: SubjectKey, slot: int, values: Sequence[float | None]) -> None:
        curves = self._curves.get(key)
        if curves is None:
            if sum(kind == key[0] for kind, _ in self._curves) >= 2 * MAX_GPUS:
                return  # subjects that come and go all the time
            curves = self._curves[key] = _Curves(array("f", [nan]) * (POINTS * len(values)), slot)
        else:
            _clear(curves.values, self.slot, slot)
        for number, value in enumerate(values):
            curves.values[number * POINTS + slot % POINTS] = nan if value is None else value
        curves.slot = slot


def _clear(values: array[float], before: int, slot: int) -> None:
    """Remove the points that are ten minutes old."""
    for gone in range(max(before + 1, slot - POINTS + 1), slot + 1):
        for start in range(0, len(values), POINTS):
            values[start + gone % POINTS] = nan


# ---------------------------------------------------------------------- events


def _newest(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return at most ``MAX_EVENTS``, the newest first; XIDs and critical ones have half of the places."""
    ordered = sorted(events, key=lambda event: -event.unix_time)
    kept = [number for number, event in enumerate(ordered) if event.is_kept][: MAX_EVENTS // 2]
    others = [number for number in range(len(ordered)) if number not in kept][: MAX_EVENTS - len(kept)]
    return tuple(ordered[number] for number in sorted([*kept, *others]))


def _events(before: Snapshot | None, snapshot: Snapshot) -> Iterator[Event]:
    yield from _xids(before, snapshot)
    if before is None:
        known: Mapping[tuple[str, str], Finding] = {}
    else:
        known = flatten(before.findings)
    found = flatten(snapshot.findings)
    for key, finding in found.items():
        if key in known:
            continue
        since = finding.since if finding.since is not None else snapshot.unix_time
        is_kept = finding.severity is Severity.CRITICAL
        yield Event(unix_time=since, severity=finding.severity, text=finding.summary, is_kept=is_kept)
    named = _named(found.values())
    for key in known:
        if key in found or key[1] in named:  # a worse finding, or one it is part of, has taken its place
            continue
        text = Text("over: ", "已恢复：") + known[key].summary
        yield Event(unix_time=snapshot.unix_time, severity=Severity.NONE, text=text)
    if before is not None:
        yield from _verdict_changes(before, snapshot)
        yield from _restarts(before, snapshot)


def _named(findings: Iterable[Finding]) -> set[str]:
    """Return the subjects of findings, and the replicas whose users they hurt."""
    return {name for finding in findings for name in (finding.subject.name, finding.replica) if name}


def flatten(findings: Sequence[Finding]) -> dict[tuple[str, str], Finding]:
    """Return the findings and, after each, its causes, by key."""
    flat: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        flat[finding.key] = finding
        flat.update(flatten(finding.causes))
    return flat


def _xids(before: Snapshot | None, snapshot: Snapshot) -> Iterator[Event]:
    if before is not None and before.xids == snapshot.xids:
        return
    known = {count.labels: count.last_unix_time for count in before.xids} if before is not None else {}
    for count in snapshot.xids:
        if count.xid is None or count.last_unix_time is None or count.last_unix_time == known.get(count.labels):
            continue
        xid = f"XID {count.xid}"
        text = gpu_name(count.labels.gpu) + Text(f": {xid}, ", f"：{xid}，") + meaning(count.xid)
        yield Event(unix_time=count.last_unix_time, severity=Severity.WARNING, text=text, is_kept=True)


_VERDICT_SEVERITY = {VerdictState.EJECT: Severity.CRITICAL, VerdictState.DRAIN: Severity.WARNING}


def _verdict_changes(before: Snapshot, snapshot: Snapshot) -> Iterator[Event]:
    labels = {card.facts.uuid: gpu_name(card.labels.gpu) for card in snapshot.cards}
    gpus = [(labels.get(uuid, Text(uuid, uuid)), verdict, before.verdicts.gpus.get(uuid))
            for uuid, verdict in snapshot.verdicts.gpus.items()]  # fmt: skip
    replicas = [(Text(name, name), verdict, before.verdicts.replicas.get(name))
                for name, verdict in snapshot.verdicts.replicas.items()]  # fmt: skip
    for name, verdict, known in (*replicas, *gpus):
        if known is None or known.state is verdict.state or _is_start(known, verdict):
            continue
        old, new = VERDICT_NAMES[known.state], VERDICT_NAMES[verdict.state]
        reason = verdict.reason.replace("_", " ")
        why = Text(f" ({reason})", f"（{REASONS.get(verdict.reason, reason)}）") if reason else Text("", "")
        yield Event(
            unix_time=snapshot.unix_time,
            severity=_VERDICT_SEVERITY.get(verdict.state, Severity.NONE),
            is_kept=verdict.state is VerdictState.EJECT,
            text=Text(f"verdict on {name.en}: {old.en} → {new.en}", f"{name.zh} 的判定：{old.zh} → {new.zh}") + why,
        )


def _is_start(known: Verdict, verdict: Verdict) -> bool:
    return known.state is VerdictState.UNKNOWN and verdict.state is VerdictState.SERVE


def _restarts(before: Snapshot, snapshot: Snapshot) -> Iterator[Event]:
    known = {replica.name: replica.restarts for replica in before.replicas}
    for replica in snapshot.replicas:
        if replica.restarts > known.get(replica.name, replica.restarts):
            yield Event(
                unix_time=snapshot.unix_time,
                severity=Severity.WARNING,
                text=Text(f"{replica.name} restarted", f"{replica.name} 已重启"),
            )
