"""Readings that are more than one number: buffered samples, clock events, NVLinks, fans, processes, fabric.

Each probe keeps what it needs between cycles of one initialisation and answers values, or the Missing that says why.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any

from exporter.model import CardProcess, Missing
from exporter.sources.driver.nvml_errors import CardCalls
from exporter.sources.driver.nvml_fields import Field, FieldBatch, checked, decoded, value_getter
from exporter.sources.driver.nvml_signals import CLOCK_EVENT_BITS, NVLINK_ERRORS

_MAX_LINKS = 64
_MAX_SAMPLES = 4096
_MAX_PROCESSES = 1024
_FIRST_WINDOW = 1_000_000  # µs of buffered samples that the first cycle takes; older ones are history
_NANO = 1e-9


class SampleMean:
    """The mean of the driver's buffered samples since the previous cycle, as a ratio."""

    __slots__ = ("_calls", "_last", "_type")

    def __init__(self, calls: CardCalls, sample_type: int) -> None:
        self._calls = calls
        self._type = sample_type
        self._last = 0

    def read(self) -> float | Missing:
        """Give the mean ratio; Missing where the driver has no buffer, or nothing new in it."""
        answer = self._calls.call(
            "nvmlDeviceGetSamples", self._type, self._last, key=("nvmlDeviceGetSamples", self._type)
        )
        if isinstance(answer, Missing):
            return answer
        try:
            value_type, samples = answer
            stamped = {sample.timeStamp: sample.sampleValue for sample in samples[-_MAX_SAMPLES:]}
            newest = max(stamped, default=0)
        except (AttributeError, TypeError, ValueError):
            return Missing.INVALID
        if not 0 < newest < 2**62:  # a garbage time kept as "last seen" would hide every later sample
            return Missing.ERROR
        after = max(self._last, 0) or newest - _FIRST_WINDOW
        self._last = newest
        return self._mean(value_type, [value for stamp, value in stamped.items() if stamp > after])

    @staticmethod
    def _mean(value_type: int, values: list[Any]) -> float | Missing:
        # Hundreds of these in a cycle of eight cards: hence no call for each.  NaN and all-ones fail the comparison.
        try:
            valid = [number for number in map(value_getter(value_type), values) if 0 <= number <= 100]
        except (AttributeError, IndexError, TypeError):
            return Missing.INVALID
        return sum(valid) / (100 * len(valid)) if valid else Missing.INVALID


class ClockEvents:
    """Why the clocks are held down now (bits), and for how long in total (counters).

    The counters are taken as nanoseconds, as the driver's header says.  A counter that falls, or that runs faster
    than the clock on the wall, is some other field (ids have moved between branches) or garbage, and is left out.
    """

    def __init__(self, calls: CardCalls, fields: Mapping[str, Field]) -> None:
        self._calls = calls
        self.fields = fields
        self._previous: dict[str, tuple[float, float]] = {}

    def active(self) -> dict[str, bool] | Missing:
        """Give reason → active for the nine known reasons."""
        mask = self._calls.call("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is Missing.UNSUPPORTED:
            mask = self._calls.call("nvmlDeviceGetCurrentClocksThrottleReasons")
        if isinstance(mask, Missing):
            return mask
        if not isinstance(mask, int) or isinstance(checked(mask), Missing):
            return Missing.INVALID
        return {reason: bool(mask & bit) for reason, bit in CLOCK_EVENT_BITS.items()}

    def seconds(self, batch: FieldBatch, at: float) -> tuple[dict[str, float], Missing | None]:
        """Give reason → seconds, and why some reason is not among them (None: nothing worth saying)."""
        seconds: dict[str, float] = {}
        why: Missing | None = None
        for reason, field in self.fields.items():
            raw = batch.get(field)
            value = checked(raw, _NANO) if not isinstance(raw, Missing) else raw
            if not isinstance(value, Missing) and not self._plausible(reason, value, at):
                value = Missing.INVALID
            if not isinstance(value, Missing):
                seconds[reason] = value
            elif value is not Missing.UNSUPPORTED:
                why = value
        return seconds, why if seconds or why else Missing.UNSUPPORTED

    def _plausible(self, reason: str, value: float, at: float) -> bool:
        previous = self._previous.get(reason)
        self._previous[reason] = (at, value)
        if previous is None:
            return True
        # The driver updates its counters in steps, so one step may show ahead of our clock.
        return 0.0 <= value - previous[1] <= (at - previous[0]) * 1.1 + 0.25


class NvLinks:
    """A card's NVLinks: state of each, counters summed over all."""

    def __init__(self, calls: CardCalls) -> None:
        self._calls = calls
        self.count = self._count()

    def _count(self) -> int | None:
        items = self._calls.call("nvmlDeviceGetFieldValues", [91], key="fields")
        if isinstance(items, Missing) or not len(items) or items[0].nvmlReturn:
            return None
        number = checked(decoded(items[0]), high=_MAX_LINKS)
        return None if isinstance(number, Missing) else int(number)

    def states(self) -> dict[int, bool] | Missing:
        """Give link → up for the links that the driver knows."""
        states: dict[int, bool] = {}
        why: Missing | None = None
        for link in range(_MAX_LINKS if self.count is None else self.count):
            state = self._calls.call("nvmlDeviceGetNvLinkState", link)
            if state is Missing.UNSUPPORTED and self.count is None:
                break  # past the last link
            if isinstance(state, Missing) or state not in {0, 1}:
                why = state if isinstance(state, Missing) else Missing.INVALID
                continue
            states[link] = bool(state)
        if self.count is None and states:
            self.count = len(states)
        return states or why or Missing.UNSUPPORTED

    def fields(self, numbers: Iterable[int]) -> list[Field]:
        """Give the fields of all links for some field ids."""
        return [(number, link) for number in numbers for link in range(self.count or 0)]

    def errors(self, batch: FieldBatch) -> dict[str, float] | Missing:
        """Give type → errors of all links together; a type of which one link failed is left out, a sum would lie."""
        totals: dict[str, float] = {}
        why: Missing = Missing.UNSUPPORTED
        for kind, number in NVLINK_ERRORS.items():
            total = self.total(batch, number)
            if not isinstance(total, Missing):
                totals[kind] = total
            elif total is not Missing.UNSUPPORTED:
                why = total
        return totals or why

    def total(self, batch: FieldBatch, number: int) -> float | Missing:
        """Give the sum of one field over all links."""
        values = [batch.get((number, link)) for link in range(self.count or 0)]
        # A link that is not fitted refuses; the fitted ones still count.
        answered = [value for value in values if value is not Missing.UNSUPPORTED]
        if not answered:
            return Missing.UNSUPPORTED
        total = 0.0
        for value in answered:
            number_or_why = checked(value) if not isinstance(value, Missing) else value
            if isinstance(number_or_why, Missing):
                return number_or_why
            total += number_or_why
        return total


def fan_speed(calls: CardCalls) -> float | Missing:
    """Give the mean speed of the card's fans as a ratio; drivers say up to a little more than 1."""
    count = calls.call("nvmlDeviceGetNumFans")
    if isinstance(count, int):
        if not 0 < count <= 16:
            return Missing.UNSUPPORTED if count == 0 else Missing.INVALID
        raws = [calls.call("nvmlDeviceGetFanSpeed_v2", fan) for fan in range(count)]
        if all(raw is Missing.UNSUPPORTED for raw in raws):
            raws = [calls.call("nvmlDeviceGetFanSpeed")]
    else:
        raws = [calls.call("nvmlDeviceGetFanSpeed")]
    speeds = [raw if isinstance(raw, Missing) else checked(raw, 0.01, 0.0, 2.0) for raw in raws]
    valid = [speed for speed in speeds if not isinstance(speed, Missing)]
    if valid:
        return sum(valid) / len(valid)
    return next(speed for speed in speeds if isinstance(speed, Missing))


def processes(calls: CardCalls) -> tuple[CardProcess, ...] | Missing:
    """Give the processes that compute on the card; the same pid in two instances is one process."""
    answer = calls.call("nvmlDeviceGetComputeRunningProcesses")
    if isinstance(answer, Missing):
        return answer
    memory: dict[int, float | None] = {}
    try:
        for process in list(answer)[:_MAX_PROCESSES]:
            pid = int(process.pid)
            used = checked(process.usedGpuMemory, high=2.0**56)
            before = memory.get(pid)
            memory[pid] = before if isinstance(used, Missing) else used + (before or 0.0)
    except (AttributeError, TypeError, ValueError):
        return Missing.INVALID
    found = tuple(CardProcess(pid=pid, memory=used) for pid, used in sorted(memory.items()) if 0 < pid < 2**31)
    return Missing.INVALID if memory and not found else found  # none would say that nobody uses the card


def fabric_state(driver: Any, calls: CardCalls) -> float | Missing:
    """Give 1 not started, 2 in progress, 3 completed; a card that belongs to no fabric does not have it."""
    structure = getattr(driver, "c_nvmlGpuFabricInfo_v2_t", None)
    if structure is None:
        return Missing.UNSUPPORTED
    info = structure()
    answer = calls.call("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info), key="nvmlDeviceGetGpuFabricInfoV")
    if isinstance(answer, Missing):
        return answer
    state = checked(getattr(info, "state", None), high=16.0)
    return Missing.UNSUPPORTED if state == 0 else state
