"""Ports of network adapters that carry RDMA (InfiniBand, RoCE): what sysfs shows, and what follows for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from exporter.model.source import EMPTY

ACTIVE, LINK_UP, POLLING = "active", "link_up", "polling"
ETHERNET = "ethernet"


class PciLocation(Struct, frozen=True, kw_only=True):
    """Where a device is attached: ``path`` from the host bridge to the device itself, as sysfs names them."""

    path: tuple[str, ...] = ()  # ("pci0000:60", "0000:60:01.0", …, "0000:65:00.0"); empty: not on a PCI bus
    numa_node: int | None = None

    @property
    def address(self) -> str:
        """The device's own address with its function, "" without one."""
        return self.path[-1] if self.path else ""


class NicPortKey(NamedTuple):
    """The labels of a port."""

    device: str
    port: str


class NicPort(Struct, frozen=True, kw_only=True):
    """One port as it was read.  Counters count since the driver was loaded or reset them; None and "": not told."""

    key: NicPortKey
    link_layer: str = ""  # "infiniband", "ethernet", in lower case
    state: str = ""  # logical: "active", "down", "init", "armed"
    physical_state: str = ""  # "link_up", "polling", "disabled", …
    rate: float | None = None  # bytes per second; of a port that is not active it means nothing
    interface: str = ""  # of the network stack, where the link layer is Ethernet
    adapter: str = ""  # its type or model, as the driver names it
    firmware: str = ""
    pkey: str = ""  # the first, which NCCL uses unless it is told another
    location: PciLocation = field(default_factory=PciLocation)
    received: float | None = None  # bytes
    transmitted: float | None = None  # bytes
    link_downs: float | None = None
    carrier_changes: float | None = None
    errors: Mapping[str, float] = EMPTY  # type → count

    @property
    def is_up(self) -> bool | None:
        """Whether the port can carry data; None where its state is not told."""
        return None if not self.state else self.state == ACTIVE and self.physical_state in {"", LINK_UP}


class NearGpu(Struct, frozen=True):
    """A GPU beside an adapter; ``path`` is the PCIe path between them in the words of ``PCI_PATHS``."""

    uuid: str
    path: str


class NicState(Struct, frozen=True, kw_only=True):
    """A port and what follows from its past, its siblings and the GPUs beside it."""

    port: NicPort
    max_rate: float | None = None  # bytes per second, the best seen on the port since the daemon's start
    is_down: bool | None = None  # not up although it was, or all equal ones are; None: not told
    nearest: tuple[NearGpu, ...] = ()


class NicEventLabels(NamedTuple):
    """The labels of a count of driver messages."""

    pci_bus_id: str
    event: str


class NicEventCount(Struct, frozen=True, kw_only=True):
    """The driver's messages of one kind about one adapter."""

    labels: NicEventLabels
    count: int  # since the daemon's start
    last_unix_time: float  # of the newest, also of one before the start
