"""Readings that are more than one number: buffered samples, clock events, NVLinks, fans, processes.

Each probe keeps what it needs between cycles of one initialisation and returns values, or the Missing that says why.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from exporter.driver.nvml.arrays import decoded, samples_by_time
from exporter.driver.nvml.counter_units import UnitEvidence, after_gap, is_plausible, update
from exporter.driver.nvml.errors import DeviceCalls
from exporter.driver.nvml.fields import POLICIES, SETTLED_REASONS, Field, FieldBatch, checked
from exporter.driver.nvml.nvlink_counters import NvLinkCounters
from exporter.driver.nvml.signals import NVLINK_BIT_ERRORS, NVLINK_BYTES, NVLINK_ERRORS
from exporter.model import EMPTY, CardProcess, Missing, Signal
from exporter.model.clock_events import CLOCK_EVENT_BITS

_MAX_LINKS = 64
_MAX_SAMPLES = 4096
_MAX_PROCESSES = 1024
_COUNT, _FLAG = 2.0**63, 1.0
SRAM: Mapping[Signal, tuple[tuple[str, ...], float]] = {
    Signal.SRAM_CORRECTED_VOLATILE: (("volatileCor",), _COUNT),
    Signal.SRAM_UNCORRECTED_VOLATILE: (("volatileUncParity", "volatileUncSecDed"), _COUNT),
    Signal.SRAM_CORRECTED_AGGREGATE: (("aggregateCor",), _COUNT),
    Signal.SRAM_UNCORRECTED_AGGREGATE: (("aggregateUncParity", "aggregateUncSecDed"), _COUNT),
    Signal.SRAM_THRESHOLD_EXCEEDED: (("bThresholdExceeded",), _FLAG),
}
_HEAT = "thermal"  # the policy, and the reasons that are active with it
_HEAT_REASONS = ("sw_thermal_slowdown", "hw_thermal_slowdown")
_FIRST_WINDOW = 1_000_000  # µs of buffered samples that the first cycle takes; older ones are history


class ClockEventTimes(Struct, frozen=True):
    """Reason → seconds, and why some reason is not among them (None: all are)."""

    seconds: Mapping[str, float] = EMPTY
    why: Missing | None = None


class LinkStates(Struct, frozen=True):
    """Link → up for the links that the driver knows, and why some link is not among them (None: all are)."""

    up: Mapping[int, bool] = EMPTY
    why: Missing | None = None


class SampleMean:
    """The mean of the driver's buffered samples since the previous cycle, as a ratio."""

    __slots__ = ("_calls", "_last", "_type")

    def __init__(self, calls: DeviceCalls, sample_type: int) -> None:
        self._calls = calls
        self._type = sample_type
        self._last = 0

    def read(self) -> float | Missing:
        """Return the mean ratio; Missing where the driver has no buffer, or nothing new in it."""
        answer = self._calls.call(
            "nvmlDeviceGetSamples", self._type, self._last, key=("nvmlDeviceGetSamples", self._type)
        )
        if isinstance(answer, Missing):
            return answer
        try:
            value_type, samples = answer
            stamped = samples_by_time(value_type, samples[-_MAX_SAMPLES:])
            newest = max(stamped, default=0)
            if not 0 < newest < 2**62:  # a garbage time kept as the last one would hide every later sample
                return Missing.ERROR
            after = max(self._last, 0) or newest - _FIRST_WINDOW
            self._last = newest
            # NaN and all-ones fail the comparison.
            valid = [value for stamp, value in stamped.items() if stamp > after and 0 <= value <= 100]
        except (AttributeError, IndexError, TypeError, ValueError):
            return Missing.INVALID
        return sum(valid) / (100 * len(valid)) if valid else Missing.INVALID


class ClockEvents:
    """Why the clocks are held down now (bits), and for how long in total (counters).

    ``units``: reason → unit of its counter, as far as some GPU of this driver has shown it; shared by all of them.
    ``evidence``: reason → what this GPU's counter has shown, also before this initialisation.
    A counter is absent until its unit is known, unless it is zero, and when it moves as time cannot; see
    ``counter_units``.  ``fields``: reason → its field with this driver, or why it has none.
    """

    def __init__(
        self,
        calls: DeviceCalls,
        fields: Mapping[str, Field | Missing],
        units: dict[str, float] | None = None,
        evidence: dict[str, UnitEvidence] | None = None,
    ) -> None:
        self._calls = calls
        self._fields = fields
        self._units = {} if units is None else units
        self._evidence = {} if evidence is None else evidence
        self._evidence.update({reason: after_gap(evidence) for reason, evidence in self._evidence.items()})

    def fields(self) -> list[Field]:
        """Return the fields to read."""
        return [*(wanted for wanted in self._fields.values() if not isinstance(wanted, Missing)), *POLICIES.values()]

    def active(self) -> dict[str, bool] | Missing:
        """Return reason → active for the nine known reasons."""
        mask = self._calls.call("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is Missing.UNSUPPORTED:
            mask = self._calls.call("nvmlDeviceGetCurrentClocksThrottleReasons")
        if isinstance(mask, Missing):
            return mask
        if not isinstance(mask, int) or isinstance(checked(mask), Missing):
            return Missing.INVALID
        return {reason: bool(mask & bit) for reason, bit in CLOCK_EVENT_BITS.items()}

    def times(self, batch: FieldBatch, at: float, active: Mapping[str, bool] | Missing) -> ClockEventTimes:
        """Return the accumulated time of each reason.

        Of several causes of absence, one that may pass goes before what the GPU or the driver does not have.
        """
        bits = EMPTY if isinstance(active, Missing) else active
        seconds: dict[str, float] = {}
        why: Missing | None = None
        for reason, wanted in self._fields.items():
            raw = wanted if isinstance(wanted, Missing) else batch.get(wanted)
            number = raw if isinstance(raw, Missing) else checked(raw)
            value = number if isinstance(number, Missing) else self._value(reason, at, number, bits.get(reason))
            if not isinstance(value, Missing):
                seconds[reason] = value
            elif why is None or value is not Missing.UNSUPPORTED:
                why = value
        return ClockEventTimes(seconds, why)

    def policies(self, batch: FieldBatch, at: float, active: Mapping[str, bool] | Missing) -> dict[str, float]:
        """Return policy → seconds in the unit that the power limit or heat has shown; before that only what is 0.

        Only of heat two bits say when the policy is active; the others cannot be compared with time themselves.
        """
        bits = EMPTY if isinstance(active, Missing) else active
        raws = {policy: batch.get(number_of) for policy, number_of in POLICIES.items()}
        numbers = {policy: raw if isinstance(raw, Missing) else checked(raw) for policy, raw in raws.items()}
        heat = numbers[_HEAT]
        if not isinstance(heat, Missing):
            self._learn_from_heat(at, heat, [bits.get(reason) for reason in _HEAT_REASONS])
        unit = self._unit("sw_power_cap")
        return {
            policy: number * (unit or 0.0)
            for policy, number in numbers.items()
            if number == 0.0 or not (isinstance(number, Missing) or unit is None)
        }

    def _learn_from_heat(self, at: float, raw: float, bits: list[bool | None]) -> None:
        """Find the unit while heat reduces the clocks: drivers before R575 have no other counter of that."""
        before = self._evidence.get(_HEAT, UnitEvidence())
        active = True if True in bits else None if None in bits else False
        evidence = self._evidence[_HEAT] = update(before, at, raw, active=active, unit=self._units.get(_HEAT))
        if evidence.unit is not None and not evidence.disproved:
            self._units[_HEAT] = evidence.unit

    def _value(self, reason: str, at: float, raw: float, active: bool | None) -> float | Missing:  # noqa: FBT001
        unit = self._unit(reason)
        before = self._evidence.get(reason, UnitEvidence())
        plausible = is_plausible(before, at, raw, unit)
        evidence = self._evidence[reason] = update(before, at, raw, active=active, unit=unit)
        if not plausible:
            return Missing.INVALID
        if evidence.unit is not None and not evidence.disproved:
            self._units[reason] = unit = evidence.unit
        value = evidence.value(unit)
        return Missing.UNVERIFIED if value is None else value

    def _unit(self, reason: str) -> float | None:
        unit = self._units.get(reason)
        if unit is None and reason in SETTLED_REASONS:  # their ids never moved: only the unit is in question
            return next(iter(self._units.values()), None)
        return unit


class NvLinks:
    """A GPU's NVLinks: state of each, counters summed over all.  ``counters``: of an earlier initialisation."""

    def __init__(self, calls: DeviceCalls, counters: NvLinkCounters | None = None) -> None:
        self._calls = calls
        self._counters = NvLinkCounters() if counters is None else counters
        self.count = self._count()

    def _count(self) -> int | None:
        items = self._calls.call("nvmlDeviceGetFieldValues", [91], key="fields")
        if isinstance(items, Missing) or not len(items) or items[0].nvmlReturn:
            return None
        number = checked(decoded(items[0]), high=_MAX_LINKS)
        return None if isinstance(number, Missing) else int(number)

    def states(self, link_state: Callable[[int], Any] | None = None) -> LinkStates:
        """Return the state of each link; one that is not fitted is not missing.

        ``link_state`` asks the driver, or returns its last answer.
        """
        link_state = link_state or (lambda link: self._calls.call("nvmlDeviceGetNvLinkState", link))
        states: dict[int, bool] = {}
        why: Missing | None = None
        past: int | None = None  # the first that the GPU does not have
        for link in range(_MAX_LINKS if self.count is None else self.count):
            state = link_state(link)
            if state is Missing.UNSUPPORTED and self.count is None:
                past = link
                break
            if isinstance(state, Missing) or state not in {0, 1}:
                if state is not Missing.UNSUPPORTED:
                    why = state if isinstance(state, Missing) else Missing.INVALID
                continue
            states[link] = bool(state)
        if self.count is None and states and why is not Missing.SLOW:
            self.count = max(states) + 1 if past is None else past
        return LinkStates(states, why if states or why else Missing.UNSUPPORTED)

    def fields(self, numbers: Iterable[int]) -> list[Field]:
        """Return the fields of all links for some field ids."""
        return [(number, link) for number in numbers for link in range(self.count or 0)]

    def errors(self, batch: FieldBatch) -> dict[str, float] | Missing:
        """Return type → errors of all links together; a type of which the sum is not known is absent."""
        totals: dict[str, float] = {}
        why: Missing = Missing.UNSUPPORTED
        for kind, number in NVLINK_ERRORS.items():
            total = self.total(batch, number)
            if not isinstance(total, Missing):
                totals[kind] = total
            elif total is not Missing.UNSUPPORTED:
                why = total
        return totals or why

    def bytes(self, batch: FieldBatch, up: Mapping[int, bool]) -> dict[int, tuple[float, float]]:
        """Return link → bytes sent and received, of the links that are active and counted."""
        counted: dict[int, tuple[float, float]] = {}
        for link in (link for link, active in up.items() if active):
            for sent, received, step in NVLINK_BYTES:
                values = [batch.get((number, link)) for number in (sent, received)]
                found = [value if isinstance(value, Missing) else checked(value, step) for value in values]
                numbers = [number for number in found if not isinstance(number, Missing)]
                if len(numbers) == len(values):
                    counted[link] = (numbers[0], numbers[1])
                    break
        return counted

    def bit_errors(self, batch: FieldBatch) -> dict[str, float]:
        """Return type → share of bits that arrived wrong, of the link where it is highest."""
        worst = {}
        for kind, number in NVLINK_BIT_ERRORS.items():
            values = [batch.get((number, link)) for link in range(self.count or 0)]
            ratios = [bit_error_ratio(value) for value in values if not isinstance(value, Missing)]
            if ratios:
                worst[kind] = max(ratios)
        return worst

    def total(self, batch: FieldBatch, number: int) -> float | Missing:
        """Return the sum of one field over all links; see NvLinkCounters."""
        return self._counters.total(number, [batch.get((number, link)) for link in range(self.count or 0)])


def bit_error_ratio(raw: float) -> float:
    """Decode the driver's form: mantissa (bits 8 to 11) × 10 to the minus exponent (bits 0 to 7)."""
    number = int(raw)
    return float((number >> 8 & 0xF) * 10.0 ** -(number & 0xFF))


def pcie_throughput(calls: DeviceCalls) -> dict[tuple[str, str], float]:
    """Return bytes per second over PCIe by direction, over 20 ms each, for which the driver blocks."""
    found = {}
    for direction, number in (("transmit", 0), ("receive", 1)):
        raw = calls.call("nvmlDeviceGetPcieThroughput", number)
        rate = raw if isinstance(raw, Missing) else checked(raw, 1e3, high=1e12)
        if not isinstance(rate, Missing):
            found["pcie", direction] = rate
    return found


def sram_errors(driver: Any, calls: DeviceCalls) -> dict[Signal, float | Missing]:
    """Return the ECC errors of SRAM (caches and register files), and whether they exceed the driver's threshold."""
    structure = getattr(driver, "c_nvmlEccSramErrorStatus_v1_t", None)
    answer: Any = Missing.UNSUPPORTED
    if structure is not None:
        status = structure()
        answer = calls.call(
            "nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status), key="nvmlDeviceGetSramEccErrorStatus"
        )
    if isinstance(answer, Missing):
        return dict.fromkeys(SRAM, answer)
    return {signal: _sum_of(status, attributes, high) for signal, (attributes, high) in SRAM.items()}


def _sum_of(structure: Any, attributes: tuple[str, ...], high: float) -> float | Missing:
    numbers = [checked(getattr(structure, attribute, None), high=high) for attribute in attributes]
    valid = [number for number in numbers if not isinstance(number, Missing)]
    return sum(valid) if len(valid) == len(numbers) else Missing.INVALID


def fan_speed(calls: DeviceCalls) -> float | Missing:
    """Return the mean speed of the GPU's fans as a ratio; drivers report up to a little more than 1."""
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


def processes(calls: DeviceCalls) -> tuple[CardProcess, ...] | Missing:
    """Return the processes that compute on the GPU; the same pid in two instances is one process."""
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
    return Missing.INVALID if memory and not found else found  # none would mean that no process uses the GPU
