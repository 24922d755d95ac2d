"""Paths between the cards of a node, in the words of ``nvidia-smi topo -m``, and the worst one of each replica.

NVLink joins two cards if links of one lead to the other, or links of both lead to a switch, and the driver does not
refuse the pair.  Only active links count: cards whose links are down, or whose switch fabric never started,
communicate over PCIe.  NV# counts the links of the card that has fewer.

A tensor-parallel group is as fast as the slowest path between any two of its cards.  The cards of one rank of a
replica are such a group; where ranks are not known, all cards of the replica are.  Different ranks exchange little
(except experts distributed over ranks, which is not visible here).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from exporter.model import (
    CardState,
    CardTopology,
    GpuAssignment,
    GroupPaths,
    LinkEnd,
    Missing,
    Peer,
    PeerPath,
    Signal,
)
from exporter.model.topology import PCI_PATHS

_FARTHEST = "SYS"

Paths = Mapping[tuple[str, str], PeerPath]  # (uuid, peer's uuid)


def active_links(card: CardState) -> int:
    """Return the number of active NVLinks."""
    return sum(card.reading.nvlink_up.values()) if card.reading is not None else 0


def peer_paths(cards: Sequence[CardState]) -> Paths:
    """Return the path of each ordered pair of cards where it is known; cards without a reading have none."""
    read = [card for card in cards if card.reading is not None and card.topology is not None]
    paths = {}
    for card in read:
        for other in read:
            if card is not other:
                path = _path(card, other)
                if path:
                    pair = (card.facts.uuid, other.facts.uuid)
                    paths[pair] = PeerPath(uuid=pair[0], peer=pair[1], path=path, access=_access(card, other))
    return paths


def _ends(card: CardState) -> CardTopology:
    return card.topology or CardTopology()


def _known(card: CardState, other: CardState) -> list[Peer]:
    """Return what the driver reports of a pair, from either side; both should be the same."""
    sides = (_ends(card).peers.get(other.facts.uuid), _ends(other).peers.get(card.facts.uuid))
    return [side for side in sides if side is not None]


def _nvlink_status(card: CardState, other: CardState) -> str:
    """Return the driver's status of NVLink between a pair; where the two sides differ, the refusal."""
    words = {side.access["nvlink"] for side in _known(card, other) if "nvlink" in side.access}
    refusals = sorted(words - {"ok", "unknown"})
    return refusals[0] if refusals else "ok" if "ok" in words else ""


def pci_path(card: CardState, other: CardState) -> str:
    """Return the path over PCIe, the longer one where the two sides differ, "" if not reported."""
    return max((side.pci_path for side in _known(card, other) if side.pci_path), key=PCI_PATHS.index, default="")


def _path(card: CardState, other: CardState) -> str:
    """Return the path; "" rather than one over PCIe while it is not known whether NVLink joins the two."""
    nvlink = _nvlink_status(card, other)
    if nvlink not in {"", "ok"}:
        return pci_path(card, other)
    count = _joining_links(card, other, certain=nvlink == "ok")
    if count:
        return f"NV{count}"
    if _links_unknown(card) or _links_unknown(other):
        return ""
    guess = _ends_unknown(card, other) and nvlink != "ok" and active_links(card) and active_links(other)
    return "" if guess else pci_path(card, other)


def _links_unknown(card: CardState) -> bool:
    """Return whether the state of some of the card's links could not be read this time."""
    missing = card.reading.missing.get(Signal.NVLINK_STATE) if card.reading is not None else None
    return missing not in {None, Missing.UNSUPPORTED}


def _joining_links(card: CardState, other: CardState, *, certain: bool) -> int:
    """Return the number of active links that join two cards; ``certain``: the driver reports that some do."""
    direct = min(_toward(card, other), _toward(other, card)) or max(_toward(card, other), _toward(other, card))
    switched = min(_through_switch(card), _through_switch(other))
    if direct or switched or not (certain and _ends_unknown(card, other)):
        return direct or switched
    # The driver does not report where links lead, but that some join these two.
    return min(active_links(card), active_links(other))


def _ends_unknown(card: CardState, other: CardState) -> bool:
    """Return whether the far ends of both cards' links are not known."""
    return not any(end.kind != "unknown" for side in (card, other) for end in _ends(side).links.values())


def _active_ends(card: CardState) -> Iterator[LinkEnd]:
    up = card.reading.nvlink_up if card.reading is not None else {}
    return (end for link, end in _ends(card).links.items() if up.get(link))


def _toward(card: CardState, other: CardState) -> int:
    address = other.facts.pci_bus_id.upper()
    return sum(address == end.pci_bus_id.upper() for end in _active_ends(card)) if address else 0


def _through_switch(card: CardState) -> int:
    return sum(end.kind == "switch" for end in _active_ends(card))


def _access(card: CardState, other: CardState) -> str:
    known = _ends(card).peers[other.facts.uuid].access if other.facts.uuid in _ends(card).peers else {}
    granted = [capability for capability, status in known.items() if status == "ok"]
    return ",".join(granted) or next(iter(known.values()), "")


def path_order(path: str) -> int:
    """Return the position of a path from good to bad: all NVLink before all PCIe, more links first."""
    if path in PCI_PATHS:
        return PCI_PATHS.index(path)
    return -int(path[2:])


def group_paths(
    cards: Sequence[CardState], assignments: Sequence[GpuAssignment], paths: Paths
) -> tuple[GroupPaths, ...]:
    """Return one row per replica in which at least two cards work together, by name; in any order of input."""
    by_uuid = {card.facts.uuid: card for card in cards}
    groups: dict[str, dict[str, set[str]]] = {}
    for assignment in assignments:
        if assignment.uuid in by_uuid:
            groups.setdefault(assignment.replica, {}).setdefault(assignment.rank, set()).add(assignment.uuid)
    rows = []
    for replica, ranks in sorted(groups.items()):
        pairs = {pair for uuids in ranks.values() for pair in combinations(sorted(uuids), 2)}
        if pairs:
            rows.append(_group(replica, sorted(pairs), by_uuid, paths))
    return tuple(rows)


def _group(
    replica: str, pairs: Sequence[tuple[str, str]], cards: Mapping[str, CardState], paths: Paths
) -> GroupPaths:
    known = [paths[pair].path for pair in pairs if pair in paths]
    complete = len(known) == len(pairs)
    worst = max(known, key=path_order) if complete else ""
    across = [_across_sockets(cards[uuid], cards[peer]) for uuid, peer in pairs]
    return GroupPaths(
        replica=replica,
        worst=worst,
        over_pcie=_any([*[path in PCI_PATHS for path in known], *([] if complete else [None])]),
        cross_sockets=_any(across),
    )


def _across_sockets(card: CardState, other: CardState) -> bool | None:
    """Return whether two cards are attached to different sockets or, without a PCIe path, to different NUMA nodes."""
    path = pci_path(card, other)
    if path:
        return path == _FARTHEST
    nodes = (card.facts.numa_node, other.facts.numa_node)
    return None if None in nodes else nodes[0] != nodes[1]


def _any(answers: Sequence[bool | None]) -> bool | None:
    """Return True if one is, False only if all are, else None."""
    if True in answers:
        return True
    return None if None in answers else False
