"""Puts return codes on every call of the driver, one by one, and lists what went wrong.

Every code that means something to the reading code, and in turn one of those that it knows nothing of.

A program of its own, because the library is loaded once for each process: ``python -m tests.support.nvml_codes CONTROL``
with the library of tests/support/fake_nvml.c in LD_LIBRARY_PATH.  It prints one JSON object: how many pairs of call and
code were tried, how often each outcome came, and what must not have happened.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

from exporter.driver import protocol
from exporter.driver.nvml import gpm
from exporter.driver.nvml.errors import (
    DEVICE_UNAVAILABLE,
    DRIVER_UNAVAILABLE,
    INVALID_ARGUMENT,
    OTHER_REASONS,
    UNSUPPORTED_CODES,
    DeviceUnavailable,
    DriverUnavailable,
)
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import card_count, initialise, load_driver, open_card
from exporter.driver.nvml.topology import TopologyReader
from exporter.driver.worker import event_thread
from exporter.driver.worker.driver_thread import AvailableGpu
from exporter.driver.worker.event_thread import EventThread
from exporter.model import Missing, Signal

CODES = (*range(1, 31), 255, 999)
NAMED = {*UNSUPPORTED_CODES, *DEVICE_UNAVAILABLE, *DRIVER_UNAVAILABLE, *OTHER_REASONS, INVALID_ARGUMENT}
UNNAMED = [code for code in CODES if code not in NAMED]
# What ends more than a signal: of one card, and of the driver.
CARD_ENDS = {15: "lost", 16: "reset_required", 28: "lost"}
DRIVER_ENDS = {1: "uninitialized", 9: "driver", 12: "library", 18: "mismatch"}
NEVER_AGAIN = {2, 3, 13, 25}  # what a driver does not have is not asked for again until the next initialisation
NUMBERS = ("-1", "255", "1000000000", "4294967295", "9223372036854775808", "1.8e19", "0")
CARDS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(3)]
PART = "MIG-aaaaaaaa-0000-0000-0000-000000000005"
HEALTHY = [
    f"cards {' '.join(CARDS)}",
    f"value {CARDS[2]} nvmlDeviceGetMigMode 1",
    f"mig {CARDS[2]} 1 9 0 1g.18gb {PART}",
]
VARYING = {
    Signal.ENERGY, Signal.PCIE_TRANSMIT, Signal.PCIE_RECEIVE, Signal.NVLINK_TRANSMIT, Signal.NVLINK_RECEIVE,
    # Two ways to ask, of which the library gives other numbers, or one of them says less.
    Signal.TEMPERATURE_MARGIN, Signal.MEMORY_FREE,
    Signal.ECC_CORRECTED_VOLATILE, Signal.ECC_CORRECTED_AGGREGATE, Signal.ECC_UNCORRECTED_VOLATILE,
    Signal.ECC_UNCORRECTED_AGGREGATE, Signal.PCIE_REPLAYS, Signal.REMAPPED_ROWS_CORRECTABLE,
    Signal.REMAPPED_ROWS_UNCORRECTABLE,
}  # fmt: skip
# Parts of one answer, of which the first says why it is missing.
PARTS_OF = dict.fromkeys((Signal.FABRIC_STATUS, Signal.FABRIC_HEALTH, Signal.FABRIC_SUMMARY), Signal.FABRIC_STATE)
SHARES = {
    Signal.UTILIZATION, Signal.MEMORY_ACTIVITY, Signal.ENCODER_UTILIZATION, Signal.DECODER_UTILIZATION,
    Signal.SM_ACTIVE, Signal.SM_OCCUPANCY, Signal.TENSOR_ACTIVE, Signal.DRAM_ACTIVE, Signal.GRAPHICS_ACTIVE,
}  # fmt: skip


class Trial:
    """All trials against one driver."""

    def __init__(self, control: str) -> None:
        self.control = pathlib.Path(control)
        self.wrong: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.plan()
        self.driver = load_driver("pynvml")
        self.version = initialise(self.driver)[0].driver_version
        self.usual = [self.reader(number).read(slow=True) for number in range(3)]

    def plan(self, *rules: str) -> None:
        fresh = self.control.with_suffix(".new")
        fresh.write_text("\n".join([*HEALTHY, *rules]) + "\n")
        fresh.replace(self.control)

    def reader(self, number: int) -> GpuReader:
        calls, facts = open_card(self.driver, number)
        return GpuReader(self.driver, calls, facts, self.version)

    def say(self, what: str, *about: object) -> None:
        self.wrong.append(f"{' '.join(map(str, about))}: {what}")

    # ------------------------------------------------------------------ one card

    def read(self, reader: GpuReader, about: tuple[object, ...], code: int | None):
        """Read a card and its instances; what comes instead of a reading must be what the code means."""
        try:
            instances = reader.instances.read(refresh=True) if reader.instances is not None else ()
            reading = reader.read(slow=True)
        except (DeviceUnavailable, DriverUnavailable) as error:
            self.outcomes[error.reason] += 1
            if error.reason != (CARD_ENDS | DRIVER_ENDS).get(code):
                self.say(f"ended with {error.reason}", *about)
            return None
        except Exception as error:
            self.say(f"raised {type(error).__name__}: {error}", *about)
            return None
        self.outcomes["read"] += 1
        for instance in instances:
            self.sound(instance.reading, (*about, instance.facts.uuid))
        self.sound(reading, about)
        return reading

    def sound(self, reading, about) -> None:
        """Check that no number is there that cannot be, and that what is missing says why."""
        message = protocol.CardRead(index=0, uuid="x", cycle=0, duration=0.0, reading=reading)
        if protocol.decode(protocol.encode(message)[4:]) != message:
            self.say("does not survive the pipe", *about)
        for signal, value in reading.signals.items():
            if not math.isfinite(value) or value < -100 or (signal in SHARES and not 0 <= value <= 1):
                self.say(f"{signal.value} is {value}", *about)
            if signal in reading.missing:
                self.say(f"{signal.value} is both there and missing", *about)

    def compare(self, reading, number: int, about) -> None:
        """Check that each signal of a healthy card is there as usual, or says why not."""
        usual = self.usual[number]
        for signal, value in usual.signals.items():
            signal_value = reading.signals.get(signal)
            if signal_value is None and PARTS_OF.get(signal, signal) not in reading.missing:
                self.say(f"{signal.value} is gone without a word", *about)
            elif signal_value is not None and signal not in VARYING and signal_value != value:
                self.say(f"{signal.value} is {signal_value} instead of {value}", *about)

    def codes(self, function: str, code: int) -> None:
        """Fail one call on GPUs 1 and 2, first of a GPU that is read, then of one that is opened."""
        about = (function, code)
        known = {number: self.reader(number) for number in range(3)}
        for reader in known.values():
            reader.read(slow=True)
            if reader.instances is not None:
                reader.instances.read(refresh=True)
            self.outcomes["opened"] += 1
        self.plan(*[f"on {uuid} {function} code {code}" for uuid in (CARDS[1], CARDS[2], PART)])
        for number, reader in known.items():
            reading = self.read(reader, (*about, number), code if number else None)
            if reading is not None:
                self.compare(reading, number, (*about, number))
        for number in (1, 2):
            try:
                fresh = self.reader(number)
            except (DeviceUnavailable, DriverUnavailable):
                self.outcomes["not opened"] += 1
                continue
            reading = self.read(fresh, (*about, number, "opened"), code)
            if reading is not None:
                self.compare(reading, number, (*about, number, "opened"))
        self.topology(about)
        self.plan()
        if code not in NEVER_AGAIN | CARD_ENDS.keys() | DRIVER_ENDS.keys():
            for number, reader in known.items():
                healed = self.read(reader, (*about, number, "healed"), None)
                if healed is not None and self.lacks(healed, number):
                    self.say(f"{self.lacks(healed, number)} did not come back", *about, number)
        for reader in known.values():
            reader.close()

    def lacks(self, reading, number: int) -> list[str]:
        wanted = self.usual[number].signals.keys() - reading.signals.keys()
        return sorted(signal.value for signal in wanted if reading.missing.get(signal) is not Missing.STARTING)

    def topology(self, about) -> None:
        handles = {}
        for number, uuid in enumerate(CARDS):
            handles[uuid] = self.driver.nvmlDeviceGetHandleByIndex(number) if not number else self.handle(number)
        try:
            TopologyReader(self.driver).read({uuid: handle for uuid, handle in handles.items() if handle is not None})
        except DriverUnavailable:
            self.outcomes["no topology"] += 1
        except Exception as error:
            self.say(f"topology raised {type(error).__name__}: {error}", *about)

    def handle(self, number: int):
        try:
            return self.driver.nvmlDeviceGetHandleByIndex(number)
        except Exception:
            return None

    # ------------------------------------------------------------------ the rest

    def driver_codes(self, function: str, code: int) -> None:
        """Fail a call that concerns no GPU; only the driver's own end may follow."""
        self.plan(f"on * {function} code {code}")
        try:
            card_count(self.driver)
            facts, count = initialise(self.driver)
            self.driver.nvmlShutdown()
            self.outcomes["initialised"] += count == 3 and bool(facts)
        except DriverUnavailable as error:
            self.outcomes[f"driver {error.reason}"] += 1
        except Exception as error:
            if function != "nvmlShutdown":  # here called without the worker's guard
                self.say(f"raised {type(error).__name__}: {error}", function, code)
            else:
                self.plan()
                self.driver.nvmlShutdown()
        self.plan()

    def event_codes(self, function: str, code: int) -> None:
        """Fail a call about events; the thread goes on and reports it, or is not affected."""
        sent: list[protocol.Message] = []
        handle = self.driver.nvmlDeviceGetHandleByIndex(1)
        card = SimpleNamespace(available=lambda: AvailableGpu(CARDS[1], handle))
        self.plan(f"on * {function} code {code}", f"event 1 {CARDS[1]} 0x8 79")
        thread = EventThread(self.driver, [card], SimpleNamespace(send=sent.append))
        thread.start()
        end = time.monotonic() + 5.0
        while not sent and time.monotonic() < end:
            time.sleep(0.002)
        if thread.join(0.0) or not sent:
            self.say(f"the thread said {sent}", function, code)
        message_types = {type(message).__name__ for message in sent}
        self.outcomes["heard" if "XidSeen" in message_types else "deaf"] += 1
        thread.end()
        if not thread.join(5.0):
            self.say("the thread does not end", function, code)
        self.plan()

    def numbers(self, function: str, number: str) -> None:
        """Answer one call with a number that is impossible, or nearly."""
        about = (function, number)
        self.plan(
            *[f"value {uuid} {function} {number}" for uuid in (CARDS[1], PART)], f"field {CARDS[1]} * u {number}"
        )
        self.read(self.reader(1), about, None)
        self.plan(f"value {CARDS[1]} {function} {number}")
        reading = self.read(self.reader(0), about, None)
        if reading is not None:
            self.compare(reading, 0, about)
        self.plan()


def called(counts: str) -> tuple[list[str], list[str]]:
    """Return the functions that were called about cards 1 and 2 or their instances, and those about no card."""
    keys = set()
    data = pathlib.Path(counts).read_bytes()
    for place in range(0, len(data), 64):
        key = data[place : place + 56].rstrip(b"\0").decode()
        if key and ":nvml" in f":{key}":
            keys.add(key)
    about_card = sorted({key.partition(":")[2] for key in keys if ":" in key})
    return about_card, sorted({key for key in keys if ":" not in key} - set(about_card))


def pairs(functions: list[str]) -> Iterator[tuple[str, int]]:
    """Yield each function with each named code and one of the others."""
    for number, function in enumerate(functions):
        for code in (*sorted(NAMED), UNNAMED[number % len(UNNAMED)]):
            yield function, code


def main() -> None:
    """Try everything and print what came of it."""
    event_thread.RETRY_FIRST = 0.01
    gpm.MIN_WINDOW = 0.0  # so that each second read asks for figures
    trial = Trial(sys.argv[1])
    for number in range(3):
        reader = trial.reader(number)
        if reader.instances is not None:
            reader.instances.read(refresh=True)
        for _ in range(2):
            reader.read(slow=True)
        reader.close()
    trial.topology(("healthy",))
    about_card, about_none = called(os.environ["FAKE_NVML_COUNTS"])
    of_driver = [name for name in about_none if not name.startswith(("nvmlGpm", "nvmlEvent"))] + ["nvmlShutdown"]
    of_gpm = [name for name in about_none if name.startswith("nvmlGpm")]
    of_events = ["nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree", "nvmlDeviceRegisterEvents",
                 "nvmlDeviceGetSupportedEventTypes"]  # fmt: skip
    put = {trial.codes: [*about_card, *of_gpm], trial.driver_codes: of_driver, trial.event_codes: of_events}
    tried = [(attempt, pair) for attempt, functions in put.items() for pair in pairs(functions)]
    for attempt, pair in tried:
        attempt(*pair)
    for function, number in itertools.product(about_card, NUMBERS):
        trial.numbers(function, number)
    summary = {"functions": sorted({function for _, (function, _) in tried}), "pairs": len(tried)}
    summary["codes"] = sorted({code for _, (_, code) in tried})
    print(json.dumps({**summary, "outcomes": trial.outcomes, "wrong": trial.wrong[:50], "wrongs": len(trial.wrong)}))


if __name__ == "__main__":
    main()
