"""The instances of a divided card (MIG): who they are, and what the driver says of each.

An instance has a handle and a UUID of its own and answers questions about memory and processes; its work comes from
the parent's profiling functions, by GPU instance.  Power, heat, clocks and errors are the parent's.  Places in the
list have holes, and an instance that was deleted may stay in it until the next initialisation: one that does not say
what it is is left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from exporter.driver.nvml.call_scheduler import CHANGING, ESSENTIAL, CallScheduler
from exporter.driver.nvml.errors import DeviceCalls, DeviceUnavailable
from exporter.driver.nvml.fields import checked
from exporter.driver.nvml.gpm import GpmCounters, GpmLock, GpmRead
from exporter.driver.nvml.library import printable
from exporter.driver.nvml.probes import processes
from exporter.driver.nvml.signals import MEMORY_V2, MIG_MEANINGLESS
from exporter.model import CardFacts, CardProcess, CardReading, MigInstance, Missing, Signal

MOST = 16  # instances of one card; the hardware has seven

_MEMORY = {
    Signal.MEMORY_TOTAL: "total",
    Signal.MEMORY_USED: "used",
    Signal.MEMORY_FREE: "free",
    Signal.MEMORY_RESERVED: "reserved",
}
_PARTS = ("memory", "processes", "work")
_PROFILE = re.compile(r"\bMIG (\S{1,32})\Z")


class _Instance:
    """One instance that answers."""

    def __init__(self, calls: DeviceCalls, facts: CardFacts, work: GpmCounters) -> None:
        self.calls, self.facts, self.work = calls, facts, work


class MigInstances:
    """All instances of one card.  ``calls`` are the parent's; ``since`` is when a call about an instance began.

    ``refused``: why some instance could not be opened at the last look.
    """

    def __init__(self, driver: Any, calls: DeviceCalls, parent: CardFacts, room: GpmLock) -> None:
        self._driver, self._calls, self._parent, self._room = driver, calls, parent, room
        self._found: dict[str, _Instance] = {}
        self._asking: DeviceCalls | None = None
        self._looked = False
        self._turns: CallScheduler | None = None
        self.refused: Missing | None = None

    @property
    def since(self) -> float | None:
        """Give when the call about an instance that now runs began; None between two."""
        asking = self._asking
        return asking.since if asking is not None else None

    def read(
        self, *, look: bool, clock: Callable[[], float] = time.monotonic, turns: CallScheduler | None = None
    ) -> tuple[tuple[CardFacts, CardReading], ...]:
        """Read every instance; ``look`` lists them first.  May raise DeviceUnavailable, DriverUnavailable.

        ``turns``: the parent's, as far as its time goes; without them everything is asked.
        """
        turns = self._turns = turns or CallScheduler.unbounded()
        if look or not self._looked:
            self._looked = True
            self._look()
        found = []
        for uuid, instance in list(self._found.items()):
            self._asking = instance.calls
            try:
                found.append((instance.facts, _read(instance, clock, turns)))
            except DeviceUnavailable:
                self._forget(uuid)  # deleted, and still in the list
        self._asking = None
        return tuple(found)

    def close(self) -> None:
        """Hand back what belongs to the driver."""
        for uuid in list(self._found):
            self._forget(uuid)

    def _forget(self, uuid: str) -> None:
        self._found.pop(uuid).work.close()
        if self._turns is not None:
            self._turns.forget((uuid, part) for part in _PARTS)

    def _look(self) -> None:
        most = self._calls.call("nvmlDeviceGetMaxMigDeviceCount")
        self.refused = most if isinstance(most, Missing) else None
        standing = set()
        for number in range(min(most, MOST) if isinstance(most, int) else 0):
            # Not remembered as refused, whatever it answers: the place may be taken a moment later.
            handle = self._calls.call("nvmlDeviceGetMigDeviceHandleByIndex", number, key=("mig", number))
            self._calls.unsupported.discard(("mig", number))
            if isinstance(handle, Missing):
                self._note(handle)
                continue
            uuid = self._meet(DeviceCalls(self._driver, handle, self._calls.left), number)
            standing.add(uuid)
        for uuid in self._found.keys() - standing:
            self._forget(uuid)

    def _note(self, answer: Any) -> None:
        """Remember a refusal; an empty place and an instance that was deleted answer with other codes."""
        if answer is Missing.NO_PERMISSION:
            self.refused = answer

    def _meet(self, calls: DeviceCalls, number: int) -> str:
        """Ask an instance who it is; give its UUID, "" where it does not say."""
        self._asking = calls
        try:
            raw = calls.call("nvmlDeviceGetUUID")
            self._note(raw)
            uuid = printable(raw)
            part, compute = calls.call("nvmlDeviceGetGpuInstanceId"), calls.call("nvmlDeviceGetComputeInstanceId")
        except DeviceUnavailable:
            return ""
        if not uuid or not isinstance(part, int) or not isinstance(compute, int):
            return ""
        name = printable(calls.call("nvmlDeviceGetName"))
        profile = _PROFILE.search(name)
        instance = MigInstance(
            number=number,
            parent=self._parent.uuid,
            profile=profile[1] if profile else "",
            gpu_instance=part,
            compute_instance=compute,
        )
        facts = CardFacts(
            index=self._parent.index,
            uuid=uuid,
            name=name,
            serial=self._parent.serial,
            vbios_version=self._parent.vbios_version,
            numa_node=self._parent.numa_node,
            instance=instance,
        )
        known = self._found.get(uuid)
        if known is None or known.facts != facts:
            if known is not None:
                self._forget(uuid)
            self._found[uuid] = _Instance(calls, facts, self._work(part))
        return uuid

    def _work(self, part: int) -> GpmCounters:
        def take(buffer: Any) -> Any:
            return self._calls.call("nvmlGpmMigSampleGet", part, buffer, key=("nvmlGpmMigSampleGet", part))

        return GpmCounters(self._driver, self._calls, self._room, take, card=self._parent.uuid)


def _read(instance: _Instance, clock: Callable[[], float], turns: CallScheduler) -> CardReading:
    """Read one instance.  Raises DeviceUnavailable where it answers no question."""
    uuid = instance.facts.uuid
    at = clock()
    values: dict[Signal, float | Missing] = dict.fromkeys(MIG_MEANINGLESS, Missing.MIG)
    answer = turns.ask((uuid, "memory"), ESSENTIAL, lambda: _memory(instance.calls))
    memory = dict.fromkeys(_MEMORY, answer) if isinstance(answer, Missing) else answer
    values.update(memory)
    running = turns.ask((uuid, "processes"), CHANGING, lambda: processes(instance.calls))
    if isinstance(running, Missing):
        values[Signal.PROCESSES] = running
        if all(value is Missing.ERROR for value in memory.values()) and running is Missing.ERROR:
            raise DeviceUnavailable("lost", "the instance answers no question")
    else:
        values[Signal.PROCESSES] = float(len(running))
    work = turns.ask((uuid, "work"), CHANGING, lambda: instance.work.read(clock))
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
