"""One GPU to CardReading: every number of it that needs no events.

Three tiers: what changes (each cycle), what seldom changes or costs much (when the caller says so, NVLink states
every few seconds), and what the GPU refused once (never again until the next initialisation).  Of a GPU that is too
slow for all of it what matters most is read, and the rest in turn: see ``call_scheduler``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from exporter.driver.nvml.call_scheduler import (
    BUDGET,
    CHANGING,
    ESSENTIAL,
    LINKS,
    SLOW_TIER,
    CallScheduler,
    Tier,
)
from exporter.driver.nvml.counter32 import Counter32, link_limit, unwrap
from exporter.driver.nvml.errors import DeviceCalls, DeviceUnavailable
from exporter.driver.nvml.fabric import C2C_COUNT, C2cRead, c2c, fabric
from exporter.driver.nvml.fields import Field, FieldBatch, checked, event_time_fields
from exporter.driver.nvml.gpm import GpmCounters, GpmRead
from exporter.driver.nvml.mig import MigInstances
from exporter.driver.nvml.nvlink_counters import NvLinkCounters
from exporter.driver.nvml.probes import (
    SRAM,
    ClockEvents,
    ClockEventTimes,
    LinkStates,
    NvLinks,
    SampleMean,
    fan_speed,
    pcie_throughput,
    processes,
    sram_errors,
)
from exporter.driver.nvml.shared import SharedState
from exporter.driver.nvml.signals import (
    ESSENTIALS,
    FAST,
    MIG_MEANINGLESS,
    MIG_REFUSED,
    NVLINK_BIT_ERRORS,
    NVLINK_BYTES,
    NVLINK_ERRORS,
    PCIE_BYTES,
    SAMPLED,
    SLOW,
    Extract,
    Readers,
)
from exporter.driver.protocol import InstanceReading
from exporter.model import EMPTY, CardFacts, CardProcess, CardReading, Missing, Signal

NVLINK_TOTALS = (Signal.NVLINK_TRANSMIT, Signal.NVLINK_RECEIVE)
PCIE_READERS = [reader for signal in PCIE_BYTES for reader in FAST[signal]]
LINKS_EVERY = 5.0  # seconds between reads of which NVLinks are up: a call for each link

Values = dict[Signal, float | Missing]

_FAILED = frozenset({Missing.ERROR, Missing.NO_PERMISSION})
_FIRST = {signal: readers for signal, readers in FAST.items() if signal in ESSENTIALS}
_NO_BYTES = frozenset({0.0, Missing.UNSUPPORTED})
_COUNTED_WITH_ECC = (Signal.ECC_CORRECTED_VOLATILE, Signal.ECC_UNCORRECTED_VOLATILE)
_KEPT_WITHOUT_ECC = (Signal.ECC_CORRECTED_AGGREGATE, Signal.ECC_UNCORRECTED_AGGREGATE, *SRAM)
_THEN = {signal: readers for signal, readers in FAST.items() if signal not in ESSENTIALS}


class GpuReadings(Struct, frozen=True):
    """A GPU and its MIG instances at one instant; ``instances`` is None where MIG is not enabled."""

    instances: tuple[InstanceReading, ...] | None
    reading: CardReading


class _SlowRead(Struct, frozen=True):
    """The last answers of the slow tier."""

    values: Mapping[Signal, float | Missing] = EMPTY
    errors: Mapping[str, float] | Missing = Missing.ERROR
    bit_errors: Mapping[str, float] = EMPTY
    bytes: Mapping[int, tuple[float, float]] = EMPTY
    throughput: Mapping[tuple[str, str], float] = EMPTY
    processes: tuple[CardProcess, ...] | Missing = Missing.ERROR


class GpuReader:
    """Reads one GPU again and again: everything fast each time, the slow tier when asked, unsupported ones once.

    Not safe for two threads; ``call_started`` may be called from another one.
    """

    def __init__(
        self,
        driver: Any,
        calls: DeviceCalls,
        facts: CardFacts,
        driver_version: str,
        shared: SharedState | None = None,
    ) -> None:
        self._driver = driver
        self._calls = calls
        self._mig = facts.mig
        shared = shared or SharedState()
        self._scheduler = CallScheduler()
        self._links = NvLinks(calls, shared.nvlink_counters.setdefault(facts.uuid, NvLinkCounters()))
        self._link_states = LinkStates(why=Missing.STARTING)
        self._links_due = 0.0
        evidence = shared.evidence.setdefault(facts.uuid, {})
        self._events = ClockEvents(calls, event_time_fields(driver_version), shared.units, evidence)
        self._event_times = ClockEventTimes(why=Missing.SLOW)
        self._policies: Mapping[str, float] = EMPTY
        self._samples = {signal: SampleMean(calls, kind) for signal, (kind, _) in SAMPLED.items()}
        self._fast = FieldBatch(calls, [*self._fields(FAST), *self._events.fields()])
        counted = [*NVLINK_ERRORS.values(), *NVLINK_BIT_ERRORS.values()]
        counted += [number for sent, received, _ in NVLINK_BYTES for number in (sent, received)]
        self._slow = FieldBatch(calls, [*self._fields(SLOW), C2C_COUNT, *self._links.fields(counted)])
        self._work = GpmCounters(driver, calls, shared.gpm_lock, uuid=facts.uuid)
        self._counters: dict[Signal, Counter32] = {}
        self.instances = MigInstances(driver, calls, facts, shared.gpm_lock) if facts.mig else None
        self._unsettled = {"fast", "slow"}
        self._slow_read = _SlowRead()
        self._slow_fields_at: float | None = None
        self._c2c = C2cRead()

    def _fields(self, table: Mapping[Signal, Readers]) -> list[Field]:
        fields: list[Field] = []
        for readers in table.values():
            for reader in readers:
                if reader.field is not None:
                    fields += self._links.fields([reader.field[0]]) if reader.per_link else [reader.field]
        return fields

    def read_all(self, *, slow: bool, budget: float) -> GpuReadings:
        """Read the GPU's instances and the GPU; see ``read``."""
        at = self._begin_cycle(time.monotonic(), budget, slow=slow)
        # The instances first: the GPU's reading says why some of them could not be opened.
        instances = None if self.instances is None else self.instances.read(refresh=slow, scheduler=self._scheduler)
        return GpuReadings(instances, self._read(at, time.monotonic))

    def read(self, *, slow: bool, clock: Callable[[], float] = time.monotonic, budget: float = BUDGET) -> CardReading:
        """Read the GPU once; ``slow`` also refreshes the slow tier, which otherwise keeps its last answers.

        It takes about ``budget`` seconds at most, or one call.  Raises DeviceUnavailable when nothing answers,
        DriverUnavailable when the initialisation is over.  ``at`` is when the read began: no number in it is older,
        except those of a slow GPU (see ``call_scheduler``) and those that are not read each time.
        """
        return self._read(self._begin_cycle(clock(), budget, slow=slow), clock)

    def _begin_cycle(self, at: float, budget: float, *, slow: bool) -> float:
        links = slow or at >= self._links_due
        if links:
            self._links_due = at + LINKS_EVERY
        slow = slow or "slow" in self._unsettled
        tiers = [tier for tier, due in ((LINKS, links), (SLOW_TIER, slow)) if due]
        self._scheduler.begin_cycle(at, budget, tiers)
        return at

    def _read(self, at: float, clock: Callable[[], float]) -> CardReading:
        values: Values = {}
        fields_at = clock()
        if self._scheduler.run("fields", ESSENTIAL, self._fast.read) is Missing.SLOW:
            self._fast.drop(Missing.SLOW)
            self._event_times, self._policies = ClockEventTimes(why=Missing.SLOW), EMPTY
        self._read_table(_FIRST, self._fast, values, ESSENTIAL)
        self._read_sampled(Signal.UTILIZATION, values, ESSENTIAL)
        events = self._scheduler.run("events", ESSENTIAL, self._events.active)
        self._read_table(_THEN, self._fast, values, CHANGING)
        self._read_sampled(Signal.MEMORY_ACTIVITY, values, CHANGING)
        if _FAILED.intersection(values.values()) and not any(isinstance(v, float) for v in values.values()):
            raise DeviceUnavailable(self._calls.last_error or "error", "the GPU answered no call")
        if LINKS in self._scheduler.tiers_due:
            self._link_states = self._links.states(self._link_state)
        if SLOW_TIER in self._scheduler.tiers_due:
            self._read_slow(at)
        values.update(self._slow_read.values)
        self._derive(values)
        work = GpmRead.none(Missing.MIG) if self._mig else self._read_work(clock)
        values.update(work.values)
        self._unwrap_counters(at, values, work.traffic if self._scheduler.answered_now("work") else {})
        if self._scheduler.answered_now("fields"):
            # Compared with the time at which they were counted, so never twice.
            self._event_times = self._events.times(self._fast, fields_at, events)
            self._policies = self._events.policies(self._fast, fields_at, events)
            self._settle("fast", self._fast)
        if not any(self._link_states.up.values()) and {values[signal] for signal in NVLINK_TOTALS} <= _NO_BYTES:
            values.update(dict.fromkeys(NVLINK_TOTALS, Missing.UNSUPPORTED))  # without NVLink some drivers count to 0
        return self._reading(at, values, events, work)

    def _read_work(self, clock: Callable[[], float]) -> GpmRead:
        work = self._scheduler.run("work", CHANGING, lambda: self._work.read(clock))
        return work if isinstance(work, GpmRead) else GpmRead.none(work)

    def _link_state(self, link: int) -> Any:
        call = partial(self._calls.call, "nvmlDeviceGetNvLinkState", link)
        return self._scheduler.run(("link", link), LINKS, call)

    def close(self) -> None:
        """Release what belongs to the driver."""
        self._work.close()
        if self.instances is not None:
            self.instances.close()

    def call_started(self) -> float | None:
        """Return when the call that now runs began (monotonic), about the GPU or an instance; None between two."""
        started = self._calls.call_started
        return started if started is not None or self.instances is None else self.instances.call_started

    def _settle(self, tier: str, batch: FieldBatch) -> None:
        if tier in self._unsettled:
            self._unsettled.discard(tier)
            batch.settle()

    def _read_table(self, table: Mapping[Signal, Readers], batch: FieldBatch, values: Values, tier: Tier) -> None:
        answers: dict[Any, Any] = {}  # signals that share a call share its answer
        for signal, readers in table.items():
            meaningless = self._mig and signal in MIG_MEANINGLESS
            values[signal] = Missing.MIG if meaningless else self._first(readers, batch, answers, tier)

    def _first(self, readers: Readers, batch: FieldBatch, answers: dict[Any, Any], tier: Tier) -> float | Missing:
        """Return what the first reader gives that the GPU supports."""
        value: float | Missing = Missing.UNSUPPORTED
        why = value
        for reader in readers:
            if reader.field is not None:
                raw: Any = self._links.total(batch, reader.field[0]) if reader.per_link else batch.get(reader.field)
            else:
                key = (reader.call, reader.args)
                if key not in answers:
                    call = partial(self._calls.call, reader.call, *reader.args)
                    answers[key] = self._scheduler.run(key, tier, call)
                raw = answers[key]
            if isinstance(raw, Missing):
                value = raw
            else:
                value = self._extracted(reader.extract, raw, reader.scale, reader.low, reader.high)
            if value is Missing.CRASHED:
                why = value
            elif value is not Missing.UNSUPPORTED:
                return value
        return why

    @staticmethod
    def _extracted(extract: Extract, raw: Any, scale: float, low: float, high: float) -> float | Missing:
        try:
            number = extract(raw)
        except (AttributeError, IndexError, KeyError, TypeError):
            return Missing.INVALID
        return checked(number, scale, low, high)

    def _read_sampled(self, signal: Signal, values: Values, tier: Tier) -> None:
        if self._mig and signal in MIG_MEANINGLESS:
            values[signal] = Missing.MIG
            return
        mean = self._scheduler.run(signal, tier, self._samples[signal].read)
        readers = SAMPLED[signal][1]
        values[signal] = self._first(readers, self._fast, {}, tier) if isinstance(mean, Missing) else mean

    def _read_slow(self, at: float) -> None:
        """Read what is due of the slow tier; it takes several cycles of a GPU that is slow itself."""
        run = self._scheduler.run
        if run("slow fields", SLOW_TIER, self._read_slow_fields) is Missing.SLOW:
            self._slow.drop(Missing.SLOW)
        values: Values = {}
        self._read_table(SLOW, self._slow, values, SLOW_TIER)
        values[Signal.FAN_SPEED] = run("fan", SLOW_TIER, lambda: fan_speed(self._calls))
        sram = run("sram", SLOW_TIER, lambda: sram_errors(self._driver, self._calls))
        values.update(dict.fromkeys(SRAM, sram) if isinstance(sram, Missing) else sram)
        states = run("fabric", SLOW_TIER, lambda: fabric(self._driver, self._calls))
        values.update({Signal.FABRIC_STATE: states} if isinstance(states, Missing) else states)
        values.update(self._c2c.values)
        self._slow_read = _SlowRead(
            values=values,
            errors=self._links.errors(self._slow),
            bit_errors=self._links.bit_errors(self._slow),
            bytes=self._links.bytes(self._slow, self._link_states.up),
            throughput=self._read_throughput(),
            # Those of a MIG-enabled GPU are listed by its instances.
            processes=Missing.MIG if self._mig else run("processes", SLOW_TIER, lambda: processes(self._calls)),
        )
        if self._scheduler.answered_now("slow fields"):
            self._slow_fields_at = at
            self._settle("slow", self._slow)

    def _read_throughput(self) -> Mapping[tuple[str, str], float]:
        """Return what GPUs before Hopper answer in 40 ms; nothing where bytes are counted."""
        if not all(self._fast.get(reader.field) is Missing.UNSUPPORTED for reader in PCIE_READERS if reader.field):
            return EMPTY
        answer = self._scheduler.run("throughput", SLOW_TIER, lambda: pcie_throughput(self._calls))
        return EMPTY if isinstance(answer, Missing) else answer

    def _read_slow_fields(self) -> None:
        self._slow.read()
        self._c2c = c2c(self._calls, self._slow)

    def _derive(self, values: Values) -> None:
        """Compute and cross-check what follows from several numbers."""
        limit = values.get(Signal.TEMPERATURE_LIMIT_SLOWDOWN)
        temperature = values[Signal.TEMPERATURE_GPU]
        if values[Signal.TEMPERATURE_MARGIN] is Missing.UNSUPPORTED and not (
            limit is None or isinstance(limit, Missing) or isinstance(temperature, Missing)
        ):
            values[Signal.TEMPERATURE_MARGIN] = limit - temperature
        total = values[Signal.MEMORY_TOTAL]
        for signal in (Signal.MEMORY_USED, Signal.MEMORY_FREE, Signal.MEMORY_RESERVED):
            part = values[signal]
            if not (isinstance(part, Missing) or isinstance(total, Missing)) and part > total:
                values[signal] = Missing.INVALID
        if values.get(Signal.ECC_MODE) == 0.0:
            refused = [signal for signal in _KEPT_WITHOUT_ECC if values.get(signal) is Missing.UNSUPPORTED]
            values.update(dict.fromkeys([*_COUNTED_WITH_ECC, *refused], Missing.DISABLED))
        if self._mig:
            for signal in MIG_REFUSED:
                if values[signal] is Missing.UNSUPPORTED:
                    values[signal] = Missing.MIG

    def _unwrap_counters(self, at: float, values: Values, traffic: Mapping[tuple[str, str], float]) -> None:
        """Go on counting where the driver's byte counters are so narrow that they wrap."""
        max_rate = self._max_pcie_rate(values)
        for signal, direction in PCIE_BYTES.items():
            value, source = values[signal], FAST[signal][0].field
            if isinstance(value, Missing) or source not in self._fast.narrow:
                continue
            counter = self._counters.get(signal)
            if counter is None or self._scheduler.answered_now("fields"):
                reference = traffic.get(("pcie", direction))
                counter = unwrap(counter, at, value, max_rate=max_rate, reference_rate=reference)
                self._counters[signal] = counter
            values[signal] = counter.total if counter.why is None else counter.why

    @staticmethod
    def _max_pcie_rate(values: Mapping[Signal, float | Missing]) -> float | None:
        """Return what the GPU's PCIe link carries at its best, bytes per second in one direction."""
        best = []
        for pair in (
            (Signal.PCIE_LINK_GENERATION, Signal.PCIE_LINK_GENERATION_MAX),
            (Signal.PCIE_LINK_WIDTH, Signal.PCIE_LINK_WIDTH_MAX),
        ):
            known = [value for value in map(values.get, pair) if value is not None and not isinstance(value, Missing)]
            best.append(max(known, default=None))
        return link_limit(*best)

    def _reading(self, at: float, values: Values, events: dict[str, bool] | Missing, work: GpmRead) -> CardReading:
        slow, errors, running = self._slow_read, self._slow_read.errors, self._slow_read.processes
        parts: dict[Signal, Any] = {
            Signal.CLOCK_EVENTS: events,
            Signal.CLOCK_EVENT_TIME: self._event_times.why,
            Signal.NVLINK_STATE: self._link_states.why,
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
            clock_event_seconds=self._event_times.seconds,
            policy_seconds=self._policies,
            nvlink_up=self._link_states.up,
            nvlink_errors={} if isinstance(errors, Missing) else errors,
            nvlink_errors_at=None if isinstance(errors, Missing) else self._slow_fields_at,
            nvlink_bit_errors=slow.bit_errors,
            nvlink_bytes=slow.bytes,
            nvlink_bytes_at=self._slow_fields_at if slow.bytes else None,
            c2c_errors=self._c2c.errors,
            pipe_active=work.pipes,
            traffic={**slow.throughput, **work.traffic},
            processes=known,
        )
