"""One line of the kernel log to what the GPU driver says in it: pure, and indifferent to what else a line may hold.

Shapes that are understood, with whatever a logger put before them:

    NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:65:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: …
    NVRM: Xid (PCI:0000:65:00 GPU-I:05): 94, …                            a MIG instance; the card counts
    NVRM: Xid (0000:65:00): 14, Channel 00000001                          older drivers
    NVRM: GPU at PCI:0000:65:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7  before a card's first XID
    NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.                   an XID 79, with or without one
    NVRM: The NVIDIA GPU 0000:65:00.0 … fallen off the bus                the same, over one line or several

Errors of NVSwitches (SXid) have numbers of their own and are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from exporter.model import canonical_pci

MAX_LINE = 4096  # characters; the kernel's own are shorter
MAX_DETAIL = 160
MAX_XID = 65_535
OFF_THE_BUS = 79
_NAMED_FOR = 3  # lines of the driver that a sentence over several lines may take

# Every repetition is bounded, so that no line can cost more than its length.
_PLACE = r"((?:[0-9A-Fa-f]{1,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_PLACE}(?: [^()]{{1,40}})?\): (\d{{1,6}})(?!\d)[, .:]{{0,4}}")
_UUID = re.compile(
    rf"NVRM: GPU at (?:PCI:)?{_PLACE}: (GPU-[0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}})"
)
_GONE = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?{_PLACE}:? (?:GPU )?has fallen off the bus")
_NAMED = re.compile(rf"NVRM: The NVIDIA GPU (?:PCI:)?{_PLACE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class XidLine:
    """An XID, or with ``inferred`` a sentence that means one.  ``detail``: the driver's own words, printable."""

    pci: str
    xid: int
    detail: str = ""
    inferred: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NameLine:
    """Which card sits at a place on the bus."""

    pci: str
    uuid: str


class LineReader:
    """Reads lines in their order; remembers the beginning of a sentence that goes on in the next lines."""

    def __init__(self) -> None:
        self._named = ""
        self._named_lines = 0

    def read(self, line: str) -> XidLine | NameLine | None:
        """Say what the driver says; None for everything else."""
        if "NVRM: " not in line:
            return None
        line = line[:MAX_LINE]
        if found := _XID.search(line):
            pci, code = canonical_pci(found[1]), int(found[2])
            return XidLine(pci=pci, xid=code, detail=_plain(line[found.end() :])) if 0 < code <= MAX_XID else None
        if found := _UUID.search(line):
            return NameLine(pci=canonical_pci(found[1]), uuid=found[2])
        return self._gone(line)

    def _gone(self, line: str) -> XidLine | None:
        place = ""
        if found := _GONE.search(line):
            place = found[1]
        elif found := _NAMED.search(line):
            self._named, self._named_lines = found[1], 0
        if not place and self._named:
            self._named_lines += 1
            if "fallen off the bus" in line:
                place = self._named
            if place or self._named_lines >= _NAMED_FOR:
                self._named = ""
        if not place:
            return None
        return XidLine(
            pci=canonical_pci(place), xid=OFF_THE_BUS, detail="the card has fallen off the bus", inferred=True
        )


def _plain(text: str) -> str:
    """Keep what a log line can carry; names of processes are chosen by whoever runs them."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_DETAIL]).strip()
