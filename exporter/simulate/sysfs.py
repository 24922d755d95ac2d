"""The part of sysfs that shows a simulated node's adapters and where its GPUs are attached, as files in a folder.

The daemon reads it with its own reader.  Two GPUs and their two adapters share a PCIe switch, four a socket.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from exporter.simulate.engine import serve_until_eof
from exporter.simulate.nic import SimulatedNic
from exporter.simulate.node_spec import CATCH_UP_BUDGET, NodeSpec
from exporter.simulate.products import GPU_BUSES
from exporter.simulate.world import World

_WORD = 4  # octets: the unit of the data counters


def gpu_path(index: int) -> str:
    """Return where a GPU is in the tree; its address is the one that the simulated driver reports."""
    return f"{_switch(index // 2)}/0000:{0x90 + index:02x}:00.0/0000:{GPU_BUSES[index]:02x}:00.0"


def nic_path(nic: SimulatedNic) -> str:
    """Return where an adapter is in the tree."""
    if nic.is_ethernet:
        return f"devices/pci0000:f0/0000:f0:01.0/0000:{0x70 + nic.index:02x}:00.0"
    return f"{_switch(nic.index // 2)}/0000:{0xA0 + nic.index:02x}:00.0/0000:{0x50 + nic.index:02x}:00.0"


def _switch(number: int) -> str:
    bridge = f"pci0000:{0xD0 + number:02x}"
    return f"devices/{bridge}/{bridge[3:]}:01.0/0000:{0xE0 + number:02x}:00.0"


class SysfsTree:
    """A tree below ``folder``, an empty one; ``write`` brings it up to date and touches what has changed."""

    def __init__(self, folder: str, world: World) -> None:
        self.folder = folder
        self._written: dict[str, str] = {}
        for gpu in world.gpus:
            if gpu.parent is None:
                self._link("bus/pci/devices", gpu_path(gpu.index))
                self._write(f"{gpu_path(gpu.index)}/numa_node", str(int(gpu.index >= gpu.product.numa_split)))
        for nic in world.nics:
            device = f"{nic_path(nic)}/infiniband/{_name(nic)}"
            self._write(f"{nic_path(nic)}/numa_node", str(int(nic.index >= 4)))
            self._link("class/infiniband", device)
            os.symlink(f"../../../{nic_path(nic).rpartition('/')[2]}", f"{folder}/{device}/device")
            if nic.is_ethernet:
                interface = f"{nic_path(nic)}/net/{_interface(nic)}"
                self._write(f"{interface}/dev_port", "0")
                self._link("class/net", interface)
        self.write(world)

    def write(self, world: World) -> None:
        """Write what the world's adapters show now."""
        for nic in world.nics:
            device = f"{nic_path(nic)}/infiniband/{_name(nic)}"
            for name, text in (("hca_type", "MT4129"), ("board_id", "MT_0000000838"), ("fw_ver", "28.39.2048")):
                self._write(f"{device}/{name}", text)
            for name, text in _port(nic):
                self._write(f"{device}/ports/1/{name}", text)
            if nic.is_ethernet:
                changes = str(1 + 2 * nic.link_downs)
                self._write(f"{nic_path(nic)}/net/{_interface(nic)}/carrier_changes", changes)

    def _write(self, name: str, text: str) -> None:
        if self._written.get(name) == text:
            return
        self._written[name] = text
        path = f"{self.folder}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(text + "\n")
        os.replace(f"{path}.new", path)  # a reader finds the old text or the new one

    def _link(self, folder: str, target: str) -> None:
        os.makedirs(f"{self.folder}/{target}", exist_ok=True)
        os.makedirs(f"{self.folder}/{folder}", exist_ok=True)
        os.symlink("../" * (folder.count("/") + 1) + target, f"{self.folder}/{folder}/{target.rpartition('/')[2]}")


def _name(nic: SimulatedNic) -> str:
    return f"mlx5_{nic.index}"


def _interface(nic: SimulatedNic) -> str:
    return f"ens{nic.index}f0np0"


def _port(nic: SimulatedNic) -> Iterator[tuple[str, str]]:
    yield "state", "1: DOWN" if nic.down else "4: ACTIVE"
    yield "phys_state", "2: Polling" if nic.down else "5: LinkUp"
    yield (
        "rate",
        "10 Gb/sec (4X SDR)" if nic.down else f"{nic.rate} Gb/sec (4X {'EDR' if nic.is_ethernet else 'NDR'})",
    )
    yield "link_layer", "Ethernet" if nic.is_ethernet else "InfiniBand"
    yield "pkeys/0", "0xffff"
    if nic.is_ethernet:
        yield "gid_attrs/ndevs/0", _interface(nic)
    counters: Mapping[str, float] = {
        "port_rcv_data": nic.received / _WORD,
        "port_xmit_data": nic.sent / _WORD,
        "link_downed": nic.link_downs,
        **dict.fromkeys(("link_error_recovery", "local_link_integrity_errors", "port_xmit_discards"), 0),
    }
    for name, count in counters.items():
        yield f"counters/{name}", str(int(count))
    for name, count in nic.errors.items():
        folder = "counters" if name in {"symbol_error", "port_rcv_errors"} else "hw_counters"
        yield f"{folder}/{name}", str(int(count))


class _Writer:
    """Keeps the tree up to date while the node is simulated; it answers nothing over HTTP."""

    def __init__(self, node_spec: NodeSpec, folder: str) -> None:
        self._node_spec = node_spec
        self._world = node_spec.world()
        self._tree = SysfsTree(folder, self._world)

    def advance(self) -> None:
        """Advance the world to now, and write what its adapters show."""
        self._world.advance_to(self._node_spec.elapsed(time.monotonic()), budget=CATCH_UP_BUDGET)
        self._tree.write(self._world)

    def respond(self, path: str) -> tuple[str, bytes] | None:
        """Return None for every path."""
        del path
        return None


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and write until standard input ends."""
    parser = argparse.ArgumentParser(prog="exporter.simulate.sysfs", description="the sysfs of a simulated node")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--options", required=True, help="the specification of the node, JSON")
    given = parser.parse_args(argv)
    serve_until_eof(_Writer(NodeSpec.loads(given.options), given.folder))


if __name__ == "__main__":
    main()
