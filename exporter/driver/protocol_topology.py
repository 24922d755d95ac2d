"""How a card's topology travels through the pipe: plain JSON out, and only known words back in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporter.model import CardTopology, LinkEnd, Peer
from exporter.model.topology import CAPABILITIES, LINK_ENDS, PCI_PATHS, STATUSES

_MOST = 64  # cards, and links of a card
_MAX_TEXT = 96


def plain(topology: CardTopology) -> dict[str, Any]:
    """Make what JSON can hold."""
    return {
        "peers": {uuid: [peer.pci_path, dict(peer.access)] for uuid, peer in topology.peers.items()},
        "links": {link: [end.kind, end.pci_bus_id] for link, end in topology.links.items()},
    }


def topology(body: Mapping[str, Any]) -> CardTopology:
    """Read what ``plain`` wrote.  Raises ValueError, TypeError, KeyError or AttributeError for anything else."""
    if len(body["peers"]) > _MOST or len(body["links"]) > _MOST:
        raise ValueError
    return CardTopology(
        peers={_text(uuid): _peer(*entry) for uuid, entry in body["peers"].items()},
        links={_link(link): _end(*entry) for link, entry in body["links"].items()},
    )


def _peer(path: Any, access: Any) -> Peer:
    known = {_one_of(name, CAPABILITIES): _one_of(status, STATUSES) for name, status in access.items()}
    return Peer(pci_path=_one_of(path, ("", *PCI_PATHS)), access=known)


def _end(kind: Any, pci_bus_id: Any) -> LinkEnd:
    return LinkEnd(kind=_one_of(kind, LINK_ENDS), pci_bus_id=_text(pci_bus_id))


def _link(raw: str) -> int:
    link = int(raw)
    if not 0 <= link < _MOST:
        raise ValueError
    return link


def _one_of(raw: Any, words: tuple[str, ...]) -> str:
    if raw not in words:
        raise ValueError
    return str(raw)


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError
    return raw[:_MAX_TEXT]
