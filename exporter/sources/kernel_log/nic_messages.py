"""Messages of the mlx5 driver (ConnectX, BlueField) in the kernel log that tell of a fault: pure, like ``messages``.

mlx5_core 0000:65:00.0 ens1f0np0: Link down
mlx5_core 0000:65:00.0: Port module event: module 0, Cable unplugged
mlx5_core 0000:65:00.0: Port module event[error]: module 0, Cable error, Power budget exceeded
mlx5_core 0000:65:00.0: poll_health:824:(pid 0): device's health compromised - reached miss count
mlx5_core 0000:65:00.0: temp_warn:172:(pid 0): High temperature on sensors with bit set 0 1
mlx5_core 0000:65:00.0: wait_func:1194:(pid 7): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource
"""

from __future__ import annotations

import re

from msgspec import Struct

# Every repetition is bounded, so that no message can cost more than its length.
_MLX5 = re.compile(r"mlx5_core ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?: [^\s:]{1,15})?: ")
_MAX_SEARCHED = 320  # characters
# What a message says → its kind; the first that occurs.
_EVENTS = (
    ("Link down", "link_down"),
    ("Cable unplugged", "cable_unplugged"),
    ("Port module event[error]", "cable_error"),
    ("Cable error", "cable_error"),
    ("High temperature", "high_temperature"),
    ("insufficient power", "insufficient_power"),
    ("health compromised", "health"),
    ("Fatal error", "health"),
    ("firmware internal error", "health"),
    ("pci_err_detected", "pci_error"),
    ("TX timeout", "transmit_timeout"),
    ("timeout. Will cause a leak", "command_timeout"),
)


class NicMessage(Struct, frozen=True, kw_only=True):
    """A fault of an adapter.  ``pci`` has the function; ``detail``: the message, raw."""

    pci: str
    event: str
    detail: str = ""


def parse_nic_message(message: str) -> NicMessage | None:
    """Return the fault that a message reports; None for all other messages."""
    match = _MLX5.match(message)
    if match is None:
        return None
    rest = message[match.end() : match.end() + _MAX_SEARCHED]
    event = next((event for words, event in _EVENTS if words in rest), None)
    return NicMessage(pci=match[1], event=event, detail=rest) if event is not None else None
