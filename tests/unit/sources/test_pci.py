"""Which NVIDIA devices are on the bus, from an invented sysfs."""

from __future__ import annotations

import pytest

from exporter.sources import pci
from exporter.sources.pci import PciDevices
from tests.support.builders import Clock


@pytest.fixture
def bus(tmp_path):
    def add(address, vendor="0x10de"):
        (tmp_path / address).mkdir()
        (tmp_path / address / "vendor").write_text(f"{vendor}\n")

    add("0000:65:00.0")
    add("10000:e1:00.0")
    add("0000:00:1f.3", "0x8086")
    (tmp_path / "odd").mkdir()
    return tmp_path, add


def test_a_device_is_at_the_address_of_an_nvidia_device_and_nowhere_else(bus):
    devices = PciDevices(str(bus[0]))
    may_have = {
        address: devices.may_have(address) for address in ("0000:65:00", "10000:e1:00", "0000:00:1f", "0000:66:00")
    }
    assert may_have == {"0000:65:00": True, "10000:e1:00": True, "0000:00:1f": False, "0000:66:00": False}


def test_a_device_that_comes_is_found_after_a_while(bus):
    clock = Clock()
    devices = PciDevices(str(bus[0]), clock=clock)
    assert not devices.may_have("0000:66:00")
    bus[1]("0000:66:00.0")
    assert not devices.may_have("0000:66:00"), "the bus is not read for every message"
    clock.tick(pci._PERIOD)
    assert devices.may_have("0000:66:00")


@pytest.mark.parametrize("root", ["/nowhere", "."])
def test_without_a_bus_to_compare_with_a_device_may_be_anywhere(root, tmp_path):
    assert PciDevices(str(tmp_path / root)).may_have("0000:65:00")
    assert PciDevices(str(tmp_path / root)).may_have_switch("0000:65:00")


def test_where_the_bus_shows_no_nvidia_device_no_switch_is_there(tmp_path):
    (tmp_path / "0000:00:1f.3").mkdir()
    (tmp_path / "0000:00:1f.3" / "vendor").write_text("0x8086\n")
    devices = PciDevices(str(tmp_path))
    assert devices.may_have("0000:65:00"), "the driver names GPUs also where the bus is hidden"
    assert not devices.may_have_switch("0000:65:00")
