"""Ports of adapters from an invented sysfs: what is there, and everything that can be wrong with it."""

from __future__ import annotations

import os

import pytest

from exporter.sources.nics import MAX_PORTS, read_nics

DEVICE = "devices/pci0000:60/0000:60:01.0/0000:65:00.0"
PORT = {
    "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
    "pkeys/0": "0x8001",
    "counters/port_rcv_data": "25", "counters/port_xmit_data": "50", "counters/link_downed": "3",
    "counters/symbol_error": "7", "hw_counters/out_of_sequence": "9",
}  # fmt: skip


@pytest.fixture
def tree(tmp_path):
    """Write files below an invented /sys; a function of its folder, so that two devices can be written."""
    return Tree(tmp_path / "sys")


class Tree:
    def __init__(self, root):
        self.root = root
        root.mkdir()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def link(self, name, target):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(self.root / target, path.parent))

    def device(self, name="mlx5_0", at=DEVICE, ports=1, **changes):
        folder = f"{at}/infiniband/{name}"
        for port in range(1, ports + 1):
            for attribute, text in {**PORT, **changes}.items():
                if text is not None:
                    self.write(f"{folder}/ports/{port}/{attribute}", text)
        self.write(f"{folder}/hca_type", "MT4129")
        self.write(f"{folder}/fw_ver", "28.39.2048")
        self.link(f"class/infiniband/{name}", folder)
        self.link(f"{folder}/device", at)
        return f"{self.root}/{folder}/ports/1"

    def read(self, *gpus):
        return read_nics(str(self.root), gpus)

    def port(self):
        (port,) = self.read().ports
        return port


def test_a_port_is_read_whole(tree):
    tree.device()
    tree.write(f"{DEVICE}/numa_node", "1")
    port = tree.port()
    assert (port.key, port.link_layer, port.is_up) == (("mlx5_0", "1"), "infiniband", True)
    assert (port.state, port.physical_state, port.pkey) == ("active", "link_up", "0x8001")
    assert (port.rate, port.received, port.transmitted) == (50e9, 100.0, 200.0)
    assert (port.link_downs, port.errors) == (3.0, {"symbol": 7.0, "out_of_sequence": 9.0})
    assert (port.adapter, port.firmware) == ("MT4129", "28.39.2048")
    assert (port.location.address, port.location.numa_node) == ("0000:65:00.0", 1)


def test_a_machine_without_adapters_has_no_ports(tree):
    assert tree.read("0000:19:00").ports == ()
    assert read_nics("/nonexistent").ports == ()


def test_the_interface_of_ethernet_is_found_and_its_carrier_counted(tree):
    tree.device(link_layer="Ethernet", **{"gid_attrs/ndevs/0": "ens1np0"})
    tree.write(f"{DEVICE}/net/ens1np0/carrier_changes", "12")
    tree.link("class/net/ens1np0", f"{DEVICE}/net/ens1np0")
    assert (tree.port().interface, tree.port().carrier_changes) == ("ens1np0", 12.0)


def test_without_an_address_the_interface_of_the_port_number_counts(tree):
    tree.device(link_layer="Ethernet")
    for name, number in (("ens1", "1"), ("ens0", "0")):
        tree.write(f"{DEVICE}/net/{name}/dev_port", number)
        tree.write(f"{DEVICE}/net/{name}/carrier_changes", number)
        tree.link(f"class/net/{name}", f"{DEVICE}/net/{name}")
    assert (tree.port().interface, tree.port().carrier_changes) == ("ens0", 0.0)


def test_infiniband_has_no_carrier(tree):
    tree.device(**{"gid_attrs/ndevs/0": "ib0"})
    tree.write(f"{DEVICE}/net/ib0/carrier_changes", "12")
    tree.link("class/net/ib0", f"{DEVICE}/net/ib0")
    assert (tree.port().interface, tree.port().carrier_changes) == ("", None)


def test_a_port_that_is_not_active_has_no_rate(tree):
    tree.device(state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X SDR)")
    assert (tree.port().is_up, tree.port().rate, tree.port().physical_state) == (False, None, "polling")


@pytest.mark.parametrize(
    "text",
    ["N/A (no PMA)", "", "-1", "0x10", "1e3", "12 34", "1" * 21, str(2**64 - 1), b"\xff\x00\x01", "9" * 4_000_000],
    ids=lambda text: str(text)[:12],
)
def test_a_counter_that_is_no_number_is_absent_and_the_others_are_read(tree, text):
    tree.device(**{"counters/symbol_error": text, "counters/port_rcv_data": text, "counters/link_downed": text})
    port = tree.port()
    assert (port.errors, port.received, port.link_downs) == ({"out_of_sequence": 9.0}, None, None)
    assert port.transmitted == 200.0


@pytest.mark.parametrize("text", ["", "ACTIVE", "x: ACTIVE", "9" * 40, b"\x1b[2J4: ACTIVE"])
def test_a_state_that_cannot_be_understood_is_not_down(tree, text):
    tree.device(state=text)
    assert (tree.port().is_up, tree.port().rate) == (None, None)


def test_a_state_that_is_new_is_unknown_and_not_up(tree):
    tree.device(state="17: HOVERING")
    assert (tree.port().state, tree.port().is_up) == ("unknown", False)


def test_labels_hold_no_text_that_could_break_a_line(tree):
    tree.device(link_layer="Infini\x1b[31mBand", **{"pkeys/0": "0xffff\nfoo"})
    tree.write(f"{DEVICE}/infiniband/mlx5_0/fw_ver", "1" * 65)
    port = tree.port()
    assert (port.link_layer, port.firmware, port.pkey) == ("", "", "")


def test_an_attribute_whose_read_fails_is_absent(tree, monkeypatch):
    tree.device()
    read = os.read
    failing = []

    def fail_once_each(descriptor, size):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.endswith(("symbol_error", "link_downed")):
            failing.append(name)
            raise OSError(22 if name.endswith("symbol_error") else 5, "the driver has no answer")
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", fail_once_each)
    port = tree.port()
    assert len(failing) == 2
    assert (port.errors, port.link_downs, port.received) == ({"out_of_sequence": 9.0}, None, 100.0)


def test_links_pipes_and_folders_in_place_of_attributes_are_not_read(tree, tmp_path):
    folder = tree.device(**{"counters/link_downed": None, "rate": None, "hw_counters/out_of_sequence": None})
    secret = tmp_path / "secret"
    secret.write_text("42\n")
    os.symlink(secret, f"{folder}/counters/link_downed")
    os.mkfifo(f"{folder}/rate")
    os.makedirs(f"{folder}/counters/link_error_recovery")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "out_of_sequence").write_text("42\n")
    os.symlink(elsewhere, f"{folder}/hw_counters")
    port = tree.port()
    assert (port.link_downs, port.rate, port.errors) == (None, None, {"symbol": 7.0})


def test_a_device_that_leads_out_of_the_tree_is_skipped(tree, tmp_path):
    tree.device()
    outside = tmp_path / "outside"
    (outside / "ports/1").mkdir(parents=True)
    os.symlink(outside, tree.root / "class/infiniband/mlx5_9")
    os.symlink("mlx5_8", tree.root / "class/infiniband/mlx5_8")  # leads to itself
    os.symlink("/nonexistent", tree.root / "class/infiniband/mlx5_7")
    assert tree.port().key.device == "mlx5_0"


@pytest.mark.parametrize("name", ["mlx5 0", "mlx5\n0", "x" * 65, "..hidden", 'a"b', "\u202emlx5"])
def test_a_hostile_name_of_a_device_is_skipped(tree, name):
    tree.device(name)
    tree.device("mlx5_1")
    assert tree.port().key.device == "mlx5_1"


def test_hostile_names_of_ports_and_interfaces_are_skipped(tree):
    folder = tree.device(link_layer="Ethernet", **{"gid_attrs/ndevs/0": "../../../../etc"})
    for name in ("0", "01", "x", "1000", "-1"):
        os.makedirs(f"{folder}/../{name}", exist_ok=True)
    assert (tree.port().key.port, tree.port().interface) == ("1", "")


def test_so_many_ports_are_read_and_no_more(tree):
    for number in range(MAX_PORTS // 2):
        tree.device(f"mlx5_{number}", at=f"devices/pci0000:60/0000:60:01.0/0000:{number:02x}:00.0", ports=2)
    scan = tree.read()
    assert (len(scan.ports), scan.limit_reached) == (MAX_PORTS, False)
    tree.device("zz", at="devices/pci0000:60/0000:60:01.0/0000:ff:00.0")
    assert (len(tree.read().ports), tree.read().limit_reached) == (MAX_PORTS, True)


def test_gpus_are_located_where_there_is_an_adapter(tree):
    gpu = "devices/pci0000:60/0000:60:01.0/0000:19:00.0"
    tree.write(f"{gpu}/numa_node", "-1")
    tree.link("bus/pci/devices/0000:19:00.0", gpu)
    assert tree.read("0000:19:00").gpus == {}
    tree.device()
    locations = tree.read("0000:19:00", "0000:3b:00").gpus
    assert list(locations) == ["0000:19:00"]
    assert locations["0000:19:00"].path == ("pci0000:60", "0000:60:01.0", "0000:19:00.0")
    assert locations["0000:19:00"].numa_node is None


def test_an_adapter_of_software_has_no_place_on_the_bus(tree):
    tree.device("rxe0", at="devices/virtual")
    assert tree.port().location.path == ()
