"""Metrics about the daemon's own process: the families that Prometheus client libraries for Python have.

They are read when the endpoint is rendered: /proc/self never blocks, and what is not scraped costs nothing.  The
library itself, with the HTTP servers and clients that it imports, would take 4 MiB for them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import platform
import resource
from collections.abc import Iterator

from msgspec import Struct

Pairs = tuple[tuple[str, str], ...]


class ProcessFamily(Struct, frozen=True):
    """A family; of a counter, ``name`` is without ``_total``."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[Pairs, float], ...]  # labels, value


_MAJOR, _MINOR, _PATCH = platform.python_version_tuple()
_PYTHON_LABELS = (
    ("implementation", platform.python_implementation()),
    ("major", _MAJOR),
    ("minor", _MINOR),
    ("patchlevel", _PATCH),
    ("version", platform.python_version()),
)
_PYTHON = ProcessFamily("python_info", "gauge", "The Python interpreter.", ((_PYTHON_LABELS, 1.0),))
_GC = (
    ("collected", "python_gc_objects_collected", "Objects that the garbage collector freed."),
    ("uncollectable", "python_gc_objects_uncollectable", "Objects that the garbage collector could not free."),
    ("collections", "python_gc_collections", "Collections of each generation."),
)


def exposition(openmetrics: bool) -> str:  # noqa: FBT001 - the renderer hands over its format
    """Return the families as text 0.0.4, or as OpenMetrics without its end mark; what cannot be read is absent."""
    out = []
    for family in families():
        total = "_total" if family.kind == "counter" else ""
        declared = family.name if openmetrics else f"{family.name}{total}"
        out.append(f"# HELP {declared} {family.help}\n# TYPE {declared} {family.kind}\n")
        out += [f"{family.name}{total}{_braces(labels)} {value!r}\n" for labels, value in family.samples]
    return "".join(out)


def families() -> Iterator[ProcessFamily]:
    """Yield the families; what cannot be read is absent."""
    yield from _process()
    yield _PYTHON
    yield from _collector()


def _braces(labels: Pairs) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


def _process() -> Iterator[ProcessFamily]:
    with contextlib.suppress(OSError):
        with open("/proc/self/stat", "rb") as file:
            numbers = [int(field) for field in file.read().rpartition(b")")[2].split()[1:]]
        ticks = os.sysconf("SC_CLK_TCK")
        yield _gauge("process_virtual_memory_bytes", "Virtual memory of the process.", numbers[19])
        yield _gauge(
            "process_resident_memory_bytes", "Resident memory of the process.", numbers[20] * resource.getpagesize()
        )
        started = _boot_time() + numbers[18] / ticks
        yield _gauge("process_start_time_seconds", "Unix time at which the process started.", started)
        used = (numbers[10] + numbers[11]) / ticks
        yield ProcessFamily(
            "process_cpu_seconds", "counter", "User and system CPU time of the process.", (((), used),)
        )
    with contextlib.suppress(OSError):
        yield _gauge("process_open_fds", "Open file descriptors.", len(os.listdir("/proc/self/fd")))
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY:
            yield _gauge("process_max_fds", "Limit of open file descriptors.", limit)


@functools.cache
def _boot_time() -> float:
    with open("/proc/stat", "rb") as file:
        for line in file:
            if line.startswith(b"btime "):
                return float(line.split()[1])
    raise OSError("/proc/stat has no btime")


def _collector() -> Iterator[ProcessFamily]:
    generations = gc.get_stats()
    for key, name, help_ in _GC:
        samples = (((("generation", str(number)),), float(stats[key])) for number, stats in enumerate(generations))
        yield ProcessFamily(name, "counter", help_, tuple(samples))


def _gauge(name: str, help_: str, value: float) -> ProcessFamily:
    return ProcessFamily(name, "gauge", help_, (((), float(value)),))
