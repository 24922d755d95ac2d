"""What is known of each GPU, by UUID: facts, the newest reading, and why there is none.

Pure state: its owner applies messages and the time, ``view`` returns the frozen records.  A GPU stays registered when
it is lost, so that the metrics endpoint can show that it is, and expires after a day.
"""

from __future__ import annotations

import logging
from collections import Counter

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.driver import protocol
from exporter.logs import log_down, log_event, log_up
from exporter.model import CardFacts, CardReading, CardState, CardTopology, GpuLabels, Missing, SourceStatus

_log = logging.getLogger(__name__)

EXPIRE_AFTER = 24 * 3600.0
# Seconds after which the GPUs that the driver counts are all that are expected: after they were re-acquired, when who
# released them knows what was removed; after a reload or a restart of the driver, which may hide that one is lost.
ACCEPT_ACQUIRED, ACCEPT_OTHERS = 30.0, 600.0
RELEASED = "released"  # why the driver does not answer after it was released on purpose
_LASTING = frozenset({"lost", "reset_required"})  # reasons that say more than that a GPU is not counted any more
OPEN_DEADLINE = 30.0  # seconds; without persistence mode a GPU's first handle loads the driver


class _Gpu(Struct):
    facts: CardFacts
    labels: GpuLabels
    seen_at: float
    reading: CardReading | None = None
    reason: str = ""  # why it does not answer; empty while it does
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
    logged_state: str = ""
    logged_unsupported: tuple[str, ...] = ()


class _Slot(Struct):
    """One GPU thread of the worker.  ``call_started``: when the driver call now running began (monotonic)."""

    uuid: str = ""
    answered: bool = False  # at least once since the driver was initialised
    identified: bool = False  # since then
    unavailable: bool = False
    call_started: float | None = None
    reason: str = ""  # why the UUID of the GPU is not known


class _Removed(Struct):
    """A GPU that is not expected any more, and since when."""

    facts: CardFacts
    at: float


class HangSummary(Struct, frozen=True, kw_only=True):
    """How many GPUs hang in a call, how many do not, and whether all have answered and none hung before that."""

    hung: int
    answering: int
    settled: bool


def gpu_label(facts: CardFacts) -> str:
    """Return the value of the label gpu: the index, and of a MIG instance its number too."""
    return str(facts.index) if facts.instance is None else f"{facts.index}:{facts.instance.number}"


def _order(state: CardState) -> tuple[int, int, str]:
    instance = state.facts.instance
    return state.facts.index, -1 if instance is None else instance.number, state.facts.uuid


def _apply_reading(gpu: _Gpu, reading: CardReading, unix_now: float) -> None:
    gpu.reading, gpu.reason, gpu.hung, gpu.awaited = reading, "", False, False
    gpu.seen_at = reading.at
    gpu.pipes |= {pipe for pipe, share in reading.pipe_active.items() if share > 0 and pipe not in gpu.pipes}
    gpu.last_success, gpu.last_success_unix_time = reading.at, unix_now
    for why in reading.missing.values():
        if why in {Missing.ERROR, Missing.INVALID}:
            gpu.failures[f"signal_{why.value}"] += 1


def _fresh_for(gpu: _Gpu, parent: _Gpu, now: float, freshness: float) -> float:
    """Return the seconds for which a reading is shown yet, < 0 for none: one that took long is not old for that."""
    taken = min(max(parent.duration or 0.0, 0.0), freshness)
    return -1.0 if gpu.reading is None else gpu.reading.at + freshness + taken - now


def _is_fresh(gpu: _Gpu, parent: _Gpu, now: float, freshness: float) -> bool:
    return _fresh_for(gpu, parent, now, freshness) >= 0.0


def _log_state(gpu: _Gpu, uuid: str) -> None:
    if gpu.logged_state:
        log_down(_log, f"gpu:{uuid}", gpu.logged_state, gpu=gpu.labels.gpu)
    else:
        log_up(_log, f"gpu:{uuid}", gpu=gpu.labels.gpu)


class CardRegistry:
    """All GPUs ever seen by this daemon.  Not locked: its owner does that."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}
        self._slots: dict[int, _Slot] = {}
        self._pending: set[int] = set()  # asked this cycle, no answer yet
        self._visible: set[str] = set()  # those that had a fresh reading the last time
        self._logged_unidentified: dict[int, str] = {}  # index → reason
        self._accept_in: float | None = None  # seconds, from the next complete count on
        self._leaving: dict[str, float] = {}  # UUID → until when it is expected to come back
        self._removed: dict[str, _Removed] = {}  # by UUID

    def on_initialised(self, cards: int) -> None:
        """Await the answers of ``cards`` GPUs: the driver was initialised."""
        self.on_driver_down()
        self._slots = {index: _Slot() for index in range(cards)}
        self._pending = set(self._slots)

    def on_driver_down(self) -> None:
        """Remove all slots: no thread reads GPUs now, as the worker has ended or initialises."""
        self._slots = {}
        self._pending = set()
        for gpu in self._gpus.values():
            gpu.awaited = True

    def on_found(self, facts: CardFacts, now: float) -> None:
        """Apply facts of a GPU; its figures go on whatever its index is now."""
        slot = self._slots.setdefault(facts.index, _Slot())
        slot.uuid, slot.identified = facts.uuid, True
        self._logged_unidentified.pop(facts.index, None)
        self._register(facts, now)
        if not facts.mig:
            self._remove_instances(facts.uuid, kept=frozenset())

    def _register(self, facts: CardFacts, now: float) -> _Gpu:
        labels = GpuLabels(gpu_label(facts), facts.uuid)
        self._removed.pop(facts.uuid, None)
        gpu = self._gpus.get(facts.uuid)
        if gpu is None:
            gpu = self._gpus[facts.uuid] = _Gpu(facts=facts, labels=labels, seen_at=now)
        elif gpu.facts != facts:
            gpu.facts, gpu.labels = facts, labels
        gpu.seen_at = max(gpu.seen_at, now)
        return gpu

    def on_instances(self, message: protocol.InstancesRead, unix_now: float) -> None:
        """Apply the instances of a MIG-enabled GPU; one that is not among them any more was removed on purpose."""
        for instance in message.instances:
            _apply_reading(self._register(instance.facts, instance.reading.at), instance.reading, unix_now)
        self._remove_instances(message.uuid, kept=frozenset(instance.facts.uuid for instance in message.instances))

    def _remove_instances(self, parent: str, *, kept: frozenset[str]) -> None:
        for uuid, gpu in list(self._gpus.items()):
            instance = gpu.facts.instance
            if instance is not None and instance.parent == parent and uuid not in kept:
                del self._gpus[uuid]
                log_event(_log, logging.INFO, "mig_instance_removed", source=f"gpu:{uuid}", gpu=gpu.labels.gpu)

    def on_read(self, message: protocol.CardRead, unix_now: float) -> None:
        """Apply a reading."""
        gpu = self._gpus.get(message.uuid)
        self._on_answer(message.index, message.uuid, unavailable=False)
        if gpu is None:
            return
        reading = message.reading
        gpu.links |= {link for link, up in reading.nvlink_up.items() if up}
        shown = {link: up for link, up in reading.nvlink_up.items() if link in gpu.links}
        if len(shown) != len(reading.nvlink_up):
            # A link that was never up has no cable, which is not a fault.
            reading = replace(reading, nvlink_up=shown)
        gpu.duration = message.duration
        _apply_reading(gpu, reading, unix_now)

    def on_topology(self, message: protocol.TopologyRead) -> None:
        """Apply how the GPUs are connected; a GPU or pair that was not asked about keeps what is known of it."""
        for uuid, topology in message.cards.items():
            gpu = self._gpus.get(uuid)
            if gpu is None:
                continue
            peers = gpu.topology.peers if gpu.topology is not None else {}
            kept = {uuid: peer for uuid, peer in peers.items() if uuid in self._gpus and uuid not in topology.peers}
            merged = replace(topology, peers={**kept, **topology.peers}) if kept else topology
            if gpu.topology != merged:
                gpu.topology = merged

    def on_failed(self, message: protocol.CardFailed, now: float) -> None:
        """Withdraw a GPU that does not answer; without a UUID it is the absent one that had the same index."""
        slot = self._on_answer(message.index, message.uuid, unavailable=True)
        uuid = message.uuid or slot.uuid or self._absent_at(message.index)
        gpu = self._gpus.get(uuid)
        if gpu is not None:
            slot.uuid = uuid
            gpu.seen_at = now
            self._withdraw(gpu, message.reason)
        else:
            self._on_unidentified(message.index, slot, message.reason)

    def _on_unidentified(self, index: int, slot: _Slot, reason: str) -> None:
        slot.reason = reason
        if self._logged_unidentified.get(index) != reason:
            self._logged_unidentified[index] = reason
            log_down(_log, f"gpu:unknown-{index}", reason, gpu=index)

    def _absent_at(self, index: int) -> str:
        present = {slot.uuid for slot in self._slots.values()}
        absent = [
            uuid
            for uuid, gpu in self._gpus.items()
            if gpu.facts.instance is None and gpu.facts.index == index and uuid not in present
        ]
        return absent[0] if len(absent) == 1 else ""

    @staticmethod
    def _withdraw(gpu: _Gpu, reason: str) -> None:
        gpu.failures[reason] += 1
        gpu.reason, gpu.reading, gpu.hung = reason, None, False

    def _on_answer(self, index: int, uuid: str, *, unavailable: bool) -> _Slot:
        slot = self._slots.setdefault(index, _Slot())
        slot.uuid = uuid or slot.uuid
        slot.answered, slot.unavailable, slot.call_started = True, unavailable, None
        self._pending.discard(index)
        return slot

    def on_heartbeat(self, message: protocol.Heartbeat, now: float) -> None:
        """Apply which GPUs still work on an earlier request."""
        for index, slot in self._slots.items():
            call_seconds = message.busy.get(index)
            if call_seconds is None:
                if message.ask:
                    self._pending.add(index)
                continue
            slot.call_started = now - call_seconds if call_seconds else None
            gpu = self._gpus.get(slot.uuid)
            if message.ask and gpu is not None:
                gpu.skipped += 1

    def complete(self) -> bool:
        """Return whether every GPU that was asked has answered, not counting those known to hang."""
        return not any(self._slots[index].call_started is None for index in self._pending if index in self._slots)

    def waiting(self) -> bool:
        """Return whether some GPU has not answered the last request."""
        return bool(self._pending)

    def next_hang(self, now: float, deadline: float) -> float | None:
        """Return the seconds until the next GPU hangs if its call goes on; None when none is in a call."""
        times = [
            slot.call_started + self._limit(slot, deadline) - now
            for slot in self._slots.values()
            if slot.call_started
        ]
        return min((seconds for seconds in times if seconds >= 0.0), default=None)

    def next_stale(self, now: float, freshness: float) -> float | None:
        """Return the seconds until the next reading is withdrawn for its age; None when none is shown."""
        times = [_fresh_for(gpu, self._parent(gpu), now, freshness) for gpu in self._gpus.values()]
        return min((seconds for seconds in times if seconds >= 0.0), default=None)

    @staticmethod
    def _limit(slot: _Slot, deadline: float) -> float:
        return deadline if slot.answered or slot.identified else max(deadline, OPEN_DEADLINE)

    def check_hangs(self, now: float, deadline: float) -> HangSummary:
        """Withdraw what hangs and what was lost, and count."""
        hung = answering = 0
        for index, slot in self._slots.items():
            if slot.call_started is not None and now - slot.call_started > self._limit(slot, deadline):
                hung += 1
                gpu = self._gpus.get(slot.uuid)
                if gpu is None:
                    self._on_unidentified(index, slot, "hung")
                elif not gpu.hung:
                    gpu.hung, gpu.reading = True, None
                    gpu.failures["hung"] += 1
            elif not slot.unavailable:
                answering += 1
        known = bool(self._slots) and all(slot.answered for slot in self._slots.values())
        if known:
            self._accept(now)
            self._withdraw_absent(now)
            self._expire(now)
        settled = known and not hung and not any(gpu.hung for gpu in self._gpus.values())
        return HangSummary(hung=hung, answering=answering, settled=settled)

    def _withdraw_absent(self, now: float) -> None:
        """Withdraw as lost what the driver no longer counts; the UUID of every GPU that it does count is known.

        What will soon not be expected any more is awaited until then: it was removed while the GPUs were released.
        """
        present = {slot.uuid for slot in self._slots.values()}
        present |= {uuid for uuid, at in self._leaving.items() if at - now <= ACCEPT_ACQUIRED}
        for uuid, gpu in self._gpus.items():
            if uuid not in present and gpu.reason not in _LASTING and gpu.facts.instance is None:
                self._withdraw(gpu, "lost")

    def accept_absent(self, seconds: float) -> None:
        """Expect what the driver does not count, now or at its next complete count, for so long only."""
        self._accept_in = seconds if self._accept_in is None else min(self._accept_in, seconds)

    def removed(self) -> tuple[CardFacts, ...]:
        """Return the GPUs that are not expected any more, for a day, by index."""
        return tuple(sorted((gone.facts for gone in self._removed.values()), key=lambda facts: facts.index))

    def _accept(self, now: float) -> None:
        """Drop what is not expected any more; every GPU that the driver counts has answered."""
        if not all(slot.uuid for slot in self._slots.values()):
            return  # one that cannot be identified may be any of those that are absent
        present = {slot.uuid for slot in self._slots.values()}
        whole = {uuid for uuid, gpu in self._gpus.items() if gpu.facts.instance is None}
        if self._accept_in is not None:
            at, self._accept_in = now + self._accept_in, None
            self._leaving |= {uuid: min(at, self._leaving.get(uuid, at)) for uuid in whole - present}
        self._leaving = {uuid: at for uuid, at in self._leaving.items() if uuid in whole - present}
        for uuid in [uuid for uuid, at in self._leaving.items() if now >= at]:
            gone = self._gpus.pop(uuid)
            del self._leaving[uuid]
            self._removed[uuid] = _Removed(gone.facts, now)
            self._remove_instances(uuid, kept=frozenset())
            log_event(_log, logging.WARNING, "gpu_removed", source=f"gpu:{uuid}", gpu=gone.labels.gpu)

    def _expire(self, now: float) -> None:
        """Drop what was lost long ago; a GPU that the driver counts stays, and may hang for days."""
        self._removed = {uuid: gone for uuid, gone in self._removed.items() if now - gone.at <= EXPIRE_AFTER}
        present = {slot.uuid for slot in self._slots.values()}
        for uuid, gpu in list(self._gpus.items()):
            instance = gpu.facts.instance
            parent = uuid if instance is None else instance.parent
            if parent not in present and now - gpu.seen_at > EXPIRE_AFTER:
                del self._gpus[uuid]

    def view(self, now: float, freshness: float, down: str) -> tuple[CardState, ...]:
        """Return the frozen states, by index.  ``freshness``: a reading complete for longer is withdrawn.

        ``down``: why the driver as a whole does not answer, empty when it does.
        """
        states = [self._state(uuid, gpu, now, freshness, down) for uuid, gpu in self._gpus.items()]
        states += [
            self._unidentified_state(index, slot.reason)
            for index, slot in self._slots.items()
            if slot.reason and not slot.uuid
        ]
        return tuple(sorted(states, key=_order))

    @staticmethod
    def _unidentified_state(index: int, reason: str) -> CardState:
        """Return the state of a GPU that the driver counts and whose UUID was never read."""
        name = f"unknown-{index}"
        status = SourceStatus(source=f"gpu:{name}", up=False, reason=reason, hung=reason == "hung")
        facts = CardFacts(index=index, uuid=name)
        return CardState(
            facts=facts, status=status, reading=None, last_read_at=None, labels=GpuLabels(str(index), name)
        )

    def _state(self, uuid: str, gpu: _Gpu, now: float, freshness: float, down: str) -> CardState:
        reading = gpu.reading
        reason = self._reason(gpu, fresh=_is_fresh(gpu, self._parent(gpu), now, freshness), down=down)
        status = SourceStatus(
            source=f"gpu:{uuid}",
            up=not reason,
            reason=reason,
            hung=reason == "hung",
            duration=gpu.duration,
            last_success=gpu.last_success,
            last_success_unix_time=gpu.last_success_unix_time,
            failures=dict(gpu.failures),
            skipped=gpu.skipped,
        )
        return CardState(
            facts=gpu.facts,
            status=status,
            reading=None if reason else reading,
            last_read_at=gpu.last_success,
            labels=gpu.labels,
            topology=gpu.topology,
            pipes=gpu.pipes,
        )

    def _parent(self, gpu: _Gpu) -> _Gpu:
        """Return the GPU that an instance belongs to; any other GPU is its own parent."""
        instance = gpu.facts.instance
        return gpu if instance is None else self._gpus.get(instance.parent, gpu)

    def _reason(self, gpu: _Gpu, *, fresh: bool, down: str) -> str:
        if down == RELEASED:
            return down  # whatever was read a moment ago: somebody else may use the GPU now
        parent = self._parent(gpu)
        if parent.hung:
            return "hung"
        if parent.reason:
            return parent.reason
        if fresh:
            return ""
        return down or ("starting" if gpu.awaited or gpu.last_success is None else "slow")

    def visibility_changed(self, now: float, freshness: float) -> bool:
        """Return whether a GPU's reading has become visible or withdrawn since the last time."""
        before = self._visible
        self._visible = {
            uuid for uuid, gpu in self._gpus.items() if _is_fresh(gpu, self._parent(gpu), now, freshness)
        }
        return self._visible != before

    def log_changes(self, now: float, freshness: float, down: str) -> bool:
        """Log each GPU that entered or left a state since the last time; return whether any did."""
        changed = False
        for uuid, gpu in self._gpus.items():
            reading = gpu.reading
            reason = self._reason(gpu, fresh=_is_fresh(gpu, self._parent(gpu), now, freshness), down=down)
            # What concerns the whole driver is logged once, by its own source.
            state = reason if reason in {"", "hung", gpu.reason, "slow"} else gpu.logged_state
            if state != gpu.logged_state:
                changed = True
                gpu.logged_state = state
                _log_state(gpu, uuid)
            if reading is not None and not reason:
                self._log_unsupported(gpu, reading)
        return changed

    @staticmethod
    def _log_unsupported(gpu: _Gpu, reading: CardReading) -> None:
        """Log once what the GPU, driver or binding does not have; what needs a permission is for the operator."""
        unsupported = tuple(
            f"{signal.value}:{why.value}"
            for signal, why in reading.missing.items()
            if why in {Missing.UNSUPPORTED, Missing.NO_PERMISSION}
        )
        if unsupported != gpu.logged_unsupported:
            permission = Missing.NO_PERMISSION in reading.missing.values()
            log_event(
                _log, logging.INFO if permission else logging.DEBUG, "unsupported_signals",
                source=f"gpu:{gpu.facts.uuid}", gpu=gpu.labels.gpu, signals=",".join(unsupported) or "none",
            )  # fmt: skip
        gpu.logged_unsupported = unsupported
