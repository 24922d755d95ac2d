"""Hours of a node's life on a virtual clock, as fast as it goes: memory, descriptors, threads and errors.

    python -m tests.bench.soak [--hours 8]

Eight replicas of 1,485 lines are polled each second, and fail now and then in one way of ``FAULTS``; each second has a
snapshot with its diagnosis, and two scrapers ask each 15 s, one for each format.  Exits with 1 where memory grows by
more than a MiB for a million polls (half a MiB is allowed to the allocator), a thread, a child or a descriptor is left,
or an error was not handled.  ``tests.bench.soak_wall`` does so with the daemon itself, in real time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.engines import pages
from tests.bench.machine import memory_mib, tree
from tests.support.fault_matrix import Harness

REPLICAS = 8
SCRAPE = 15  # seconds
FAULT_EVERY = 97  # polls of a replica
SLOPE = 1.0  # MiB for a million polls
ALLOCATOR = 0.5  # MiB


def _other_names(page: bytes, number: int) -> bytes:
    """Return a page whose models have names that no page had before, as adapters that come and go have."""
    return page.replace(b'model_name="', b'model_name="v%d-' % number, 40)


FAULTS: tuple[Callable[[bytes, int], bytes | None], ...] = (
    lambda _page, _number: None,  # refused
    lambda page, _number: page[: len(page) // 2],
    lambda _page, _number: b"",
    lambda _page, _number: b"<html>gateway timeout</html>",
    lambda page, _number: page.replace(b"} ", b"} NaN "),
    lambda page, _number: page + page,
    _other_names,
)


class Engine:
    """Gives page after page, begins anew after the last, and fails now and then."""

    def __init__(self, ready: list[bytes], phase: int) -> None:
        self._pages = ready
        self.polls = phase
        self.faults = 0

    def __call__(self) -> bytes | None:
        self.polls += 1
        page = self._pages[self.polls % len(self._pages)]
        if self.polls % FAULT_EVERY:
            return page
        self.faults += 1
        return FAULTS[self.faults % len(FAULTS)](page, self.polls)


class Errors(logging.Handler):
    """Counts what no part of the daemon should ever log: exceptions that nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


@dataclass(frozen=True)
class Usage:
    """What the process holds: MiB resident, and how many of the others."""

    resident: float
    descriptors: int
    threads: int
    processes: int


def usage() -> Usage:
    """Return what this process holds once free memory was given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    own = os.getpid()
    return Usage(
        resident=memory_mib([own], "Rss"),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        processes=len(tree(own)),
    )


def simulate(hours: float, report: Callable[[float, Usage], None]) -> list[str]:
    """Live for so many hours and report each tenth; return the errors that were logged."""
    errors = Errors()
    logging.getLogger().addHandler(errors)
    ready = pages(4)
    harness = Harness({f"r{number}": Engine(ready, 37 * number) for number in range(REPLICAS)}, series="full")
    seconds = int(3600 * hours)
    for second in range(1, seconds + 1):
        harness.turn()
        if second % SCRAPE == 0:
            harness.bytes()
            harness.bytes(openmetrics=True)
        if second % (seconds // 10) == 0:
            report(second * REPLICAS, usage())
    return errors.seen


def breaches(samples: list[tuple[float, Usage]], errors: list[str]) -> list[str]:
    """Return what was not as it must be; the first two tenths, in which caches and windows fill, are left out."""
    (first_polls, first), (last_polls, last) = samples[1], samples[-1]
    allowed = SLOPE * (last_polls - first_polls) / 1e6 + ALLOCATOR
    found = [f"an error was logged: {message}" for message in errors[:5]]
    if last.resident - first.resident > allowed:
        found.append(f"memory grew by {last.resident - first.resident:.2f} MiB, {allowed:.2f} are allowed")
    found += [
        f"{what}: {getattr(first, what)} became {getattr(last, what)}"
        for what in ("descriptors", "threads", "processes")
        if getattr(last, what) > getattr(first, what)
    ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0)
    hours = parser.parse_args().hours
    samples: list[tuple[float, Usage]] = []

    def report(polls: float, held: Usage) -> None:
        samples.append((polls, held))
        print(
            f"{polls:8.0f} polls  {held.resident:7.2f} MiB  {held.descriptors} descriptors  {held.threads} threads",
            flush=True,
        )

    began = time.monotonic()
    found = breaches(samples, simulate(hours, report))
    print(f"{hours:g} h in {time.monotonic() - began:.0f} s")
    print("\n".join(found) or "nothing grew and nothing failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
