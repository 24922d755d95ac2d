"""The health of one source, and the constants that records share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

EMPTY: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """Health of one source, beside its data.  ``reason`` is why it is down, from ``SourceError.reason``."""

    source: str  # "engine:chat-a", "gpu:GPU-…", "driver"
    up: bool
    reason: str = ""
    hung: bool = False
    duration: float | None = None  # seconds of the last finished attempt
    last_success: float | None = None  # monotonic
    last_success_unix_time: float | None = None
    failures: Mapping[str, int] = field(default_factory=lambda: EMPTY)  # reason → count since start
    skipped: int = 0  # polls not started because the previous one was still running


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a check or a command succeeded, and one sentence for whoever asked."""

    ok: bool
    message: str
