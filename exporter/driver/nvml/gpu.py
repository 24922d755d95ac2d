"""One card to CardReading: every number of it that needs neither events nor profiling.

Three tiers: what changes (each cycle), what seldom changes or costs much (when the caller says so, NVLink states
every few seconds), and what the card refused once (never again until the next initialisation).  A card that is too
slow for all of it is asked what matters most, and the rest in turn: see ``nvml_turns``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from exporter.driver.nvml.call_scheduler import BUDGET, CHANGING, ESSENTIAL, LINKS, SLOW_TIER, CallScheduler, Tier
from exporter.driver.nvml.counter32 import Followed, follow, link_limit
from exporter.driver.nvml.counter_units import Evidence
from exporter.driver.nvml.errors import DeviceCalls, DeviceUnavailable
from exporter.driver.nvml.fabric import C2C_COUNT, C2cRead, c2c, fabric
from exporter.driver.nvml.fields import POLICIES, FieldBatch, checked, event_time_fields
from exporter.driver.nvml.gpm import GpmCounters, GpmLock, GpmRead
from exporter.driver.nvml.mig import MigInstances
from exporter.driver.nvml.nvlink_counters import NvLinkCounters
from exporter.driver.nvml.probes import ClockEvents, NvLinks, SampleMean, fan_speed, processes
from exporter.driver.nvml.signals import (
    ESSENTIALS,
    FAST,
    MIG_MEANINGLESS,
    MIG_REFUSED,
    NVLINK_BIT_ERRORS,
    NVLINK_ERRORS,
    PCIE_BYTES,
    SAMPLED,
    SLOW,
    Readers,
)
from exporter.model import CardFacts, CardProcess, CardReading, Missing, Signal

LINKS_EVERY = 5.0  # seconds between looks at which NVLinks are up: a call for each link

_FAILED = frozenset({Missing.ERROR, Missing.NO_PERMISSION})
_FIRST = {signal: ways for signal, ways in FAST.items() if signal in ESSENTIALS}
_THEN = {signal: ways for signal, ways in FAST.items() if signal not in ESSENTIALS}


@dataclass(frozen=True, slots=True)
class Shared:
    """What the cards of one worker share: turns at profiling, and what outlives an initialisation of the driver.

    ``units``: reason → unit of its counter of clock event time, as some card has shown it; ``evidence``: UUID →
    reason → what that card's counter has shown; ``links``: UUID → what the sums over its NVLinks have come to.
    ``left``: what is left out of the calls about a card, see ``open_card``.
    """

    room: GpmLock = field(default_factory=GpmLock)
    units: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, dict[str, Evidence]] = field(default_factory=dict)
    links: dict[str, NvLinkCounters] = field(default_factory=dict)
    left: dict[str, dict[str, float]] = field(default_factory=dict)

    def clear(self, driver: Any) -> None:
        """Give the driver back what it lent: it is about to be shut down."""
        self.room.clear(driver)

    def unlearn(self) -> None:
        """Forget what the counters have shown: another driver may count otherwise."""
        self.units.clear()
        self.evidence.clear()

    def sound_units(self) -> dict[str, float]:
        """Give the units of the counters that no card's evidence speaks against."""
        shown = [evidence for one in list(self.evidence.values()) for evidence in list(one.items())]
        doubtful = {reason for reason, evidence in shown if evidence.refuted}
        return {reason: unit for reason, unit in list(self.units.items()) if reason not in doubtful}


class GpuReader:
    """Reads one card again and again: everything fast each time, the slow tier when asked, unsupported ones once.

    Not safe for two threads; ``calls.since`` may be looked at from another one.
    """

    def __init__(
        self, driver: Any, calls: DeviceCalls, facts: CardFacts, driver_version: str, shared: Shared | None = None
    ) -> None:
        self._driver = driver
        self._calls = calls
        self._mig = facts.mig
        shared = shared or Shared()
        self._turns = CallScheduler()
        self._links = NvLinks(calls, shared.links.setdefault(facts.uuid, NvLinkCounters()))
        self._states: tuple[dict[int, bool], Missing | None] = ({}, Missing.STARTING)
        self._states_due = 0.0
        shown = shared.evidence.setdefault(facts.uuid, {})
        self._events = ClockEvents(calls, event_time_fields(driver_version), shared.units, shown)
        self._samples = {signal: SampleMean(calls, kind) for signal, (kind, _) in SAMPLED.items()}
        fast = [*self._fields(FAST), *self._events.fields()]
        self._fast = FieldBatch(calls, fast)
        counted = [*NVLINK_ERRORS.values(), *NVLINK_BIT_ERRORS.values()]
        self._slow = FieldBatch(
            calls, [*self._fields(SLOW), *POLICIES.values(), C2C_COUNT, *self._links.fields(counted)]
        )
        self._work = GpmCounters(driver, calls, shared.room, card=facts.uuid)
        self._followed: dict[Signal, Followed] = {}
        self._seconds: tuple[dict[str, float], Missing | None] = ({}, Missing.SLOW)
        self.instances = MigInstances(driver, calls, facts, shared.room) if facts.mig else None
        self._fresh = {"fast", "slow"}
        self._slow_values: dict[Signal, float | Missing] = {}
        self._slow_errors: dict[str, float] | Missing = Missing.ERROR
        self._slow_fields_at: float | None = None
        self._slow_bit_errors: dict[str, float] = {}
        self._slow_c2c = C2cRead()
        self._slow_policies: Mapping[str, float] = {}
        self._slow_processes: tuple[CardProcess, ...] | Missing = Missing.ERROR

    def _fields(self, table: Mapping[Signal, Readers]) -> list[tuple[int, int]]:
        fields: list[tuple[int, int]] = []
        for ways in table.values():
            for way in ways:
                if way.field is not None:
                    fields += self._links.fields([way.field[0]]) if way.per_link else [way.field]
        return fields

    def read_all(
        self, *, slow: bool, budget: float
    ) -> tuple[tuple[tuple[CardFacts, CardReading], ...] | None, CardReading]:
        """Read the card's instances, None where it is not divided, and the card; see ``read``."""
        at = self._begin(time.monotonic(), budget, slow=slow)
        # The instances first: the card's reading says why some of them could not be opened.
        parts = None if self.instances is None else self.instances.read(look=slow, turns=self._turns)
        return parts, self._read(at, time.monotonic)

    def read(self, *, slow: bool, clock: Callable[[], float] = time.monotonic, budget: float = BUDGET) -> CardReading:
        """Read the card once; ``slow`` also refreshes the slow tier, which otherwise keeps its last answers.

        It takes about ``budget`` seconds at most, or one call.  Raises DeviceUnavailable when nothing answers,
        DriverUnavailable when the initialisation is over.  ``at`` is when the read began: no number in it is older,
        except those of a slow GPU (see ``call_scheduler``) and those that are not asked for each time.
        """
        return self._read(self._begin(clock(), budget, slow=slow), clock)

    def _begin(self, at: float, budget: float, *, slow: bool) -> float:
        links = slow or at >= self._states_due
        if links:
            self._states_due = at + LINKS_EVERY
        slow = slow or "slow" in self._fresh
        self._turns.begin(at, budget, [tier for tier, due in ((LINKS, links), (SLOW_TIER, slow)) if due])
        return at

    def _read(self, at: float, clock: Callable[[], float]) -> CardReading:
        values: dict[Signal, float | Missing] = {}
        counted_at = clock()
        if self._turns.ask("fields", ESSENTIAL, self._fast.read) is Missing.SLOW:
            self._fast.drop(Missing.SLOW)
            self._seconds = {}, Missing.SLOW
        self._read_table(_FIRST, self._fast, values, ESSENTIAL)
        self._read_sampled(Signal.UTILIZATION, values, ESSENTIAL)
        events = self._turns.ask("events", ESSENTIAL, self._events.active)
        self._read_table(_THEN, self._fast, values, CHANGING)
        self._read_sampled(Signal.MEMORY_ACTIVITY, values, CHANGING)
        if _FAILED.intersection(values.values()) and not any(isinstance(v, float) for v in values.values()):
            raise DeviceUnavailable(self._calls.last_error or "error", "the card answered none of the questions")
        if SLOW_TIER in self._turns.behind:
            self._read_slow(at)
        values.update(self._slow_values)
        self._derive(values)
        work = GpmRead.none(Missing.MIG) if self._mig else self._read_work(clock)
        values.update(work.values)
        self._unwrap(at, values, work.traffic if self._turns.fresh("work") else {})
        if self._turns.fresh("fields"):
            # Held against the time at which they were counted, so never twice.
            self._seconds = self._events.seconds(self._fast, counted_at, events)
            self._settle("fast", self._fast)
        if LINKS in self._turns.behind:
            self._states = self._links.states(self._link_state)
        return self._reading(at, values, events, *self._seconds, work=work)

    def _read_work(self, clock: Callable[[], float]) -> GpmRead:
        work = self._turns.ask("work", CHANGING, lambda: self._work.read(clock))
        return work if isinstance(work, GpmRead) else GpmRead.none(work)

    def _link_state(self, link: int) -> Any:
        return self._turns.ask(("link", link), LINKS, lambda: self._calls.call("nvmlDeviceGetNvLinkState", link))

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
        self, table: Mapping[Signal, Readers], batch: FieldBatch, values: dict[Signal, float | Missing], tier: Tier
    ) -> None:
        answers: dict[Any, Any] = {}  # signals that share a call share its answer
        for signal, ways in table.items():
            meaningless = self._mig and signal in MIG_MEANINGLESS
            values[signal] = Missing.MIG if meaningless else self._first(ways, batch, answers, tier)

    def _first(self, ways: Readers, batch: FieldBatch, answers: dict[Any, Any], tier: Tier) -> float | Missing:
        value: float | Missing = Missing.UNSUPPORTED
        why = value
        for way in ways:
            if way.field is not None:
                raw: Any = self._links.total(batch, way.field[0]) if way.per_link else batch.get(way.field)
            else:
                question = (way.call, way.args)
                if question not in answers:
                    put = partial(self._calls.call, way.call, *way.args)
                    answers[question] = self._turns.ask(question, tier, put)
                raw = answers[question]
            value = raw if isinstance(raw, Missing) else self._picked(way.pick, raw, way.scale, way.low, way.high)
            if value is Missing.CRASHED:
                why = value
            elif value is not Missing.UNSUPPORTED:
                return value
        return why

    @staticmethod
    def _picked(pick: Callable[[Any], Any], raw: Any, scale: float, low: float, high: float) -> float | Missing:
        try:
            number = pick(raw)
        except (AttributeError, IndexError, KeyError, TypeError):
            return Missing.INVALID
        return checked(number, scale, low, high)

    def _read_sampled(self, signal: Signal, values: dict[Signal, float | Missing], tier: Tier) -> None:
        if self._mig and signal in MIG_MEANINGLESS:
            values[signal] = Missing.MIG
            return
        mean = self._turns.ask(signal, tier, self._samples[signal].read)
        ways = SAMPLED[signal][1]
        values[signal] = self._first(ways, self._fast, {}, tier) if isinstance(mean, Missing) else mean

    def _read_slow(self, at: float) -> None:
        """Read what is due of the slow tier; a card that is slow itself takes several cycles for it."""
        ask = self._turns.ask
        if ask("slow fields", SLOW_TIER, self._read_slow_fields) is Missing.SLOW:
            self._slow.drop(Missing.SLOW)
        values: dict[Signal, float | Missing] = {}
        self._read_table(SLOW, self._slow, values, SLOW_TIER)
        values[Signal.FAN_SPEED] = ask("fan", SLOW_TIER, lambda: fan_speed(self._calls))
        joined = ask("fabric", SLOW_TIER, lambda: fabric(self._driver, self._calls))
        values.update({Signal.FABRIC_STATE: joined} if isinstance(joined, Missing) else joined)
        values.update(self._slow_c2c.values)
        self._slow_errors = self._links.errors(self._slow)
        self._slow_bit_errors = self._links.bit_errors(self._slow)
        self._slow_policies = self._events.policies(self._slow)
        # Those of a divided card are listed by its instances.
        self._slow_processes = (
            Missing.MIG if self._mig else ask("processes", SLOW_TIER, lambda: processes(self._calls))
        )
        self._slow_values = values
        if self._turns.fresh("slow fields"):
            self._slow_fields_at = at
            self._settle("slow", self._slow)

    def _read_slow_fields(self) -> None:
        self._slow.read()
        self._slow_c2c = c2c(self._calls, self._slow)

    def _derive(self, values: dict[Signal, float | Missing]) -> None:
        """Fill in and cross-check what follows from several numbers."""
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

    def _unwrap(
        self, at: float, values: dict[Signal, float | Missing], traffic: Mapping[tuple[str, str], float]
    ) -> None:
        """Go on counting where the driver's byte counters are so narrow that they start over."""
        most = self._most(values)
        for signal, direction in PCIE_BYTES.items():
            value, field = values[signal], FAST[signal][0].field
            if isinstance(value, Missing) or field not in self._fast.narrow:
                continue
            now = self._followed.get(signal)
            if now is None or self._turns.fresh("fields"):
                now = follow(now, at, value, most=most, shown=traffic.get(("pcie", direction)))
                self._followed[signal] = now
            values[signal] = now.total if now.why is None else now.why

    @staticmethod
    def _most(values: Mapping[Signal, float | Missing]) -> float | None:
        """Give what the card's PCIe link carries at its best, bytes per second in one direction."""
        best = []
        for pair in (
            (Signal.PCIE_LINK_GENERATION, Signal.PCIE_LINK_GENERATION_MAX),
            (Signal.PCIE_LINK_WIDTH, Signal.PCIE_LINK_WIDTH_MAX),
        ):
            known = [value for value in map(values.get, pair) if value is not None and not isinstance(value, Missing)]
            best.append(max(known, default=None))
        return link_limit(*best)

    def _reading(
        self,
        at: float,
        values: dict[Signal, float | Missing],
        events: dict[str, bool] | Missing,
        seconds: dict[str, float],
        why_no_seconds: Missing | None,
        *,
        work: GpmRead,
    ) -> CardReading:
        (states, why_not_all), errors, running = self._states, self._slow_errors, self._slow_processes
        parts: dict[Signal, Any] = {
            Signal.CLOCK_EVENTS: events,
            Signal.CLOCK_EVENT_TIME: why_no_seconds,
            Signal.NVLINK_STATE: why_not_all,
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
            policy_seconds=self._slow_policies,
            nvlink_up=states,
            nvlink_errors={} if isinstance(errors, Missing) else errors,
            nvlink_errors_at=None if isinstance(errors, Missing) else self._slow_fields_at,
            nvlink_bit_errors=self._slow_bit_errors,
            c2c_errors=self._slow_c2c.errors,
            pipe_active=work.pipes,
            traffic=work.traffic,
            processes=known,
        )
