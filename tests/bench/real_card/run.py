"""The order of things: read the cards, run the daemon, compare, write down."""

from __future__ import annotations

import json
import pathlib
import platform
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

from exporter import __version__
from exporter.driver.nvml import library
from exporter.driver.nvml.errors import DriverUnavailable
from tests.bench.real_card import cards, counters, smi
from tests.bench.real_card.compare import Comparison, Raws
from tests.bench.real_card.daemon import Daemon, DaemonError, Page, complaints, up
from tests.bench.real_card.disguise import Disguise
from tests.bench.real_card.load import COPIES_FROM
from tests.bench.real_card.recording import Recorder, watch
from tests.bench.real_card.report import (
    Report,
    calls_by_group,
    calls_by_name,
    refused_fields,
    spread,
    table,
    why_missing,
)

READ_MOST = 30.0  # seconds of reading in each pass: enough for a 99th percentile
_DCGM = {"dcgm-legacy.prom": "legacy", "dcgm-4.9.prom": "4.9"}
_BUSY = 0.2  # share of time that processors must show while matrices are multiplied
_LOAD_START = 120.0  # seconds until the first product


class Run:
    """One run.  ``all`` gives the exit code and raises DriverUnavailable where there is nothing to ask."""

    def __init__(
        self, output: pathlib.Path, seconds: float, *, load: bool, give_up: Callable[[str, float], None]
    ) -> None:
        self._output, self._seconds, self._load, self._give_up = output, seconds, load, give_up
        self._disguise = Disguise()
        self._report = Report()
        self._driver = library.load_driver("pynvml")

    def all(self) -> int:
        """Run every step in turn."""
        guarded, recorder = Recorder(self._driver), Recorder(self._driver)
        for driver in (guarded, recorder):
            watch(driver, self._give_up)
        before = counters.look(guarded)
        say("reading the cards, each call timed")
        reading = cards.read(recorder, min(self._seconds / 2, READ_MOST))
        if not reading.cards and not reading.closed:
            raise DriverUnavailable("driver", "NVML works, and counts no card")
        self._output.mkdir(parents=True, exist_ok=True)
        for look in reading.cards:
            self._disguise.meet(look.facts.uuid, look.facts.serial)
        self._write("calls.json", in_lines(self._disguise.tree(document(recorder, reading))))
        say("reading them again, for the time of whole cycles")
        whole = cards.read(self._driver, min(self._seconds / 2, READ_MOST))
        self._describe(reading)
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._observe(pathlib.Path(folder), reading, before)
            except DaemonError as error:
                self._report.differences.append(str(error))
            except Exception:  # what was read of the cards is worth having all the same
                self._report.differences.append(f"this command failed:\n\n```\n{traceback.format_exc()}```")
        self._costs(recorder, reading, whole)
        self._write("report.md", self._report.text())
        for line in self._report.differences:
            say(self._disguise.text(f"differs: {line}"))
        say(f"{'differences found' if self._report.differences else 'all agrees'}; see {self._output / 'report.md'}")
        return 1 if self._report.differences else 0

    def _write(self, name: str, text: str) -> None:
        (self._output / name).write_text(self._disguise.text(text))

    def _describe(self, reading: cards.Seen) -> None:
        driver = reading.driver
        heads = ("card", "name", "divided", "NUMA node", "VBIOS")
        rows = [
            (
                str(f.index),
                f.name,
                "yes" if f.mig else "no",
                "" if f.numa_node is None else str(f.numa_node),
                f.vbios_version,
            )
            for f in (look.facts for look in reading.cards)
        ]
        self._report.section(
            "Machine",
            f"Driver {driver.driver_version}, NVML {driver.nvml_version}, CUDA {driver.cuda_version}; nvidia-ml-py "
            f"{version('nvidia-ml-py')}, Shardwatch {__version__}, Python {platform.python_version()}, "
            f"Linux {platform.release()} on {platform.machine()}.",
            table(heads, rows),
        )
        self._report.differences += reading.closed
        self._report.differences += [
            f"card {look.facts.index} is gone: {look.gone}" for look in reading.cards if look.gone
        ]

    # ---- the daemon

    def _observe(self, folder: pathlib.Path, reading: cards.Seen, before: Raws) -> None:
        """Run the daemon for the time that was asked for, and compare.  Raises DaemonError."""
        say(f"running the daemon for {self._seconds:g} s")
        with Daemon(folder) as daemon:
            alive, count = sum(not look.gone for look in reading.cards), len(reading.cards) + len(reading.closed)
            daemon.until(lambda page: len(up(page)) >= alive, "not all cards are up that answered before")
            with suppress(DaemonError):  # work is what lies between two readings
                daemon.until(
                    lambda page: not page.all("gpu_signal_missing_info", reason="starting"), "starting", 10.0
                )
            for dialect in _DCGM.values():
                daemon.get(f"/metrics/dcgm?dialect={dialect}&fields=all")  # from now on it keeps what rates need
            with self._working() as (begun, tool):
                pages = self._pages(daemon, count)
                index = {look.facts.uuid: str(look.facts.index) for look in reading.cards}
                Comparison(self._report, daemon, pages, index).all(self._driver, reading, before)
            if tool:
                self._loaded(pages, begun)
            self._write("page.full.prom", daemon.page().text)
            for name, dialect in _DCGM.items():
                self._write(name, daemon.get(f"/metrics/dcgm?dialect={dialect}&fields=all")[1])
            self._write("page.prom", daemon.use("common").text)

    @contextmanager
    def _working(self) -> Iterator[tuple[float, str]]:
        """Start work on the GPUs where requested; return when it began, and by what ("" for none)."""
        if not self._load:
            yield time.monotonic(), ""
            return
        command = [sys.executable, "-m", "tests.bench.real_card.load", str(self._seconds)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        patience = threading.Timer(_LOAD_START, child.kill)
        patience.start()
        try:
            assert child.stdout is not None
            state, _, tool = child.stdout.readline().strip().partition(" ")
            patience.cancel()
            if state != "ready":
                tool = ""
                self._report.notes.append("No work was put on the cards: neither torch nor cupy can use them here.")
            yield time.monotonic(), tool
        finally:
            patience.cancel()
            child.kill()
            child.communicate()

    def _pages(self, daemon: Daemon, count: int) -> list[Page]:
        """Read a page each second; report once what a healthy node must not show."""
        first, pages = daemon.cost(), []
        end = time.monotonic() + self._seconds
        while not pages or time.monotonic() < end:
            pages.append(daemon.page())
            self._report.differences += [
                line for line in complaints(pages[-1], count) if line not in self._report.differences
            ]
            time.sleep(min(1.0, max(0.1, end - time.monotonic())))
        last = daemon.cost()
        elapsed = last["at"] - first["at"]
        shares = [
            (process, f"{100 * (last[process] - first[process]) / elapsed:.2f} %") for process in ("daemon", "worker")
        ]
        self._report.section(
            "The daemon",
            f"{len(pages)} pages in {elapsed:.0f} s, cards read every second, full set of series, "
            f"{len(pages[-1].samples)} series; memory (PSS) of both processes {last['mib']:.1f} MiB.  CPU of one core, "
            "the worker with the driver's share:",
            table(("process", "CPU"), shares),
        )
        return pages

    def _loaded(self, pages: list[Page], begun: float) -> None:
        """Report what work did to the figures; the direction of the copies is known."""
        shown = (
            *smi.GPM.values(),
            "gpu_power_watts",
            "gpu_pcie_link_generation",
            "gpu_pcie_link_width",
            "gpu_pcie_link_degraded",
        )
        copies = begun + COPIES_FROM * self._seconds + 3.0, begun + self._seconds
        rows = []
        for uuid, card in pages[-1].cards().items():
            for metric in shown:
                values = [value for page in pages if (value := page.get(metric, uuid=uuid)) is not None]
                if values:
                    rows.append((card, metric, f"{min(values):g}", f"{max(values):g}"))
                if metric == "gpu_sm_active_ratio" and values and max(values) < _BUSY:
                    self._report.differences.append(
                        f"card {card} multiplied matrices, and {metric} was {max(values):.3f} at most"
                    )
            self._direction(card, [page for page in pages if copies[0] < page.at < copies[1]], uuid)
        self._report.section("Under load", table(("card", "figure", "least", "most"), rows))

    def _direction(self, card: str, pages: list[Page], uuid: str) -> None:
        sums = {
            direction: sum(
                page.get("gpu_traffic_bytes_per_second", uuid=uuid, link="pcie", direction=direction) or 0.0
                for page in pages
            )
            for direction in ("transmit", "receive")
        }
        if any(sums.values()) and sums["receive"] <= sums["transmit"]:
            self._report.differences.append(
                f"card {card} was copied to, and sends more over PCIe than it receives: swapped?"
            )

    # ---- what it costs

    def _costs(self, recorder: Recorder, first_reading: cards.Seen, whole: cards.Seen) -> None:
        rows = []
        for look in whole.cards:
            extra = [value - sorted(look.fast)[len(look.fast) // 2] for value in look.slow] if look.fast else []
            rows += [
                (str(look.facts.index), title, str(len(values)), *spread(values))
                for title, values in (
                    ("cycle", look.fast),
                    ("cycle with the slow batch", look.slow),
                    ("slow batch alone", extra),
                )
            ]
        self._report.section(
            "What a cycle costs",
            "The daemon's own reading, driver included; cards one after the other.  The slow batch comes every 10 s.",
            table(("card", "", "times", "median µs", "p99 µs", "max µs"), rows),
        )
        self._report.section("What the calls cost, by group", calls_by_group(recorder))
        self._report.section("What each call costs", calls_by_name(recorder))
        absent, fields = [], []
        for look in first_reading.cards:
            fields.append((str(look.facts.index), refused_fields(recorder, str(look.facts.index)) or "none"))
            if look.reading is not None:
                absent += why_missing(recorder, str(look.facts.index), look.reading)
            for facts, reading in ((part.facts, part.reading) for part in look.instances):
                assert facts.instance is not None
                absent += why_missing(recorder, f"{facts.index}:{facts.instance.number}", reading)
        lacking = ", ".join(sorted(recorder.lacking))
        self._report.section(
            "Absent", table(("card", "signal", "reason", "the driver's answers"), absent) or "Nothing.",
            table(("card", "fields that it refuses"), fields),
            f"The binding has no {lacking}." if lacking else "",
        )  # fmt: skip


def document(recorder: Recorder, reading: cards.Seen) -> dict[str, Any]:
    """Return everything that was asked and answered, for calls.json."""
    return {
        "driver": {
            "version": reading.driver.driver_version,
            "nvml": reading.driver.nvml_version,
            "cuda": reading.driver.cuda_version,
        },
        "binding": version("nvidia-ml-py"),
        "cards": [look.facts.name for look in reading.cards],
        "lacking": sorted(recorder.lacking),
        "calls": [
            {
                "card": call.card,
                "call": call.name,
                "arguments": call.arguments,
                "codes": {str(code): times for code, times in sorted(call.codes.items())},
                "microseconds": dict(
                    zip(("median", "p99", "max"), map(float, spread(call.microseconds)), strict=True)
                ),
                "answer": call.answer,
            }
            for call in recorder.calls.values()
        ],
    }


def in_lines(document: dict[str, Any]) -> str:
    """Write it as JSON with a line for each call, so that two of them can be compared."""
    head = json.dumps({key: value for key, value in document.items() if key != "calls"})
    return f'{head[:-1]}, "calls": [\n' + ",\n".join(map(json.dumps, document["calls"])) + "\n]}\n"


def say(line: str) -> None:
    """Report the person who waits."""
    print(line, flush=True)
