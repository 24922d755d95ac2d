"""Log lines about XIDs, SXids and faults of adapters: each code of each device once a minute.

Codes beyond MAX_LOGGED within a minute share one place, so that no flood, whatever it says, can fill the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from exporter.derive.xids import GpuIdentity
from exporter.logs import log_event
from exporter.model import FATAL_SEVERITY, KERNEL_LOG, SxidReport, XidReport
from exporter.model.xid_catalog import Class, describe
from exporter.runtime.poll.state_logger import LOG_PERIOD_SECONDS

logger = logging.getLogger(__name__)

MAX_LOGGED = 256  # codes of GPUs, switches and adapters that are remembered
_REST = ("", 0)


class GpuEventLog:
    """Logs the events; any thread may call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic."""
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[tuple[str, int], tuple[float, int]] = {}  # when, and how many events were suppressed since

    def xid(self, report: XidReport, new: int, gpu: GpuIdentity, detail: str) -> None:
        """Log ``new`` events of a code of a GPU."""
        suppressed = self._suppressed((gpu.uuid, report.xid), new)
        if suppressed is None:
            return
        known = describe(report.xid)
        log_event(
            logger, logging.INFO if known.kind is Class.INFORMATIONAL else logging.WARNING, "xid", known.meaning,
            **{"xid": report.xid, "class": known.kind.value, "action": known.action, "gpu": gpu.gpu or "unknown"},
            uuid=gpu.uuid, pci=gpu.pci or "unknown", source=report.source,
            count=new, suppressed=suppressed or None, driver_message=detail or None,
        )  # fmt: skip

    def sxid(self, report: SxidReport, detail: str) -> None:
        """Log an error of a switch; ``detail``: the rest of the driver's message."""
        suppressed = self._suppressed((f"{report.pci} {report.severity}", report.sxid), 1)
        if suppressed is None:
            return
        log_event(
            logger, logging.ERROR if report.severity == FATAL_SEVERITY else logging.WARNING, "sxid",
            "an NVSwitch reports an error",
            sxid=report.sxid, severity=report.severity, pci=report.pci, link=report.link,
            suppressed=suppressed or None, driver_message=detail or None,
        )  # fmt: skip

    def nic(self, pci: str, event: str, detail: str) -> None:
        """Log a fault that an adapter's driver reported; ``detail``: its message."""
        suppressed = self._suppressed((f"{pci} {event}", 0), 1)
        if suppressed is not None:
            log_event(
                logger, logging.WARNING, "nic_event", "the driver of a network adapter reports a fault",
                pci=pci, kind=event, suppressed=suppressed or None, driver_message=detail or None,
            )  # fmt: skip

    def unknown_device(self, pci: str) -> None:
        """Log that a message about an address without a GPU or switch was ignored."""
        suppressed = self._suppressed(("unknown device", 0), 1)
        if suppressed is not None:
            log_event(
                logger, logging.WARNING, "unknown_device", "a driver message about a missing device is ignored",
                source=KERNEL_LOG, pci=pci, suppressed=suppressed or None,
            )  # fmt: skip

    def _suppressed(self, key: tuple[str, int], new: int) -> int | None:
        """Return how many events had no line since the last line about the code; None: too early for a line."""
        now = self._clock()
        with self._lock:
            if key not in self._logged and len(self._logged) >= MAX_LOGGED:
                self._logged = {
                    code: held for code, held in self._logged.items() if now - held[0] < LOG_PERIOD_SECONDS
                }
                key = key if len(self._logged) < MAX_LOGGED else _REST
            logged_at, suppressed = self._logged.get(key, (float("-inf"), 0))
            if now - logged_at < LOG_PERIOD_SECONDS:
                self._logged[key] = logged_at, suppressed + new
                return None
            self._logged[key] = now, 0
            return suppressed
