"""Stop on a signal: end what was started, in order and once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed


def heed(message: str) -> None:
    """Print ``said`` and raise KeyboardInterrupt at the first of the signals."""

    def end(*_: Any) -> None:
        # A second Ctrl-C must not break off what ends the servers, or they would stay behind.
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # after SIGHUP the terminal is gone
            os.write(1, f"{message}\n".encode())  # print may be what was interrupted, and does not bear it
        raise KeyboardInterrupt

    for number in ENDING:
        signal.signal(number, end)


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Block the signals until the end of the block.

    A handler that raises between a fork and the note that there is a child would leave that child behind.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main thread alone
        yield
        return
    received: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in received:
            signal.raise_signal(late)
