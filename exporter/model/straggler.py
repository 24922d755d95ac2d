"""Which card the others of its group wait for, and why."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from exporter.model.source import EMPTY


class Cause(str, Enum):
    """What makes a card the slow one; the value is the ``cause`` label."""

    POWER_BRAKE = "power_brake"  # the server's power supply or the board holds the clocks down from outside
    THERMAL = "thermal"
    POWER_CAP = "power_cap"
    CLOCK_LOCK = "clock_lock"  # the clocks are lower than the group's, and no event says why: somebody set them
    OTHER_TENANT = "other_tenant"
    PCIE = "pcie"
    NVLINK = "nvlink"
    MEMORY_PRESSURE = "memory_pressure"
    UNKNOWN = "unknown"  # measured to be slow, and nothing that the driver says explains it


class Straggler(Struct, frozen=True, kw_only=True):
    """A card that its group waits for.  ``slowdown``: time it needs for the same work over the others' median."""

    uuid: str
    replica: str
    cause: Cause
    slowdown: float | None = None  # None: not measured


class Stragglers(Struct, frozen=True, kw_only=True):
    """The verdict on every replica that has cards to compare.  ``judged`` is False where nothing can be said now."""

    judged: Mapping[str, bool] = EMPTY  # replica →
    found: tuple[Straggler, ...] = ()
