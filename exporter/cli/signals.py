"""What the daemon is asked by signal, from the first moment of its life: without handlers every signal kills.

Whoever starts the program calls ``heed_early`` before anything large is loaded, which takes a third of a second;
this module therefore imports next to nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

STOP = (signal.SIGTERM, signal.SIGINT)
GO_ON = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_LOOK = 0.5  # seconds

_asked: SimpleQueue[int] = SimpleQueue()  # a handler may interrupt anything, and this queue's put bears that


def heed_early(words: Sequence[str]) -> None:
    """Until ``take_over`` is called: end at once with 0 when told to stop, and remember everything else.

    ``words`` is the command line; commands that are no daemons keep the handlers that every program has.
    """
    if not words or words[0] not in ("run", "demo"):
        return
    for number in STOP:
        signal.signal(number, _end)
    for number in GO_ON:
        signal.signal(number, _remember)


def take_over() -> None:
    """Remember every signal from now on, for ``next_asked``; none ends the process by itself any more."""
    for number in (*STOP, *GO_ON):
        signal.signal(number, _remember)


def next_asked() -> int:
    """Wait for the next signal and give its number; all come in their order, those from before included.

    Never in one long wait: the interpreter runs a handler between two steps of the program, and a signal that comes
    between the last step and the wait would be heeded with the next signal only.  A daemon told to stop just then
    would stay for ever.
    """
    while True:
        with suppress(Empty):
            return _asked.get(timeout=_LOOK)


def _remember(number: int, _: object) -> None:
    _asked.put(number)


def _end(_: int, __: object) -> None:
    # Nothing is open that needs closing, and an exception could be lost in whatever is being imported.
    os._exit(0)
