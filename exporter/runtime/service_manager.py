"""Notifies systemd: ready, alive, reloading, stopping; silent where no NOTIFY_SOCKET is set.

The protocol is one datagram of ``KEY=value`` lines to the socket that ``NOTIFY_SOCKET`` names (sd_notify(3)).  The
watchdog is fed by the loop that publishes snapshots, so that a daemon whose loop hangs is restarted although its
process lives and its port answers.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

from exporter.logs import log_event

logger = logging.getLogger(__name__)


class ServiceManager:
    """Notifies the service manager, if there is one.  No method raises: a lost message must not stop the daemon."""

    def __init__(self, environment: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        """``environment`` holds NOTIFY_SOCKET, and WATCHDOG_USEC and WATCHDOG_PID where the watchdog is on."""
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._clock = clock
        self._keepalive_period = _watchdog_timeout(environment) / 4  # three may be lost before it bites
        self._next_keepalive = 0.0
        self._failed = False

    def ready(self, status: str) -> None:
        """Notify that the daemon serves; ``status`` is one line for ``systemctl status``."""
        self._notify(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """Feed the watchdog, not more often than it needs."""
        now = self._clock()
        if self._keepalive_period and now >= self._next_keepalive:
            self._next_keepalive = now + self._keepalive_period
            self._notify("WATCHDOG=1")

    def reloading(self) -> None:
        """Notify that a reload has begun; ``ready`` ends it."""
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={int(time.monotonic() * 1e6)}")

    def stopping(self) -> None:
        """Notify that the daemon ends on purpose."""
        self._notify("STOPPING=1")

    def _notify(self, message: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # a manager that does not listen must not stop the loop
                sender.sendto(message.encode(), self._address)
            self._failed = False
        except OSError as error:
            if not self._failed:
                log_event(logger, logging.WARNING, "sd_notify_failed", error=str(error))
            self._failed = True


def _address(text: str) -> str | None:
    if text.startswith("@"):
        return "\0" + text[1:]  # Linux's abstract namespace
    return text if text.startswith("/") else None


def _watchdog_timeout(environment: Mapping[str, str]) -> float:
    """Return the watchdog's timeout in seconds; 0: it is off, or for another process (sd_watchdog_enabled(3))."""
    microseconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID")
    if not _is_number(microseconds) or (pid is not None and not (_is_number(pid) and int(pid) == os.getpid())):
        return 0.0
    return int(microseconds) / 1e6


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20
