"""What the daemon's log says of XIDs and SXids: every event once, each code of each card or switch once a minute.

Codes beyond MAX_SAID within a minute share one place, so that no flood, whatever it says, can fill the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from exporter.model import FATAL_SEVERITY, SxidReport, XidReport
from exporter.model.xid_catalog import Class, describe
from exporter.runtime.poll.state_logger import QUIET_SECONDS

logger = logging.getLogger(__name__)

MAX_SAID = 256  # codes of cards and switches that are remembered
_REST = ("", 0)


class EventLines:
    """The voice of the events; any thread may speak."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Have said nothing yet."""
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[tuple[str, int], tuple[float, int]] = {}  # when, and how many events went unsaid since

    def xid(self, report: XidReport, new: int, who: tuple[str, str, str], detail: str) -> None:
        """Tell of ``new`` events of a code; ``who``: the card's index, UUID and place, "" where not known."""
        index, uuid, pci = who
        unsaid = self._unsaid((uuid, report.xid), new)
        if unsaid is None:
            return
        known = describe(report.xid)
        counted = f"times={new} unsaid={unsaid}" if unsaid else f"times={new}"
        logger.log(
            logging.INFO if known.kind is Class.INFORMATIONAL else logging.WARNING,
            "event=xid xid=%d class=%s action=%s gpu=%s uuid=%s pci=%s source=%s %s: %s%s",
            *(report.xid, known.kind.value, known.action, index or "unknown", uuid, pci or "unknown", report.source),
            *(counted, known.meaning, f"; the driver says: {detail!r}" if detail else ""),
        )

    def sxid(self, report: SxidReport, words: str) -> None:
        """Tell of an error of a switch; ``words``: the driver's own."""
        unsaid = self._unsaid((f"{report.pci} {report.severity}", report.sxid), 1)
        if unsaid is None:
            return
        logger.log(
            logging.ERROR if report.severity == FATAL_SEVERITY else logging.WARNING,
            "event=sxid sxid=%d severity=%s pci=%s link=%s unsaid=%d: an NVSwitch reports an error; "
            "the driver says: %r",
            *(report.sxid, report.severity, report.pci, "none" if report.link is None else report.link),
            *(unsaid, words),
        )

    def _unsaid(self, key: tuple[str, int], new: int) -> int | None:
        """Give how many events went unsaid since the last line about the code; None when it is too early for one."""
        now = self._clock()
        with self._lock:
            if key not in self._said and len(self._said) >= MAX_SAID:
                self._said = {one: held for one, held in self._said.items() if now - held[0] < QUIET_SECONDS}
                key = key if len(self._said) < MAX_SAID else _REST
            said_at, unsaid = self._said.get(key, (float("-inf"), 0))
            if now - said_at < QUIET_SECONDS:
                self._said[key] = said_at, unsaid + new
                return None
            self._said[key] = now, 0
            return unsaid
