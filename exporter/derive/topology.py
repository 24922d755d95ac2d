"""How the cards of a node reach each other: the words of ``nvidia-smi topo -m``, and the worst one in each replica.

Two cards are joined by NVLink when links of one lead to the other, or when links of both lead to a switch, and the
driver does not refuse the pair.  Only links that are active now count: cards whose links are down, or whose switch
fabric never started, talk over PCIe, and that is what the page must say.  NV# counts the links of the card that has
fewer.

A tensor-parallel group is as fast as the slowest path between any two of its cards.  The cards of one rank of a
replica are such a group; where ranks are not known, all cards of the replica are.  Ranks of their own exchange
little (except for experts spread over ranks, which this does not see).
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
    """Count the NVLinks that are active now."""
    return sum(card.reading.nvlink_up.values()) if card.reading is not None else 0


def peer_paths(cards: Sequence[CardState]) -> Paths:
    """Give the path of each ordered pair of cards that can be known; cards without a reading have none."""
    read = [card for card in cards if card.reading is not None and card.topology is not None]
    found = {}
    for one in read:
        for other in read:
            if one is not other:
                path = _path(one, other)
                if path:
                    pair = (one.facts.uuid, other.facts.uuid)
                    found[pair] = PeerPath(uuid=pair[0], peer=pair[1], path=path, access=_access(one, other))
    return found


def _ends(card: CardState) -> CardTopology:
    return card.topology or CardTopology()


def _known(one: CardState, other: CardState) -> list[Peer]:
    """Give what the driver said of a pair; asked from either side, it should say the same."""
    sides = (_ends(one).peers.get(other.facts.uuid), _ends(other).peers.get(one.facts.uuid))
    return [side for side in sides if side is not None]


def _joined(one: CardState, other: CardState) -> str:
    """Give the driver's word on NVLink between a pair; where the two sides differ, the refusal."""
    words = {side.access["nvlink"] for side in _known(one, other) if "nvlink" in side.access}
    refusals = sorted(words - {"ok", "unknown"})
    return refusals[0] if refusals else "ok" if "ok" in words else ""


def pci_path(one: CardState, other: CardState) -> str:
    """Give the way over PCIe, the farther one where the two sides differ, "" where the driver does not say."""
    return max((side.pci_path for side in _known(one, other) if side.pci_path), key=PCI_PATHS.index, default="")


def _path(one: CardState, other: CardState) -> str:
    """Give the word; "" rather than a way over PCIe while it is not known whether NVLink joins the two."""
    joined = _joined(one, other)
    if joined not in {"", "ok"}:
        return pci_path(one, other)
    count = _joining_links(one, other, certain=joined == "ok")
    if count:
        return f"NV{count}"
    if _unsure(one) or _unsure(other):
        return ""
    guess = _blind(one, other) and joined != "ok" and active_links(one) and active_links(other)
    return "" if guess else pci_path(one, other)


def _unsure(card: CardState) -> bool:
    """Say whether the state of some of the card's links could not be read this time."""
    missing = card.reading.missing.get(Signal.NVLINK_STATE) if card.reading is not None else None
    return missing not in {None, Missing.UNSUPPORTED}


def _joining_links(one: CardState, other: CardState, *, certain: bool) -> int:
    """Count the active links that join two cards; ``certain``: the driver says that some do."""
    direct = min(_toward(one, other), _toward(other, one)) or max(_toward(one, other), _toward(other, one))
    switched = min(_through_switch(one), _through_switch(other))
    if direct or switched or not (certain and _blind(one, other)):
        return direct or switched
    # A driver that does not say where links lead, but that some join these two.
    return min(active_links(one), active_links(other))


def _blind(one: CardState, other: CardState) -> bool:
    """Say whether links of both cards may lead anywhere, as nobody said where."""
    return not any(end.kind != "unknown" for card in (one, other) for end in _ends(card).links.values())


def _active_ends(card: CardState) -> Iterator[LinkEnd]:
    up = card.reading.nvlink_up if card.reading is not None else {}
    return (end for link, end in _ends(card).links.items() if up.get(link))


def _toward(card: CardState, other: CardState) -> int:
    place = other.facts.pci_bus_id.upper()
    return sum(place == end.pci_bus_id.upper() for end in _active_ends(card)) if place else 0


def _through_switch(card: CardState) -> int:
    return sum(end.kind == "switch" for end in _active_ends(card))


def _access(one: CardState, other: CardState) -> str:
    known = _ends(one).peers[other.facts.uuid].access if other.facts.uuid in _ends(one).peers else {}
    granted = [capability for capability, status in known.items() if status == "ok"]
    return ",".join(granted) or next(iter(known.values()), "")


def badness(path: str) -> int:
    """Give the place of a path in the order from good to bad: all NVLink before all PCIe, more links first."""
    if path in PCI_PATHS:
        return PCI_PATHS.index(path)
    return -int(path[2:])


def group_paths(
    cards: Sequence[CardState], assignments: Sequence[GpuAssignment], paths: Paths
) -> tuple[GroupPaths, ...]:
    """Give one row per replica in which at least two cards work together, by name; order of input does not matter."""
    by_uuid = {card.facts.uuid: card for card in cards}
    teams: dict[str, dict[str, set[str]]] = {}
    for assignment in assignments:
        if assignment.uuid in by_uuid:
            teams.setdefault(assignment.replica, {}).setdefault(assignment.rank, set()).add(assignment.uuid)
    found = []
    for replica, ranks in sorted(teams.items()):
        pairs = {pair for uuids in ranks.values() for pair in combinations(sorted(uuids), 2)}
        if pairs:
            found.append(_group(replica, sorted(pairs), by_uuid, paths))
    return tuple(found)


def _group(
    replica: str, pairs: Sequence[tuple[str, str]], cards: Mapping[str, CardState], paths: Paths
) -> GroupPaths:
    known = [paths[pair].path for pair in pairs if pair in paths]
    whole = len(known) == len(pairs)
    worst = max(known, key=badness) if whole else ""
    apart = [_apart(cards[one], cards[other]) for one, other in pairs]
    return GroupPaths(
        replica=replica,
        worst=worst,
        over_pcie=_any([*[path in PCI_PATHS for path in known], *([] if whole else [None])]),
        cross_sockets=_any(apart),
    )


def _apart(one: CardState, other: CardState) -> bool | None:
    """Say whether two cards stand behind different sockets; else, where that is known, different NUMA nodes."""
    path = pci_path(one, other)
    if path:
        return path == _FARTHEST
    nodes = (one.facts.numa_node, other.facts.numa_node)
    return None if None in nodes else nodes[0] != nodes[1]


def _any(answers: Sequence[bool | None]) -> bool | None:
    """Give True as soon as one is, False only when all are, else None."""
    if True in answers:
        return True
    return None if None in answers else False
