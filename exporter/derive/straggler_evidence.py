"""What one GPU of a group shows of its work, and of what may slow it down, between two of its readings.

Signals that are not finite or not possible (a ratio above 1 by more than rounding) count as not read.  Rates come
from the GPU's own windows where it has them, else from its counters and those of the previous reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from msgspec import Struct

from exporter.model import EMPTY, CardReading, Signal

# Bytes per second of one lane in one direction, by PCIe generation, after line coding.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.56e9}
EVENT_RATIO = 0.1  # of the cycle for which a clock event counts as active
_MAX_SECONDS = 600.0  # between two readings, beyond which their difference does not describe the present
_RECOVERIES = ("recovery", "recovery_event")  # NVLink 4 and older, NVLink 5


class LinkBytes(Struct, frozen=True, kw_only=True):
    """Byte counters of a link.  None: not read."""

    sent: float | None
    received: float | None


class CounterSample(Struct, frozen=True, kw_only=True):
    """The counters of a reading that the next one is compared with.  None: not read."""

    at: float
    pcie: LinkBytes
    nvlink: LinkBytes
    nvlink_recoveries: float | None
    errors_at: float  # when those were read: less often than the rest
    recovery_rate: float | None  # per second, between their last two reads
    event_seconds: Mapping[str, float]


class GpuEvidence(Struct, frozen=True, kw_only=True):
    """One GPU in one cycle.  None: not known.  Rates are bytes per second in the busier direction."""

    uuid: str
    busy: float | None = None  # ratio of the SMs' time with work on them (SM_ACTIVE)
    dram: float | None = None  # ratio of the memory bandwidth used; like ``tensor`` x clock, work done per second
    tensor: float | None = None  # ratio of the clock cycles in which tensor cores were active
    resident: float | None = None  # utilisation: ratio of the time with a kernel on the GPU, working or waiting
    memory_activity: float | None = None  # ratio of the time in which the memory was read or written
    clock: float | None = None  # hertz
    clock_max: float | None = None
    power_ratio: float | None = None  # of the GPU's own limit
    margin: float | None = None  # degrees to the slowdown limit
    events: Mapping[str, bool] = EMPTY  # active now, or for ``EVENT_RATIO`` of the cycle
    memory_free: float | None = None  # ratio of the total
    pcie_capacity: float | None = None  # bytes per second in one direction, at the link's present state
    pcie_rate: float | None = None
    nvlinks: int | None = None  # active ones; None if some link was not read
    nvlinks_down: int = 0  # inactive ones that were read
    nvlink_rate: float | None = None
    nvlink_recovery_rate: float | None = None  # link recoveries per second
    processes: frozenset[int] | None = None
    replicas: int = 1  # that use the GPU


def sample_counters(reading: CardReading, before: CounterSample | None = None) -> CounterSample:
    """Return the counters of a reading for the next one; ``before``: those of the previous reading.

    Link errors are read every few readings only.  Their rate is that between two reads, and is kept until the next:
    from one reading to the next it would be 0 most of the time, and many times too high once.
    """
    signals = reading.signals
    counters = [reading.nvlink_errors[name] for name in _RECOVERIES if name in reading.nvlink_errors]
    recoveries = sum(counters) if counters else None
    errors_at = reading.at if reading.nvlink_errors_at is None else reading.nvlink_errors_at
    if before is None or recoveries is None:
        rate = None
    elif errors_at == before.errors_at:
        rate = before.recovery_rate
    else:
        rate = _rate(recoveries, before.nvlink_recoveries, _seconds_between(errors_at, before.errors_at))
    return CounterSample(
        at=reading.at,
        pcie=LinkBytes(sent=signals.get(Signal.PCIE_TRANSMIT), received=signals.get(Signal.PCIE_RECEIVE)),
        nvlink=LinkBytes(sent=signals.get(Signal.NVLINK_TRANSMIT), received=signals.get(Signal.NVLINK_RECEIVE)),
        nvlink_recoveries=recoveries,
        errors_at=errors_at,
        recovery_rate=rate,
        event_seconds=reading.clock_event_seconds,
    )


def collect_evidence(
    uuid: str, reading: CardReading, now: CounterSample, before: CounterSample | None, replicas: int = 1
) -> GpuEvidence:
    """Return what a reading shows.

    ``now``: its counters; ``before``: those of the previous reading; ``replicas``: how many use the GPU.
    """
    signals = reading.signals
    old = before or now
    seconds = _seconds_between(now.at, old.at)
    processes = reading.processes
    return GpuEvidence(
        uuid=uuid,
        busy=_ratio_signal(signals, Signal.SM_ACTIVE),
        dram=_ratio_signal(signals, Signal.DRAM_ACTIVE),
        tensor=_ratio_signal(signals, Signal.TENSOR_ACTIVE),
        resident=_ratio_signal(signals, Signal.UTILIZATION),
        memory_activity=_ratio_signal(signals, Signal.MEMORY_ACTIVITY),
        clock=_positive(signals, Signal.CLOCK_SM),
        clock_max=_positive(signals, Signal.CLOCK_MAX_SM),
        power_ratio=_ratio(_positive(signals, Signal.POWER), _positive(signals, Signal.POWER_LIMIT)),
        margin=_finite(signals, Signal.TEMPERATURE_MARGIN),
        events=_events(reading.clock_events, now.event_seconds, old.event_seconds, seconds),
        memory_free=_memory_free(signals),
        # An idle GPU saves power on its link, which says nothing about the one that carried the traffic.
        pcie_capacity=None if reading.clock_events.get("gpu_idle") else _pcie_capacity(signals),
        pcie_rate=_busier(reading.traffic, "pcie", now.pcie, old.pcie, seconds),
        nvlinks=sum(reading.nvlink_up.values()) if Signal.NVLINK_STATE not in reading.missing else None,
        nvlinks_down=sum(not up for up in reading.nvlink_up.values()),
        nvlink_rate=_busier(reading.traffic, "nvlink", now.nvlink, old.nvlink, seconds),
        nvlink_recovery_rate=now.recovery_rate,
        processes=frozenset(process.pid for process in processes) if processes is not None else None,
        replicas=replicas,
    )


def _finite(signals: Mapping[Signal, float], name: Signal) -> float | None:
    value = signals.get(name)
    return value if value is not None and isfinite(value) else None


def _ratio_signal(signals: Mapping[Signal, float], name: Signal) -> float | None:
    value = signals.get(name)
    return value if value is not None and 0.0 <= value <= 1.01 else None


def _positive(signals: Mapping[Signal, float], name: Signal) -> float | None:
    value = _finite(signals, name)
    return value if value is not None and value > 0.0 else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole is not None else None


def _memory_free(signals: Mapping[Signal, float]) -> float | None:
    """Return the ratio of the memory that is neither used nor reserved."""
    total, used = _positive(signals, Signal.MEMORY_TOTAL), _finite(signals, Signal.MEMORY_USED)
    if total is None or used is None:
        return None
    reserved = _finite(signals, Signal.MEMORY_RESERVED) or 0.0
    return max(0.0, 1.0 - (used + reserved) / total)


def _pcie_capacity(signals: Mapping[Signal, float]) -> float | None:
    generation, width = signals.get(Signal.PCIE_LINK_GENERATION), _positive(signals, Signal.PCIE_LINK_WIDTH)
    lane = _LANE.get(int(generation)) if generation is not None and isfinite(generation) else None
    return lane * width if lane is not None and width is not None else None


def _seconds_between(now: float, before: float) -> float | None:
    """Return the seconds between two readings; None where they do not describe the present."""
    return now - before if 0.0 < now - before <= _MAX_SECONDS else None


def _events(
    active: Mapping[str, bool], now: Mapping[str, float], before: Mapping[str, float], seconds: float | None
) -> Mapping[str, bool]:
    """Return the events that are active, or were for ``EVENT_RATIO`` of the time since the previous reading.

    A limit is reached many times a second, and a reading of the bits may fall in between.
    """
    if not active or not now or seconds is None:
        return active
    met = {event for event, total in now.items() if total - before.get(event, total) >= EVENT_RATIO * seconds}
    return active if not met else {**active, **dict.fromkeys(met, True)}


def _rate(now: float | None, before: float | None, seconds: float | None) -> float | None:
    """Return the increase per second; None if the counter was reset."""
    if now is None or before is None or seconds is None:
        return None
    increase = now - before
    return increase / seconds if 0.0 <= increase < inf else None


def _busier(
    traffic: Mapping[tuple[str, str], float], link: str, now: LinkBytes, before: LinkBytes, seconds: float | None
) -> float | None:
    """Return the rate of the direction with more traffic: as measured by the GPU, else from its counters."""
    sent, received = traffic.get((link, "transmit")), traffic.get((link, "receive"))
    if sent is None or received is None:
        sent, received = _rate(now.sent, before.sent, seconds), _rate(now.received, before.received, seconds)
    if sent is None or received is None:
        return sent if received is None else received
    busier = max(sent, received)
    return busier if isfinite(busier) else None
