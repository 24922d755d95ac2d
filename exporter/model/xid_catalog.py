"""What each XID code means and what to do about it: NVIDIA's error numbers of a GPU, as plain data.

Facts are from NVIDIA's XID catalogue ("Analyzing Xid Errors with the Xid Catalog", as of September 2026), whose
column "immediate action" decides class and action here; the meanings are worded by this project.  The catalogue has
more codes than GPUs of the data centre still use: those are left out, and count as unknown.

Where its action is a workflow, this table decides:

- 45 is informational: channels are removed because something else happened.  Follow the other XID; alone, and on a
  node with NVSwitches, it asks for a restart of the fabric manager.
- 48 and 74 are for resetting the GPU: the workflows end there, and differ in what is looked at before.
- 144 to 150 (NVLink 5) carry a sub-code that decides between nothing and a reset, so a person has to look.
- 151 asks for a restart of the virtual machine, which is the node that reports it.
- 154 says that the recovery action changed, and which one it is stands in ``gpu_recovery_action``.
- 162 to 172 have no action in the catalogue; a person has to look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct

SOURCE = "NVIDIA XID catalogue, September 2026"


class Class(str, Enum):
    """How much is affected, and so whom to wake."""

    APPLICATION = "application"  # the process on the GPU is lost; the GPU is not
    RESET_CARD = "reset_card"
    RESET_NODE = "reset_node"
    INSPECT = "inspect"  # what to do depends on what a person finds
    INFORMATIONAL = "informational"
    UNKNOWN = "unknown"  # not in this table


class Xid(Struct, frozen=True):
    """One code.  ``action`` is a closed word, fit for a label; ``meaning`` a phrase for people."""

    code: int
    kind: Class
    action: str
    meaning: str


_APPLICATION = (Class.APPLICATION, "restart_application")
_NOTHING = (Class.INFORMATIONAL, "none")
_RESET = (Class.RESET_CARD, "reset_card")
_SUB_CODE = (Class.INSPECT, "decode_nvlink_sub_code")
_NO_ACTION_KNOWN = (Class.INSPECT, "none_published")


def _same(codes: Iterable[int], meaning: str) -> list[tuple[int, str]]:
    return [(code, meaning) for code in codes]


_COPY = "a copy engine reported an error"
_DECODE = "a video decoder reported an error"
_JPEG = "a JPEG engine reported an error"

_TABLE: Mapping[tuple[Class, str], list[tuple[int, str]]] = {
    _APPLICATION: [
        (8, "the GPU stopped working on a channel"),
        (11, "an invalid or corrupted stream of commands"),
        (13, "a kernel made the compute engine raise an exception, as by an illegal address or instruction"),
        (25, "an invalid or illegal stream of commands"),
        (31, "a kernel or copy touched memory that is not mapped"),
        (32, "the reader of command buffers found an invalid or corrupted stream"),
        (60, "the security engine reported an error"),
        (69, "the compute engine was given a command of the wrong class"),
        (80, "the checksum of a command buffer was wrong"),
        (86, "the optical-flow engine reported an error"),
        (94, "an uncorrectable memory error, contained to the process that used the memory"),
        (139, "the second optical-flow engine reported an error"),
        *_same((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _COPY),
        *_same((68, 83, 84, 88, 89, 96, 97, 98), _DECODE),
        *_same((82, *range(99, 106)), _JPEG),
    ],
    _NOTHING: [
        (37, "the firmware of the compute engine refused a command"),
        (38, "the firmware of the compute engine reported a timeout"),
        (43, "a process's work was stopped after a fault of its own"),
        (44, "a fault while the GPU switched between contexts"),
        (63, "a faulty row of memory was remapped, or a page retired: the GPU repaired itself"),
        (66, "the driver touched a register of the compute engine that it may not"),
        (67, "the firmware of the compute engine reported a violation of its rules"),
        (92, "single-bit memory errors are corrected at a high rate"),
        (93, "the GPU's configuration memory was written more often than it is meant to be"),
        (106, "a test message over the management bus"),
        (107, "a silent test message over the management bus"),
        (108, "another GPU's request over NVLink could not be translated"),
        (121, "an error, corrected, on the link between CPU and GPU"),
        (137, "a request over NVLink to another GPU's memory was refused there"),
        (141, "an error of the fast path of a channel"),
        (152, "the memory translation of a deep-learning accelerator faulted"),
        (153, "a deep-learning accelerator did not answer in time"),
        (157, "a faulty part of the GPU could not be retired"),
        (160, "a faulty memory channel was retired"),
        (161, "a faulty memory channel could not be retired"),
    ],
    (Class.INFORMATIONAL, "follow_other_xid"): [
        (45, "channels were removed from the GPU because of another error or the end of their process"),
    ],
    _RESET: [
        (46, "the GPU stopped answering the driver"),
        (62, "the power-management controller of the GPU halted"),
        (64, "a faulty row of memory could not be remapped, or a page not retired"),
        (95, "an uncorrectable memory error that may have reached every process on the GPU"),
        (109, "a switch between contexts did not end in time"),
        (110, "the security engine found a fault"),
        (119, "the GPU's system processor did not answer the driver in time: expect driver calls to hang"),
        (120, "the GPU's system processor failed: expect driver calls to hang"),
        (136, "an NVLink could not be trained"),
        (140, "an uncorrectable memory error that the hardware did not contain"),
        (143, "the GPU could not be initialised"),
        (155, "an NVLink went down on purpose, or by software; a link that goes to sleep says so too"),
        (156, "a faulty part of the GPU is to be retired at the next reset"),
        (158, "the GPU ran into a fatal timeout"),
    ],
    (Class.RESET_CARD, "drain_and_reset_card"): [
        (48, "an uncorrectable (double-bit) memory error"),
    ],
    (Class.RESET_CARD, "check_nvlink_and_reset_card"): [
        (74, "an NVLink to another GPU or a switch failed: expect collectives to be slow or to hang"),
    ],
    (Class.RESET_NODE, "reboot_node"): [
        (79, "the GPU has fallen off the bus: the driver cannot reach it any more"),
    ],
    (Class.RESET_NODE, "restart_virtual_machine"): [
        (151, "the keys of a confidential virtual machine could not be rotated"),
    ],
    (Class.INSPECT, "check_power_cabling"): [
        (54, "the GPU runs at reduced clocks because its power connection is not complete"),
    ],
    (Class.INSPECT, "update_software"): [
        (78, "a virtual GPU could not be started"),
    ],
    (Class.INSPECT, "contact_support"): [
        (142, "a video encoder reported an error"),
    ],
    (Class.INSPECT, "check_unified_memory"): [
        (159, "the coherent link to the CPU reported an error without data"),
    ],
    (Class.INSPECT, "read_recovery_action"): [
        (154, "the recovery action that the driver asks for has changed, because of another XID"),
    ],
    _SUB_CODE: [
        (144, "NVLink 5: an error in the unit SAW of the GPU"),
        (145, "NVLink 5: an error in the unit RLW of the GPU"),
        (146, "NVLink 5: an error in the unit TLW of the GPU"),
        (147, "NVLink 5: an error in the unit TREX of the GPU"),
        (148, "NVLink 5: an error in the unit NVLPW of the GPU"),
        (149, "NVLink 5: an event of a link, such as going down or many bit errors"),
        (150, "NVLink 5: an error in the management unit MSE of the GPU"),
    ],
    _NO_ACTION_KNOWN: [
        (162, "power smoothing took hold again"),
        (163, "power smoothing let go"),
        (164, "the power-smoothing circuit nears the end of its life"),
        (165, "the power-smoothing circuit is at the end of its life"),
        (166, "an encryption error on an NVLink"),
        (167, "a request over PCIe never came to an end"),
        (168, "the GPU works with less memory than it was built with"),
        (169, "the security processor of the GPU halted"),
        (170, "another error of an encrypted NVLink"),
        (171, "says more of an XID 48: the error is in the memory stacks"),
        (172, "says more of an XID 48: the error is inside the chip"),
    ],
}

CATALOGUE: Mapping[int, Xid] = {
    code: Xid(code, kind, action, meaning)
    for (kind, action), codes in _TABLE.items()
    for code, meaning in sorted(codes)
}

# After these the GPU, or the node, needs a reset: the full set shows them as 0 on every GPU from the start, so that
# the first event is an increase.
RESETTING = frozenset(code for code, xid in CATALOGUE.items() if xid.kind in {Class.RESET_CARD, Class.RESET_NODE})
# The common set does so with these few, as each costs a series per GPU.  The codes after which a GPU (or its link)
# is of no use: what DCGM calls devastating, without 140, which uncorrected ECC errors tell as well.
FATAL = frozenset({48, 74, 79, 95, 119, 120})


def describe(code: int) -> Xid:
    """Return what is known of a code; class and action say so where that is nothing."""
    return CATALOGUE.get(code) or Xid(code, Class.UNKNOWN, "look_up", "not in the table of this version")
