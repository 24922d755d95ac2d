"""Stragglers: which GPU the others of its group wait for, and why."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from exporter.model.source import EMPTY


class Cause(str, Enum):
    """Why a GPU is slow; the value is the ``cause`` label."""

    POWER_BRAKE = "power_brake"  # the power supply or the board reduces the clocks from outside
    THERMAL = "thermal"
    POWER_CAP = "power_cap"
    CLOCK_LOCK = "clock_lock"  # lower clocks than the group's without a clock event: somebody set them
    OTHER_TENANT = "other_tenant"
    PCIE = "pcie"
    NVLINK = "nvlink"
    MEMORY_PRESSURE = "memory_pressure"
    UNKNOWN = "unknown"  # measured slowdown that nothing the driver reports explains


class Straggler(Struct, frozen=True, kw_only=True):
    """A GPU that its group waits for.  ``slowdown``: its time for the same work over the others' median."""

    uuid: str
    replica: str
    cause: Cause
    slowdown: float | None = None  # None: not measured


class Stragglers(Struct, frozen=True, kw_only=True):
    """Stragglers of all replicas.  ``judged``: whether a replica's GPUs can be compared now."""

    judged: Mapping[str, bool] = EMPTY  # replica →
    found: tuple[Straggler, ...] = ()
