"""Bytes per second from byte counters, over the last 15 to 30 s: about what DCGM's exporter shows by default.

Two anchors for each card are all that is kept.  A counter that falls (the driver was reloaded, the card was reset)
starts anew: what was lost is not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from exporter.model import EMPTY, CardState, Signal

COUNTERS = (Signal.NVLINK_TRANSMIT, Signal.NVLINK_RECEIVE, Signal.PCIE_TRANSMIT, Signal.PCIE_RECEIVE)
HALF = 15.0  # seconds; the anchor moves on when the younger one is that old
LONGEST = 60.0  # seconds; an anchor from before a longer silence describes another time

Rates = Mapping[str, Mapping[Signal, float]]  # uuid → counter → increase per second


class _Count(Struct, frozen=True):
    at: float
    bytes: Mapping[Signal, float]


class RateTracker:
    """Follows the byte counters of all cards; owned by one thread, or guarded by its owner."""

    def __init__(self) -> None:
        self._anchors: dict[str, tuple[_Count, _Count]] = {}  # the older one, and the one that replaces it

    def take(self, cards: Sequence[CardState]) -> Rates:
        """Note the counters of these cards and give the rates; a card has none before its second reading."""
        kept: dict[str, tuple[_Count, _Count]] = {}
        rates: dict[str, Mapping[Signal, float]] = {}
        for card in cards:
            if card.reading is None:
                continue
            found = card.reading.signals
            now = _Count(card.reading.at, {signal: found[signal] for signal in COUNTERS if signal in found})
            older, younger = self._anchors.get(card.facts.uuid, (now, now))
            if _restarted(younger, now) or now.at - younger.at > LONGEST:
                older = younger = now
            if now.at - younger.at >= HALF:
                older, younger = younger, now
            kept[card.facts.uuid] = (older, younger)
            rates[card.facts.uuid] = _between(older, now)
        self._anchors = kept
        return rates


def _restarted(before: _Count, now: _Count) -> bool:
    return any(count < before.bytes.get(signal, 0.0) for signal, count in now.bytes.items())


def _between(base: _Count, now: _Count) -> Mapping[Signal, float]:
    seconds = now.at - base.at
    if seconds <= 0:
        return EMPTY
    return {
        signal: (count - base.bytes[signal]) / seconds
        for signal, count in now.bytes.items()
        if signal in base.bytes and count >= base.bytes[signal]
    }
