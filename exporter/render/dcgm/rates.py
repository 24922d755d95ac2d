"""Bytes per second from byte counters over the last 15 to 30 s, about as DCGM's exporter does by default.

Two samples are kept for each GPU.  A counter that decreases (the driver was reloaded, the GPU was reset) begins
again: what was lost is not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from exporter.model import EMPTY, CardState, Signal

COUNTERS = (Signal.NVLINK_TRANSMIT, Signal.NVLINK_RECEIVE, Signal.PCIE_TRANSMIT, Signal.PCIE_RECEIVE)
MIN_SPAN = 15.0  # seconds between the two samples
MAX_GAP = 60.0  # seconds without a reading after which older samples are dropped

Rates = Mapping[str, Mapping[Signal, float]]  # uuid → counter → increase per second


class _Sample(Struct, frozen=True):
    at: float
    bytes: Mapping[Signal, float]


LinkRates = Mapping[str, Mapping[int, float]]  # uuid → NVLink → bytes per second, both directions


class LinkRateTracker:
    """Tracks the bytes of single NVLinks, which are read less often.  Not locked; the owner does that."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[_LinkSample, _LinkSample]] = {}  # the one before, and the newest

    def update(self, cards: Sequence[CardState]) -> LinkRates:
        """Add the counters of these GPUs and return the rates between the last two reads of each."""
        kept: dict[str, tuple[_LinkSample, _LinkSample]] = {}
        for card in cards:
            reading = card.reading
            if reading is None or reading.nvlink_bytes_at is None:
                continue
            now = _LinkSample(
                reading.nvlink_bytes_at, {link: sum(both) for link, both in reading.nvlink_bytes.items()}
            )
            before, newest = self._samples.get(card.facts.uuid, (now, now))
            if now.at > newest.at:
                before, newest = (now if now.at - newest.at > MAX_GAP else newest), now
            kept[card.facts.uuid] = (before, newest)
        self._samples = kept
        return {uuid: _between_links(*samples) for uuid, samples in kept.items()}


class _LinkSample(Struct, frozen=True):
    at: float
    bytes: Mapping[int, float]


def _between_links(before: _LinkSample, now: _LinkSample) -> Mapping[int, float]:
    seconds = now.at - before.at
    if seconds <= 0:
        return EMPTY
    return {
        link: (count - before.bytes[link]) / seconds
        for link, count in now.bytes.items()
        if before.bytes.get(link, count + 1.0) <= count
    }


class RateTracker:
    """Tracks the byte counters of all GPUs.  Not locked; the owner does that."""

    def __init__(self) -> None:
        self._samples: dict[str, tuple[_Sample, _Sample]] = {}  # the base, and the sample that replaces it

    def update(self, cards: Sequence[CardState]) -> Rates:
        """Add the counters of these GPUs and return the rates; a GPU has none before its second reading."""
        kept: dict[str, tuple[_Sample, _Sample]] = {}
        rates: dict[str, Mapping[Signal, float]] = {}
        for card in cards:
            if card.reading is None:
                continue
            found = card.reading.signals
            now = _Sample(card.reading.at, {signal: found[signal] for signal in COUNTERS if signal in found})
            older, younger = self._samples.get(card.facts.uuid, (now, now))
            if _restarted(younger, now) or now.at - younger.at > MAX_GAP:
                older = younger = now
            if now.at - younger.at >= MIN_SPAN:
                older, younger = younger, now
            kept[card.facts.uuid] = (older, younger)
            rates[card.facts.uuid] = _between(older, now)
        self._samples = kept
        return rates


def _restarted(before: _Sample, now: _Sample) -> bool:
    return any(count < before.bytes.get(signal, 0.0) for signal, count in now.bytes.items())


def _between(base: _Sample, now: _Sample) -> Mapping[Signal, float]:
    seconds = now.at - base.at
    if seconds <= 0:
        return EMPTY
    return {
        signal: (count - base.bytes[signal]) / seconds
        for signal, count in now.bytes.items()
        if signal in base.bytes and count >= base.bytes[signal]
    }
