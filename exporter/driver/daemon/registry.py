"""What is known of each card, by UUID: facts, the newest reading, and why there is none.

Pure state: the supervisor feeds it messages and the time, ``view`` makes the frozen records.  A card stays in the
book when it is lost, so that the page can say so, and is forgotten after a day.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from exporter.driver import protocol
from exporter.logs import log_down, log_event, log_up
from exporter.model import CardFacts, CardReading, CardState, CardTopology, GpuLabels, Missing, SourceStatus

_log = logging.getLogger(__name__)

FORGET_AFTER = 24 * 3600.0
OPEN_DEADLINE = 30.0  # seconds; without persistence mode a card's first handle loads the driver


@dataclass(slots=True)
class _Card:
    facts: CardFacts
    labels: GpuLabels
    seen_at: float
    reading: CardReading | None = None
    reason: str = ""  # why it is gone; empty while it answers
    hung: bool = False
    awaited: bool = False  # no answer yet since the driver was initialised
    duration: float | None = None
    last_success: float | None = None
    last_success_unix_time: float | None = None
    failures: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    links: set[int] = field(default_factory=set)  # NVLinks that were up at least once
    pipes: frozenset[str] = frozenset()  # kinds of arithmetic that were done at least once
    topology: CardTopology | None = None
    said: str = ""  # the state last logged
    said_absent: tuple[str, ...] = ()  # the absent signals last logged


@dataclass(slots=True)
class _Slot:
    """One card thread of the worker.  ``since``: the driver call now running began (monotonic)."""

    uuid: str = ""
    answered: bool = False  # at least once since the driver was initialised
    opened: bool = False  # it has said who it is since then
    gone: bool = False
    since: float | None = None
    reason: str = ""  # why the card here has not said who it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How many cards hang in a call, how many do not, and whether all have answered and none hung before that."""

    hung: int
    answering: int
    settled: bool


def place(facts: CardFacts) -> str:
    """Give what the label gpu says: the index, and of an instance its place on the card too."""
    return str(facts.index) if facts.instance is None else f"{facts.index}:{facts.instance.number}"


def _order(state: CardState) -> tuple[int, int, str]:
    instance = state.facts.instance
    return state.facts.index, -1 if instance is None else instance.number, state.facts.uuid


def _show(card: _Card, reading: CardReading, wall: float) -> None:
    card.reading, card.reason, card.hung, card.awaited = reading, "", False, False
    card.seen_at = reading.at
    card.pipes |= {pipe for pipe, share in reading.pipe_active.items() if share > 0 and pipe not in card.pipes}
    card.last_success, card.last_success_unix_time = reading.at, wall
    for why in reading.missing.values():
        if why in {Missing.ERROR, Missing.INVALID}:
            card.failures[f"signal_{why.value}"] += 1


def _left(card: _Card, whole: _Card, now: float, freshness: float) -> float:
    """Give the seconds for which a reading is shown yet, < 0 for none: one that took long is not old for that."""
    taken = min(max(whole.duration or 0.0, 0.0), freshness)
    return -1.0 if card.reading is None else card.reading.at + freshness + taken - now


def _fresh(card: _Card, whole: _Card, now: float, freshness: float) -> bool:
    return _left(card, whole, now, freshness) >= 0.0


def _log_state(card: _Card, uuid: str) -> None:
    if card.said:
        log_down(_log, f"gpu:{uuid}", card.said, gpu=card.labels.gpu)
    else:
        log_up(_log, f"gpu:{uuid}", gpu=card.labels.gpu)


class CardRegistry:
    """All cards ever seen by this daemon.  Not locked: the owner sees to that."""

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._slots: dict[int, _Slot] = {}
        self._pending: set[int] = set()  # asked this cycle, no answer yet
        self._visible: set[str] = set()  # the cards last seen to have a fresh reading
        self._said_nameless: dict[int, str] = {}  # index → the reason last logged

    def begin(self, cards: int) -> None:
        """Note that the driver was initialised and counts ``cards`` cards."""
        self.end()
        self._slots = {index: _Slot() for index in range(cards)}
        self._pending = set(self._slots)

    def end(self) -> None:
        """Note that nobody reads cards now (the worker is gone, or initialises)."""
        self._slots = {}
        self._pending = set()
        for card in self._cards.values():
            card.awaited = True

    def found(self, facts: CardFacts, now: float) -> None:
        """Note facts of a card; its figures go on wherever it stands now."""
        slot = self._slots.setdefault(facts.index, _Slot())
        slot.uuid, slot.opened = facts.uuid, True
        self._said_nameless.pop(facts.index, None)
        self._noted(facts, now)
        if not facts.mig:
            self._keep_instances(facts.uuid, frozenset())

    def _noted(self, facts: CardFacts, now: float) -> _Card:
        labels = GpuLabels(place(facts), facts.uuid)
        card = self._cards.get(facts.uuid)
        if card is None:
            card = self._cards[facts.uuid] = _Card(facts=facts, labels=labels, seen_at=now)
        elif card.facts != facts:
            card.facts, card.labels = facts, labels
        card.seen_at = max(card.seen_at, now)
        return card

    def divided(self, message: protocol.InstancesRead, wall: float) -> None:
        """Take in the instances of a divided card; what is not among them any more was taken away on purpose."""
        for facts, reading in message.instances:
            _show(self._noted(facts, reading.at), reading, wall)
        self._keep_instances(message.uuid, frozenset(facts.uuid for facts, _ in message.instances))

    def _keep_instances(self, parent: str, kept: frozenset[str]) -> None:
        for uuid, card in list(self._cards.items()):
            instance = card.facts.instance
            if instance is not None and instance.parent == parent and uuid not in kept:
                del self._cards[uuid]
                log_event(_log, logging.INFO, "mig_instance_removed", source=f"gpu:{uuid}", gpu=card.labels.gpu)

    def read(self, message: protocol.CardRead, wall: float) -> None:
        """Take in a reading."""
        card = self._cards.get(message.uuid)
        self._answered(message.index, message.uuid, gone=False)
        if card is None:
            return
        reading = message.reading
        card.links |= {link for link, up in reading.nvlink_up.items() if up}
        shown = {link: up for link, up in reading.nvlink_up.items() if link in card.links}
        if len(shown) != len(reading.nvlink_up):
            # A link that never was up is a place without a cable, not a fault.
            reading = replace(reading, nvlink_up=shown)
        card.duration = message.duration
        _show(card, reading, wall)

    def joined(self, message: protocol.TopologyRead) -> None:
        """Take in how the cards are joined; a card or pair that was not asked about keeps what is known of it."""
        for uuid, topology in message.cards.items():
            card = self._cards.get(uuid)
            if card is None:
                continue
            kept = card.topology.peers if card.topology is not None else {}
            old = {peer: said for peer, said in kept.items() if peer in self._cards and peer not in topology.peers}
            joined = replace(topology, peers={**old, **topology.peers}) if old else topology
            if card.topology != joined:
                card.topology = joined

    def failed(self, message: protocol.CardFailed, now: float) -> None:
        """Take in that a card is gone; without a UUID it is the absent one that stood at the same index."""
        slot = self._answered(message.index, message.uuid, gone=True)
        uuid = message.uuid or slot.uuid or self._absent_at(message.index)
        card = self._cards.get(uuid)
        if card is not None:
            slot.uuid = uuid
            card.seen_at = now
            self._lose(card, message.reason)
        else:
            self._nameless(message.index, slot, message.reason)

    def _nameless(self, index: int, slot: _Slot, reason: str) -> None:
        slot.reason = reason
        if self._said_nameless.get(index) != reason:
            self._said_nameless[index] = reason
            log_down(_log, f"gpu:unknown-{index}", reason, gpu=index)

    def _absent_at(self, index: int) -> str:
        standing = {slot.uuid for slot in self._slots.values()}
        whole = {uuid: card for uuid, card in self._cards.items() if card.facts.instance is None}
        absent = [uuid for uuid, card in whole.items() if uuid not in standing and card.facts.index == index]
        return absent[0] if len(absent) == 1 else ""

    @staticmethod
    def _lose(card: _Card, reason: str) -> None:
        card.failures[reason] += 1
        card.reason, card.reading, card.hung = reason, None, False

    def _answered(self, index: int, uuid: str, *, gone: bool) -> _Slot:
        slot = self._slots.setdefault(index, _Slot())
        slot.uuid = uuid or slot.uuid
        slot.answered, slot.gone, slot.since = True, gone, None
        self._pending.discard(index)
        return slot

    def beat(self, message: protocol.Heartbeat, now: float) -> None:
        """Take in which cards still work on an earlier question."""
        for index, slot in self._slots.items():
            stuck = message.busy.get(index)
            if stuck is None:
                if message.ask:
                    self._pending.add(index)
                continue
            slot.since = now - stuck if stuck else None
            card = self._cards.get(slot.uuid)
            if message.ask and card is not None:
                card.skipped += 1

    def complete(self) -> bool:
        """Say whether every card that was asked has answered, not counting those known to hang."""
        return not any(self._slots[index].since is None for index in self._pending if index in self._slots)

    def waiting(self) -> bool:
        """Say whether some card has not answered the last question."""
        return bool(self._pending)

    def next_hang(self, now: float, deadline: float) -> float | None:
        """Give the seconds until the next card would hang if its call went on; None when none is in a call."""
        left = [slot.since + self._limit(slot, deadline) - now for slot in self._slots.values() if slot.since]
        return min((seconds for seconds in left if seconds >= 0.0), default=None)

    def next_old(self, now: float, freshness: float) -> float | None:
        """Give the seconds until the next reading is withdrawn for its age; None when none is shown."""
        left = [_left(card, self._whole(card), now, freshness) for card in self._cards.values()]
        return min((seconds for seconds in left if seconds >= 0.0), default=None)

    @staticmethod
    def _limit(slot: _Slot, deadline: float) -> float:
        return deadline if slot.answered or slot.opened else max(deadline, OPEN_DEADLINE)

    def judge(self, now: float, deadline: float) -> Verdict:
        """Mark what hangs and what was lost, and count."""
        hung = answering = 0
        for index, slot in self._slots.items():
            if slot.since is not None and now - slot.since > self._limit(slot, deadline):
                hung += 1
                card = self._cards.get(slot.uuid)
                if card is None:
                    self._nameless(index, slot, "hung")
                elif not card.hung:
                    card.hung, card.reading = True, None
                    card.failures["hung"] += 1
            elif not slot.gone:
                answering += 1
        known = bool(self._slots) and all(slot.answered for slot in self._slots.values())
        if known:
            self._lose_absent()
            self._forget(now)
        settled = known and not hung and not any(card.hung for card in self._cards.values())
        return Verdict(hung=hung, answering=answering, settled=settled)

    def _lose_absent(self) -> None:
        """Mark as lost what the driver no longer counts; every card that it does count has said who it is."""
        standing = {slot.uuid for slot in self._slots.values()}
        for uuid, card in self._cards.items():
            if uuid not in standing and not card.reason and card.facts.instance is None:
                self._lose(card, "lost")

    def _forget(self, now: float) -> None:
        """Drop what was lost long ago; a card that the driver counts stays, and may hang for days."""
        standing = {slot.uuid for slot in self._slots.values()}
        for uuid, card in list(self._cards.items()):
            instance = card.facts.instance
            whole = uuid if instance is None else instance.parent
            if whole not in standing and now - card.seen_at > FORGET_AFTER:
                del self._cards[uuid]

    def view(self, now: float, freshness: float, down: str) -> tuple[CardState, ...]:
        """Make the frozen states, by index.  ``freshness``: a reading complete for longer is withdrawn.

        ``down``: why the driver as a whole does not answer, empty when it does.
        """
        states = [self._state(uuid, card, now, freshness, down) for uuid, card in self._cards.items()]
        states += [self._stranger(i, slot.reason) for i, slot in self._slots.items() if slot.reason and not slot.uuid]
        return tuple(sorted(states, key=_order))

    @staticmethod
    def _stranger(index: int, reason: str) -> CardState:
        """Make the state of a card that the driver counts and that never said who it is."""
        name = f"unknown-{index}"
        status = SourceStatus(source=f"gpu:{name}", up=False, reason=reason, hung=reason == "hung")
        facts = CardFacts(index=index, uuid=name)
        return CardState(
            facts=facts, status=status, reading=None, last_read_at=None, labels=GpuLabels(str(index), name)
        )

    def _state(self, uuid: str, card: _Card, now: float, freshness: float, down: str) -> CardState:
        reading = card.reading
        reason = self._reason(card, fresh=_fresh(card, self._whole(card), now, freshness), down=down)
        status = SourceStatus(
            source=f"gpu:{uuid}",
            up=not reason,
            reason=reason,
            hung=reason == "hung",
            duration=card.duration,
            last_success=card.last_success,
            last_success_unix_time=card.last_success_unix_time,
            failures=dict(card.failures),
            skipped=card.skipped,
        )
        return CardState(
            facts=card.facts,
            status=status,
            reading=None if reason else reading,
            last_read_at=card.last_success,
            labels=card.labels,
            topology=card.topology,
            pipes=card.pipes,
        )

    def _whole(self, card: _Card) -> _Card:
        """Give the card that an instance is part of; any other card is whole itself."""
        instance = card.facts.instance
        return card if instance is None else self._cards.get(instance.parent, card)

    def _reason(self, card: _Card, *, fresh: bool, down: str) -> str:
        whole = self._whole(card)
        if whole.hung:
            return "hung"
        if whole.reason:
            return whole.reason
        if fresh:
            return ""
        return down or ("starting" if card.awaited or card.last_success is None else "slow")

    def came_or_went(self, now: float, freshness: float) -> bool:
        """Say whether a card's reading has become visible or withdrawn since the last time."""
        before = self._visible
        self._visible = {
            uuid for uuid, card in self._cards.items() if _fresh(card, self._whole(card), now, freshness)
        }
        return self._visible != before

    def log_changes(self, now: float, freshness: float, down: str) -> bool:
        """Log each card that entered or left a state since the last time; say whether any did."""
        changed = False
        for uuid, card in self._cards.items():
            reading = card.reading
            reason = self._reason(card, fresh=_fresh(card, self._whole(card), now, freshness), down=down)
            # What befalls the whole driver is logged once, by its own source.
            state = reason if reason in {"", "hung", card.reason, "slow"} else card.said
            if state != card.said:
                changed = True
                card.said = state
                _log_state(card, uuid)
            if reading is not None and not reason:
                self._log_absent(card, reading)
        return changed

    @staticmethod
    def _log_absent(card: _Card, reading: CardReading) -> None:
        """Say once what the card, driver or binding does not have."""
        absent = tuple(
            f"{signal.value}:{why.value}"
            for signal, why in reading.missing.items()
            if why in {Missing.UNSUPPORTED, Missing.NO_PERMISSION}
        )
        if absent != card.said_absent:
            log_event(
                _log, logging.INFO, "unsupported_signals",
                source=f"gpu:{card.facts.uuid}", gpu=card.labels.gpu, signals=",".join(absent) or "none",
            )  # fmt: skip
        card.said_absent = absent
