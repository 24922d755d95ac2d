"""Keep the process small and its pauses short."""

from __future__ import annotations

import ctypes
import gc

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of glibc's mallopt


def tune_memory() -> None:
    """Tune the allocator and the garbage collector; call it once, before threads start.

    glibc gives every thread an arena of its own that is never handed back: with a thread per engine that was 4 MiB
    of 48.  Blocks from 256 KiB on are given back when they are freed, which glibc stops doing after the first one.
    What was imported lives for ever, so the garbage collector need not look at it again and again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent with other C libraries
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)
        mallopt(_M_MMAP_THRESHOLD, 256 * 1024)
    gc.freeze()
    gc.enable()  # the command line switches it off while the program is loaded, which takes a tenth off the start
