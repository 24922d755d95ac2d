"""The pipe from the worker to the daemon."""

from __future__ import annotations

import os
import threading
from typing import Protocol

from exporter.driver import protocol


class Sender(Protocol):
    """What threads need of the pipe."""

    def send(self, message: protocol.Message) -> None:
        """Write one message."""


class FrameWriter:
    """Writes whole frames only, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: protocol.Message) -> None:
        """Write one frame.  Ends the process when the daemon has closed the pipe."""
        data = memoryview(protocol.encode(message))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                os._exit(0)

    def fail(self, reason: str, message: str) -> None:
        """Report why the driver does not work and end the process."""
        self.send(protocol.DriverFailed(reason=reason, message=message))
        os._exit(protocol.EXIT_FAILED)
