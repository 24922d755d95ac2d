"""One GPU exporter: the state of its GPUs from its pages.

A GPU that was on a page and is on the next one no more is lost, as one that the driver counts no more.  While no page
can be read all of them are down, and nothing is known about them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.errors import EndpointError, PageError, SourceError
from exporter.gpu_pages.interpreter import MAX_GPUS, GpuPageInterpreter
from exporter.gpu_pages.tables import by_kind, recognise
from exporter.logs import log_down, log_up
from exporter.model import CardFacts, CardReading, CardState, GpuLabels, Missing, SourceStatus
from exporter.model.gpu_page import EXPORTER_DOWN, GpuPageReading, GpuPageState, PageGpu
from exporter.runtime import unknown_pages
from exporter.runtime.poll.loop import Fetched, Fetcher, PollLoop
from exporter.runtime.poll.target_poller import TargetPoller

logger = logging.getLogger(__name__)

EXPIRE_AFTER = 24 * 3600.0  # seconds after which a lost GPU is dropped, as with the driver's
LOST = "lost"


class GpuPageConfig(Struct, frozen=True, kw_only=True):
    """What is asked of a GPU exporter's poller.  Times in seconds."""

    name: str
    kind: str
    interval: float


class _SeenGpu(Struct):
    """A GPU that was on a page; ``seen_at``: monotonic."""

    facts: CardFacts
    labels: GpuLabels
    seen_at: float
    unix_time: float
    failures: Counter[str] = field(default_factory=Counter)
    pipes: frozenset[str] = frozenset()
    lost: bool = False


class GpuPageHandler:
    """The state of one GPU exporter between two polls.  Used by the thread that polls it."""

    def __init__(self, config: GpuPageConfig, poll_loop: PollLoop, unix_now: Callable[[], float]) -> None:
        self.config = config
        self._poll_loop = poll_loop
        self._unix_now = unix_now
        self._interpreter: GpuPageInterpreter | None = None
        self._known: dict[str, _SeenGpu] = {}

    def initial_state(self) -> GpuPageState:
        """Return the state before the first poll."""
        kind = "" if self.config.kind == "auto" else self.config.kind
        return GpuPageState(name=self.config.name, kind=kind, status=self._poll_loop.status, reading=None)

    def reconfigure(self, config: GpuPageConfig, fetcher: Fetcher) -> None:  # noqa: ARG002 - its page says all
        """Follow another config for the same page."""
        self.config = config

    def parse(self, body: bytes, at: float) -> GpuPageReading:
        """Parse a page.  Raises PageError."""
        auto = self.config.kind == "auto"
        if self._interpreter is None or (auto and not self._interpreter.exporter.matches(body)):
            exporter = recognise(body) if auto else by_kind(self.config.kind)
            if exporter is None:
                raise PageError("unknown_gpu_exporter", unknown_pages.explain(body, unknown_pages.GPU_PAGE))
            self._interpreter = GpuPageInterpreter(exporter)
        return self._interpreter.read(body, at)

    def apply(self, before: GpuPageState, reading: GpuPageReading, page: Fetched) -> GpuPageState:  # noqa: ARG002
        """Return the state after a page that was parsed."""
        status = self._poll_loop.succeeded(page.duration)
        now, unix_time = reading.at, self._unix_now()
        for gpu in reading.gpus:
            self._see(gpu, now, unix_time)
        shown = {gpu.facts.uuid: gpu.reading for gpu in reading.gpus}
        self._lose(shown.keys() ^ self._known.keys(), now)
        interpreter = self._interpreter
        return GpuPageState(
            name=self.config.name,
            kind=reading.kind,
            status=status,
            reading=reading,
            cards=tuple(_state(known, shown.get(uuid), page.duration) for uuid, known in self._known.items()),
            xids=interpreter is not None and interpreter.exporter.xids,
        )

    def _see(self, gpu: PageGpu, now: float, unix_time: float) -> None:
        facts = gpu.facts
        known = self._known.get(facts.uuid)
        if known is None:
            known = self._known[facts.uuid] = _SeenGpu(facts, _labels(facts), now, unix_time)
        elif known.facts != facts:
            known.facts, known.labels = facts, _labels(facts)
        if known.lost:
            log_up(logger, f"gpu:{facts.uuid}", gpu=known.labels.gpu)
        known.seen_at, known.unix_time, known.lost = now, unix_time, False
        known.pipes |= {pipe for pipe, share in gpu.reading.pipe_active.items() if share > 0}
        if Missing.INVALID in gpu.reading.missing.values():
            known.failures["signal_invalid"] += 1

    def _lose(self, absent: set[str], now: float) -> None:
        """Record GPUs that the page shows no more; drop those that went long ago, or that are too many."""
        for uuid in sorted(absent, key=lambda uuid: self._known[uuid].seen_at):
            known = self._known[uuid]
            if len(self._known) > MAX_GPUS or now - known.seen_at > EXPIRE_AFTER:
                del self._known[uuid]
            elif not known.lost:
                known.lost = True
                known.failures[LOST] += 1
                log_down(logger, f"gpu:{uuid}", LOST, gpu=known.labels.gpu)

    def explain(self, error: SourceError) -> SourceError:
        """Return the error with where this kind of exporter shows its metrics, if they are not there."""
        known = by_kind(self.config.kind)
        if error.reason != "http_404" or known is None:
            return error
        return EndpointError(error.reason, f"{error}; {known.hint}")

    def invalidated(self, state: GpuPageState, status: SourceStatus) -> GpuPageState:
        """Return the state without what only a fresh page may show."""
        cards = tuple(
            replace(
                card,
                status=replace(card.status, up=False, reason=card.status.reason or EXPORTER_DOWN),
                reading=None,
            )
            for card in state.cards
        )
        return replace(state, status=status, reading=None, cards=cards)


def _labels(facts: CardFacts) -> GpuLabels:
    instance = facts.instance
    return GpuLabels(str(facts.index) if instance is None else f"{facts.index}:{instance.number}", facts.uuid)


def _state(known: _SeenGpu, reading: CardReading | None, duration: float) -> CardState:
    return CardState(
        facts=known.facts,
        status=SourceStatus(
            source=f"gpu:{known.facts.uuid}",
            up=reading is not None,
            reason=LOST if reading is None else "",
            duration=duration,
            last_success=known.seen_at,
            last_success_unix_time=known.unix_time,
            failures=dict(known.failures),
        ),
        reading=reading,
        last_read_at=known.seen_at,
        labels=known.labels,
        pipes=known.pipes,
    )


GpuPagePoller = TargetPoller[GpuPageConfig, GpuPageReading, GpuPageState]


def gpu_page_poller(
    config: GpuPageConfig,
    fetcher: Fetcher,
    *,
    on_update: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    unix_now: Callable[[], float] = time.time,
) -> GpuPagePoller:
    """Return the poller of one GPU exporter, not started."""
    poll_loop = PollLoop(f"gpu_page:{config.name}", config.interval, logger=logger, clock=clock, unix_now=unix_now)
    handler = GpuPageHandler(config, poll_loop, unix_now)
    return TargetPoller(handler, handler.initial_state(), fetcher, poll_loop, on_update=on_update, clock=clock)
