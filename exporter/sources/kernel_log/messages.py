"""Messages of the GPU driver in the kernel log: pure.

Understood at the beginning of a message, and nowhere else (see ``record``):

    NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:65:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: …
    NVRM: Xid (PCI:0000:65:00 GPU-I:05 GPU-CI:00): 94, …                  a MIG instance, by both ids or the first
    NVRM: Xid (0000:65:00): 14, Channel 00000001                          older drivers
    NVRM: GPU at PCI:0000:65:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7  before a GPU's first XID
    NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.                   an XID 79, with or without one
    NVRM: The NVIDIA GPU 0000:65:00.0 … fallen off the bus                the same, in one message or several

Errors of NVSwitches (SXid) have numbers of their own: ``switch_messages``; those of adapters have none:
``nic_messages``.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from exporter.model import WHOLE_GPU, InstanceId, canonical_pci
from exporter.sources.kernel_log.nic_messages import NicMessage, parse_nic_message
from exporter.sources.kernel_log.switch_messages import SxidMessage, parse_switch_message

MAX_MESSAGE = 4096  # characters; the kernel's own are shorter
MAX_DETAIL = 160
MAX_XID = 65_535
OFF_THE_BUS = 79
_MAX_SENTENCE = 3  # messages of the driver that one sentence may take

# Every repetition is bounded, so that no message can cost more than its length.
_PCI = r"((?:[0-9A-Fa-f]{1,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_PCI}((?: [^()]{{1,40}})?)\): (\d{{1,6}})(?!\d)[, .:]{{0,4}}")
_INSTANCE = re.compile(r" GPU-I:(\d{1,5})(?!\d)(?: GPU-CI:(\d{1,5})(?!\d))?")
_UUID = re.compile(
    rf"NVRM: GPU at (?:PCI:)?{_PCI}: (GPU-[0-9a-f]{{8}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{4}}-[0-9a-f]{{12}})"
)
_GONE = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?{_PCI}:? (?:GPU )?has fallen off the bus")
_NAMED = re.compile(rf"NVRM: The NVIDIA GPU (?:PCI:)?{_PCI}")
_REST = re.compile(r"NVRM: (?:\(PCI ID: [0-9a-f:]{1,16}\) )?(?:installed in this system has )?fallen off the bus")


class XidMessage(Struct, frozen=True, kw_only=True):
    """An XID, or with ``inferred`` a sentence that means one.  ``detail``: the rest of the message, printable.

    ``instance``: the MIG instance that it is about.
    """

    pci: str
    xid: int
    instance: InstanceId = WHOLE_GPU
    detail: str = ""
    inferred: bool = False


class GpuNameMessage(Struct, frozen=True, kw_only=True):
    """The UUID of the GPU at a PCI address."""

    pci: str
    uuid: str


class MessageParser:
    """Parses messages in their order; remembers the beginning of a sentence that goes on in the next ones."""

    def __init__(self) -> None:
        self._named = ""
        self._named_messages = 0

    def parse(self, message: str) -> XidMessage | GpuNameMessage | SxidMessage | NicMessage | None:
        """Return what the driver reports; None for all other messages."""
        message = message[:MAX_MESSAGE]
        if not message.startswith("NVRM: "):
            other = parse_switch_message(message) or parse_nic_message(message)
            return replace(other, detail=_printable(other.detail)) if other is not None else None
        if match := _XID.match(message):
            code, detail = int(match[3]), _printable(message[match.end() :])
            xid = XidMessage(pci=canonical_pci(match[1]), xid=code, instance=_instance(match[2]), detail=detail)
            return xid if 0 < code <= MAX_XID else None
        if match := _UUID.match(message):
            return GpuNameMessage(pci=canonical_pci(match[1]), uuid=match[2])
        return self._off_the_bus(message)

    def _off_the_bus(self, message: str) -> XidMessage | None:
        pci = ""
        if match := _GONE.match(message):
            pci = match[1]
        elif match := _NAMED.match(message):
            self._named, self._named_messages = match[1], 0
            pci = match[1] if "fallen off the bus" in message else ""
        elif self._named and _REST.match(message):
            pci = self._named
        self._named_messages += 1
        if pci or self._named_messages >= _MAX_SENTENCE:
            self._named = ""
        if not pci:
            return None
        return XidMessage(pci=canonical_pci(pci), xid=OFF_THE_BUS, detail="GPU has fallen off the bus", inferred=True)


def _instance(text: str) -> InstanceId:
    """Return the MIG instance that is named behind the PCI address."""
    match = _INSTANCE.match(text)
    if match is None:
        return WHOLE_GPU
    return InstanceId(int(match[1]), int(match[2]) if match[2] else None)


def _printable(text: str) -> str:
    """Return what a log line can carry; names of processes are chosen by their users."""
    return "".join(character if character.isprintable() else " " for character in text[:MAX_DETAIL]).strip()
