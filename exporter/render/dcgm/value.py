"""Values of a dialect: signal, unit and rounding.

An int is written as an integer, a float with six decimals, like DCGM's exporter writes its two kinds of fields.  None
means that the value is not known; the sample is then absent, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import floor, isfinite

from msgspec import Struct

from exporter.model import EMPTY, CardReading, Signal, XidCount
from exporter.model.clock_events import CLOCK_EVENT_BITS
from exporter.model.xid_catalog import describe
from exporter.render.dcgm.recent import WINDOW

MEBI = 1 << 20


class CardView(Struct, frozen=True, kw_only=True):
    """One GPU as rows read it: its reading, and what is derived from several readings."""

    reading: CardReading
    rates: Mapping[Signal, float] = EMPTY  # counter → increase per second
    xids: tuple[XidCount, ...] | None = None  # None: no source of XIDs
    recent: Mapping[int, int] = EMPTY  # XID → events in the window
    clock_events: Mapping[str, int] | None = None  # reason → readings in the window; None: no reading
    link_rates: Mapping[int, float] = EMPTY  # NVLink → bytes per second, both directions

    @property
    def reported(self) -> bool:
        """Whether the GPU has reported an error since the daemon's start."""
        return any(xid.count for xid in self.xids or ())


Value = Callable[[CardView], "int | float | None"]
LabelPairs = tuple[tuple[str, str], ...]  # behind those of every row
Split = Callable[[CardView], Iterable[tuple[LabelPairs, int]]]


def round_half(number: float) -> int | None:
    """Return the nearest integer, halves rounded up; None if not finite."""
    return floor(number + 0.5) if isfinite(number) else None


def integer(signal: Signal, factor: float = 1.0) -> Value:
    """Return a reader of a signal times ``factor`` as the nearest integer."""

    def read(card: CardView) -> int | None:
        number = card.reading.signals.get(signal)
        return None if number is None else round_half(number * factor)

    return read


def to_mib(signal: Signal) -> Value:
    """Return a reader of bytes as MiB, rounded down."""

    def read(card: CardView) -> int | None:
        number = card.reading.signals.get(signal)
        return None if number is None or not isfinite(number) else floor(number) // MEBI

    return read


def real(signal: Signal) -> Value:
    """Return a reader of a signal as a float."""

    def read(card: CardView) -> float | None:
        number = card.reading.signals.get(signal)
        return None if number is None or not isfinite(number) else float(number)

    return read


def event_time(reason: str, factor: float) -> Value:
    """Return a reader of the time that clocks were reduced for ``reason``, times ``factor``; an integer unless 1."""

    def read(card: CardView) -> int | float | None:
        return _time(card.reading.clock_event_seconds.get(reason), factor)

    return read


def policy_time(policy: str, factor: float) -> Value:
    """Return a reader of the time that an older policy reduced the clocks, as ``event_time`` does."""

    def read(card: CardView) -> int | float | None:
        return _time(card.reading.policy_seconds.get(policy), factor)

    return read


def _time(seconds: float | None, factor: float) -> int | float | None:
    if seconds is None or not isfinite(seconds):
        return None
    return float(seconds) if factor == 1.0 else round_half(seconds * factor)


def event_mask(card: CardView) -> int | None:
    """Return the mask of reasons that reduce the clocks now, of the nine that have a name."""
    events = card.reading.clock_events
    if not events:
        return None
    return sum(bit for reason, bit in CLOCK_EVENT_BITS.items() if events.get(reason))


def nvlink_errors(kind: str) -> Value:
    """Return a reader of the errors of one type over all links."""

    def read(card: CardView) -> int | None:
        count = card.reading.nvlink_errors.get(kind)
        return None if count is None else round_half(count)

    return read


def pipe(kind: str) -> Value:
    """Return a reader of the ratio of time in which the pipe for one kind of arithmetic was active."""

    def read(card: CardView) -> float | None:
        share = card.reading.pipe_active.get(kind)
        return None if share is None or not isfinite(share) else float(share)

    return read


def traffic(link: str, direction: str, counter: Signal) -> Value:
    """Return a reader of bytes per second as an integer: measured by the GPU, else from its byte counter."""

    def read(card: CardView) -> int | None:
        number = card.reading.traffic.get((link, direction), card.rates.get(counter))
        return None if number is None else round_half(number)

    return read


def throughput(direction: str) -> Value:
    """Return a reader of thousands of bytes per second over PCIe; the same bytes as ``traffic``."""
    counter = Signal.PCIE_TRANSMIT if direction == "transmit" else Signal.PCIE_RECEIVE

    def read(card: CardView) -> int | None:
        number = card.reading.traffic.get(("pcie", direction), card.rates.get(counter))
        return None if number is None else round_half(number / 1000)

    return read


def kibibytes(rate: float) -> int:
    """Return bytes as whole KiB."""
    return floor(rate / 1024)


def nvlink_kibibytes(card: CardView) -> int | None:
    """Return KiB per second over all links and both directions, the base of both dialects' throughput."""
    sent, received = card.rates.get(Signal.NVLINK_TRANSMIT), card.rates.get(Signal.NVLINK_RECEIVE)
    if sent is None or received is None or not isfinite(sent + received):
        return None
    return kibibytes(sent + received)


def fabric_manager(card: CardView) -> int | None:
    """Return 1 not started, 2 in progress, 3 success, 4 failure; None if the driver does not report the result."""
    found = card.reading.signals
    state = found.get(Signal.FABRIC_STATE)
    if state == 3.0:
        status = found.get(Signal.FABRIC_STATUS)
        return None if status is None else 3 if status == 0.0 else 4
    return None if state is None or state not in {1.0, 2.0} else int(state)


def last_xid(card: CardView) -> Iterator[tuple[LabelPairs, int]]:
    """Return the newest XID since the daemon's start, 0 before the first; nothing if its code is not known."""
    if card.xids is None:
        return
    seen = [(xid.last_unix_time or 0.0, xid.xid) for xid in card.xids if xid.count]
    code = max(seen, key=lambda pair: pair[0])[1] if seen else 0
    if code is not None:
        meaning = describe(code).meaning if code else "No Error"
        yield (("err_code", str(code)), ("err_msg", meaning)), code


def xid_totals(card: CardView) -> Iterator[tuple[LabelPairs, int]]:
    """Return the events by code, of codes with events."""
    for xid in card.xids or ():
        if xid.count and xid.xid is not None:
            yield (("xid", str(xid.xid)),), xid.count


def xid_window(card: CardView) -> Iterator[tuple[LabelPairs, int]]:
    """Return the events of the window by code; without any, 0 without a code, as DCGM's exporter does."""
    if card.xids is None:
        return
    window = ("window_size_in_ms", str(round(WINDOW * 1000)))
    if not card.recent:
        yield (window,), 0
    for code, times in sorted(card.recent.items()):
        yield (window, ("xid", str(code))), times


# Reasons by the words of DCGM's exporter.
_CLOCK_EVENT_WORDS = {
    "gpu_idle": "gpu_idle",
    "clocks_setting": "applications_clocks_setting",
    "power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal": "sw_thermal_slowdown",
    "hw_thermal": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
    "display_clocks": "display_clock_setting",
}


def clock_event_window(card: CardView) -> Iterator[tuple[LabelPairs, int]]:
    """Return the readings of the window by reason; without any, 0 without a reason, as ``xid_window``."""
    if card.clock_events is None:
        return
    window = ("window_size_in_ms", str(round(WINDOW * 1000)))
    if not card.clock_events:
        yield (window,), 0
    for word, reason in _CLOCK_EVENT_WORDS.items():
        if times := card.clock_events.get(reason):
            yield (window, ("clock_event", word)), times


def used_share(card: CardView) -> float | None:
    """Return the used memory over the memory that the driver does not reserve."""
    found = card.reading.signals
    used, total = found.get(Signal.MEMORY_USED), found.get(Signal.MEMORY_TOTAL)
    reserved = found.get(Signal.MEMORY_RESERVED)
    if used is None or total is None or reserved is None or total <= reserved:
        return None
    share = used / (total - reserved)
    return share if isfinite(share) else None
