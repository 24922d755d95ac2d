"""XIDs of GPUs, SXids of switches and faults of adapters, from the driver's events and the kernel log, counted.

The counters live here, in the daemon: they outlast driver workers and reloads.  ``KernelLogLoop`` follows the kernel
log in a thread of its own; the driver's events are handed in by the card source.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from exporter.derive.nic_events import NicEventCounters
from exporter.derive.sxids import SxidCounters
from exporter.derive.xids import XidCounters
from exporter.driver import protocol
from exporter.driver.daemon.source import DRIVER_DOWN
from exporter.errors import SourceError
from exporter.logs import log_event
from exporter.model import (
    BUS,
    KERNEL_LOG,
    NVML,
    CardState,
    InstanceId,
    SourceStatus,
    SxidCount,
    SxidReport,
    XidCount,
    XidReport,
)
from exporter.model.nic import NicEventCount
from exporter.model.xid_catalog import FATAL, RESETTING
from exporter.runtime.gpu_event_lines import GpuEventLog
from exporter.runtime.poll.loop import PollLoop
from exporter.runtime.poll.state_logger import StateLogger
from exporter.sources.kernel_log.log import Entry, KernelLog
from exporter.sources.kernel_log.messages import GpuNameMessage, XidMessage
from exporter.sources.kernel_log.nic_messages import NicMessage
from exporter.sources.kernel_log.switch_messages import SxidMessage
from exporter.sources.pci import PciDevices

logger = logging.getLogger(__name__)

PERIOD = 0.5  # seconds between two reads of the kernel log
STARTUP_GRACE = 5.0  # seconds that the first rows wait until it is known which sources can be listened to


class KernelLogLoop:
    """Reads the kernel log until stopped and hands over its entries."""

    def __init__(
        self,
        path: str | None,
        *,
        on_entries: Callable[[Sequence[Entry]], None],
        on_settled: Callable[[], None],
        clock: Callable[[], float],
        unix_now: Callable[[], float],
    ) -> None:
        """``on_settled`` is called when it is first known whether the log can be read."""
        self.poll_loop = PollLoop(KERNEL_LOG, PERIOD, logger=logger, clock=clock, unix_now=unix_now)
        self.path = path
        self._log = KernelLog(path, clock=clock, unix_now=unix_now)
        self._on_entries, self._on_settled = on_entries, on_settled
        self._clock = clock
        self._overruns = 0
        self._up: bool | None = None
        self._warned = False

    def start(self) -> None:
        """Read from now on, in a thread of its own."""
        self.poll_loop.start(self._clock(), self.refresh, self._log.close)

    def refresh(self) -> None:
        """Read what has come; the entries are handed over before the verdict that the log can be read."""
        started = self.poll_loop.begin()
        try:
            entries = self._log.read()
        except SourceError as error:
            self.poll_loop.failed(error, started)
        else:
            if not self._log.is_authentic and not self._warned:
                self._warned = True
                msg = "lines of a text file do not prove that the kernel wrote them; /dev/kmsg and the journal do"
                log_event(logger, logging.WARNING, "kernel_log_not_authentic", msg, source=KERNEL_LOG)
            if entries:
                self._on_entries(entries)
            self.poll_loop.succeeded(self._clock() - started)
            self._overruns += self._log.overruns
            self._log.overruns = 0
        finally:
            self.poll_loop.end()
        if self.poll_loop.status.up is not self._up:
            self._up = self.poll_loop.status.up
            self._on_settled()

    def status(self, now: float) -> SourceStatus:
        """Return the log's health; what the kernel overwrote before it was read counts as a failure."""
        status = self.poll_loop.status_at(now)
        if self._overruns:
            status = replace(status, failures={**status.failures, "overrun": self._overruns})
        return status


class GpuEvents:
    """All XIDs since the start.  ``view`` and ``statuses`` are the publisher's; any thread may report."""

    def __init__(
        self,
        *,
        driver: bool = True,
        on_change: Callable[[], None] = lambda: None,
        devices: PciDevices | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        """``driver``: there is a GPU source whose events are handed in.  ``devices``: None for this machine's."""
        self._on_change, self._clock, self._unix_now = on_change, clock, unix_now
        self._devices = devices or PciDevices(clock=clock)
        self._lock = threading.Lock()
        self._xids, self._sxids = XidCounters(FATAL, RESETTING), SxidCounters()
        self._nics = NicEventCounters()
        self._shown: tuple[XidCount, ...] = ()
        self._stale = True
        self._listened: set[str] = set()  # sources that were listened to at least once
        self._label = ""
        self._started = clock()
        self._settled = False
        self._watch: KernelLogLoop | None = None
        self._driver = SourceStatus(source="nvml_events", up=False, reason="starting") if driver else None
        self._driver_known = not driver  # whether it reports events is known
        self._driver_failures: Counter[str] = Counter()
        self._state_logger = StateLogger(logger, "nvml_events", clock)
        self._lines = GpuEventLog(clock)

    # ------------------------------------------------------------------ the sources

    def watch(self, *, enabled: bool, path: str | None) -> None:
        """Follow the kernel log at ``path`` (None: wherever it can be read) from now on, or not at all."""
        old = self._watch
        if old is not None and enabled and old.path == path:
            return
        if old is not None:
            old.poll_loop.stop()
        self._watch = None
        with self._lock:
            self._listened.discard(KERNEL_LOG)
        if enabled:
            self._watch = KernelLogLoop(
                path,
                on_entries=self._on_log_entries,
                on_settled=self._on_change,
                clock=self._clock,
                unix_now=self._unix_now,
            )
            self._watch.start()

    def stop(self) -> None:
        """Signal the thread to end."""
        if self._watch is not None:
            self._watch.poll_loop.stop()

    def on_driver_event(self, message: protocol.XidSeen | protocol.EventSubscription) -> None:
        """Handle a message of the driver's worker."""
        if isinstance(message, protocol.EventSubscription):
            self._listening(message)
        else:
            now = self._clock()
            at = min(message.at, now)
            report = XidReport(
                xid=message.xid,
                source=NVML,
                at=at,
                unix_time=self._unix_now() - (now - at),
                uuid=message.uuid,
                instance=InstanceId(message.gpu_instance, message.compute_instance),
                times=message.times,
            )
            self._report(report)
        self._on_change()

    def _listening(self, message: protocol.EventSubscription) -> None:
        if self._driver is None:
            return
        reason = message.reason
        # That there is no driver is reported and counted by the driver's own source.
        self._driver_known = self._driver_known or reason != DRIVER_DOWN
        if reason and reason != DRIVER_DOWN:
            self._driver_failures[reason] += 1
            self._state_logger.down(reason, "XIDs come from the kernel log only, where that can be read")
        elif not reason:
            self._state_logger.up()
            self._listened.add(NVML)
        self._driver = replace(
            self._driver, up=not reason, reason=reason, hung=reason == "hung", failures=dict(self._driver_failures)
        )

    def _on_log_entries(self, entries: Sequence[Entry]) -> None:
        now = self._clock()
        for entry in entries:
            message = entry.message
            if isinstance(message, NicMessage):
                self._nic_report(message, entry)
            elif not self._is_present(message):
                self._lines.unknown_device(message.pci)
            elif isinstance(message, GpuNameMessage):
                with self._lock:
                    self._xids.set_uuid(message.pci, message.uuid)
                    self._stale = True
            elif entry.unix_time is None:
                continue  # old, and how old is not known
            elif isinstance(message, SxidMessage):
                self._switch_report(message, now, entry.unix_time, old=entry.old)
            else:
                source = BUS if message.inferred else KERNEL_LOG
                report = XidReport(
                    xid=message.xid,
                    source=source,
                    at=now,
                    unix_time=entry.unix_time,
                    pci=message.pci,
                    instance=message.instance,
                    old=entry.old,
                )
                self._report(report, message.detail)
        self._on_change()

    def _is_present(self, message: XidMessage | GpuNameMessage | SxidMessage) -> bool:
        """Return whether a GPU or switch may be at the address, also one that was lost."""
        with self._lock:
            known = self._xids.knows(message.pci)
        is_switch = isinstance(message, SxidMessage)
        may_have = self._devices.may_have_switch if is_switch else self._devices.may_have
        return known or may_have(message.pci)

    # ------------------------------------------------------------------ for the publisher

    @property
    def statuses(self) -> list[SourceStatus]:
        """The health of both sources, as far as they exist."""
        watch = self._watch
        both = [self._driver, watch.status(self._clock()) if watch is not None else None]
        return [status for status in both if status is not None]

    @property
    def loop_restarts(self) -> Mapping[str, int]:
        """Count the unexpected errors that the reading of the kernel log survived."""
        watch = self._watch
        return {KERNEL_LOG: watch.poll_loop.loop_restarts} if watch is not None else {}

    def view(self, cards: Sequence[CardState]) -> tuple[XidCount, ...]:
        """Return all counts; empty until it is known which sources are listened to, because they label the series."""
        with self._lock:
            if self._xids.update_gpus(cards):
                self._stale = True
            label = self._source()
            if label != self._label:
                self._label, self._stale = label, True
            if not label or not self._is_settled():
                return ()
            if self._stale:
                self._shown, self._stale = self._xids.counts(label), False
            return self._shown

    def switches(self) -> tuple[SxidCount, ...]:
        """Return the counts of every NVSwitch that has reported an error."""
        with self._lock:
            return self._sxids.counts()

    def nic_events(self) -> tuple[NicEventCount, ...]:
        """Return the counts of the messages about every adapter."""
        with self._lock:
            return self._nics.counts()

    def _source(self) -> str:
        """Return the name of the source read last; a source that fails for a while does not rename the series."""
        watch = self._watch
        if watch is not None and watch.poll_loop.status.up:
            self._listened.add(KERNEL_LOG)
        return "+".join(source for source in (NVML, KERNEL_LOG) if source in self._listened)

    def _is_settled(self) -> bool:
        if not self._settled:
            watch = self._watch
            log = watch is None or watch.poll_loop.status.reason != "starting"
            self._settled = (log and self._driver_known) or self._clock() - self._started >= STARTUP_GRACE
        return self._settled

    # ------------------------------------------------------------------ one report

    def _report(self, report: XidReport, detail: str = "") -> None:
        with self._lock:
            new = self._xids.add(report)
            self._stale = True
            gpu = self._xids.identify(report)
        if new:
            self._lines.xid(report, new, gpu, detail)

    def _switch_report(self, message: SxidMessage, at: float, unix_time: float, *, old: bool) -> None:
        report = SxidReport(
            pci=message.pci,
            sxid=message.sxid,
            severity=message.severity,
            link=message.link,
            at=at,
            unix_time=unix_time,
            old=old,
        )
        with self._lock:
            new = self._sxids.add(report)
        if new:
            self._lines.sxid(report, message.detail)

    def _nic_report(self, message: NicMessage, entry: Entry) -> None:
        if entry.unix_time is None:
            return
        with self._lock:
            self._nics.add(message.pci, message.event, entry.unix_time, old=entry.old)
        if not entry.old:
            self._lines.nic(message.pci, message.event, message.detail)
