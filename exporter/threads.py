"""Threads as every part of the program starts them: daemon threads with a name that the kernel shows too."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from exporter.errors import ThreadLimitError

_PR_SET_NAME = 15
_MAX_NAME = 15  # bytes that the kernel keeps


class Thread(threading.Thread):
    """A daemon thread whose name is visible in ``ps -L``, ``top -H`` and a core file."""

    def __init__(self, target: Callable[..., object], *, name: str, args: Sequence[Any] = ()) -> None:
        super().__init__(target=target, name=name, args=tuple(args), daemon=True)

    def start(self) -> None:
        """Start the thread; raises ThreadLimitError if the kernel allows no more of them."""
        if self.ident is not None:
            raise RuntimeError(f"thread {self.name} was started before")
        try:
            super().start()
        except RuntimeError as error:
            raise ThreadLimitError(str(error)) from error

    def run(self) -> None:
        """Set the thread's name in the kernel, and run its target."""
        if sys.version_info < (3, 14):  # from there on Python does so
            name_thread(self.name)
        super().run()


def name_thread(name: str) -> None:
    """Set the kernel's name of the running thread, cut to 15 bytes; the main thread's is the process's name."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # absent where the kernel is not Linux
    if prctl is not None:
        prctl(_PR_SET_NAME, name.encode("ascii", "replace")[:_MAX_NAME], 0, 0, 0)
