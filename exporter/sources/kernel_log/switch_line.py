"""What the NVSwitch driver writes into the kernel log: the line of an error, not the lines of registers after it.

    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 10003, Fatal, unhandled interrupt in …     no link
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12021, Correctable, Link 05 …
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 10004, IO failure                          nothing says how bad
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Severity 0 Engine instance 32 …     more of the error before it
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Data {0x000001c0, …}                likewise

Pure, like ``line``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from exporter.model import CORRECTABLE, FATAL_SEVERITY, NON_FATAL, UNRATED, canonical_pci

MARK = "SXid ("  # every such line holds it
MAX_SXID = 99_999  # the driver writes five digits
MAX_LINK = 255

# Every repetition is bounded, so that no line can cost more than its length.
_SXID = re.compile(
    r"nvidia-nvswitch\d{1,4}: SXid \((?:PCI:)?((?:[0-9A-Fa-f]{1,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?\): "
    r"(\d{1,5})(?!\d),? ?"
)
_RATED = re.compile(r"(Fatal|Non-fatal|Correctable), ?(?:Link (\d{1,3})(?!\d))?")
_MORE = re.compile(r"Severity \d|Data \{")
_SEVERITIES = {"Fatal": FATAL_SEVERITY, "Non-fatal": NON_FATAL, "Correctable": CORRECTABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class SxidLine:
    """An error of an NVSwitch.  ``link`` is the switch's own number; ``words`` is what follows the code, raw."""

    pci: str
    sxid: int
    severity: str
    link: int | None
    words: str = ""


def read_switch_line(line: str) -> SxidLine | None:
    """Give the error that a line begins to tell of; None for everything else."""
    found = _SXID.search(line)
    if found is None:
        return None
    code, words = int(found[2]), line[found.end() :]
    if not 0 < code <= MAX_SXID or _MORE.match(words):
        return None
    rated = _RATED.match(words)
    severity = _SEVERITIES[rated[1]] if rated is not None else UNRATED
    link = int(rated[2]) if rated is not None and rated[2] and int(rated[2]) <= MAX_LINK else None
    return SxidLine(pci=canonical_pci(found[1]), sxid=code, severity=severity, link=link, words=words)
