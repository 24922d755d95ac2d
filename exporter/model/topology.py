"""Paths between GPUs and to the host: what the driver reports, and what follows for replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from exporter.model.bounds import Text, one_of
from exporter.model.source import EMPTY

# From the nearest common ancestor to the farthest, as ``nvidia-smi topo -m`` calls them.
PCI_PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
LINK_ENDS = ("gpu", "switch", "npu", "unknown")
CAPABILITIES = ("read", "write", "nvlink", "atomics", "pci")
STATUSES = (
    "ok",
    "chipset_not_supported",
    "gpu_not_supported",
    "topology_not_supported",
    "disabled_by_regkey",
    "not_supported",
    "unknown",
)
_MAX = 64  # GPUs, and links of a GPU

PciPath = Annotated[str, one_of("", *PCI_PATHS)]
Capability = Annotated[str, one_of(*CAPABILITIES)]
AccessStatus = Annotated[str, one_of(*STATUSES)]
LinkEndKind = Annotated[str, one_of(*LINK_ENDS)]
LinkNumber = Annotated[int, Meta(ge=0, lt=_MAX)]


class LinkEnd(Struct, frozen=True, kw_only=True):
    """The far end of one NVLink: a word of ``LINK_ENDS``, and the PCI address of a GPU there."""

    kind: LinkEndKind
    pci_bus_id: Text = ""


class Peer(Struct, frozen=True, kw_only=True):
    """What the driver reports of a pair of GPUs; empty where it did not answer."""

    pci_path: PciPath = ""  # a word of PCI_PATHS: the path over PCIe, even where NVLink joins them
    access: Mapping[Capability, AccessStatus] = EMPTY  # word of CAPABILITIES → word of STATUSES


Peers = Annotated[Mapping[Text, Peer], Meta(max_length=_MAX)]  # by uuid


class CardTopology(Struct, frozen=True, kw_only=True):
    """One GPU's position among the others.  Static: read rarely, and kept while a GPU is lost."""

    peers: Peers = EMPTY  # the other GPU's uuid
    links: Mapping[LinkNumber, LinkEnd] = EMPTY  # NVLink → its far end


class PeerPath(Struct, frozen=True, kw_only=True):
    """How one GPU reaches another now."""

    uuid: str
    peer: str  # uuid
    path: str  # "NV18" or a word of PCI_PATHS
    access: str  # granted to the other's memory: "read,write,…", or the refusal; "": not known


class GroupPaths(Struct, frozen=True, kw_only=True):
    """How the GPUs of one replica reach each other.  None and "": not known for a pair that matters."""

    replica: str
    worst: str = ""  # the slowest path between two of its GPUs
    over_pcie: bool | None = None  # some pair has no NVLink between them
    cross_sockets: bool | None = None  # some pair is attached to different sockets


class LinkHealth(Struct, frozen=True, kw_only=True):
    """What is wrong with one GPU's links; None where it cannot be judged now."""

    pcie_degraded: bool | None = None
    nvlinks_down: int | None = None
    fabric_problems: tuple[str, ...] = ()


class Topology(Struct, frozen=True, kw_only=True):
    """Paths and link health of a snapshot.  ``links`` is keyed by uuid."""

    paths: tuple[PeerPath, ...] = ()
    groups: tuple[GroupPaths, ...] = ()
    links: Mapping[str, LinkHealth] = EMPTY
