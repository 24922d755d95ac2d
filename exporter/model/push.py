"""What is known of one receiver that the daemon pushes to, and how it answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal, get_args

from msgspec import Struct

from exporter.model.source import EMPTY

DropReason = Literal["internal", "queue_full", "refused", "too_old"]
DROP_REASONS: tuple[DropReason, ...] = get_args(DropReason)


class PushVerdict(Enum):
    """What an answer means for the body that was sent."""

    ACCEPTED = "accepted"
    RETRY = "retry"  # later
    REFUSED = "refused"  # for good
    OTHER_VERSION = "other_version"  # at once, in another version of the protocol


class PushAnswer(Struct, frozen=True, kw_only=True):
    """What a receiver answered; names of ``headers`` are in lower case.

    ``body`` is b"" where it was too long, malformed or late: the status was there by then.
    """

    status: int
    headers: Mapping[str, str] = EMPTY
    body: bytes = b""


class PushState(Struct, frozen=True, kw_only=True):
    """One receiver; its health stands among the sources as ``push:NAME``.  Counts are since its start."""

    target: str
    samples: int = 0  # accepted
    sent_bytes: int = 0  # of bodies, accepted or not
    dropped: Mapping[DropReason, int] = EMPTY  # samples
    queue_bytes: int = 0
    queue_age: float = 0.0  # seconds of the oldest edition that waits
    failing_since: float | None = None  # Unix time
