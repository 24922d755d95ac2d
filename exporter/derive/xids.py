"""Counters of XIDs by GPU, each event counted once although two sources report it.

NVML events miss some codes (79, 119 and 120 among them), and the kernel log may be unreadable or rate-limited, so
both are read.  A report is a new event unless another source reported the same code on the same GPU within
``MERGE_WINDOW`` seconds and this source has not reported that event yet: of n reports by one source and m by
another, max(n, m) count.

One error is often several lines of the kernel log, and they may be slow.  Lines of one code and GPU are one report
while each follows the previous one within ``BURST`` seconds, for at most ``MAX_BURST`` seconds after the first, so
that an endless fault goes on counting.  Every NVML event counts.

Counters are kept by UUID, so that neither a changed index nor a new driver worker affects them.  Reports about a PCI
address without a known GPU are kept under ``unknown-ADDRESS``, and move to the GPU when it is known.

Errors of a MIG instance are counted under the instance, or under its GPU where the instance is not known.  One source
may name the instance and the other only the GPU, so their counters are compared with each other.  The counters of an
instance end with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from exporter.model import (
    BUS,
    KERNEL_LOG,
    WHOLE_GPU,
    CardState,
    InstanceId,
    XidCount,
    XidLabels,
    XidReport,
    canonical_pci,
)

MERGE_WINDOW = 10.0  # seconds
BURST = 5.0  # seconds after the previous line
MAX_BURST = 10.0  # seconds after the first line
MAX_CODES = 32  # of a card, those exposed from the start included; further codes are "other"
MAX_UNKNOWN = 16  # PCI addresses without a known GPU
MAX_CARDS = 128
MAX_PENDING = 256  # events of one code and card that another source may still report
OTHER = -1

_GROUPED = 0.25  # seconds; events this close are matched with the other source's together


class GpuIdentity(NamedTuple):
    """The GPU or instance that a report is about, as far as it is known: "" for index and address, "unknown"."""

    gpu: str
    uuid: str
    pci: str


class _Event(Struct):
    """``times`` events at about ``at``, and the sources that reported them."""

    at: float
    times: int
    sources: frozenset[str]


class _XidCounter(Struct):
    count: int = 0
    last_unix_time: float | None = None
    burst: tuple[float, float] = (float("-inf"), float("-inf"))  # its first and its newest line
    pending: deque[_Event] = field(default_factory=deque)

    def record(self, source: str, times: int, at: float, related: Sequence[_XidCounter] = ()) -> int:
        """Count ``times`` reports; return how many of them are new events.

        ``related``: counters of the same code where another source may have reported the same event.
        """
        for counter in (self, *related):
            counter._expire(at)
        if source == BUS and any(counter.pending for counter in (self, *related)):
            return 0  # a line without an XID repeats one with an XID
        if source == KERNEL_LOG and not self._begins_burst(at):
            return 0
        unmatched = times
        for counter in (self, *related):
            unmatched = counter._match(source, unmatched)
        if unmatched:
            self._add_pending(_Event(at, unmatched, frozenset({source})))
        self.count += unmatched
        return unmatched

    def _begins_burst(self, at: float) -> bool:
        """Record a line of the kernel log; return whether it begins a new report."""
        first, newest = self.burst
        begins = at - newest >= BURST or at - first >= MAX_BURST
        self.burst = (at if begins else first, at)
        return begins

    def _expire(self, at: float) -> None:
        while self.pending and self.pending[0].at < at - MERGE_WINDOW:
            self.pending.popleft()

    def _match(self, source: str, times: int) -> int:
        """Match reports with events of other sources, oldest first; return the number of reports without a match."""
        unmatched = times
        for place, event in enumerate(self.pending):
            if unmatched and source not in event.sources:
                if event.times > unmatched:
                    rest = _Event(event.at, event.times - unmatched, event.sources)
                    event.times, event.sources = unmatched, event.sources | {source}
                    self.pending.insert(place + 1, rest)
                    self._bound()
                    return 0
                event.sources |= {source}
                unmatched -= event.times
        return unmatched

    def _add_pending(self, event: _Event) -> None:
        newest = self.pending[-1] if self.pending else None
        if newest is not None and newest.sources == event.sources and event.at - newest.at < _GROUPED:
            newest.times += event.times
        else:
            self.pending.append(event)
            self._bound()

    def _bound(self) -> None:
        while len(self.pending) > MAX_PENDING:
            self.pending.popleft()

    def absorb(self, other: _XidCounter) -> None:
        """Add what was counted before the GPU was known."""
        self.count += other.count
        unix_times = [at for at in (self.last_unix_time, other.last_unix_time) if at is not None]
        self.last_unix_time = max(unix_times, default=None)
        self.burst = max(self.burst, other.burst)
        self.pending = deque(sorted([*self.pending, *other.pending], key=lambda event: event.at), maxlen=MAX_PENDING)


class _XidCard(Struct):
    uuid: str
    index: str
    counters: dict[int, _XidCounter]
    present: bool = True  # listed by the driver
    pci: str = ""
    parent: str = ""  # UUID of the MIG-enabled GPU of this instance

    @property
    def seen(self) -> bool:
        return any(counter.last_unix_time is not None for counter in self.counters.values())


class XidCounters:
    """XID counters of all cards.  Not locked; the owner does that."""

    def __init__(self, always: Collection[int], kept: Collection[int] = ()) -> None:
        """Expose the codes ``always`` for every known GPU; never count the codes ``kept`` as "other"."""
        self._always = tuple(sorted(always))
        self._kept = frozenset(kept)
        self._cards: dict[str, _XidCard] = {}
        self._by_pci: dict[str, str] = {}
        self._uuids_from_log: dict[str, str] = {}  # PCI address → UUID according to the kernel log
        self._instances: dict[str, CardState] = {}  # MIG instances
        self._facts: tuple[object, ...] = ()
        self.dropped = 0  # reports about PCI addresses beyond MAX_UNKNOWN

    def update_gpus(self, cards: Sequence[CardState]) -> bool:
        """Update the cards and their PCI addresses; return whether anything changed."""
        facts = tuple(card.facts for card in cards)
        if facts == self._facts:
            return False
        self._facts = facts
        for card in self._cards.values():
            card.present = False
        self._instances = {card.facts.uuid: card for card in cards if card.facts.instance is not None}
        for gpu in facts:
            if gpu.instance is not None:
                self._add_instance(gpu.uuid)
            elif not gpu.uuid.startswith(("MIG-", "unknown-")):  # unidentified GPUs have no UUID yet
                self._add_gpu(gpu.uuid, str(gpu.index), canonical_pci(gpu.pci_bus_id))
        removed = [uuid for uuid, card in self._cards.items() if not card.present and (card.parent or not card.seen)]
        for uuid in removed:
            del self._cards[uuid]
        return True

    def knows(self, pci: str) -> bool:
        """Return whether a GPU at this address has been seen through the driver."""
        return pci in self._by_pci

    def set_uuid(self, pci: str, uuid: str) -> None:
        """Record the UUID of an address from the kernel log; the driver's word goes first."""
        if pci in self._by_pci or (pci not in self._uuids_from_log and len(self._uuids_from_log) >= MAX_CARDS):
            return
        self._uuids_from_log[pci] = uuid
        if f"unknown-{pci}" in self._cards:
            self._adopt(pci, uuid)

    def _add_gpu(self, uuid: str, index: str, pci: str) -> None:
        card = self._cards.get(uuid)
        if card is None:
            if len(self._cards) >= MAX_CARDS:
                return
            card = self._cards[uuid] = _XidCard(uuid, index, {})
        card.index, card.present, card.pci = index, True, pci
        for code in self._always:
            card.counters.setdefault(code, _XidCounter())
        if pci:
            self._by_pci[pci] = uuid
            self._adopt(pci, uuid)

    def _add_instance(self, uuid: str) -> None:
        """Record an instance; without zeros from the start, because most errors affect the whole GPU."""
        card = self._cards.get(uuid)
        if card is not None:
            card.index, card.present = self._instances[uuid].labels.gpu, True

    def _adopt(self, pci: str, uuid: str) -> None:
        """Move what was reported of an address to its GPU, which was not known then."""
        before = self._cards.pop(f"unknown-{pci}", None)
        if before is None:
            return
        card = self._cards.setdefault(uuid, _XidCard(uuid, "", {}, present=False))
        for code, counter in before.counters.items():
            card.counters.setdefault(self._code(card, code), _XidCounter()).absorb(counter)

    def add(self, report: XidReport) -> int:
        """Count a report; return the number of new events in it."""
        card = self._card(report)
        if card is None:
            self.dropped += report.times
            return 0
        counter = card.counters.setdefault(self._code(card, report.xid), _XidCounter())
        new = (
            0
            if report.old
            else counter.record(report.source, report.times, report.at, self._related(card, report.xid))
        )
        if report.old or new:
            counter.last_unix_time = (
                report.unix_time if counter.last_unix_time is None else max(counter.last_unix_time, report.unix_time)
            )
        return new

    def _card(self, report: XidReport) -> _XidCard | None:
        uuid = report.uuid or self._by_pci.get(report.pci) or self._uuids_from_log.get(report.pci)
        if not uuid:
            uuid = f"unknown-{report.pci}" if report.pci else "unknown"
        uuid = self._instance_uuid(uuid, report.instance) or uuid
        card = self._cards.get(uuid)
        if card is None and uuid in self._instances and len(self._cards) < MAX_CARDS:
            card = self._cards[uuid] = self._new_instance(uuid)
        if card is None:
            unlisted = sum(not card.present for card in self._cards.values())
            if unlisted >= MAX_UNKNOWN or len(self._cards) >= MAX_CARDS:
                return None
            card = self._cards[uuid] = _XidCard(uuid, "", {}, present=False)
        return card

    def _instance_uuid(self, uuid: str, instance_id: InstanceId) -> str:
        """Return the UUID of an instance of a GPU; "" if it is not known, or ambiguous."""
        if instance_id == WHOLE_GPU:
            return ""
        matching = []
        for instance_uuid, state in self._instances.items():
            instance = state.facts.instance
            if instance is None or (instance.parent, instance.gpu_instance) != (uuid, instance_id.gpu_instance):
                continue
            if instance_id.compute_instance in {None, instance.compute_instance}:
                matching.append(instance_uuid)
        return matching[0] if len(matching) == 1 else ""

    def _new_instance(self, uuid: str) -> _XidCard:
        state = self._instances[uuid]
        parent = state.facts.instance.parent if state.facts.instance is not None else ""
        whole = self._cards.get(parent)
        return _XidCard(uuid, state.labels.gpu, {}, pci=whole.pci if whole is not None else "", parent=parent)

    def _related(self, card: _XidCard, code: int) -> list[_XidCounter]:
        """Return the counters of the code on the GPU of an instance, or on the instances of a GPU."""
        if card.parent:
            related = [self._cards[card.parent]] if card.parent in self._cards else []
        else:
            related = (
                [other for other in self._cards.values() if other.parent == card.uuid] if self._instances else []
            )
        return [other.counters[code] for other in related if code in other.counters]

    def _code(self, card: _XidCard, code: int) -> int:
        if code in card.counters or code in self._kept:
            return code
        return code if len(card.counters) < MAX_CODES else OTHER

    def identify(self, report: XidReport) -> GpuIdentity:
        """Return index, UUID and PCI address of the card of a report, for the log."""
        card = self._card(report)
        if card is None:
            return GpuIdentity("", "unknown", report.pci)
        return GpuIdentity(card.index, card.uuid, report.pci or card.pci)

    def counts(self, sources: str) -> tuple[XidCount, ...]:
        """Return the counts; ``sources`` names the sources that are read."""
        return tuple(self._counts(sources))

    def _counts(self, sources: str) -> Iterator[XidCount]:
        for card in self._cards.values():
            for code in sorted(card.counters):
                counter, shown = card.counters[code], str(code) if code != OTHER else "other"
                yield XidCount(
                    labels=XidLabels(card.index, card.uuid, shown, sources),
                    xid=code if code != OTHER else None,
                    count=counter.count,
                    last_unix_time=counter.last_unix_time,
                    is_whole_gpu=card.present and not card.parent,
                )
