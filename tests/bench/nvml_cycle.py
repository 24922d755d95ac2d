"""Microseconds that one card's cycle costs on this side of the driver: binding, reading, and the pipe.

python -m tests.bench.nvml_cycle [--rounds 2000]

The real binding calls a library that answers at once (tests/support/fake_nvml.c; needs cc), so the driver's own time is
not in it: on a real node that comes on top and is most of the whole.  "calls" are calls of the binding; those that
fetch lists (samples, processes, retired pages) enter the library twice.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from exporter.driver import protocol
from exporter.driver.nvml import library
from exporter.driver.nvml.gpu import GpuReader
from tests.support.nvml_node import build

GROUPS = {
    "Gpm": "work (GPM)",
    "FieldValues": "batched fields",
    "Samples": "utilisation samples",
    "UtilizationRates": "utilisation samples",
    "NvLinkState": "NVLink states",
    "Clock": "clocks and their events",
    "Temperature": "temperatures",
    "Memory": "memory",
    "Pcie": "PCIe",
    "Process": "processes",
}


def group_of(name: str) -> str:
    """Return the group under which a function is reported."""
    return next((group for part, group in GROUPS.items() if part in name), "all other calls")


class Stopwatch:
    """The binding, each call timed; hands over everything else untouched."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._made: dict[str, Callable[..., Any]] = {}
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._driver, name)
        if not name.startswith("nvml") or not callable(function):
            return function
        if name not in self._made:
            self._made[name] = self._timed(name, function)
        return self._made[name]

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        group = group_of(name)

        def call(*arguments: Any) -> Any:
            started = time.thread_time()
            try:
                return function(*arguments)
            finally:
                self.seconds[group] += time.thread_time() - started
                self.calls[group] += 1

        return call


def median(function: Callable[[], object], rounds: int) -> float:
    """Return the median of the microseconds of CPU time that a call takes."""
    spent = []
    for _ in range(rounds):
        started = time.thread_time()
        function()
        spent.append(time.thread_time() - started)
    return statistics.median(spent) * 1e6


def reader(driver: Any, version: str) -> GpuReader:
    """Return a card's reader that has settled."""
    calls, facts = library.open_card(driver, 0)
    made = GpuReader(driver, calls, facts, version)
    made.read(slow=True)  # the first read asks for what could be of use, and later ones for what was
    return made


def after_a_second(reader: GpuReader, *, slow: bool) -> None:
    """Read the card with a second's worth of samples in the driver's buffers, as on a node."""
    for mean in reader._samples.values():
        mean._last -= 1_000_000
    work = reader._work
    if work._first_at is not None:
        work._first_at -= 1.0
        ctypes.cast(work._first, ctypes.POINTER(ctypes.c_double))[1] -= 1.0  # the library's own time of the sample
    reader.read(slow=slow)


def report(driver: Any, rounds: int) -> None:
    """Measure and print."""
    facts, _ = library.initialise(driver)
    gpu_reader = reader(driver, facts.driver_version)
    print(f"{'one card, one cycle':44}{'µs':>9}{'calls':>8}")
    for title, slow in (("fast tier", False), ("fast and slow tier", True)):
        watch = Stopwatch(driver)
        watched = reader(watch, facts.driver_version)
        watch.seconds.clear()
        watch.calls.clear()
        for _ in range(rounds):
            after_a_second(watched, slow=slow)
        whole = median(lambda slow=slow: after_a_second(gpu_reader, slow=slow), rounds)  # type: ignore[misc]
        binding = sum(watch.seconds.values()) / rounds * 1e6
        print(f"{title:44}{whole:9.1f}{sum(watch.calls.values()) / rounds:8.1f}")
        for group, seconds in watch.seconds.most_common():
            print(f"    {group:40}{seconds / rounds * 1e6:9.1f}{watch.calls[group] / rounds:8.1f}")
        print(f"    {'own code':40}{whole - binding:9.1f}")
    message = protocol.CardRead(index=0, uuid="GPU-0", cycle=1, duration=0.001, reading=gpu_reader.read(slow=True))
    frame = protocol.encode(message)
    print(
        f"{'message to the daemon: ' + str(len(frame)) + ' bytes, written':44}{median(lambda: protocol.encode(message), rounds):9.1f}"
    )
    print(
        f"{'the same, read':44}{median(lambda: protocol.decode(protocol.FrameBuffer().feed(frame)[0]), rounds):9.1f}"
    )


def main() -> None:
    """Build the library, then start over with a loader path that finds it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    arguments = parser.parse_args()
    if os.environ.get("NVML_CYCLE_READY") != "1":
        compiler = shutil.which("cc")
        if compiler is None:
            sys.exit("no C compiler: the library that stands for the driver cannot be built")
        with tempfile.TemporaryDirectory() as folder:
            folder_of_library = build(compiler, pathlib.Path(folder))
            command = [sys.executable, "-m", "tests.bench.nvml_cycle", "--rounds", str(arguments.rounds)]
            environment = {**os.environ, "LD_LIBRARY_PATH": str(folder_of_library), "NVML_CYCLE_READY": "1"}
            sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    report(library.load_driver("pynvml"), arguments.rounds)


if __name__ == "__main__":
    main()
