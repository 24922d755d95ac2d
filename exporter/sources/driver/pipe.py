"""The protocol between the daemon and its driver worker: length-prefixed JSON frames, typed on both ends.

A frame is four bytes of length (big-endian), then one JSON object whose "kind" names the message.  Whatever comes
out of the pipe is checked: a frame that is too long, is no JSON, or does not have the fields of its kind raises
DriverError("protocol") and nothing else, because the other side shares its address space with a vendor library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn

from exporter.errors import DriverError
from exporter.model import (
    EMPTY,
    CardFacts,
    CardProcess,
    CardReading,
    CardTopology,
    DriverFacts,
    MigInstance,
    Missing,
    Signal,
)
from exporter.sources.driver import topology_frame

MAX_FRAME = 4 * 1024 * 1024
MAX_XID = 65_535
_HEAD = 4
_MAX_TEXT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialising:
    """Worker: the driver is being initialised; no card answers until Initialised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialised:
    """Worker: the driver answers and counts ``cards`` cards; their facts follow one by one."""

    facts: DriverFacts
    cards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFound:
    """Worker: a card has a handle and a UUID."""

    facts: CardFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRead:
    """Worker: the answer of one card to cycle ``cycle``; ``duration`` in seconds."""

    index: int
    uuid: str
    cycle: int
    duration: float
    reading: CardReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """Worker: all instances of the divided card ``uuid`` (MIG), each with its figures."""

    uuid: str
    instances: tuple[tuple[CardFacts, CardReading], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFailed:
    """Worker: one card answered cycle ``cycle`` by being gone; ``uuid`` is empty when it never had a handle."""

    index: int
    uuid: str
    cycle: int
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Worker's main thread: Read ``cycle`` arrived, with ``ask`` as it said.

    ``busy``: the cards whose last read still runs, so that they were not asked.  Card index → seconds that the
    driver call now running has taken; 0 between two calls.  ``counting``: the same of the call that counts cards.
    """

    cycle: int
    ask: bool = True
    busy: Mapping[int, float] = field(default_factory=lambda: EMPTY)
    counting: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRead:
    """Worker: how the cards that answer are joined, uuid → topology."""

    cards: Mapping[str, CardTopology]


@dataclass(frozen=True, slots=True, kw_only=True)
class XidSeen:
    """Worker: the driver told of ``xid``, ``times`` times; ``uuid`` is empty when it did not say of which card."""

    uuid: str
    xid: int
    times: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Worker: XID events of ``cards`` cards are waited for, or ``reason`` says why of none."""

    cards: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFailed:
    """Worker: the driver as a whole is of no use, and this process ends; another one may do better."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Daemon: read all cards that are not still busy; without ``ask``, only say by a Beat which are."""

    cycle: int
    ask: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialise:
    """Daemon: initialise the driver anew as soon as no card is busy."""


Message = (
    Initialising
    | Initialised
    | CardFound
    | CardRead
    | Divided
    | CardFailed
    | Beat
    | TopologyRead
    | XidSeen
    | Listening
    | DriverFailed
    | Read
    | Initialise
)


def encode(message: Message) -> bytes:
    """Make the frame of a message, length included."""
    body = {"kind": type(message).__name__, **_plain(message)}
    data = json.dumps(body, separators=(",", ":")).encode()
    return len(data).to_bytes(_HEAD, "big") + data


class FrameBuffer:
    """Cuts a stream of bytes into frames; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add what was read and give the frames that are now complete.  Raises DriverError("protocol")."""
        self._data += data
        frames = []
        while len(self._data) >= _HEAD:
            size = int.from_bytes(self._data[:_HEAD], "big")
            if size > MAX_FRAME:
                raise DriverError("protocol", f"frame of {size} bytes; at most {MAX_FRAME} are accepted")
            if len(self._data) < _HEAD + size:
                break
            frames.append(bytes(self._data[_HEAD : _HEAD + size]))
            del self._data[: _HEAD + size]
        return frames


def decode(frame: bytes) -> Message:
    """Read one frame.  Raises DriverError("protocol") for anything that ``encode`` does not write."""
    try:
        body = json.loads(frame, parse_constant=_refuse)
        return _BUILDERS[body["kind"]](body)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        text = f"frame of {len(frame)} bytes cannot be read: {type(error).__name__}"
        raise DriverError("protocol", text) from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _plain(message: Message) -> dict[str, Any]:
    body = {name: getattr(message, name) for name in type(message).__dataclass_fields__}
    if isinstance(message, CardRead):
        body["reading"] = _plain_reading(message.reading)
    elif isinstance(message, CardFound | Initialised):
        body["facts"] = _plain_facts(message.facts)
    elif isinstance(message, Divided):
        body["instances"] = [(_plain_facts(facts), _plain_reading(reading)) for facts, reading in message.instances]
    elif isinstance(message, Beat):
        body["busy"] = dict(message.busy)
    elif isinstance(message, TopologyRead):
        body["cards"] = {uuid: topology_frame.plain(topology) for uuid, topology in message.cards.items()}
    return body


def _plain_facts(facts: Any) -> dict[str, Any]:
    plain = {name: getattr(facts, name) for name in type(facts).__dataclass_fields__}
    if plain.get("instance") is not None:
        plain["instance"] = _plain_facts(plain["instance"])
    return plain


def _plain_reading(reading: CardReading) -> dict[str, Any]:
    listed = reading.processes
    return {
        "at": reading.at,
        "signals": {signal.value: value for signal, value in reading.signals.items()},
        "missing": {signal.value: reason.value for signal, reason in reading.missing.items()},
        "clock_events": dict(reading.clock_events),
        "clock_event_seconds": dict(reading.clock_event_seconds),
        "nvlink_up": dict(reading.nvlink_up),
        "nvlink_errors": dict(reading.nvlink_errors),
        "nvlink_bit_errors": dict(reading.nvlink_bit_errors),
        "pipe_active": dict(reading.pipe_active),
        "traffic": [(*which, rate) for which, rate in reading.traffic.items()],
        "processes": None if listed is None else [(process.pid, process.memory) for process in listed],
    }


def _number(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise TypeError
    number = float(raw)
    if not isfinite(number):
        raise ValueError
    return number


def _count(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw < 2**53:
        raise ValueError
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError
    return raw[:_MAX_TEXT]


def _word(raw: Any) -> str:
    """Accept a reason: it becomes a label value, so it must be one short word."""
    if not isinstance(raw, str) or not raw.isidentifier() or not raw.isascii() or len(raw) > 32:
        raise ValueError
    return raw


def _flag(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise TypeError
    return raw


def _reading(body: Mapping[str, Any]) -> CardReading:
    listed = body["processes"]
    return CardReading(
        at=_number(body["at"]),
        signals={_SIGNALS[name]: _number(value) for name, value in body["signals"].items()},
        missing={_SIGNALS[name]: _REASONS[why] for name, why in body["missing"].items()},
        clock_events={name: _flag(active) for name, active in body["clock_events"].items()},
        clock_event_seconds={name: _number(value) for name, value in body["clock_event_seconds"].items()},
        nvlink_up={_count(int(link)): _flag(up) for link, up in body["nvlink_up"].items()},
        nvlink_errors={name: _number(value) for name, value in body["nvlink_errors"].items()},
        nvlink_bit_errors={name: _number(value) for name, value in body["nvlink_bit_errors"].items()},
        pipe_active={name: _number(value) for name, value in body["pipe_active"].items()},
        traffic={(_text(link), _text(way)): _number(rate) for link, way, rate in body["traffic"]},
        processes=None if listed is None else tuple(_process(*entry) for entry in listed),
    )


def _process(pid: Any, memory: Any) -> CardProcess:
    return CardProcess(pid=_count(pid), memory=None if memory is None else _number(memory))


def _card_facts(body: Mapping[str, Any]) -> CardFacts:
    node = body["numa_node"]
    texts = {name: _text(body[name]) for name in ("uuid", "name", "pci_bus_id", "serial", "vbios_version")}
    if not texts["uuid"]:
        raise ValueError
    return CardFacts(
        index=_count(body["index"]),
        numa_node=None if node is None else _count(node),
        mig=_flag(body["mig"]),
        instance=None if body["instance"] is None else _instance(body["instance"]),
        **texts,
    )


def _instance(body: Mapping[str, Any]) -> MigInstance:
    return MigInstance(
        number=_count(body["number"]),
        parent=_text(body["parent"]),
        profile=_text(body["profile"]),
        gpu_instance=_count(body["gpu_instance"]),
        compute_instance=_count(body["compute_instance"]),
    )


def _divided(body: Mapping[str, Any]) -> Divided:
    found = tuple((_card_facts(facts), _reading(reading)) for facts, reading in body["instances"])
    if any(facts.instance is None for facts, _ in found):
        raise ValueError
    return Divided(uuid=_text(body["uuid"]), instances=found)


def _driver_facts(body: Mapping[str, Any]) -> DriverFacts:
    return DriverFacts(
        driver_version=_text(body["driver_version"]),
        nvml_version=_text(body["nvml_version"]),
        cuda_version=_text(body["cuda_version"]),
    )


def _card_read(body: Mapping[str, Any]) -> CardRead:
    return CardRead(
        index=_count(body["index"]),
        uuid=_text(body["uuid"]),
        cycle=_count(body["cycle"]),
        duration=_number(body["duration"]),
        reading=_reading(body["reading"]),
    )


def _card_failed(body: Mapping[str, Any]) -> CardFailed:
    return CardFailed(
        index=_count(body["index"]),
        uuid=_text(body["uuid"]),
        cycle=_count(body["cycle"]),
        reason=_word(body["reason"]),
        message=_text(body["message"]),
    )


def _beat(body: Mapping[str, Any]) -> Beat:
    busy = {_count(int(index)): _number(seconds) for index, seconds in body["busy"].items()}
    return Beat(cycle=_count(body["cycle"]), ask=_flag(body["ask"]), busy=busy, counting=_number(body["counting"]))


def _topology_read(body: Mapping[str, Any]) -> TopologyRead:
    return TopologyRead(cards={_text(uuid): topology_frame.topology(one) for uuid, one in body["cards"].items()})


def _xid_seen(body: Mapping[str, Any]) -> XidSeen:
    xid = _count(body["xid"])
    if xid > MAX_XID:
        raise ValueError
    return XidSeen(uuid=_text(body["uuid"]), xid=xid, times=_count(body["times"]), at=_number(body["at"]))


def _listening(body: Mapping[str, Any]) -> Listening:
    return Listening(cards=_count(body["cards"]), reason=_word(body["reason"]) if body["reason"] else "")


_SIGNALS = {signal.value: signal for signal in Signal}
_REASONS = {reason.value: reason for reason in Missing}
_BUILDERS: Mapping[str, Callable[[Any], Message]] = {
    "Initialising": lambda _: Initialising(),
    "Initialised": lambda body: Initialised(facts=_driver_facts(body["facts"]), cards=_count(body["cards"])),
    "CardFound": lambda body: CardFound(facts=_card_facts(body["facts"])),
    "CardRead": _card_read,
    "CardFailed": _card_failed,
    "Divided": _divided,
    "Beat": _beat,
    "TopologyRead": _topology_read,
    "XidSeen": _xid_seen,
    "Listening": _listening,
    "DriverFailed": lambda body: DriverFailed(reason=_word(body["reason"]), message=_text(body["message"])),
    "Read": lambda body: Read(cycle=_count(body["cycle"]), ask=_flag(body["ask"])),
    "Initialise": lambda _: Initialise(),
}
