"""The protocol between the daemon and its driver worker: length-prefixed JSON frames, typed on both ends.

A frame is four bytes of length (big-endian), then one JSON object whose "kind" names the message.  Whatever comes
out of the pipe is checked: a frame that is too long, is no JSON, or does not have the fields of its kind raises
DriverError("protocol") and nothing else, because the other side shares its address space with a vendor library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from exporter.driver import protocol_gpu, protocol_topology
from exporter.driver.nvml.counter_units import UNITS
from exporter.driver.protocol_validate import count, flag, number, text, word
from exporter.errors import DriverError
from exporter.model import EMPTY, CardFacts, CardReading, CardTopology, DriverFacts

MAX_FRAME = 4 * 1024 * 1024
MAX_XID = 65_535
MAX_UNITS = 32
_HEAD = 4
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


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
class InstancesRead:
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
class Heartbeat:
    """Worker's main thread: Read ``cycle`` arrived, with ``ask`` as it said.

    ``busy``: the cards whose last read still runs, so that they were not asked.  Card index → seconds that the
    driver call now running has taken; 0 between two calls.  ``counting``: the same of the call that counts cards;
    ``joining``: of questions about two cards.  ``profiling``: who has the turn at GPM, uuid → seconds.
    """

    cycle: int
    ask: bool = True
    busy: Mapping[int, float] = field(default_factory=lambda: EMPTY)
    counting: float = 0.0
    joining: float = 0.0
    profiling: Mapping[str, float] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRead:
    """Worker: how the cards that answer are joined, uuid → topology."""

    cards: Mapping[str, CardTopology]


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterUnits:
    """Both ways: in which unit this driver's counters of clock event time run, reason → seconds for one step.

    The worker says what its cards have shown, the daemon what those of an earlier worker have.
    """

    driver_version: str
    units: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class XidSeen:
    """Worker: the driver told of ``xid``, ``times`` times; ``uuid`` is empty when it did not say of which card.

    Ids of the instance of a divided card that it befell; None for the whole card, or all of its GPU instance.
    """

    uuid: str
    xid: int
    times: int
    at: float
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSubscription:
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
    """Daemon: read all cards that are not still busy; without ``ask``, only say by a Heartbeat which are.

    ``budget``: seconds that a read should take at most.
    """

    cycle: int
    ask: bool = True
    budget: float = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialise:
    """Daemon: initialise the driver anew as soon as no card is busy."""


Message = (
    Initialising
    | Initialised
    | CardFound
    | CardRead
    | InstancesRead
    | CardFailed
    | Heartbeat
    | TopologyRead
    | CounterUnits
    | XidSeen
    | EventSubscription
    | DriverFailed
    | Read
    | Initialise
)


def encode(message: Message) -> bytes:
    """Make the frame of a message, length included."""
    body = {"kind": type(message).__name__, **_plain(message)}
    data = _ENCODE(body).encode()
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
        body["reading"] = protocol_gpu.plain_reading(message.reading)
    elif isinstance(message, CardFound):
        body["facts"] = protocol_gpu.plain_facts(message.facts)
    elif isinstance(message, Initialised):
        body["facts"] = {name: getattr(message.facts, name) for name in DriverFacts.__struct_fields__}
    elif isinstance(message, InstancesRead):
        body["instances"] = [
            (protocol_gpu.plain_facts(facts), protocol_gpu.plain_reading(reading))
            for facts, reading in message.instances
        ]
    elif isinstance(message, Heartbeat):
        body["busy"], body["profiling"] = dict(message.busy), dict(message.profiling)
    elif isinstance(message, TopologyRead):
        body["cards"] = {uuid: protocol_topology.plain(topology) for uuid, topology in message.cards.items()}
    elif isinstance(message, CounterUnits):
        body["units"] = dict(message.units)
    return body


def _divided(body: Mapping[str, Any]) -> InstancesRead:
    found = tuple((protocol_gpu.facts(facts), protocol_gpu.reading(reading)) for facts, reading in body["instances"])
    if any(facts.instance is None for facts, _ in found):
        raise ValueError
    return InstancesRead(uuid=text(body["uuid"]), instances=found)


def _driver_facts(body: Mapping[str, Any]) -> DriverFacts:
    return DriverFacts(
        driver_version=text(body["driver_version"]),
        nvml_version=text(body["nvml_version"]),
        cuda_version=text(body["cuda_version"]),
    )


def _card_read(body: Mapping[str, Any]) -> CardRead:
    return CardRead(
        index=count(body["index"]),
        uuid=text(body["uuid"]),
        cycle=count(body["cycle"]),
        duration=number(body["duration"]),
        reading=protocol_gpu.reading(body["reading"]),
    )


def _card_failed(body: Mapping[str, Any]) -> CardFailed:
    return CardFailed(
        index=count(body["index"]),
        uuid=text(body["uuid"]),
        cycle=count(body["cycle"]),
        reason=word(body["reason"]),
        message=text(body["message"]),
    )


def _heartbeat(body: Mapping[str, Any]) -> Heartbeat:
    busy = {count(int(index)): number(seconds) for index, seconds in body["busy"].items()}
    return Heartbeat(
        cycle=count(body["cycle"]),
        ask=flag(body["ask"]),
        busy=busy,
        counting=number(body["counting"]),
        joining=number(body["joining"]),
        profiling={text(uuid): number(seconds) for uuid, seconds in body["profiling"].items()},
    )


def _topology_read(body: Mapping[str, Any]) -> TopologyRead:
    return TopologyRead(cards={text(uuid): protocol_topology.topology(one) for uuid, one in body["cards"].items()})


def _learnt(body: Mapping[str, Any]) -> CounterUnits:
    units = {word(reason): unit for reason, unit in body["units"].items()}
    if len(units) > MAX_UNITS or not UNITS.issuperset(units.values()):
        raise ValueError
    return CounterUnits(driver_version=text(body["driver_version"]), units=units)


def _xid_seen(body: Mapping[str, Any]) -> XidSeen:
    xid = count(body["xid"])
    if xid > MAX_XID:
        raise ValueError
    part, compute = body["gpu_instance"], body["compute_instance"]
    return XidSeen(
        uuid=text(body["uuid"]),
        xid=xid,
        times=count(body["times"]),
        at=number(body["at"]),
        gpu_instance=None if part is None else count(part),
        compute_instance=None if compute is None else count(compute),
    )


def _event_subscription(body: Mapping[str, Any]) -> EventSubscription:
    return EventSubscription(cards=count(body["cards"]), reason=word(body["reason"]) if body["reason"] else "")


_BUILDERS: Mapping[str, Callable[[Any], Message]] = {
    "Initialising": lambda _: Initialising(),
    "Initialised": lambda body: Initialised(facts=_driver_facts(body["facts"]), cards=count(body["cards"])),
    "CardFound": lambda body: CardFound(facts=protocol_gpu.facts(body["facts"])),
    "CardRead": _card_read,
    "CardFailed": _card_failed,
    "InstancesRead": _divided,
    "Heartbeat": _heartbeat,
    "TopologyRead": _topology_read,
    "CounterUnits": _learnt,
    "XidSeen": _xid_seen,
    "EventSubscription": _event_subscription,
    "DriverFailed": lambda body: DriverFailed(reason=word(body["reason"]), message=text(body["message"])),
    "Read": lambda body: Read(cycle=count(body["cycle"]), ask=flag(body["ask"]), budget=number(body["budget"])),
    "Initialise": lambda _: Initialise(),
}
