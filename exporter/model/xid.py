"""The errors that cards report by number (XIDs): one report, and what was counted of them."""

from __future__ import annotations

import re

from msgspec import Struct

# Who reports.  BUS is a line of the kernel log that says a card is gone without giving a number.
NVML, KERNEL_LOG, BUS = "nvml", "kernel_log", "bus"

# Which instance of a divided card (MIG): ids of GPU instance and compute instance, None for the whole of either.
InstanceId = tuple[int | None, int | None]
WHOLE_GPU: InstanceId = (None, None)


class XidReport(Struct, frozen=True, kw_only=True):
    """``times`` reports by one source of one code on one card.

    The card is known by ``uuid``, or by ``pci`` (canonical: ``0000:65:00``, see ``canonical_pci``), or not at all.
    ``instance``: the instance of that card that it befell.  ``old``: it happened before this daemon could count;
    ``unix_time`` says when.
    """

    xid: int
    source: str
    at: float  # monotonic
    unix_time: float  # Unix time
    uuid: str = ""
    pci: str = ""
    instance: InstanceId = WHOLE_GPU
    times: int = 1
    old: bool = False


class XidCount(Struct, frozen=True, kw_only=True):
    """One code of one card as the page shows it; ``xid`` is None for what is counted together as "other"."""

    labels: tuple[str, str, str, str]  # gpu, uuid, xid, source
    xid: int | None
    count: int  # events since the daemon's start
    last_unix_time: float | None  # Unix time of the newest, also of one before the start; None: never seen
    whole: bool = False  # of a known card as a whole: no instance, and no place on the bus without a card

    @property
    def card(self) -> tuple[str, str]:
        """Who it is about: gpu, uuid."""
        return self.labels[:2]

    @property
    def listening(self) -> str:
        """The sources that are listened to."""
        return self.labels[3]


_PLACE = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-9a-f])?")


def canonical_pci(text: str) -> str:
    """Write a card's place on the bus as ``domain:bus:device`` in lower case; "" for anything else.

    Driver, kernel and tools differ in the width of the domain, in case, and in whether they name the function.
    """
    found = _PLACE.fullmatch(text.lower().removeprefix("pci:"))
    if found is None:
        return ""
    return f"{int(found[1] or '0', 16):04x}:{int(found[2], 16):02x}:{int(found[3], 16):02x}"
