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


class _ProcessFamily(Struct, frozen=True):
    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, float], ...]  # labels as text, value


_MAJOR, _MINOR, _PATCH = platform.python_version_tuple()
_PYTHON_LABELS = (
    f'{{implementation="{platform.python_implementation()}",major="{_MAJOR}",minor="{_MINOR}",patchlevel="{_PATCH}",'
    f'version="{platform.python_version()}"}}'
)
_PYTHON = _ProcessFamily("python_info", "gauge", "The Python interpreter.", ((_PYTHON_LABELS, 1.0),))
_GC = (
    ("collected", "python_gc_objects_collected", "Objects that the garbage collector freed."),
    ("uncollectable", "python_gc_objects_uncollectable", "Objects that the garbage collector could not free."),
    ("collections", "python_gc_collections", "Collections of each generation."),
)


def exposition(openmetrics: bool) -> str:  # noqa: FBT001 - the renderer hands over its format
    """Return the families as text 0.0.4, or as OpenMetrics without its end mark; what cannot be read is absent."""
    out = []
    for family in (*_process(), _PYTHON, *_collector()):
        total = "_total" if family.kind == "counter" else ""
        declared = family.name if openmetrics else f"{family.name}{total}"
        out.append(f"# HELP {declared} {family.help}\n# TYPE {declared} {family.kind}\n")
        out += [f"{family.name}{total}{labels} {value!r}\n" for labels, value in family.samples]
    return "".join(out)


def _process() -> Iterator[_ProcessFamily]:
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
        yield _ProcessFamily(
            "process_cpu_seconds", "counter", "User and system CPU time of the process.", (("", used),)
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


def _collector() -> Iterator[_ProcessFamily]:
    generations = gc.get_stats()
    for key, name, help_ in _GC:
        samples = ((f'{{generation="{number}"}}', float(stats[key])) for number, stats in enumerate(generations))
        yield _ProcessFamily(name, "counter", help_, tuple(samples))


def _gauge(name: str, help_: str, value: float) -> _ProcessFamily:
    return _ProcessFamily(name, "gauge", help_, (("", float(value)),))
