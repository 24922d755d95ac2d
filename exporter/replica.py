"""One replica: fetch its page, understand it, derive, and publish the outcome as one immutable state.

Runs in a thread of its own, so that a hung engine delays nobody.  Nothing else writes what is kept here; others
read ``state`` and ``oddities``, which are replaced whole.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from exporter.derive import delta, engine
from exporter.derive.windows import History
from exporter.engines import by_kind, recognise
from exporter.engines.base import Interpreter, clean
from exporter.engines.exposition import PageReader
from exporter.errors import PageError, SourceError
from exporter.model import EMPTY, EngineReading, ReplicaState, SourceStatus
from exporter.schedule import Beat
from exporter.transitions import Transitions

logger = logging.getLogger(__name__)

_BACK_OFF_AFTER = 5  # failures in a row; a restart of an engine takes minutes and needs no poll a second
_BACK_OFF_MOST = {"refused": 5.0}  # a refusal costs nothing, and its end should be seen soon
_BACK_OFF_MOST_ELSE = 30.0
_VERSION_AGAIN = 600.0
_VERSION_AGAIN_AFTER_FAILURE = 60.0
_MAX_VERSION_BYTES = 64 * 1024


class Fetched(Protocol):
    """An answer's body, how long it took in seconds, and when the server's certificate ends (Unix time)."""

    @property
    def body(self) -> bytes: ...  # noqa: D102

    @property
    def duration(self) -> float: ...  # noqa: D102

    @property
    def certificate_expires(self) -> float | None: ...  # noqa: D102


class Fetcher(Protocol):
    """One bounded exchange; raises SourceError and nothing else."""

    def fetch(self, path: str | None = None) -> Fetched: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """What is asked of a replica's poller.  Times in seconds; ``windows``: label and length."""

    name: str
    kind: str
    interval: float
    windows: tuple[tuple[str, float], ...]
    quantiles: tuple[float, ...]


class ReplicaPoller:
    """Polls one replica until stopped."""

    def __init__(
        self,
        plan: ReplicaPlan,
        fetcher: Fetcher,
        *,
        on_update: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.plan = plan
        self.oddities: Mapping[str, int] = EMPTY
        self.loop_restarts = 0
        self._fetcher = fetcher
        self._on_update = on_update
        self._clock = clock
        self._wall = wall
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._voice = Transitions(logger, f"engine:{plan.name}", clock)
        self._failures: Counter[str] = Counter()
        self._failed_in_a_row = 0
        self._started_at: float | None = None  # of the exchange under way
        self._version, self._version_due = "", float("-inf")
        self._reader: PageReader | None = None
        self._interpreter: Interpreter | None = None
        self._progress: delta.Progress | None = None
        self._history = History(plan.windows)
        self.state = ReplicaState(
            name=plan.name,
            kind=plan.kind,
            labels=(plan.name, "" if plan.kind == "auto" else plan.kind, ""),
            status=SourceStatus(source=f"engine:{plan.name}", up=False, reason="starting"),
            reading=None,
            last_read_at=None,
        )

    # ------------------------------------------------------------------ one poll

    def poll(self) -> None:
        """Read the replica once and replace ``state``; never raises for what the engine does."""
        started = self._started_at = self._clock()
        try:
            page = self._fetcher.fetch()
            reading = self._understand(page.body, self._clock())
        except SourceError as error:
            self._fail(error, started)
        else:
            self._take(reading, page)
        finally:
            self._started_at = None
        self._on_update()

    def _understand(self, body: bytes, at: float) -> EngineReading:
        if self._interpreter is None or (self.plan.kind == "auto" and not self._same_kind(body)):
            kind = recognise(body) if self.plan.kind == "auto" else by_kind(self.plan.kind)
            if kind is None and self.plan.kind != "auto":
                message = f"this version does not read pages of kind {self.plan.kind} yet"
                raise PageError("unsupported_engine", message)
            if kind is None:
                raise PageError(
                    "unknown_engine", "the page is of no engine that is known; set its kind or mend the url"
                )
            self._interpreter = Interpreter(kind)
            self._reader = PageReader(self._interpreter.wanted)
            self._begin_anew()
        assert self._reader is not None  # made together with the interpreter
        return self._interpreter.read(self._reader.read(body), at)

    def _same_kind(self, body: bytes) -> bool:
        """Cheaply make sure that the page is still of the recognised kind; a port may change hands."""
        assert self._interpreter is not None
        return any(prefix[:-1].encode() in body for prefix in self._interpreter.engine.prefixes)

    def _begin_anew(self) -> None:
        """Forget the past: another engine or another model answers now, and windows must not mix the two."""
        self._progress = None
        self._history = History(self.plan.windows)
        self._version, self._version_due = "", float("-inf")

    def _take(self, reading: EngineReading, page: Fetched) -> None:
        now = self._clock()
        if reading.model and self.state.labels[2] not in ("", reading.model):
            self._begin_anew()
        if reading.oddities:
            self.oddities = dict(Counter(self.oddities) + Counter(reading.oddities))
        before = self._progress.totals.restarts if self._progress else 0
        self._progress = delta.advance(self._progress, reading)
        totals = self._progress.totals if self._progress else None
        if totals is not None:
            self._history.add(totals)
        restarted = totals is not None and totals.restarts != before
        if restarted:
            logger.info("source=engine:%s event=restart", self.plan.name)
            self._version_due = now
        reading = replace(reading, version=self._version) if self._version else reading
        windows = engine.figures(self._history, self.plan.quantiles, reading)
        shortest = windows.get(self.plan.windows[0][0]) if self.plan.windows else None
        summed = {stage: delta.sum_over_ranks(by_rank) for stage, by_rank in reading.histograms.items()}
        self._failed_in_a_row = 0
        self._voice.up()
        self.state = ReplicaState(
            name=self.plan.name,
            kind=self.plan.kind,
            labels=(self.plan.name, reading.engine, reading.model or self.state.labels[2]),
            status=replace(
                self.state.status, up=True, reason="", hung=False, duration=page.duration, last_success=now,
                last_success_wall=self._wall(),
            ),
            reading=reading,
            last_read_at=reading.at,
            histograms={stage: histogram for stage, histogram in summed.items() if histogram is not None},
            windows=windows,
            frozen=engine.frozen(reading, totals, now),
            rank_imbalance=engine.rank_imbalance(reading, shortest.rank_token_rates if shortest else EMPTY),
            restarts=totals.restarts if totals else self.state.restarts,
            certificate_expires=page.certificate_expires,
        )  # fmt: skip

    def _fail(self, error: SourceError, started: float) -> None:
        self._failures[error.reason] += 1
        self._failed_in_a_row += 1
        self._voice.down(error.reason, str(error))
        status = replace(
            self.state.status,
            up=False,
            reason=error.reason,
            duration=self._clock() - started,
            failures=dict(self._failures),
        )
        self.state = replace(
            self.state,
            status=status,
            reading=None,
            windows=EMPTY,
            histograms=EMPTY,
            frozen=None,
            rank_imbalance=EMPTY,
        )

    def view(self, now: float) -> ReplicaState:
        """Give the state as it may be shown at ``now``: withdrawn when this thread itself has not come back.

        An exchange keeps its own deadline; should that ever fail, stale figures must not stay on the page.
        """
        state, started = self.state, self._started_at
        late = started is not None and now - started > 2 * self.plan.interval + 5.0
        if not late or state.reading is None:
            return state
        status = replace(state.status, up=False, reason="hung", hung=True)
        return replace(state, status=status, reading=None, windows=EMPTY, histograms=EMPTY, frozen=None)

    # ------------------------------------------------------------------ the engine's version

    def ask_version(self) -> None:
        """Ask the engine for its version when that is due; costs one small exchange every ten minutes."""
        kind = self._interpreter.engine if self._interpreter else None
        now = self._clock()
        if kind is None or not kind.version_path or now < self._version_due or self.state.reading is None:
            return
        try:
            self._version = _version(self._fetcher.fetch(kind.version_path).body)
            self._version_due = now + _VERSION_AGAIN
        except SourceError as error:
            self._version_due = now + _VERSION_AGAIN_AFTER_FAILURE
            logger.debug("source=engine:%s version not had: %s", self.plan.name, error)

    # ------------------------------------------------------------------ the loop

    def start(self, first: float) -> None:
        """Poll from ``first`` (monotonic) on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, args=(first,), name=f"engine:{self.plan.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it does so within one exchange, and closes its connection."""
        self._stop.set()

    def join(self, timeout: float) -> None:
        """Wait for the thread, not for ever."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, first: float) -> None:
        beat = Beat(self.plan.interval, first)
        while not self._stop.wait(beat.wait(self._clock())):
            try:
                self.poll()
                self.ask_version()
            except Exception:
                self.loop_restarts += 1
                logger.exception(
                    "source=engine:%s event=bug: the poll failed unexpectedly and goes on", self.plan.name
                )
                self._fail(SourceError("internal", "an unexpected error; see the log"), self._clock())
            now = self._clock()
            beat.advance(now)
            delay = self._back_off()
            if delay > beat.wait(now):
                beat.postpone(now, delay)
            self.state = replace(self.state, status=replace(self.state.status, skipped=beat.skipped))
        self._fetcher.close()

    def _back_off(self) -> float:
        over = self._failed_in_a_row - _BACK_OFF_AFTER
        if over < 0:
            return 0.0
        most = _BACK_OFF_MOST.get(self.state.status.reason, _BACK_OFF_MOST_ELSE)
        spread = (
            0.9 + 0.2 * (zlib.crc32(self.plan.name.encode()) % 101) / 101
        )  # so that replicas which fell together spread out
        return min(most, self.plan.interval * 2.0 ** min(over + 1, 10)) * spread


def _version(body: bytes) -> str:
    if len(body) > _MAX_VERSION_BYTES:
        raise PageError("too_large", "the version's answer is too large")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise PageError("not_json", "the version's answer is no JSON") from None
    version = answer.get("version") if isinstance(answer, dict) else None
    return clean(version) if isinstance(version, str) else ""


def staggered(count: int, interval: float, now: float) -> Sequence[float]:
    """First due times of ``count`` replicas: the first at once, the others spread over a fifth of the interval."""
    return [now + index * 0.2 * interval / max(1, count) for index in range(count)]
