"""Messages of the mlx5 driver: faults are found at the beginning of a message, and nothing else is."""

from __future__ import annotations

import pytest

from exporter.sources.kernel_log.messages import MAX_DETAIL, MessageParser
from exporter.sources.kernel_log.nic_messages import NicMessage
from exporter.sources.kernel_log.record import message_of_line, of_driver

PCI = "0000:65:00.0"


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (f"mlx5_core {PCI} ens1f0np0: Link down", "link_down"),
        (f"mlx5_core {PCI}: Port module event: module 0, Cable unplugged", "cable_unplugged"),
        (f"mlx5_core {PCI}: Port module event[error]: module 0, Cable error, High Temperature", "cable_error"),
        (f"mlx5_core {PCI}: poll_health:824:(pid 0): device's health compromised - reached miss count", "health"),
        (f"mlx5_core {PCI}: poll_health:819:(pid 0): Fatal error 1 detected", "health"),
        (f"mlx5_core {PCI}: temp_warn:172:(pid 0): High temperature on sensors with bit set 0 1", "high_temperature"),
        (
            f"mlx5_core {PCI}: wait_func:1194:(pid 7): ACCESS_REG(0x805) timeout. Will cause a leak of",
            "command_timeout",
        ),
        (f"mlx5_core {PCI}: mlx5_pci_err_detected Device state = 1 health sensors: 1 pci_status: 1.", "pci_error"),
        (f"mlx5_core {PCI} ens1f0np0: TX timeout detected", "transmit_timeout"),
        (f"mlx5_core {PCI}: Detected insufficient power on the PCIe slot (27W).", "insufficient_power"),
        (f"Nov 20 10:40:00 node1 kernel: [  12.345678] mlx5_core {PCI} eth2: Link down", "link_down"),
    ],
)
def test_a_fault_is_found_with_its_adapter(text, event):
    assert of_driver(text.encode())
    message = MessageParser().parse(message_of_line(text))
    assert isinstance(message, NicMessage)
    assert (message.pci, message.event) == (PCI, event)


@pytest.mark.parametrize(
    "text",
    [
        f"mlx5_core {PCI} ens1f0np0: Link up",
        f"mlx5_core {PCI}: firmware version: 28.39.2048",
        f"mlx5_core {PCI}: Port module event: module 0, Cable plugged",
        f"usb 1-1: mlx5_core {PCI} eth2: Link down",
        "mlx5_core: Link down",
        "mlx5_core 0000:zz:00.0: Link down",
        "mlx5_core 0000:[1234]: segfault at 0: Link down",  # what a process may call itself, in 15 bytes
    ],
)
def test_everything_else_is_none(text):
    assert MessageParser().parse(text) is None


def test_what_is_logged_of_a_message_is_short_and_printable():
    message = MessageParser().parse(f"mlx5_core {PCI}: Link down \x1b[2J" + "x" * 100_000)
    assert message.detail.isprintable()
    assert len(message.detail) <= MAX_DETAIL
