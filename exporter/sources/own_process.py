"""The daemon's own process: the ``process_*`` that Prometheus' clients agree on, and thrift with memory.

prometheus_client would read the same six numbers for 2.3 MiB, most of it an HTTP server; it is their judge in the
tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
from collections.abc import Iterator

_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")  # a second, and in bytes
_LIMIT = b"Max open files"
_FAMILIES = {  # name, a counter's without _total → help
    "process_virtual_memory_bytes": "Address space of the daemon.",
    "process_resident_memory_bytes": "Memory of the daemon.",
    "process_start_time_seconds": "Unix time at which the daemon started.",
    "process_cpu_seconds": "CPU time of the daemon, the kernel's for it included.",
    "process_open_fds": "File descriptors that are open.",
    "process_max_fds": "File descriptors that may be open.",
}


def exposition() -> dict[bool, str]:
    """Give the families as text 0.0.4 under False and as OpenMetrics under True; absent is what cannot be read."""
    text: dict[bool, list[str]] = {False: [], True: []}
    values = _values()
    for family, help_ in _FAMILIES.items():
        if family in values:
            counter = family == "process_cpu_seconds"
            sample = f"{family}_total" if counter else family
            for openmetrics, lines in text.items():
                title = family if openmetrics else sample
                lines.append(f"# HELP {title} {help_}\n# TYPE {title} {'counter' if counter else 'gauge'}\n")
                lines.append(f"{sample} {values[family]!r}\n")
    return {openmetrics: "".join(lines) for openmetrics, lines in text.items()}


def _values() -> dict[str, float]:
    found: dict[str, float] = {}
    for read in (_stat, _descriptors):
        with contextlib.suppress(OSError, ValueError, IndexError):  # /proc may be hidden, or not Linux's
            found.update(read())
    return found


def _stat() -> Iterator[tuple[str, float]]:
    with open("/proc/self/stat", "rb") as file:
        fields = file.read(4096).rpartition(b")")[2].split()  # behind the name, which may hold anything
    yield "process_virtual_memory_bytes", float(fields[20])
    yield "process_resident_memory_bytes", float(fields[21]) * _PAGE
    yield "process_cpu_seconds", (float(fields[11]) + float(fields[12])) / _TICKS
    yield "process_start_time_seconds", _booted() + float(fields[19]) / _TICKS


@functools.cache
def _booted() -> float:
    """Give when the machine started, in Unix time; asked once: the kernel corrects it, and nothing has restarted."""
    with open("/proc/stat", "rb") as file:
        for line in file:
            if line.startswith(b"btime "):
                return float(line.split()[1])
    raise ValueError("/proc/stat does not say when the machine started")


def _descriptors() -> Iterator[tuple[str, float]]:
    yield "process_open_fds", float(len(os.listdir("/proc/self/fd")))
    with open("/proc/self/limits", "rb") as file:
        for line in file:
            if line.startswith(_LIMIT):
                soft = line[len(_LIMIT) :].split()[0]
                yield "process_max_fds", float("inf") if soft == b"unlimited" else float(soft)


_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of glibc's mallopt


def be_thrifty() -> None:
    """Keep the process small and its pauses short; to be called once, before threads start.

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
