"""What one card of a group shows of its work and of what may hold it up, between two of its readings.

Signals that are not finite, or that cannot be (a share above 1 by more than rounding), count as not read.  Rates come
from the card's own windows where it has them, else from its counters and the counters of the reading before.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite

from msgspec import Struct

from exporter.model import EMPTY, CardReading, Signal

# Bytes per second of one lane in one direction, by PCIe generation, after line coding.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.56e9}
_Pair = tuple[float | None, float | None]
PART = 0.1  # of the time
_LONGEST = 600.0  # seconds between two readings beyond which their difference says nothing about now


class CounterSample(Struct, frozen=True, kw_only=True):
    """The counters of a reading that the next one is compared with.  None: not read."""

    at: float
    pcie: _Pair  # bytes sent and received
    nvlink: _Pair
    nvlink_errors: float | None
    errors_at: float  # when those were read: seldomer than the rest
    error_rate: float | None  # per second, between their last two reads
    event_seconds: Mapping[str, float]


class CardEvidence(Struct, frozen=True, kw_only=True):
    """One card at one cycle.  None: not known.  Rates are bytes per second in the busier direction."""

    uuid: str
    busy: float | None = None  # share of the processors' time with work on them (SM_ACTIVE)
    dram: float | None = None  # share of the memory bandwidth used: with ``tensor`` x clock, work done per second
    tensor: float | None = None  # share of the clock cycles in which tensor cores worked
    resident: float | None = None  # utilisation: share of the time with a kernel on the card, working or waiting
    memory_activity: float | None = None  # share of the time in which the memory was read or written
    clock: float | None = None  # hertz
    clock_max: float | None = None
    power_share: float | None = None  # of the card's own limit
    margin: float | None = None  # degrees to the slowdown limit
    events: Mapping[str, bool] = EMPTY  # active now, or for a part of the cycle
    memory_free: float | None = None  # share of the total
    pcie_capacity: float | None = None  # bytes per second in one direction, as the link stands now
    pcie_rate: float | None = None
    nvlinks: int | None = None  # active ones; None where some link was not read
    nvlinks_down: int = 0  # that were seen not to be active
    nvlink_rate: float | None = None
    nvlink_error_rate: float | None = None  # per second
    processes: frozenset[int] | None = None
    replicas: int = 1  # that use the card


def sample_counters(reading: CardReading, before: CounterSample | None = None) -> CounterSample:
    """Keep of a reading what the next one will be compared with; ``before``: what was kept of the one before.

    Errors on links are read every few readings only.  Their rate is that between two reads, and stands until the
    next: taken from one reading to the next it would be nothing most of the time, and many times too high once.
    """
    signals = reading.signals
    errors = sum(reading.nvlink_errors.values()) if reading.nvlink_errors else None
    errors_at = reading.at if reading.nvlink_errors_at is None else reading.nvlink_errors_at
    if before is None or errors is None:
        rate = None
    elif errors_at == before.errors_at:
        rate = before.error_rate
    else:
        rate = _rate(errors, before.nvlink_errors, _between(errors_at, before.errors_at))
    return CounterSample(
        at=reading.at,
        pcie=(signals.get(Signal.PCIE_TRANSMIT), signals.get(Signal.PCIE_RECEIVE)),
        nvlink=(signals.get(Signal.NVLINK_TRANSMIT), signals.get(Signal.NVLINK_RECEIVE)),
        nvlink_errors=errors,
        errors_at=errors_at,
        error_rate=rate,
        event_seconds=reading.clock_event_seconds,
    )


def collect_evidence(
    uuid: str, reading: CardReading, now: CounterSample, before: CounterSample | None, replicas: int = 1
) -> CardEvidence:
    """Collect what a reading says.

    ``now``: its counters; ``before``: those of the reading before; ``replicas``: how many use the card.
    """
    signals = reading.signals
    old = before or now
    seconds = _between(now.at, old.at)
    processes = reading.processes
    return CardEvidence(
        uuid=uuid,
        busy=_share(signals, Signal.SM_ACTIVE),
        dram=_share(signals, Signal.DRAM_ACTIVE),
        tensor=_share(signals, Signal.TENSOR_ACTIVE),
        resident=_share(signals, Signal.UTILIZATION),
        memory_activity=_share(signals, Signal.MEMORY_ACTIVITY),
        clock=_positive(signals, Signal.CLOCK_SM),
        clock_max=_positive(signals, Signal.CLOCK_MAX_SM),
        power_share=_ratio(_positive(signals, Signal.POWER), _positive(signals, Signal.POWER_LIMIT)),
        margin=_finite(signals, Signal.TEMPERATURE_MARGIN),
        events=_events(reading.clock_events, now.event_seconds, old.event_seconds, seconds),
        memory_free=_free(signals),
        pcie_capacity=_capacity(signals),
        pcie_rate=_busier(reading.traffic, "pcie", now.pcie, old.pcie, seconds),
        nvlinks=sum(reading.nvlink_up.values()) if Signal.NVLINK_STATE not in reading.missing else None,
        nvlinks_down=sum(not up for up in reading.nvlink_up.values()),
        nvlink_rate=_busier(reading.traffic, "nvlink", now.nvlink, old.nvlink, seconds),
        nvlink_error_rate=now.error_rate,
        processes=frozenset(process.pid for process in processes) if processes is not None else None,
        replicas=replicas,
    )


def _finite(signals: Mapping[Signal, float], which: Signal) -> float | None:
    value = signals.get(which)
    return value if value is not None and isfinite(value) else None


def _share(signals: Mapping[Signal, float], which: Signal) -> float | None:
    value = signals.get(which)
    return value if value is not None and 0.0 <= value <= 1.01 else None


def _positive(signals: Mapping[Signal, float], which: Signal) -> float | None:
    value = _finite(signals, which)
    return value if value is not None and value > 0.0 else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole is not None else None


def _free(signals: Mapping[Signal, float]) -> float | None:
    """Return the share of the memory that is neither used nor kept by the driver."""
    total, used = _positive(signals, Signal.MEMORY_TOTAL), _finite(signals, Signal.MEMORY_USED)
    if total is None or used is None:
        return None
    reserved = _finite(signals, Signal.MEMORY_RESERVED) or 0.0
    return max(0.0, 1.0 - (used + reserved) / total)


def _capacity(signals: Mapping[Signal, float]) -> float | None:
    generation, width = signals.get(Signal.PCIE_LINK_GENERATION), _positive(signals, Signal.PCIE_LINK_WIDTH)
    lane = _LANE.get(int(generation)) if generation is not None and isfinite(generation) else None
    return lane * width if lane is not None and width is not None else None


def _between(now: float, before: float) -> float | None:
    """Return the seconds between two readings; None where they say nothing about now."""
    return now - before if 0.0 < now - before <= _LONGEST else None


def _events(
    active: Mapping[str, bool], now: Mapping[str, float], before: Mapping[str, float], seconds: float | None
) -> Mapping[str, bool]:
    """Return the events that are active, and those that were for ``PART`` of the time since the reading before.

    A limit is met many times a second, and the look at the bits falls between.
    """
    if not active or not now or seconds is None:
        return active
    met = {event for event, total in now.items() if total - before.get(event, total) >= PART * seconds}
    return active if not met else {**active, **dict.fromkeys(met, True)}


def _rate(now: float | None, before: float | None, seconds: float | None) -> float | None:
    """Return the rise per second; None where the counter began anew."""
    if now is None or before is None or seconds is None:
        return None
    rise = now - before
    return rise / seconds if 0.0 <= rise < inf else None


def _busier(
    shown: Mapping[tuple[str, str], float], link: str, now: _Pair, before: _Pair, seconds: float | None
) -> float | None:
    """Return the rate of the direction with more traffic: the card's own figure, else that of its counters."""
    sent, received = shown.get((link, "transmit")), shown.get((link, "receive"))
    if sent is None or received is None:
        sent, received = _rate(now[0], before[0], seconds), _rate(now[1], before[1], seconds)
    if sent is None or received is None:
        return sent if received is None else received
    busier = max(sent, received)
    return busier if isfinite(busier) else None
