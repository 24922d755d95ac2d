"""One replica: its state from the pages of its engine, and the figures over the windows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from exporter.derive import capacity, delta, imbalance, ranks
from exporter.derive import replica as derive
from exporter.derive.windows import History
from exporter.engines.compile import MODEL
from exporter.engines.detect import detect_all, explain_missing, recognise, still_matches
from exporter.engines.engine import Engine, ServerInfo
from exporter.engines.interpreter import EngineInterpreter
from exporter.engines.parse.churn import SeriesChurn
from exporter.engines.parse.text import PageReader, holds_samples
from exporter.engines.tables import METRICS_FLAGS, by_kind
from exporter.errors import EndpointError, PageError, SourceError
from exporter.logs import log_event
from exporter.model import (
    EMPTY,
    LATENCIES,
    EngineReading,
    Histogram,
    KvCacheHeadroom,
    Quantity,
    ReplicaLabels,
    ReplicaState,
    SourceStatus,
    Stage,
    Window,
    WindowFigures,
)
from exporter.runtime import unknown_pages
from exporter.runtime.engine_info import EngineInfoReader
from exporter.runtime.poll.loop import Fetched, Fetcher, PollLoop
from exporter.runtime.poll.state_logger import RateLimiter
from exporter.runtime.poll.target_poller import TargetPoller

logger = logging.getLogger(__name__)

_MAX_LOGGED_MODELS = 64  # names come from the page, and may be without end

# New pages are parsed and compiled one at a time, which costs no time (the interpreter has one lock anyway) but saves
# memory: each takes a few megabytes for a moment.
_full_reading = threading.Lock()
_NO_METRICS = frozenset(("http_404", "http_501"))  # what servers answer that were started without metrics


class ReplicaConfig(Struct, frozen=True, kw_only=True):
    """What is asked of a replica's poller.  Times in seconds; ``timeout`` is that of a poll.

    ``stages``: those that are followed over them.  ``lengths``: whether distributions of lengths are read.
    """

    name: str
    kind: str
    interval: float
    timeout: float = 1.0
    windows: tuple[Window, ...]
    quantiles: tuple[float, ...]
    stages: tuple[Stage, ...] = LATENCIES
    lengths: bool = True
    image: str = ""


class ReplicaHandler:
    """The state of one replica between two polls.  Used by the thread that polls it.

    It is kept under another config for the same URL, so that a reload which asks for other figures empties no window.
    """

    def __init__(
        self, config: ReplicaConfig, fetcher: Fetcher, poll_loop: PollLoop, clock: Callable[[], float]
    ) -> None:
        """``fetcher``: for what the engine tells beside its metrics."""
        self.config = config
        self.engine_info = EngineInfoReader(fetcher, poll_loop.source, clock)
        self._poll_loop = poll_loop
        self._clock = clock
        self._reader: PageReader | None = None
        self._interpreter: EngineInterpreter | None = None
        self._churn = SeriesChurn()
        self._other_models: set[str] = set()  # that the log has named
        self._progress: delta.ReplicaCounters | None = None
        # The summands of the state's histograms.
        self._departed_histograms: Mapping[Stage, Mapping[str, Histogram]] = EMPTY
        self._history: History[delta.ReplicaTotals] = History(config.windows)
        self._usage: History[capacity.KvCacheUsage] = History(config.windows[:1])
        self._frozen_logged, self._rate_limiter = False, RateLimiter(clock)

    def initial_state(self) -> ReplicaState:
        """Return the state before the first poll."""
        config = self.config
        return ReplicaState(
            name=config.name,
            kind=config.kind,
            labels=ReplicaLabels(config.name, "" if config.kind == "auto" else config.kind, ""),
            status=self._poll_loop.status,
            reading=None,
            last_read_at=None,
            image=config.image,
        )

    def reconfigure(self, config: ReplicaConfig, fetcher: Fetcher) -> None:
        """Follow another config for the same name, kind and URL, and keep the history that it can use."""
        old, self.config, self.engine_info.fetcher = self.config, config, fetcher
        if config.windows != old.windows:
            self._history = self._history.with_windows(config.windows)
            self._usage = self._usage.with_windows(config.windows[:1])
        if config.stages != old.stages and self._progress is not None:
            self._progress = delta.with_stages(self._progress, old.stages, config.stages)
        if config.lengths != old.lengths and self._interpreter is not None:
            self._read_as(self._interpreter.engine)

    # ------------------------------------------------------------------ one page

    def parse(self, body: bytes, at: float) -> EngineReading:
        """Parse a page; another engine than before starts with an empty history.  Raises PageError."""
        known = self._interpreter.engine if self._interpreter else None
        if known is None or (self.config.kind == "auto" and not still_matches(known, body)):
            kind = self._recognised(body)
            if kind is not known:
                self._log_other_kind(known, kind)
                self._warn_of_other_engines(kind, body)
                self._read_as(kind)
                self._reset()
        assert self._interpreter is not None
        assert self._reader is not None  # made together with the interpreter
        try:
            page = self._reader.read_known(body)
            if page is not None:
                reading = self._interpreter.read(page, at)
            else:
                with _full_reading:
                    reading = self._interpreter.read(self._reader.read_fully(body), at)
        except PageError as error:
            if error.reason in {"series_churn", "series_too_large"}:
                self._interpreter = self._reader = None  # what they keep of a large page
                raise
            hint = explain_missing(self._interpreter.engine, body) if error.reason == "no_engine_metrics" else ""
            raise PageError(error.reason, hint or str(error)) from None
        self._warn_of_other_models(reading)
        return self._with_info(reading)

    def _read_as(self, kind: Engine) -> None:
        self._interpreter = EngineInterpreter(kind, lengths=self.config.lengths)
        self._reader = PageReader(self._interpreter.wanted, self._churn)

    def _recognised(self, body: bytes) -> Engine:
        auto = self.config.kind == "auto"
        kind = recognise(body) if auto else by_kind(self.config.kind)
        if kind is not None:
            return kind
        if not auto:
            raise PageError("unsupported_engine", f"this version does not read pages of kind {self.config.kind} yet")
        reason = "unknown_engine" if holds_samples(body) else "not_metrics"
        raise PageError(reason, unknown_pages.explain(body, unknown_pages.ENGINE))

    def _log_other_kind(self, known: Engine | None, kind: Engine) -> None:
        if known is not None and self._rate_limiter.allow():
            log_event(
                logger, logging.WARNING, "kind_changed", "another kind of engine answers; windows start anew",
                source=self._poll_loop.source, kind=kind.kind, before=known.kind,
            )  # fmt: skip

    def _warn_of_other_engines(self, kind: Engine, body: bytes) -> None:
        others = [other.kind for other in detect_all(body) if other is not kind and not other.wrapper]
        if others:
            log_event(
                logger, logging.WARNING, "several_engines", "the page has several engines; one is read",
                source=self._poll_loop.source, kind=kind.kind, ignored=",".join(others),
            )  # fmt: skip

    def _warn_of_other_models(self, reading: EngineReading) -> None:
        others = [signal.removeprefix(MODEL) for signal in reading.missing if signal.startswith(MODEL)]
        unknown = set(others) - self._other_models
        if unknown and len(self._other_models) < _MAX_LOGGED_MODELS:
            self._other_models |= unknown
            log_event(
                logger, logging.WARNING, "other_models", "the page has several models; one is read",
                source=self._poll_loop.source, model=reading.model, models=",".join(sorted(unknown)),
            )  # fmt: skip

    def _with_info(self, reading: EngineReading) -> EngineReading:
        """Add what the engine tells elsewhere: its version, and the model where its metrics do not name it.

        An engine that comes back after it was down may be of another version, or serve another model: it is asked
        before anything is shown under what was known.
        """
        server_info = self._server_info(reading)
        if server_info is not None:
            status = self._poll_loop.status
            is_back = not status.up and status.last_success is not None
            if is_back:
                self.engine_info.reset()
            self.engine_info.refresh(server_info)
            if is_back or (server_info.model_keys and not self.engine_info.info.model):
                self.engine_info.wait(self._remaining())
        info = self.engine_info.info.about(reading.model)
        return replace(
            reading,
            version=info.version or reading.version,
            model=reading.model or info.model,
            parallel_sizes=info.parallel_sizes,
        )

    def _with_new_info(self, reading: EngineReading) -> EngineReading:
        """Request the model of a restarted engine whose metrics do not name it: it may be another one now."""
        self.engine_info.expire()
        server_info = self._server_info(reading)
        if server_info is None or not server_info.model_keys:
            return reading
        self.engine_info.refresh(server_info)
        self.engine_info.wait(self._remaining())
        info = self.engine_info.info
        return replace(reading, version=info.version, model=info.model or reading.model)

    def _server_info(self, reading: EngineReading) -> ServerInfo | None:
        """Return where the engine tells of itself; a relay would answer for itself."""
        return None if self._interpreter is None or reading.relayed else self._interpreter.engine.info

    def _remaining(self) -> float:
        """Return how many seconds the poll under way may still take."""
        return self.config.timeout - self._poll_loop.elapsed()

    def _reset(self) -> None:
        """Empty the history: another engine or another model answers now, and no window may mix the two."""
        self._progress = None
        self._history = History(self.config.windows)
        self._usage = History(self.config.windows[:1])
        self.engine_info.reset()

    def apply(self, before: ReplicaState, reading: EngineReading, page: Fetched) -> ReplicaState:
        """Return the state after a page that was parsed."""
        now = self._clock()
        known = "" if reading.several_models else reading.model or before.labels.model
        if before.labels.model not in ("", known):
            self._reset()
        restarts = self._progress.totals.restarts if self._progress else 0
        reading = delta.with_zero_hits(self._progress, reading)
        longest = max((window.seconds for window in self.config.windows), default=delta.RETENTION)
        self._progress = delta.update(self._progress, reading, self.config.stages, longest)
        totals = self._progress.totals if self._progress else None
        if totals is not None:
            self._history.add(totals)
        restarted = totals is not None and totals.restarts != restarts
        if restarted:
            self._poll_loop.log_restart()
            renamed = self._with_new_info(reading)
            if renamed.model != reading.model:
                return self.apply(before, renamed, page)  # as the first page of another model
        frozen = derive.is_frozen(reading, totals, now)
        if frozen is not None and frozen != self._frozen_logged and self._rate_limiter.allow():
            self._log_frozen(reading, frozen=frozen)
        windows = derive.window_figures(self._history, self.config.quantiles, reading)
        shortest = windows.get(self.config.windows[0].label) if self.config.windows else None
        carried = delta.departed_totals(self._progress, reading)
        added, self._departed_histograms = self._departed_histograms, carried.histograms
        return ReplicaState(
            name=self.config.name,
            kind=self.config.kind,
            labels=ReplicaLabels(self.config.name, reading.engine, known),
            status=self._poll_loop.succeeded(page.duration),
            reading=reading,
            last_read_at=reading.at,
            histograms=ranks.sum_stages(carried.histograms, added, before.histograms),
            quantity_totals=ranks.quantity_totals(reading.ranks, carried.quantities),
            finished_totals=ranks.finished_totals(reading.finished, carried.finished),
            windows=windows,
            frozen=frozen,
            moved_at=totals.moved_at if totals is not None else None,
            rank_imbalance=imbalance.rank_imbalance(reading, shortest),
            restarts=totals.restarts if totals else before.restarts,
            certificate_expires=page.certificate_expires,
            headroom=self._room(reading, windows),
            generated_tokens=derive.generated_tokens(totals),
            image=self.config.image,
        )  # fmt: skip

    def _log_frozen(self, reading: EngineReading, *, frozen: bool) -> None:
        self._frozen_logged = frozen
        if frozen:
            runs = any(delta.levels(reading, Quantity.REQUESTS_RUNNING))
            msg = f"requests {'are running' if runs else 'wait, none runs,'} and no counter moves"
            log_event(logger, logging.WARNING, "frozen", msg, source=self._poll_loop.source)
        else:
            log_event(logger, logging.INFO, "recovered", source=self._poll_loop.source)

    def _room(self, reading: EngineReading, windows: Mapping[str, WindowFigures]) -> KvCacheHeadroom:
        self._usage.add(capacity.kv_cache_usage(reading))
        window = self.config.windows[0] if self.config.windows else Window("", 0.0)
        recent = self._usage.samples(window.label) if self.config.windows else ()
        return capacity.headroom(reading, windows, recent, window.seconds)

    def explain(self, error: SourceError) -> SourceError:
        """Return the error with the flag that the server may lack, where it has no metrics endpoint."""
        if error.reason not in _NO_METRICS:
            return error
        known = self._interpreter.engine if self._interpreter else by_kind(self.config.kind)
        hint = known.hint if known is not None else METRICS_FLAGS
        return EndpointError(error.reason, f"{error}; {hint}") if hint else error

    def invalidated(self, state: ReplicaState, status: SourceStatus) -> ReplicaState:
        """Return the state without what only a fresh page may show."""
        return replace(
            state,
            status=status,
            reading=None,
            windows=EMPTY,
            histograms=EMPTY,
            quantity_totals=EMPTY,
            finished_totals=EMPTY,
            frozen=None,
            moved_at=None,
            rank_imbalance=EMPTY,
            headroom=None,
            generated_tokens=None,
        )


ReplicaPoller = TargetPoller[ReplicaConfig, EngineReading, ReplicaState]


def replica_poller(
    config: ReplicaConfig,
    fetcher: Fetcher,
    *,
    on_update: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    unix_now: Callable[[], float] = time.time,
) -> ReplicaPoller:
    """Return the poller of one replica, not started."""
    poll_loop = PollLoop(f"engine:{config.name}", config.interval, logger=logger, clock=clock, unix_now=unix_now)
    replica = ReplicaHandler(config, fetcher, poll_loop, clock)
    return TargetPoller(replica, replica.initial_state(), fetcher, poll_loop, on_update=on_update, clock=clock)
