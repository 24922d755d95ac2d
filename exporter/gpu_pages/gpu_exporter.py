"""What a GPU exporter is: a table of fields that says where our signals stand on its pages, and in which unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from exporter.model import EMPTY, Signal


class Part(str, Enum):
    """A part of a reading that has several numbers by a word; the value is the field of ``CardReading``."""

    CLOCK_EVENTS = "clock_events"  # by reason, > 0 while active; without a word a mask of bits, see CLOCK_EVENT_BITS
    CLOCK_EVENT_SECONDS = "clock_event_seconds"
    POLICY_SECONDS = "policy_seconds"
    NVLINK_ERRORS = "nvlink_errors"
    PIPE_ACTIVE = "pipe_active"
    TRAFFIC = "traffic"


# The signal that is missing where a part has no number.
PART_SIGNALS: Mapping[Part, Signal] = {
    Part.CLOCK_EVENTS: Signal.CLOCK_EVENTS,
    Part.CLOCK_EVENT_SECONDS: Signal.CLOCK_EVENT_TIME,
    Part.NVLINK_ERRORS: Signal.NVLINK_ERRORS,
    Part.PIPE_ACTIVE: Signal.PIPE_ACTIVE,
    Part.TRAFFIC: Signal.TRAFFIC,
}


class Merge(str, Enum):
    """How several series of one GPU become one number."""

    MAX = "max"  # the same number, repeated for each pod or container; or the hottest of several sensors
    SUM = "sum"
    MEAN = "mean"


class _GpuRow(Struct, frozen=True):
    """The positional arguments of a row; the others are named."""

    target: Signal | Part
    names: Mapping[str, float]


class GpuField(_GpuRow, frozen=True, kw_only=True):
    """One row: a number in base units.

    ``names``: name of the sample → factor to the base unit; the first that a GPU has counts.  ``word``: which number
    of a part.  ``labels``: only series with one of these values.  ``values``: what upstream values mean; any other
    says nothing.
    """

    word: str | tuple[str, str] = ""
    labels: Mapping[str, tuple[str, ...]] = EMPTY
    values: Mapping[float, float] = EMPTY
    merge: Merge = Merge.MAX


class GpuExporter(Struct, frozen=True, kw_only=True):
    """A kind of GPU exporter: how to recognise its page, which labels identify a GPU, and what its names mean.

    Each of the labels is a tuple: the first of them that a series has counts.  A GPU without ``uuid`` is identified
    by kind and index; one without ``index`` is numbered by its PCI address.
    """

    kind: str
    title: str  # as its makers write it
    vendor: str
    marks: tuple[str, ...]  # beginnings of sample names that only this kind has
    fields: tuple[GpuField, ...]
    index: tuple[str, ...] = ()
    uuid: tuple[str, ...] = ()
    serial: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    driver: tuple[str, ...] = ()  # version of the driver
    partition: tuple[str, ...] = ()  # number of a partition of a GPU that shares its identity with others
    instance: tuple[str, ...] = ()  # id of a MIG instance
    profile: tuple[str, ...] = ()  # of a MIG instance
    info: tuple[str, ...] = ()  # samples that are read for their labels alone
    processes: tuple[str, str] = ("", "")  # sample of a process's memory in MiB, and the label with its pid
    xids: bool = False  # NVIDIA's GPUs, whose errors are in the kernel log
    hint: str  # where its metrics are
    setup: str = ""  # what to configure there, a sentence

    def wanted_names(self) -> frozenset[str]:
        """Return every sample name whose value is needed."""
        named = (name for row in self.fields for name in row.names)
        return frozenset({*named, *self.info, self.processes[0]} - {""})

    def signals(self) -> frozenset[Signal]:
        """Return every signal that this kind may tell."""
        found = (PART_SIGNALS.get(row.target) if isinstance(row.target, Part) else row.target for row in self.fields)
        return frozenset(signal for signal in found if signal is not None)

    def matches(self, body: bytes) -> bool:
        """Return whether a sample of this kind is on the page; comments and label values do not count."""
        names = b"|".join(re.escape(mark.encode()) for mark in self.marks)
        return re.search(rb"^(?:" + names + rb")[a-zA-Z0-9_:]*[{ ]", body, re.MULTILINE) is not None


_FLAG, _RATIO, _CELSIUS, _WATTS, _HERTZ = (0.0, 1.0), (0.0, 1.0), (-50.0, 200.0), (0.0, 2e4), (0.0, 2e10)
_LIMIT_CELSIUS, _BYTES, _COUNT = (1.0, 200.0), (0.0, 2.0**56), (0.0, 2.0**53)
_LIMITS_BY_PREFIX = (
    ("temperature_limit", _LIMIT_CELSIUS),
    ("temperature_memory", _LIMIT_CELSIUS),  # 0 is what a GPU without a sensor in the memory reports
    ("temperature_margin", (-100.0, 200.0)),
    ("temperature", _CELSIUS),
    ("power", _WATTS),
    ("clock_event", _COUNT),
    ("clock", _HERTZ),
    ("memory_activity", _RATIO),
    ("memory", _BYTES),
    ("bar1", _BYTES),
    ("pcie_link_generation", (1.0, 16.0)),
    ("pcie_link_width", (1.0, 64.0)),
    ("row_remap_pending", _FLAG),
    ("row_remap_failed", _FLAG),
    ("retired_pages_pending", _FLAG),
    ("vgpu", _FLAG),
    ("fan_speed", _RATIO),
    ("performance_state", (0.0, 15.0)),
    ("recovery_action", (0.0, 64.0)),
)


def limits(target: Signal | Part) -> tuple[float, float]:
    """Return what can be true of a number, in base units; a page's marker for "unknown" lies beyond."""
    word = target.value
    if target is Part.PIPE_ACTIVE or word.endswith(("utilization", "_active", "occupancy")):
        return _RATIO
    return next((bounds for prefix, bounds in _LIMITS_BY_PREFIX if word.startswith(prefix)), _COUNT)
