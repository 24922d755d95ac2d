"""All cards read as the daemon's worker reads them, again and again, and what that took.

The worker has a thread for each card; here they are read one after the other, so that no call waits for another's
lock and a time is the call's own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from exporter.driver.nvml import library
from exporter.driver.nvml.errors import DeviceUnavailable
from exporter.driver.nvml.gpm import MIN_WINDOW
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.shared import SharedState
from exporter.driver.nvml.topology import TopologyReader
from exporter.driver.protocol import InstanceReading
from exporter.model import CardFacts, CardReading, CardTopology, DriverFacts

_PACE = MIN_WINDOW + 0.01  # seconds between two reads: below that no work is measured
_SLOW_EACH = 5  # reads; the daemon does it every tenth


@dataclass(slots=True)
class Look:
    """One card: its last reading and instances, and the µs of its cycles without and with the slow tier."""

    facts: CardFacts
    reader: GpuReader
    reading: CardReading | None = None
    instances: tuple[InstanceReading, ...] = ()
    fast: list[float] = field(default_factory=list)
    slow: list[float] = field(default_factory=list)
    gone: str = ""  # why nothing more was read


@dataclass(slots=True)
class Seen:
    """The whole node."""

    driver: DriverFacts
    cards: list[Look]
    topology: dict[str, CardTopology]
    closed: list[str]  # what was said of cards that cannot even be opened


def read(driver: Any, seconds: float) -> Seen:
    """Initialise, read all cards for so long (six times at the least), and shut down.  Raises DriverUnavailable."""
    versions, count = library.initialise(driver)
    shared = SharedState()
    try:
        looks, handles, closed = [], {}, []
        for index in range(count):
            try:
                calls, facts = library.open_card(driver, index)
            except DeviceUnavailable as error:
                closed.append(str(error))
                continue
            handles[facts.uuid] = calls.handle
            looks.append(Look(facts, GpuReader(driver, calls, facts, versions.driver_version, shared)))
        topology = TopologyReader(driver).read(handles)
        end, turn = time.monotonic() + seconds, 0
        while looks and (turn <= _SLOW_EACH or time.monotonic() < end):
            begun = time.monotonic()
            for look in looks:
                _turn(look, slow=turn % _SLOW_EACH == 0, counted=turn > 0)
            turn += 1
            time.sleep(max(0.0, begun + _PACE - time.monotonic()))
        for look in looks:
            look.reader.close()
        return Seen(versions, looks, topology, closed)
    finally:
        shared.release(driver)
        library.shut_down(driver)


def _turn(look: Look, *, slow: bool, counted: bool) -> None:
    """Read one card as its thread in the worker does; the first turn asks for what later ones do not, and is no cost."""
    if look.gone:
        return
    started = time.perf_counter_ns()
    try:
        if look.reader.instances is not None:
            look.instances = look.reader.instances.read(refresh=slow)
        look.reading = look.reader.read(slow=slow)
    except DeviceUnavailable as error:
        look.gone = f"{error.reason}: {error}"
        return
    if counted:
        (look.slow if slow else look.fast).append((time.perf_counter_ns() - started) / 1e3)
