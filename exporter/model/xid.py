"""XIDs, the numbered errors of GPUs: reports and counts."""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct

# Sources.  BUS is a line of the kernel log that reports a lost GPU without an XID.
NVML, KERNEL_LOG, BUS = "nvml", "kernel_log", "bus"


class InstanceId(NamedTuple):
    """A MIG instance by the ids of GPU instance and compute instance; None for the whole of either."""

    gpu_instance: int | None
    compute_instance: int | None


WHOLE_GPU = InstanceId(None, None)


class XidReport(Struct, frozen=True, kw_only=True):
    """``times`` reports by one source of one XID on one GPU.

    The GPU is identified by ``uuid``, by ``pci`` (see ``canonical_pci``), or not at all; ``instance`` is the MIG
    instance affected.  ``old``: it happened at ``unix_time``, before this daemon counted.
    """

    xid: int
    source: str
    at: float  # monotonic
    unix_time: float
    uuid: str = ""
    pci: str = ""
    instance: InstanceId = WHOLE_GPU
    times: int = 1
    old: bool = False


class XidLabels(NamedTuple):
    """The labels of a count.  ``source``: the sources that the daemon listens to."""

    gpu: str
    uuid: str
    xid: str
    source: str


class XidCount(Struct, frozen=True, kw_only=True):
    """The events of one XID of one GPU; ``xid`` is None for codes that are counted together as "other"."""

    labels: XidLabels
    xid: int | None
    count: int  # events since the daemon's start
    last_unix_time: float | None  # of the newest event, also of one before the start; None: never
    is_whole_gpu: bool = False  # a GPU that the driver lists: no MIG instance, no address without a GPU


_PCI_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-9a-f])?")


def canonical_pci(text: str) -> str:
    """Return a PCI address as ``domain:bus:device`` in lower case (``0000:65:00``); "" for anything else.

    Driver, kernel and tools differ in the width of the domain, in case, and in whether they name the function.
    """
    found = _PCI_ADDRESS.fullmatch(text.lower().removeprefix("pci:"))
    if found is None:
        return ""
    return f"{int(found[1] or '0', 16):04x}:{int(found[2], 16):02x}:{int(found[3], 16):02x}"
