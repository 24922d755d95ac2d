"""Limits of the process: memory kept small, pauses short, and as many descriptors as it may have."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource

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


_MAX_DESCRIPTORS = 65_536  # more are of no use, and programs that close all they might have take long


def max_connections(limit: int) -> int:
    """Return how many clients to serve at once, at most ``limit``.

    Clients who say nothing must leave descriptors for engines, /proc and the driver's worker.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if soft == resource.RLIM_INFINITY else max(4, min(limit, soft // 4))


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: many systems give 1024 or less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
