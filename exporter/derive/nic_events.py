"""Counts of the messages that adapters' driver wrote to the kernel log, by PCI address and kind.

Bounded: addresses beyond MAX_ADAPTERS share "other"; the kinds are a closed list.
"""

from __future__ import annotations

from msgspec import Struct

from exporter.model.nic import NicEventCount, NicEventLabels

MAX_ADAPTERS = 64
OTHER = "other"


class _Counter(Struct):
    count: int = 0
    last_unix_time: float = 0.0


class NicEventCounters:
    """The counts of all adapters.  Not locked; the owner does that."""

    def __init__(self) -> None:
        self._counters: dict[NicEventLabels, _Counter] = {}
        self._addresses: set[str] = set()
        self._cached: tuple[NicEventCount, ...] | None = ()

    def add(self, pci: str, event: str, unix_time: float, *, old: bool) -> None:
        """Count a message; an ``old`` one, of before the daemon's start, gives only its time."""
        if pci not in self._addresses and len(self._addresses) >= MAX_ADAPTERS:
            pci = OTHER
        self._addresses.add(pci)
        counter = self._counters.setdefault(NicEventLabels(pci, event), _Counter())
        counter.last_unix_time = max(counter.last_unix_time, unix_time)
        counter.count += not old
        self._cached = None

    def counts(self) -> tuple[NicEventCount, ...]:
        """Return all counts by address and kind."""
        if self._cached is None:
            self._cached = tuple(
                NicEventCount(labels=labels, count=counter.count, last_unix_time=counter.last_unix_time)
                for labels, counter in sorted(self._counters.items())
            )
        return self._cached
