"""One replica: fetch its page, understand it, derive, and publish the outcome as one immutable state.

Runs in a thread of its own, so that a hung engine delays nobody.  Nothing else writes what is kept here; others
read ``state`` and ``oddities``, which are replaced whole.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from exporter.derive import capacity, delta, engine, ranks
from exporter.derive.windows import History
from exporter.engines import by_kind, kinds_on, recognise, still
from exporter.engines.base import Engine, clean
from exporter.engines.exposition import PageReader, holds_samples
from exporter.engines.interpreter import Interpreter
from exporter.engines.plan import RELAYED
from exporter.errors import PageError, SourceError
from exporter.model import EMPTY, CacheRoom, EngineReading, ReplicaState, WindowFigures
from exporter.polling import Fetched, Fetcher, Polling

logger = logging.getLogger(__name__)

_VERSION_AGAIN = 600.0
_VERSION_AGAIN_AFTER_FAILURE = 60.0
_MAX_VERSION_BYTES = 512 * 1024  # some engines answer with their whole configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """What is asked of a replica's poller.  Times in seconds; ``windows``: label and length."""

    name: str
    kind: str
    interval: float
    windows: tuple[tuple[str, float], ...]
    quantiles: tuple[float, ...]
    image: str = ""


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
        self.polling = Polling(f"engine:{plan.name}", plan.interval, logger=logger, clock=clock, wall=wall)
        self._fetcher = fetcher
        self._on_update = on_update
        self._clock = clock
        self._version, self._model, self._version_due = "", "", float("-inf")
        self._reader: PageReader | None = None
        self._interpreter: Interpreter | None = None
        self._progress: delta.Progress | None = None
        self._history: History[delta.Totals] = History(plan.windows)
        self._usage: History[capacity.Usage] = History(plan.windows[:1])
        self.state = ReplicaState(
            name=plan.name,
            kind=plan.kind,
            labels=(plan.name, "" if plan.kind == "auto" else plan.kind, ""),
            status=self.polling.status,
            reading=None,
            last_read_at=None,
            image=plan.image,
        )

    # ------------------------------------------------------------------ one poll

    def poll(self) -> None:
        """Read the replica once and replace ``state``; never raises for what the engine does."""
        started = self.polling.begin()
        try:
            page = self._fetcher.fetch()
            reading = self._understand(page.body, self._clock())
        except SourceError as error:
            self._fail(error, started)
        else:
            self._take(reading, page)
        finally:
            self.polling.end()
        self._on_update()

    def _understand(self, body: bytes, at: float) -> EngineReading:
        known = self._interpreter.engine if self._interpreter else None
        if known is None or (self.plan.kind == "auto" and not still(known, body)):
            kind = recognise(body) if self.plan.kind == "auto" else by_kind(self.plan.kind)
            if kind is None and self.plan.kind != "auto":
                message = f"this version does not read pages of kind {self.plan.kind} yet"
                raise PageError("unsupported_engine", message)
            if kind is None and not holds_samples(body):
                raise PageError("not_metrics", "the answer has no line that is a Prometheus sample")
            if kind is None:
                raise PageError(
                    "unknown_engine", "the page is of no engine that is known; set its kind or mend the url"
                )
            if kind is not known:
                others = [other.kind for other in kinds_on(body) if other is not kind and not other.carrier]
                if others:
                    message = "source=engine:%s event=several_engines kind=%s left_out=%s"
                    logger.warning(message, self.plan.name, kind.kind, ",".join(others))
                self._interpreter = Interpreter(kind)
                self._reader = PageReader(self._interpreter.wanted)
                self._begin_anew()
        assert self._interpreter is not None
        assert self._reader is not None  # made together with the interpreter
        return self._named(self._interpreter.read(self._reader.read(body), at))

    def _named(self, reading: EngineReading) -> EngineReading:
        """Add what the engine says elsewhere: its version, and the model where its page does not name it."""
        kind = self._interpreter.engine if self._interpreter else None
        if kind is not None and kind.model_key and not self._model and self._clock() >= self._version_due:
            self._ask(kind)  # now, so that no figure is shown without its model first
        if not (self._version or self._model):
            return reading
        return replace(reading, version=self._version or reading.version, model=reading.model or self._model)

    def _begin_anew(self) -> None:
        """Forget the past: another engine or another model answers now, and windows must not mix the two."""
        self._progress = None
        self._history = History(self.plan.windows)
        self._usage = History(self.plan.windows[:1])
        self._version, self._model, self._version_due = "", "", float("-inf")

    def _take(self, reading: EngineReading, page: Fetched) -> None:
        now = self._clock()
        known = "" if reading.several_models else reading.model or self.state.labels[2]
        if self.state.labels[2] not in ("", known):
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
            self.polling.restarted()
            self._version_due = now
        windows = engine.figures(self._history, self.plan.quantiles, reading)
        shortest = windows.get(self.plan.windows[0][0]) if self.plan.windows else None
        page_before = self.state.reading.histograms if self.state.reading is not None else EMPTY
        self.state = ReplicaState(
            name=self.plan.name,
            kind=self.plan.kind,
            labels=(self.plan.name, reading.engine, known),
            status=self.polling.succeeded(page.duration),
            reading=reading,
            last_read_at=reading.at,
            histograms=ranks.summed(reading.histograms, page_before, self.state.histograms),
            windows=windows,
            frozen=engine.frozen(reading, totals, now),
            rank_imbalance=engine.rank_imbalance(reading, shortest.rank_token_rates if shortest else EMPTY),
            restarts=totals.restarts if totals else self.state.restarts,
            certificate_expires=page.certificate_expires,
            room=self._room(reading, windows),
            generated=engine.generated(totals),
            image=self.plan.image,
        )  # fmt: skip

    def _room(self, reading: EngineReading, windows: Mapping[str, WindowFigures]) -> CacheRoom:
        self._usage.add(capacity.usage(reading))
        window = self.plan.windows[0] if self.plan.windows else ("", 0.0)
        recent = self._usage.within(window[0]) if self.plan.windows else ()
        return capacity.room(reading, windows, recent, window[1])

    def _fail(self, error: SourceError, started: float) -> None:
        self.state = replace(
            self.state,
            status=self.polling.failed(error, started),
            reading=None,
            windows=EMPTY,
            histograms=EMPTY,
            frozen=None,
            rank_imbalance=EMPTY,
            room=None,
            generated=None,
        )

    def view(self, now: float) -> ReplicaState:
        """Give the state as it may be shown at ``now``: withdrawn when this thread itself has not come back.

        An exchange keeps its own deadline; should that ever fail, stale figures must not stay on the page.
        """
        state = self.state
        if not self.polling.late(now) or state.reading is None:
            return state
        status = replace(state.status, up=False, reason="hung", hung=True)
        return replace(
            state,
            status=status,
            reading=None,
            windows=EMPTY,
            histograms=EMPTY,
            frozen=None,
            room=None,
            generated=None,
        )

    # ------------------------------------------------------------------ the engine's version

    def ask_version(self) -> None:
        """Ask the engine for its version when that is due; costs one small exchange every ten minutes."""
        kind = self._interpreter.engine if self._interpreter else None
        now = self._clock()
        reading = self.state.reading
        if kind is None or not kind.version_path or now < self._version_due or reading is None:
            return
        if not reading.dialect.startswith(RELAYED):  # a relay answers for itself
            self._ask(kind)

    def _ask(self, kind: Engine) -> None:
        now = self._clock()
        try:
            answer = _facts(self._fetcher.fetch(kind.version_path).body)
            self._version, self._model = _text(answer, "version"), _text(answer, kind.model_key)
            self._version_due = now + _VERSION_AGAIN
        except SourceError as error:
            self._version_due = now + _VERSION_AGAIN_AFTER_FAILURE
            logger.debug("source=engine:%s version not had: %s", self.plan.name, error)

    # ------------------------------------------------------------------ the loop

    def start(self, first: float) -> None:
        """Poll from ``first`` (monotonic) on, in a thread of its own."""
        self.polling.start(first, self._turn, self._crashed, self._fetcher.close)

    def stop(self) -> None:
        """Ask the thread to end; it does so within one exchange, and closes its connection."""
        self.polling.stop()

    def join(self, timeout: float) -> None:
        """Wait for the thread, not for ever."""
        self.polling.join(timeout)

    @property
    def loop_restarts(self) -> int:
        """Unexpected errors that the loop survived."""
        return self.polling.loop_restarts

    def _turn(self) -> None:
        self.poll()
        self.ask_version()

    def _crashed(self, error: SourceError) -> None:
        self._fail(error, self._clock())


def _facts(body: bytes) -> Mapping[str, object]:
    if len(body) > _MAX_VERSION_BYTES:
        raise PageError("too_large", "the version's answer is too large")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise PageError("not_json", "the version's answer is no JSON") from None
    return answer if isinstance(answer, dict) else {}


def _text(answer: Mapping[str, object], key: str) -> str:
    text = answer.get(key)
    return clean(text) if isinstance(text, str) else ""
