"""Ports of RDMA adapters, and where adapters and GPUs are attached, as sysfs shows them.

Everything here may be missing, garbled or refuse to be read: an attribute that does not hold what it should is
absent, and the rest of the port is still read.  Links are followed for devices only, and only within the tree.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from msgspec import Struct

from exporter.model import EMPTY
from exporter.model.nic import ACTIVE, ETHERNET, NicPort, NicPortKey, PciLocation

MAX_PORTS = 64
_MAX_NAMES = 512  # entries of one folder that are looked at
_MAX_BYTES = 4096  # a page: more no attribute of sysfs has
_MAX_TEXT = 64  # characters of a text that becomes a label
_WORD = 4  # octets: the unit of the data counters

_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")  # the kernel's own names of devices and interfaces
_PORT = re.compile(r"[1-9][0-9]{0,2}")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_PKEY = re.compile(r"0x[0-9a-f]{4}")
_NUMA_NODE = re.compile(r"[0-9]{1,4}")
_COUNT = re.compile(r"[0-9]{1,20}")
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?) Gb/sec")
_STATE = re.compile(r"([0-9]{1,2}): ")
_NO_COUNT = 2**64 - 1  # what drivers leave where a command of theirs failed

_STATES = {0: "nop", 1: "down", 2: "init", 3: "armed", 4: ACTIVE, 5: "active_defer"}
_PHYSICAL_STATES = {
    1: "sleep",
    2: "polling",
    3: "disabled",
    4: "training",
    5: "link_up",
    6: "link_error_recovery",
    7: "test",
}
_DATA = {"port_rcv_data": "received", "port_xmit_data": "transmitted", "link_downed": "link_downs"}
# Attribute → type of error; of several attributes of one type a driver has one.
_ERRORS = {
    "symbol_error": "symbol",
    "port_rcv_errors": "receive",
    "port_rcv_remote_physical_errors": "remote_physical",
    "local_link_integrity_errors": "link_integrity",
    "excessive_buffer_overrun_errors": "buffer_overrun",
    "link_error_recovery": "link_recovery",
    "port_xmit_discards": "transmit_discard",
}
_HARDWARE_ERRORS = {
    "local_ack_timeout_err": "ack_timeout",
    "packet_seq_err": "packet_sequence",
    "out_of_sequence": "out_of_sequence",
    "implied_nak_seq_err": "implied_nak",
    "rx_icrc_encapsulated": "icrc",
    "roce_adp_retrans": "retransmit",  # mlx5
    "to_retransmits": "retransmit",  # bnxt_re
    "RetransSegs": "retransmit",  # irdma
    "retrans_pkts": "retransmit",  # efa
}


class NicScan(Struct, frozen=True, kw_only=True):
    """What one reading found; ``gpus`` holds the location of each GPU that was asked for and is there."""

    ports: tuple[NicPort, ...] = ()
    gpus: Mapping[str, PciLocation] = EMPTY
    limit_reached: bool = False


class _Device(Struct, frozen=True, kw_only=True):
    """What the ports of one adapter have in common; ``path`` is its folder."""

    root: str
    name: str
    path: str
    location: PciLocation
    interfaces: tuple[str, ...]
    adapter: str
    firmware: str


def read_nics(root: str, gpu_addresses: Collection[str] = ()) -> NicScan:
    """Return all ports below ``root`` (``/sys``), and where the GPUs are; both empty where there is no adapter.

    ``gpu_addresses``: canonical PCI addresses.
    """
    root = os.path.realpath(root)
    found: list[NicPort] = []
    for name in _names(f"{root}/class/infiniband"):
        path = _within(f"{root}/class/infiniband/{name}", root)
        if path is not None and _DEVICE.fullmatch(name):
            found.extend(islice(_ports(_device(root, name, path)), MAX_PORTS + 1 - len(found)))
        if len(found) > MAX_PORTS:
            break
    gpus = {address: where for address in gpu_addresses if (where := _gpu(root, address)).path} if found else EMPTY
    return NicScan(ports=tuple(found[:MAX_PORTS]), gpus=gpus, limit_reached=len(found) > MAX_PORTS)


def _device(root: str, name: str, path: str) -> _Device:
    return _Device(
        root=root,
        name=name,
        path=path,
        location=_location(_within(f"{path}/device", root) or path),
        interfaces=tuple(_names(f"{path}/device/net")),
        adapter=f"{_label(_text(f'{path}/hca_type'))} {_label(_text(f'{path}/board_id'))}".strip(),
        firmware=_label(_text(f"{path}/fw_ver")),
    )


def _ports(device: _Device) -> Iterator[NicPort]:
    numbers = [number for number in _names(f"{device.path}/ports") if _PORT.fullmatch(number)]
    for number in sorted(numbers, key=int):
        path = f"{device.path}/ports/{number}"
        if _is_folder(path):
            yield _port(device, number, path)


def _port(device: _Device, number: str, path: str) -> NicPort:
    state = _state(_text(f"{path}/state"), _STATES)
    link_layer = _label(_text(f"{path}/link_layer")).lower()
    rate = _RATE.match(_text(f"{path}/rate"))
    pkey = _text(f"{path}/pkeys/0") if _is_folder(f"{path}/pkeys") else ""
    interface = _interface(device, number, path) if link_layer == ETHERNET else ""
    data = _counts(f"{path}/counters", _DATA)
    return NicPort(
        key=NicPortKey(device.name, number),
        link_layer=link_layer,
        state=state,
        physical_state=_state(_text(f"{path}/phys_state"), _PHYSICAL_STATES),
        rate=float(rate[1]) * 1e9 / 8 if rate is not None and state == ACTIVE else None,
        interface=interface,
        adapter=device.adapter,
        firmware=device.firmware,
        pkey=pkey if _PKEY.fullmatch(pkey) else "",
        location=device.location,
        received=data["received"] * _WORD if "received" in data else None,
        transmitted=data["transmitted"] * _WORD if "transmitted" in data else None,
        link_downs=data.get("link_downs"),
        carrier_changes=_of_interface(device.root, interface, "carrier_changes") if interface else None,
        errors={**_counts(f"{path}/counters", _ERRORS), **_counts(f"{path}/hw_counters", _HARDWARE_ERRORS)},
    )


def _counts(folder: str, names: Mapping[str, str]) -> dict[str, float]:
    """Return the counters of a folder by our names; those of one name are added up."""
    found: dict[str, float] = {}
    for attribute, name in names.items() if _is_folder(folder) else ():
        text = _text(f"{folder}/{attribute}")
        if _COUNT.fullmatch(text) and (count := int(text)) < _NO_COUNT:
            found[name] = found.get(name, 0.0) + count
    return found


def _interface(device: _Device, number: str, path: str) -> str:
    """Return the network interface of a port: that of its first address, else the device's of that number."""
    folder = f"{path}/gid_attrs/ndevs"
    name = _text(f"{folder}/0") if _is_folder(folder) else ""
    if not name:
        same = [each for each in device.interfaces if _of_interface(device.root, each, "dev_port") == int(number) - 1]
        name = same[0] if len(same) == 1 else ""
    return name if _DEVICE.fullmatch(name) else ""


def _of_interface(root: str, interface: str, attribute: str) -> float | None:
    """Return a number that sysfs shows of a network interface, None where it is not there or no number."""
    path = _within(f"{root}/class/net/{interface}", root) if _DEVICE.fullmatch(interface) else None
    text = _text(f"{path}/{attribute}") if path is not None else ""
    return float(text) if _COUNT.fullmatch(text) else None


def _gpu(root: str, address: str) -> PciLocation:
    path = _within(f"{root}/bus/pci/devices/{address}.0", root)
    return _location(path) if path is not None else PciLocation()


def _location(path: str) -> PciLocation:
    """Return where a device is attached, from its path in sysfs; empty for one that is on no PCI bus."""
    names = path.split("/")
    first = next((index for index, name in enumerate(names) if _HOST_BRIDGE.fullmatch(name)), len(names))
    chain = names[first : first + 1] + [name for name in names[first + 1 :] if _PCI.fullmatch(name)]
    if len(chain) < 2:
        return PciLocation()
    node = _text(f"{path[: path.index(chain[-1])]}{chain[-1]}/numa_node")
    return PciLocation(path=tuple(chain), numa_node=int(node) if _NUMA_NODE.fullmatch(node) else None)


def _names(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in islice(entries, _MAX_NAMES))
    except OSError:
        return []


def _within(path: str, root: str) -> str | None:
    """Return where a link leads, None if that is nothing, or not below ``root``."""
    found = os.path.realpath(path)
    return found if found.startswith(f"{root.rstrip('/')}/") and os.path.isdir(found) else None


def _is_folder(path: str) -> bool:
    """Return whether a path whose beginning was resolved is a folder, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _text(path: str) -> str:
    """Return an attribute's text; "" where it cannot be read, or is no plain file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, _MAX_BYTES).decode("ascii", "replace").strip()
    except OSError:  # EINVAL, EIO: the driver has no answer
        return ""
    finally:
        os.close(descriptor)


def _state(text: str, words: Mapping[int, str]) -> str:
    """Return the state of ``4: ACTIVE`` as a word; "" where the attribute holds something else."""
    found = _STATE.match(text)
    return words.get(int(found[1]), "unknown") if found is not None else ""


def _label(text: str) -> str:
    return text if text.isprintable() and text.isascii() and len(text) <= _MAX_TEXT else ""
