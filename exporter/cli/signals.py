"""Signal handling, from the first moment of the process: without handlers every signal kills it.

``install_early_handlers`` is called before anything large is imported, which takes a third of a second; this module
therefore imports almost nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

STOP = (signal.SIGTERM, signal.SIGINT)
OTHERS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_WAIT = 0.5  # seconds

_received: SimpleQueue[int] = SimpleQueue()  # its put is reentrant: a handler may interrupt anything


def install_early_handlers(words: Sequence[str]) -> None:
    """Exit with 0 on a stop signal and queue every other signal, until ``install_handlers`` is called.

    ``words`` is the command line; commands other than daemons keep Python's default handlers.
    """
    if not words or words[0] not in ("run", "demo"):
        return
    for number in STOP:
        signal.signal(number, _exit)
    for number in OTHERS:
        signal.signal(number, _enqueue)


def install_handlers() -> None:
    """Queue every signal for ``wait`` from now on; none ends the process by itself any more."""
    for number in (*STOP, *OTHERS):
        signal.signal(number, _enqueue)


def wait() -> int:
    """Return the number of the next signal, blocking until there is one; signals are queued in order.

    The wait is split into short ones: the interpreter runs a handler between two bytecodes, and a signal that
    arrives between the last bytecode and the wait would be seen only with the next signal.  A daemon told to stop
    at that moment would never stop.
    """
    while True:
        with suppress(Empty):
            return _received.get(timeout=_WAIT)


def _enqueue(number: int, _: object) -> None:
    _received.put(number)


def _exit(_: int, __: object) -> None:
    # Nothing needs closing yet, and an exception could be swallowed by whatever is being imported.
    os._exit(0)
