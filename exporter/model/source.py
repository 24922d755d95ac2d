"""The health of one source, and the constants that records share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

EMPTY: Mapping[Any, Any] = MappingProxyType({})


class SourceStatus(Struct, frozen=True, kw_only=True):
    """Health of one source, beside its data.

    ``reason`` is why it is down, from ``SourceError.reason``, and ``error`` the same in a sentence.
    """

    source: str  # "engine:chat-a", "gpu:GPU-…", "driver"
    up: bool
    reason: str = ""
    error: str = ""
    hung: bool = False
    duration: float | None = None  # seconds of the last finished attempt
    last_success: float | None = None  # monotonic
    last_success_unix_time: float | None = None
    failures: Mapping[str, int] = EMPTY  # reason → count since start
    skipped: int = 0  # polls not started because the previous one was still running


class Outcome(Struct, frozen=True):
    """Whether a check or a command succeeded, and one sentence that says why."""

    ok: bool
    message: str
