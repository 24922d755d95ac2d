"""One card to CardReading: every number of it that needs neither events nor profiling.

Three tiers: what changes (each cycle), what seldom changes or costs much (when the caller says so, NVLink states
every few seconds), and what the card refused once (never again until the next initialisation).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exporter.model import CardFacts, CardProcess, CardReading, Missing, Signal
from exporter.sources.driver.calibration import widened
from exporter.sources.driver.nvml_errors import CardCalls, CardGone
from exporter.sources.driver.nvml_fabric import C2C_COUNT, c2c, fabric
from exporter.sources.driver.nvml_fields import FieldBatch, checked, event_time_fields
from exporter.sources.driver.nvml_gpm import GpmRoom, WorkCounters, WorkRead
from exporter.sources.driver.nvml_mig import MigInstances
from exporter.sources.driver.nvml_probes import ClockEvents, NvLinks, SampleMean, fan_speed, processes
from exporter.sources.driver.nvml_signals import (
    FAST,
    MIG_MEANINGLESS,
    MIG_REFUSED,
    NVLINK_BIT_ERRORS,
    NVLINK_ERRORS,
    PCIE_BYTES,
    SAMPLED,
    SLOW,
    Ways,
)

LINKS_EVERY = 5.0  # seconds between looks at which NVLinks are up: a call for each link

_FAILED = frozenset({Missing.ERROR, Missing.NO_PERMISSION})


@dataclass(frozen=True, slots=True)
class Shared:
    """What the cards of one worker share: turns at profiling, and the units of counters that some card has shown."""

    room: GpmRoom = field(default_factory=GpmRoom)
    units: dict[str, float] = field(default_factory=dict)

    def clear(self, driver: Any) -> None:
        """Give back and forget everything: the driver is about to be shut down."""
        self.room.clear(driver)
        self.units.clear()


class CardReader:
    """Reads one card again and again: everything fast each time, the slow tier when asked, unsupported ones once.

    Not safe for two threads; ``calls.since`` may be looked at from another one.
    """

    def __init__(
        self, driver: Any, calls: CardCalls, facts: CardFacts, driver_version: str, shared: Shared | None = None
    ) -> None:
        self._driver = driver
        self._calls = calls
        self._mig = facts.mig
        shared = shared or Shared()
        self._links = NvLinks(calls)
        self._states: dict[int, bool] | Missing = Missing.STARTING
        self._states_due = 0.0
        self._events = ClockEvents(calls, event_time_fields(driver_version), shared.units)
        self._samples = {signal: SampleMean(calls, kind) for signal, (kind, _) in SAMPLED.items()}
        fast = [*self._fields(FAST), *self._events.fields()]
        self._fast = FieldBatch(calls, fast)
        counted = [*NVLINK_ERRORS.values(), *NVLINK_BIT_ERRORS.values()]
        self._slow = FieldBatch(calls, [*self._fields(SLOW), C2C_COUNT, *self._links.fields(counted)])
        self._work = WorkCounters(driver, calls, shared.room, card=facts.uuid)
        self._wraps: dict[Signal, tuple[float, int]] = {}
        self.instances = MigInstances(driver, calls, facts, shared.room) if facts.mig else None
        self._fresh = {"fast", "slow"}
        self._slow_values: dict[Signal, float | Missing] = {}
        self._slow_errors: dict[str, float] | Missing = Missing.ERROR
        self._slow_bit_errors: dict[str, float] = {}
        self._slow_c2c_errors: Mapping[str, float] = {}
        self._slow_processes: tuple[CardProcess, ...] | Missing = Missing.ERROR

    def _fields(self, table: Mapping[Signal, Ways]) -> list[tuple[int, int]]:
        fields: list[tuple[int, int]] = []
        for ways in table.values():
            for way in ways:
                if way.field is not None:
                    fields += self._links.fields([way.field[0]]) if way.per_link else [way.field]
        return fields

    def read(self, *, slow: bool, clock: Callable[[], float] = time.monotonic) -> CardReading:
        """Read the card once; ``slow`` also refreshes the slow tier, which otherwise keeps its last answers.

        Raises CardGone when nothing answers, DriverGone when the initialisation is over.  ``at`` is when the read
        began: no number in it is older.
        """
        at = clock()
        values: dict[Signal, float | Missing] = {}
        self._fast.read()
        self._read_table(FAST, self._fast, values)
        self._read_sampled(values)
        if _FAILED.intersection(values.values()) and not any(isinstance(v, float) for v in values.values()):
            raise CardGone(self._calls.last_error or "error", "the card answered none of the questions")
        if slow or "slow" in self._fresh:
            self._read_slow()
        values.update(self._slow_values)
        self._derive(values)
        work = WorkRead.none(Missing.MIG) if self._mig else self._work.read(clock)
        values.update(work.values)
        events = self._events.active()
        seconds, why_no_seconds = self._events.seconds(self._fast, at, events)
        if slow or at >= self._states_due:
            self._states, self._states_due = self._links.states(), at + LINKS_EVERY
        self._settle("fast", self._fast)
        return self._reading(at, values, events, seconds, why_no_seconds, work=work)

    def close(self) -> None:
        """Give back what belongs to the driver."""
        self._work.close()
        if self.instances is not None:
            self.instances.close()

    def since(self) -> float | None:
        """Give when the call that now runs began (monotonic), about the card or an instance; None between two."""
        since = self._calls.since
        return since if since is not None or self.instances is None else self.instances.since

    def _settle(self, tier: str, batch: FieldBatch) -> None:
        if tier in self._fresh:
            self._fresh.discard(tier)
            batch.settle()

    def _read_table(
        self, table: Mapping[Signal, Ways], batch: FieldBatch, values: dict[Signal, float | Missing]
    ) -> None:
        answers: dict[Any, Any] = {}  # signals that share a call share its answer
        for signal, ways in table.items():
            meaningless = self._mig and signal in MIG_MEANINGLESS
            values[signal] = Missing.MIG if meaningless else self._first(ways, batch, answers)

    def _first(self, ways: Ways, batch: FieldBatch, answers: dict[Any, Any]) -> float | Missing:
        value: float | Missing = Missing.UNSUPPORTED
        for way in ways:
            if way.field is not None:
                raw: Any = self._links.total(batch, way.field[0]) if way.per_link else batch.get(way.field)
            else:
                question = (way.call, way.args)
                if question not in answers:
                    answers[question] = self._calls.call(way.call, *way.args)
                raw = answers[question]
            value = raw if isinstance(raw, Missing) else self._picked(way.pick, raw, way.scale, way.low, way.high)
            if value is not Missing.UNSUPPORTED:
                break
        return value

    @staticmethod
    def _picked(pick: Callable[[Any], Any], raw: Any, scale: float, low: float, high: float) -> float | Missing:
        try:
            number = pick(raw)
        except (AttributeError, IndexError, KeyError, TypeError):
            return Missing.INVALID
        return checked(number, scale, low, high)

    def _read_sampled(self, values: dict[Signal, float | Missing]) -> None:
        answers: dict[Any, Any] = {}
        for signal, (_, ways) in SAMPLED.items():
            if self._mig and signal in MIG_MEANINGLESS:
                values[signal] = Missing.MIG
                continue
            mean = self._samples[signal].read()
            values[signal] = self._first(ways, self._fast, answers) if isinstance(mean, Missing) else mean

    def _read_slow(self) -> None:
        self._slow.read()
        values: dict[Signal, float | Missing] = {}
        self._read_table(SLOW, self._slow, values)
        values[Signal.FAN_SPEED] = fan_speed(self._calls)
        values.update(fabric(self._driver, self._calls))
        joined = c2c(self._calls, self._slow)
        values.update(joined.values)
        self._slow_c2c_errors = joined.errors
        self._slow_errors = self._links.errors(self._slow)
        self._slow_bit_errors = self._links.bit_errors(self._slow)
        self._slow_processes = Missing.MIG if self._mig else processes(self._calls)  # the instances list their own
        self._slow_values = values
        self._settle("slow", self._slow)

    def _derive(self, values: dict[Signal, float | Missing]) -> None:
        """Fill in and cross-check what follows from several numbers."""
        self._unwrap(values)
        limit = values.get(Signal.TEMPERATURE_LIMIT_SLOWDOWN)
        now = values[Signal.TEMPERATURE_GPU]
        if values[Signal.TEMPERATURE_MARGIN] is Missing.UNSUPPORTED and not (
            limit is None or isinstance(limit, Missing) or isinstance(now, Missing)
        ):
            values[Signal.TEMPERATURE_MARGIN] = limit - now
        total = values[Signal.MEMORY_TOTAL]
        for signal in (Signal.MEMORY_USED, Signal.MEMORY_FREE, Signal.MEMORY_RESERVED):
            part = values[signal]
            if not (isinstance(part, Missing) or isinstance(total, Missing)) and part > total:
                values[signal] = Missing.INVALID
        if self._mig:
            for signal in MIG_REFUSED:
                if values[signal] is Missing.UNSUPPORTED:
                    values[signal] = Missing.MIG

    def _unwrap(self, values: dict[Signal, float | Missing]) -> None:
        """Go on counting where the driver's byte counters are so narrow that they start over."""
        for signal in PCIE_BYTES:
            value, field = values[signal], FAST[signal][0].field
            if not isinstance(value, Missing) and field in self._fast.narrow:
                before, wraps = self._wraps.get(signal, (None, 0))
                values[signal], wraps = widened(before, value, wraps, 32)
                self._wraps[signal] = (value, wraps)

    def _reading(
        self,
        at: float,
        values: dict[Signal, float | Missing],
        events: dict[str, bool] | Missing,
        seconds: dict[str, float],
        why_no_seconds: Missing | None,
        *,
        work: WorkRead,
    ) -> CardReading:
        states, errors, running = self._states, self._slow_errors, self._slow_processes
        parts: dict[Signal, Any] = {
            Signal.CLOCK_EVENTS: events,
            Signal.CLOCK_EVENT_TIME: why_no_seconds,
            Signal.NVLINK_STATE: states,
            Signal.NVLINK_ERRORS: errors,
            Signal.PROCESSES: running,
            Signal.INSTANCES: self.instances.refused if self.instances is not None else None,
        }
        missing = {signal: part for signal, part in (values | parts).items() if isinstance(part, Missing)}
        signals = {signal: value for signal, value in values.items() if not isinstance(value, Missing)}
        known = None if isinstance(running, Missing) else running
        if known is not None:
            signals[Signal.PROCESSES] = float(len(known))
        return CardReading(
            at=at,
            signals=signals,
            missing=missing,
            clock_events={} if isinstance(events, Missing) else events,
            clock_event_seconds=seconds,
            nvlink_up={} if isinstance(states, Missing) else states,
            nvlink_errors={} if isinstance(errors, Missing) else errors,
            nvlink_bit_errors=self._slow_bit_errors,
            c2c_errors=self._slow_c2c_errors,
            pipe_active=work.pipes,
            traffic=work.traffic,
            processes=known,
        )
