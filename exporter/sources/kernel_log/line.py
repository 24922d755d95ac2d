"""One line of the kernel log to what the GPU driver says in it: pure, and indifferent to what else a line may hold.

Shapes that are understood, with whatever a logger put before them:

    NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:65:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: …
    NVRM: Xid (PCI:0000:65:00 GPU-I:05 GPU-CI:00): 94, …                  a MIG instance, by both ids or the first
    NVRM: Xid (0000:65:00): 14, Channel 00000001                          older drivers
    NVRM: GPU at PCI:0000:65:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7  before a card's first XID
    NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.                   an XID 79, with or without one
    NVRM: The NVIDIA GPU 0000:65:00.0 … fallen off the bus                the same, over one line or several

Errors of NVSwitches (SXid) have numbers of their own: ``switch_line``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from exporter.model import WHOLE_GPU, InstanceId, canonical_pci
from exporter.sources.kernel_log.switch_line import MARK, SxidLine, read_switch_line

MAX_LINE = 4096  # characters; the kernel's own are shorter
MAX_DETAIL = 160
MAX_XID = 65_535
OFF_THE_BUS = 79
_NAMED_FOR = 3  # lines of the driver that a sentence over several lines may take

# Every repetition is bounded, so that no line can cost more than its length.
_PLACE = r"((?:[0-9A-Fa-f]{1,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_PLACE}((?: [^()]{{1,40}})?)\): (\d{{1,6}})(?!\d)[, .:]{{0,4}}")
_PART = re.compile(r" GPU-I:(\d{1,5})(?!\d)(?: GPU-CI:(\d{1,5})(?!\d))?")
_UUID = re.compile(
    rf"NVRM: GPU at (?:PCI:)?{_PLACE}: (GPU-[0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}})"
)
_GONE = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?{_PLACE}:? (?:GPU )?has fallen off the bus")
_NAMED = re.compile(rf"NVRM: The NVIDIA GPU (?:PCI:)?{_PLACE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class XidLine:
    """An XID, or with ``inferred`` a sentence that means one.  ``detail``: the driver's own words, printable.

    ``part``: ids of the GPU instance and the compute instance that it befell, None for the whole of either.
    """

    pci: str
    xid: int
    part: InstanceId = WHOLE_GPU
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

    def read(self, line: str) -> XidLine | NameLine | SxidLine | None:
        """Say what the driver says; None for everything else."""
        if not ("NVRM: " in line or MARK in line):
            return None
        line = line[:MAX_LINE]
        # First, because whoever names a process names it in such a line, and may call it anything.
        if found := _XID.search(line):
            code, words = int(found[3]), _plain(line[found.end() :])
            xid = XidLine(pci=canonical_pci(found[1]), xid=code, part=_part(found[2]), detail=words)
            return xid if 0 < code <= MAX_XID else None
        if MARK in line:
            switch = read_switch_line(line)
            return replace(switch, words=_plain(switch.words)) if switch is not None else None
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


def _part(text: str) -> InstanceId:
    """Read which instances stand behind the place on the bus."""
    found = _PART.match(text)
    if found is None:
        return WHOLE_GPU
    return InstanceId(int(found[1]), int(found[2]) if found[2] else None)


def _plain(text: str) -> str:
    """Keep what a log line can carry; names of processes are chosen by whoever runs them."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_DETAIL]).strip()
