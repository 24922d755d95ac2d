"""XIDs of all cards, counted once although two sources report them.

NVML's events miss some codes (79, 119 and 120 among them), the kernel log may be unreadable or rate-limited, so both
are read.  A report is a new event unless another source reported the same code on the same card within ``WINDOW``
seconds and that event was not told by this source yet: of n reports by one source and m by another, max(n, m) count.

One error is often several lines of the kernel log, and they may come slowly.  Lines of one code and card are one
report as long as each follows the one before within ``BURST`` seconds, but for no longer than ``LONGEST_BURST``
seconds after the first, so that a fault that never ends goes on counting.  NVML's events each count.

Counters are kept by UUID, so neither an index that changes nor a new driver worker touches them.  A report about a
place on the bus where no card is known is kept under ``unknown-PCI``, and moves to the card when it becomes known.

What befell an instance of a divided card (MIG) is counted under the instance, or under its card where the instance is
not known.  As one source may name the instance and the other the card only, the two are looked at together.  Counters
of an instance go when it is taken away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

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

WINDOW = 10.0  # seconds
BURST = 5.0  # seconds from the line before
LONGEST_BURST = 10.0  # seconds from the first line
MAX_CODES = 32  # of a card, those shown from the start included; what comes after them is "other"
MAX_UNKNOWN = 16  # places without a known card
MAX_CARDS = 128
MAX_OPEN = 256  # events of one code and card that another source may still report
OTHER = -1

_GRAIN = 0.25  # seconds; events this close to each other wait together for the other source


class _Event(Struct):
    """``times`` events at about ``at``, and who has reported them."""

    at: float
    times: int
    sources: frozenset[str]


class _Tally(Struct):
    count: int = 0
    last_unix_time: float | None = None
    burst: tuple[float, float] = (float("-inf"), float("-inf"))  # its first line and its newest
    open: deque[_Event] = field(default_factory=deque)

    def take(self, source: str, times: int, at: float, kin: Sequence[_Tally] = ()) -> int:
        """Say how many of ``times`` reports are events that nobody has reported.

        ``kin``: the same code where another source may have reported the same event.
        """
        for one in (self, *kin):
            one._expire(at)
        if source == BUS and any(one.open for one in (self, *kin)):
            return 0  # the line without a number says again what a numbered one says
        if source == KERNEL_LOG and not self._begins_burst(at):
            return 0
        left = times
        for one in (self, *kin):
            left = one._match(source, left)
        if left:
            self._open(_Event(at, left, frozenset({source})))
        self.count += left
        return left

    def _begins_burst(self, at: float) -> bool:
        """Note a line of the kernel log; say whether it is more than a further line of what was told before."""
        first, newest = self.burst
        begins = at - newest >= BURST or at - first >= LONGEST_BURST
        self.burst = (at if begins else first, at)
        return begins

    def _expire(self, at: float) -> None:
        while self.open and self.open[0].at < at - WINDOW:
            self.open.popleft()

    def _match(self, source: str, times: int) -> int:
        """Mark events that other sources reported, oldest first; give how many reports are left over."""
        left = times
        for place, event in enumerate(self.open):
            if left and source not in event.sources:
                if event.times > left:
                    rest = _Event(event.at, event.times - left, event.sources)
                    event.times, event.sources = left, event.sources | {source}
                    self.open.insert(place + 1, rest)
                    self._bound()
                    return 0
                event.sources |= {source}
                left -= event.times
        return left

    def _open(self, event: _Event) -> None:
        newest = self.open[-1] if self.open else None
        if newest is not None and newest.sources == event.sources and event.at - newest.at < _GRAIN:
            newest.times += event.times
        else:
            self.open.append(event)
            self._bound()

    def _bound(self) -> None:
        while len(self.open) > MAX_OPEN:
            self.open.popleft()

    def absorb(self, other: _Tally) -> None:
        """Take over what was counted before the card was known."""
        self.count += other.count
        walls = [wall for wall in (self.last_unix_time, other.last_unix_time) if wall is not None]
        self.last_unix_time = max(walls, default=None)
        self.burst = max(self.burst, other.burst)
        self.open = deque(sorted([*self.open, *other.open], key=lambda event: event.at), maxlen=MAX_OPEN)


class _Card(Struct):
    uuid: str
    index: str
    tallies: dict[int, _Tally]
    present: bool = True  # in the driver's view
    pci: str = ""
    parent: str = ""  # UUID of the card that this is an instance of

    @property
    def seen(self) -> bool:
        return any(tally.last_unix_time is not None for tally in self.tallies.values())


class XidCounters:
    """Every card's XIDs.  Not locked: the owner sees to that."""

    def __init__(self, always: Collection[int], kept: Collection[int] = ()) -> None:
        """Know no card yet.  ``always``: the codes that every known card shows from the start.

        ``kept``: codes that are never counted as "other", because some page shows them as 0 until they come.
        """
        self._always = tuple(sorted(always))
        self._kept = frozenset(kept)
        self._cards: dict[str, _Card] = {}
        self._by_pci: dict[str, str] = {}
        self._names: dict[str, str] = {}  # the same, as the kernel log says it
        self._parts: dict[str, CardState] = {}  # instances of divided cards
        self._facts: tuple[object, ...] = ()
        self.dropped = 0  # reports about more unknown places than are kept

    def learn(self, cards: Sequence[CardState]) -> bool:
        """Note which cards there are and where; say whether anything changed."""
        facts = tuple(card.facts for card in cards)
        if facts == self._facts:
            return False
        self._facts = facts
        for card in self._cards.values():
            card.present = False
        self._parts = {card.facts.uuid: card for card in cards if card.facts.instance is not None}
        for one in facts:
            if one.instance is not None:
                self._know_part(one.uuid)
            elif not one.uuid.startswith(("MIG-", "unknown-")):  # a stranger has no name yet
                self._know(one.uuid, str(one.index), canonical_pci(one.pci_bus_id))
        gone = [uuid for uuid, card in self._cards.items() if not card.present and (card.parent or not card.seen)]
        for uuid in gone:
            del self._cards[uuid]
        return True

    def named(self, pci: str, uuid: str) -> None:
        """Note what the kernel log calls a card, which the driver may never list again; the driver goes first."""
        if pci in self._by_pci or (pci not in self._names and len(self._names) >= MAX_CARDS):
            return
        self._names[pci] = uuid
        if f"unknown-{pci}" in self._cards:
            self._settle(pci, uuid)

    def _know(self, uuid: str, index: str, pci: str) -> None:
        card = self._cards.get(uuid)
        if card is None:
            if len(self._cards) >= MAX_CARDS:
                return
            card = self._cards[uuid] = _Card(uuid, index, {})
        card.index, card.present, card.pci = index, True, pci
        for code in self._always:
            card.tallies.setdefault(code, _Tally())
        if pci:
            self._by_pci[pci] = uuid
            self._settle(pci, uuid)

    def _know_part(self, uuid: str) -> None:
        """Note that an instance is there; it has no zeros from the start, as most errors befall the whole card."""
        card = self._cards.get(uuid)
        if card is not None:
            card.index, card.present = self._parts[uuid].labels.gpu, True

    def _settle(self, pci: str, uuid: str) -> None:
        """Give the card at a place what was reported of the place before anybody knew who it is."""
        before = self._cards.pop(f"unknown-{pci}", None)
        if before is None:
            return
        card = self._cards.setdefault(uuid, _Card(uuid, "", {}, present=False))
        for code, tally in before.tallies.items():
            card.tallies.setdefault(self._code(card, code), _Tally()).absorb(tally)

    def add(self, report: XidReport) -> int:
        """Take in a report; give the number of events in it that nobody has reported yet."""
        card = self._card(report)
        if card is None:
            self.dropped += report.times
            return 0
        tally = card.tallies.setdefault(self._code(card, report.xid), _Tally())
        new = 0 if report.old else tally.take(report.source, report.times, report.at, self._kin(card, report.xid))
        if report.old or new:
            tally.last_unix_time = (
                report.unix_time if tally.last_unix_time is None else max(tally.last_unix_time, report.unix_time)
            )
        return new

    def _card(self, report: XidReport) -> _Card | None:
        uuid = report.uuid or self._by_pci.get(report.pci) or self._names.get(report.pci)
        if not uuid:
            uuid = f"unknown-{report.pci}" if report.pci else "unknown"
        uuid = self._part(uuid, report.instance) or uuid
        card = self._cards.get(uuid)
        if card is None and uuid in self._parts and len(self._cards) < MAX_CARDS:
            card = self._cards[uuid] = self._made_part(uuid)
        if card is None:
            strangers = sum(not card.present for card in self._cards.values())
            if strangers >= MAX_UNKNOWN or len(self._cards) >= MAX_CARDS:
                return None
            card = self._cards[uuid] = _Card(uuid, "", {}, present=False)
        return card

    def _part(self, uuid: str, part: InstanceId) -> str:
        """Give the UUID of an instance of a card; "" where it is not known, or not which of several it is."""
        if part == WHOLE_GPU:
            return ""
        found = []
        for one, state in self._parts.items():
            instance = state.facts.instance
            if instance is None or (instance.parent, instance.gpu_instance) != (uuid, part.gpu_instance):
                continue
            if part.compute_instance in {None, instance.compute_instance}:
                found.append(one)
        return found[0] if len(found) == 1 else ""

    def _made_part(self, uuid: str) -> _Card:
        state = self._parts[uuid]
        parent = state.facts.instance.parent if state.facts.instance is not None else ""
        whole = self._cards.get(parent)
        return _Card(uuid, state.labels.gpu, {}, pci=whole.pci if whole is not None else "", parent=parent)

    def _kin(self, card: _Card, code: int) -> list[_Tally]:
        """Give the tallies of the code on the card of an instance, or on the instances of a card."""
        if card.parent:
            kin = [self._cards[card.parent]] if card.parent in self._cards else []
        else:
            kin = [one for one in self._cards.values() if one.parent == card.uuid] if self._parts else []
        return [one.tallies[code] for one in kin if code in one.tallies]

    def _code(self, card: _Card, code: int) -> int:
        if code in card.tallies or code in self._kept:
            return code
        return code if len(card.tallies) < MAX_CODES else OTHER

    def who(self, report: XidReport) -> tuple[str, str, str]:
        """Give (index, UUID, place on the bus) of the card that a report is about, for the log."""
        card = self._card(report)
        return (card.index, card.uuid, report.pci or card.pci) if card is not None else ("", "unknown", report.pci)

    def counts(self, listening: str) -> tuple[XidCount, ...]:
        """Make the frozen counts; ``listening`` names the sources that are read."""
        return tuple(self._counts(listening))

    def _counts(self, listening: str) -> Iterator[XidCount]:
        for card in self._cards.values():
            for code in sorted(card.tallies):
                tally, shown = card.tallies[code], str(code) if code != OTHER else "other"
                yield XidCount(
                    labels=XidLabels(card.index, card.uuid, shown, listening),
                    xid=code if code != OTHER else None,
                    count=tally.count,
                    last_unix_time=tally.last_unix_time,
                    is_whole_gpu=card.present and not card.parent,
                )
