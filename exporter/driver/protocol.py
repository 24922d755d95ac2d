"""The protocol between the daemon and its driver worker: length-prefixed MessagePack frames, typed on both ends.

A frame is four bytes of length (big-endian), then one map whose "kind" names the message.  Whatever comes out of the
pipe is checked against the types below, because the other side shares its address space with a vendor library: a
frame that is too long, is no MessagePack, or does not have the fields of its kind within their bounds raises
DriverError("protocol") and nothing else.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

from msgspec import Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import force_setattr

from exporter.errors import DriverError
from exporter.model import CardFacts, CardReading, CardTopology, DriverFacts
from exporter.model.bounds import MAX_TEXT, Count, Finite, OptionalWord, Text, Word

MAX_FRAME = 4 * 1024 * 1024
MAX_XID = 65_535
MAX_UNITS = 32
NANOSECONDS, MICROSECONDS = 1e-9, 1e-6  # seconds for one step of a counter of clock event time
COUNTER_UNITS = frozenset({NANOSECONDS, MICROSECONDS})

# Exit codes of the worker.
EXIT_FAILED = 3  # a DriverFailed frame says why
EXIT_RECYCLED = 75  # the memory cap was reached, and a fresh process should go on

_LENGTH = 4


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """The worker's only argument, as JSON.  ``module``: the driver binding; ``options`` is for its ``configure``.

    ``again``: this daemon had a worker before.  ``retry_lost``: initialise the driver anew for a GPU that is lost.
    ``gpm_cooldown``: UUID → seconds for which that GPU's work counters are not read.  ``skipped_calls``: WHO/FUNCTION
    → seconds, see ``daemon.crashes``.
    """

    module: str
    options: str = ""
    again: bool = False
    retry_lost: bool = True
    gpm_cooldown: dict[str, float] = {}
    skipped_calls: dict[str, float] = {}


class Message(Struct, frozen=True, kw_only=True, tag=True, tag_field="kind", forbid_unknown_fields=True):
    """One message; ``kind`` is the name of its class."""


class Initialising(Message, frozen=True):
    """Worker: the driver is being initialised; no GPU answers until Initialised."""


class Initialised(Message, frozen=True):
    """Worker: the driver answers and counts ``cards`` GPUs; their facts follow one by one."""

    facts: DriverFacts
    cards: Count


class CardFound(Message, frozen=True):
    """Worker: a GPU has a handle and a UUID."""

    facts: CardFacts


class CardRead(Message, frozen=True):
    """Worker: the answer of one GPU to cycle ``cycle``; ``duration`` in seconds."""

    index: Count
    uuid: Text
    cycle: Count
    duration: Finite
    reading: CardReading


class InstanceReading(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """One MIG instance: who it is, and its figures."""

    facts: CardFacts
    reading: CardReading

    def __post_init__(self) -> None:
        """Refuse facts of a GPU that is no instance."""
        if self.facts.instance is None:
            raise ValueError("not a MIG instance")


class InstancesRead(Message, frozen=True):
    """Worker: all instances of the MIG-enabled GPU ``uuid``."""

    uuid: Text
    instances: tuple[InstanceReading, ...]


class CardFailed(Message, frozen=True):
    """Worker: one GPU did not answer cycle ``cycle``; ``uuid`` is empty when it never had a handle."""

    index: Count
    uuid: Text
    cycle: Count
    reason: Word
    message: str = ""

    def __post_init__(self) -> None:
        """Cut the text of an exception, which may be of any length."""
        force_setattr(self, "message", self.message[:MAX_TEXT])


class Heartbeat(Message, frozen=True):
    """Worker's main thread: Read ``cycle`` arrived, with ``ask`` as it said.

    ``busy``: the GPUs whose last read still runs, so that they were not asked.  Index → seconds that the driver call
    now running has taken; 0 between two calls.  ``counting``: the same of the call that counts GPUs; ``joining``: of
    questions about two GPUs.  ``profiling``: who holds the GPM lock, uuid → seconds.
    """

    cycle: Count
    ask: bool = True
    busy: dict[Count, Finite] = {}
    counting: Finite = 0.0
    joining: Finite = 0.0
    profiling: dict[Text, Finite] = {}


class TopologyRead(Message, frozen=True):
    """Worker: how the GPUs that answer are connected, uuid → topology."""

    cards: dict[Text, CardTopology]


class CounterUnits(Message, frozen=True):
    """Both ways: in which unit this driver's counters of clock event time run, reason → seconds for one step.

    The worker reports what its GPUs have shown, the daemon what those of an earlier worker have.
    """

    driver_version: Text
    units: Annotated[dict[Word, Finite], Meta(max_length=MAX_UNITS)]

    def __post_init__(self) -> None:
        """Refuse units that no driver counts in."""
        if not COUNTER_UNITS.issuperset(self.units.values()):
            raise ValueError("unknown unit")


class XidSeen(Message, frozen=True):
    """Worker: the driver reported ``xid`` ``times`` times; ``uuid`` is empty when it did not name the GPU.

    Ids of the MIG instance that it befell; None for the whole GPU, or all of its GPU instance.
    """

    uuid: Text
    xid: Annotated[int, Meta(ge=0, le=MAX_XID)]
    times: Count
    at: Finite
    gpu_instance: Count | None = None
    compute_instance: Count | None = None


class EventSubscription(Message, frozen=True):
    """Worker: the XID events of ``cards`` GPUs are subscribed to, or ``reason`` says why of none."""

    cards: Count
    reason: OptionalWord = ""


class DriverFailed(Message, frozen=True):
    """Worker: the driver as a whole does not work, and this process ends; another one may do better."""

    reason: Word
    message: str = ""

    def __post_init__(self) -> None:
        """Cut the text of an exception, which may be of any length."""
        force_setattr(self, "message", self.message[:MAX_TEXT])


class Read(Message, frozen=True):
    """Daemon: read all GPUs that are not still busy; without ``ask``, only answer with a Heartbeat.

    ``budget``: seconds that a read should take at most.
    """

    cycle: Count
    ask: bool = True
    budget: Finite = 1.5


AnyMessage = (
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
)


def _plain(value: Any) -> Any:
    if isinstance(value, MappingProxyType):  # EMPTY
        return dict(value)
    raise NotImplementedError


# 13 µs for the frame of a reading, both ways, where a codec of our own over json took 104 (tests.bench.nvml_cycle).
_encode = Encoder(enc_hook=_plain).encode
_decode = Decoder(AnyMessage).decode


def encode(message: Message) -> bytes:
    """Return the frame of a message, length included."""
    data = _encode(message)
    return len(data).to_bytes(_LENGTH, "big") + data


class FrameBuffer:
    """Splits a stream of bytes into frames; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add what was read and return the frames that are now complete.  Raises DriverError("protocol")."""
        self._data += data
        frames = []
        while len(self._data) >= _LENGTH:
            size = int.from_bytes(self._data[:_LENGTH], "big")
            if size > MAX_FRAME:
                raise DriverError("protocol", f"frame of {size} bytes; at most {MAX_FRAME} are accepted")
            if len(self._data) < _LENGTH + size:
                break
            frames.append(bytes(self._data[_LENGTH : _LENGTH + size]))
            del self._data[: _LENGTH + size]
        return frames


def decode(frame: bytes) -> AnyMessage:
    """Return the message of a frame.  Raises DriverError("protocol") for anything that ``encode`` does not write."""
    try:
        message: AnyMessage = _decode(frame)
    except (MsgspecError, ValueError, TypeError, RecursionError, OverflowError) as error:
        # Only what kind of mistake it is: a message could quote what the worker sent.
        text = f"frame of {len(frame)} bytes cannot be read: {type(error).__name__}"
        raise DriverError("protocol", text) from error
    return message
