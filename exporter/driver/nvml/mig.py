"""The instances of a MIG-enabled GPU: who they are, and what the driver says of each.

An instance has a handle and a UUID of its own and answers questions about memory and processes; its work comes from
the parent's profiling functions, by GPU instance.  Power, heat, clocks and errors are the parent's.  The driver's
list has holes, and an instance that was deleted may stay in it until the next initialisation: one that does not
tell what it is is ignored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from exporter.driver.nvml.call_scheduler import CHANGING, ESSENTIAL, CallScheduler
from exporter.driver.nvml.errors import DeviceCalls, DeviceUnavailable
from exporter.driver.nvml.fields import checked
from exporter.driver.nvml.gpm import GpmCounters, GpmLock, GpmRead
from exporter.driver.nvml.library import printable
from exporter.driver.nvml.probes import processes
from exporter.driver.nvml.signals import MEMORY_V2, MIG_MEANINGLESS
from exporter.driver.protocol import InstanceReading
from exporter.model import CardFacts, CardProcess, CardReading, MigInstance, Missing, Signal

MAX_INSTANCES = 16  # of one GPU; the hardware has seven

_MEMORY = {
    Signal.MEMORY_TOTAL: "total",
    Signal.MEMORY_USED: "used",
    Signal.MEMORY_FREE: "free",
    Signal.MEMORY_RESERVED: "reserved",
}
_SCHEDULED = ("memory", "processes", "work")
_PROFILE = re.compile(r"\bMIG (\S{1,32})\Z")


class _Instance(Struct, frozen=True):
    """One instance that answers."""

    calls: DeviceCalls
    facts: CardFacts
    work: GpmCounters


class MigInstances:
    """All instances of one GPU.  ``calls`` are the parent's.

    ``refused``: why some instance could not be opened when they were last listed.
    """

    def __init__(self, driver: Any, calls: DeviceCalls, parent: CardFacts, gpm_lock: GpmLock) -> None:
        self._driver, self._calls, self._parent, self._gpm_lock = driver, calls, parent, gpm_lock
        self._instances: dict[str, _Instance] = {}
        self._asking: DeviceCalls | None = None
        self._listed = False
        self._scheduler: CallScheduler | None = None
        self.refused: Missing | None = None

    @property
    def call_started(self) -> float | None:
        """When the call about an instance that now runs began; None between two."""
        asking = self._asking
        return asking.call_started if asking is not None else None

    def read(
        self,
        *,
        refresh: bool,
        clock: Callable[[], float] = time.monotonic,
        scheduler: CallScheduler | None = None,
    ) -> tuple[InstanceReading, ...]:
        """Read every instance; ``refresh`` lists them first.  May raise DeviceUnavailable and DriverUnavailable.

        ``scheduler``: the parent's, as far as its time goes; without it every call is made.
        """
        scheduler = self._scheduler = scheduler or CallScheduler.unbounded()
        if refresh or not self._listed:
            self._listed = True
            self._refresh()
        readings = []
        for uuid, instance in list(self._instances.items()):
            self._asking = instance.calls
            try:
                reading = _read(instance, clock, scheduler)
                readings.append(InstanceReading(facts=instance.facts, reading=reading))
            except DeviceUnavailable:
                self._forget(uuid)  # deleted, and still in the list
        self._asking = None
        return tuple(readings)

    def close(self) -> None:
        """Release what belongs to the driver."""
        for uuid in list(self._instances):
            self._forget(uuid)

    def _forget(self, uuid: str) -> None:
        self._instances.pop(uuid).work.close()
        if self._scheduler is not None:
            self._scheduler.forget((uuid, name) for name in _SCHEDULED)

    def _refresh(self) -> None:
        count = self._calls.call("nvmlDeviceGetMaxMigDeviceCount")
        self.refused = count if isinstance(count, Missing) else None
        present = set()
        for number in range(min(count, MAX_INSTANCES) if isinstance(count, int) else 0):
            # Not remembered as refused, whatever it answers: there may be an instance a moment later.
            handle = self._calls.call("nvmlDeviceGetMigDeviceHandleByIndex", number, key=("mig", number))
            self._calls.unsupported.discard(("mig", number))
            if isinstance(handle, Missing):
                self._check_permission(handle)
                continue
            present.add(self._identify(DeviceCalls(self._driver, handle, self._calls.skipped_calls), number))
        for uuid in self._instances.keys() - present:
            self._forget(uuid)

    def _check_permission(self, answer: Any) -> None:
        """Remember a refusal; a hole in the list and an instance that was deleted answer with other codes."""
        if answer is Missing.NO_PERMISSION:
            self.refused = answer

    def _identify(self, calls: DeviceCalls, number: int) -> str:
        """Return the UUID of an instance, "" where the driver does not report it."""
        self._asking = calls
        try:
            answer = calls.call("nvmlDeviceGetUUID")
            self._check_permission(answer)
            uuid = printable(answer)
            gpu_instance = calls.call("nvmlDeviceGetGpuInstanceId")
            compute_instance = calls.call("nvmlDeviceGetComputeInstanceId")
        except DeviceUnavailable:
            return ""
        if not uuid or not isinstance(gpu_instance, int) or not isinstance(compute_instance, int):
            return ""
        name = printable(calls.call("nvmlDeviceGetName"))
        profile = _PROFILE.search(name)
        instance = MigInstance(
            number=number,
            parent=self._parent.uuid,
            profile=profile[1] if profile else "",
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
        )
        facts = CardFacts(
            index=self._parent.index,
            uuid=uuid,
            name=name,
            serial=self._parent.serial,
            vbios_version=self._parent.vbios_version,
            numa_node=self._parent.numa_node,
            modes=self._parent.modes,
            instance=instance,
        )
        known = self._instances.get(uuid)
        if known is None or known.facts != facts:
            if known is not None:
                self._forget(uuid)
            self._instances[uuid] = _Instance(calls, facts, self._gpm_counters(gpu_instance))
        return uuid

    def _gpm_counters(self, gpu_instance: int) -> GpmCounters:
        def sample(buffer: Any) -> Any:
            name = "nvmlGpmMigSampleGet"
            return self._calls.call(name, gpu_instance, buffer, key=(name, gpu_instance))

        return GpmCounters(self._driver, self._calls, self._gpm_lock, sample, uuid=self._parent.uuid)


def _read(instance: _Instance, clock: Callable[[], float], scheduler: CallScheduler) -> CardReading:
    """Read one instance.  Raises DeviceUnavailable where it answers no call."""
    uuid = instance.facts.uuid
    at = clock()
    values: dict[Signal, float | Missing] = dict.fromkeys(MIG_MEANINGLESS, Missing.MIG)
    answer = scheduler.run((uuid, "memory"), ESSENTIAL, lambda: _memory(instance.calls))
    memory = dict.fromkeys(_MEMORY, answer) if isinstance(answer, Missing) else answer
    values.update(memory)
    running = scheduler.run((uuid, "processes"), CHANGING, lambda: processes(instance.calls))
    if isinstance(running, Missing):
        values[Signal.PROCESSES] = running
        if all(value is Missing.ERROR for value in memory.values()) and running is Missing.ERROR:
            raise DeviceUnavailable("lost", "the instance answers no call")
    else:
        values[Signal.PROCESSES] = float(len(running))
    work = scheduler.run((uuid, "work"), CHANGING, lambda: instance.work.read(clock))
    work = GpmRead.none(work) if isinstance(work, Missing) else work
    values.update(work.values)
    listed: tuple[CardProcess, ...] | None = None if isinstance(running, Missing) else running
    return CardReading(
        at=at,
        signals={signal: value for signal, value in values.items() if not isinstance(value, Missing)},
        missing={signal: value for signal, value in values.items() if isinstance(value, Missing)},
        pipe_active=work.pipes,
        traffic=work.traffic,
        processes=listed,
    )


def _memory(calls: DeviceCalls) -> Mapping[Signal, float | Missing]:
    answer = calls.call("nvmlDeviceGetMemoryInfo", MEMORY_V2)
    if answer is Missing.UNSUPPORTED:
        answer = calls.call("nvmlDeviceGetMemoryInfo")
    if isinstance(answer, Missing):
        return dict.fromkeys(_MEMORY, answer)
    return {
        signal: checked(getattr(answer, name), high=2.0**56) if hasattr(answer, name) else Missing.UNSUPPORTED
        for signal, name in _MEMORY.items()
    }
