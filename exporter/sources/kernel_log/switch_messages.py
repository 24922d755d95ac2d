"""Messages of the NVSwitch driver in the kernel log: that of an error, not the registers that follow it.

    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 10003, Fatal, unhandled interrupt in …     no link
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12021, Correctable, Link 05 …
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 10004, IO failure                          nothing says how bad
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Severity 0 Engine instance 32 …     more of the error before it
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Data {0x000001c0, …}                likewise

Pure, like ``messages``.
"""

from __future__ import annotations

import re

from msgspec import Struct

from exporter.model import CORRECTABLE, FATAL_SEVERITY, NON_FATAL, UNRATED, canonical_pci

MAX_SXID = 99_999  # the driver writes five digits
MAX_LINK = 255

# Every repetition is bounded, so that no message can cost more than its length.
_SXID = re.compile(
    r"nvidia-nvswitch\d{1,4}: SXid \((?:PCI:)?((?:[0-9A-Fa-f]{1,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?\): "
    r"(\d{1,5})(?!\d),? ?"
)
_RATED = re.compile(r"(Fatal|Non-fatal|Correctable), ?(?:Link (\d{1,3})(?!\d))?")
_MORE = re.compile(r"Severity \d|Data \{")
_SEVERITIES = {"Fatal": FATAL_SEVERITY, "Non-fatal": NON_FATAL, "Correctable": CORRECTABLE}


class SxidMessage(Struct, frozen=True, kw_only=True):
    """An error of an NVSwitch.  ``link`` is the switch's own number; ``detail``: the rest of the message, raw."""

    pci: str
    sxid: int
    severity: str
    link: int | None
    detail: str = ""


def parse_switch_message(message: str) -> SxidMessage | None:
    """Return the error that a message reports; None for all other messages."""
    match = _SXID.match(message)
    if match is None:
        return None
    code, rest = int(match[2]), message[match.end() :]
    if not 0 < code <= MAX_SXID or _MORE.match(rest):
        return None
    rated = _RATED.match(rest)
    severity = _SEVERITIES[rated[1]] if rated is not None else UNRATED
    link = int(rated[2]) if rated is not None and rated[2] and int(rated[2]) <= MAX_LINK else None
    return SxidMessage(pci=canonical_pci(match[1]), sxid=code, severity=severity, link=link, detail=rest)
