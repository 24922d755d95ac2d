"""What is wrong with a card's links: PCIe below its best, NVLinks that are gone, a switch fabric in trouble.

PCIe: an idle card trains its link down to save power, so the link is judged only when the card has worked (more than
a tenth of the time) in every reading of the last ``JUDGED_AFTER`` seconds, and it is degraded when in none of them
generation and width both stood at their highest.  Otherwise it is not judged, and nothing is shown.

NVLink: a link is down when it was active once in this daemon's life and is not now.  A link that was down before the
daemon started is found by comparison: where more than half of the node's cards of the same name (three at least)
have the same number of links, that number is expected of the others.  Not of a card without any link, unless the
others' links lead to a switch: bridges between pairs are a choice, a missing way to the switch is a fault.  While
MIG is on, links may rest, and nothing is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from exporter.derive.topology import active_links, group_paths, peer_paths
from exporter.model import EMPTY, CardReading, CardState, GpuAssignment, LinkHealth, Missing, Signal, Topology

JUDGED_AFTER = 30.0  # seconds of work
WORKING = 0.10  # share of time; below that a card may save power on its link
_FEWEST_SIBLINGS = 3

# Health bits of the fabric: name, shift, the values that mean trouble.  Two bits each: 1 yes, 2 no, 0 not supported.
_YES, _NO = frozenset({1}), frozenset({2})
_FABRIC_FLAGS = (
    ("degraded_bandwidth", 0, _YES),
    ("route_recovery", 2, _YES),
    ("route_unhealthy", 4, _YES),
    ("access_timeout_recovery", 6, _YES),
    ("no_partition_assigned", 12, _NO),
    ("manager_disconnected", 14, _NO),
)
_FABRIC_CONFIGURATION = (
    "",
    "",
    "incorrect_system_guid",
    "incorrect_chassis_serial",
    "no_partition",
    "insufficient_nvlinks",
    "incompatible_firmware",
    "invalid_location",
    "invalid_gpu_state",
)
_FABRIC_SUMMARIES = {2.0: "unhealthy", 3.0: "limited_capacity"}  # said where no bit says more
_FABRIC_STATES = {1.0: "not_started", 2.0: "in_progress"}


def fabric_problems(reading: CardReading) -> tuple[str, ...]:
    """Name what keeps a card from using the NVSwitch fabric fully; empty where all is well or nothing is known."""
    found = []
    state = reading.signals.get(Signal.FABRIC_STATE)
    if state in _FABRIC_STATES:
        found.append(_FABRIC_STATES[state])
    elif state is not None and reading.signals.get(Signal.FABRIC_STATUS):
        found.append("failed")
    health = int(reading.signals.get(Signal.FABRIC_HEALTH, 0.0))
    found += [name for name, shift, bad in _FABRIC_FLAGS if health >> shift & 0x3 in bad]
    place = health >> 8 & 0xF
    if place < len(_FABRIC_CONFIGURATION):
        found += [name for name in [_FABRIC_CONFIGURATION[place]] if name]
    else:
        found.append("incorrect_configuration")
    summary = _FABRIC_SUMMARIES.get(reading.signals.get(Signal.FABRIC_SUMMARY, 0.0))
    if summary is not None and not found:
        found.append(summary)
    return tuple(found)


def nvlinks_down(cards: Sequence[CardState], fitted: Mapping[str, int] = EMPTY) -> Mapping[str, int]:
    """Count the NVLinks that are missing on each card that has, or should have, any.  uuid → links.

    ``fitted``: uuid → the most links that the card ever showed; a link that was not read this time is not down, and
    a card of which they were never all read is not held against the others.
    """
    shown = {
        card.facts.uuid: max(len(card.reading.nvlink_up), fitted.get(card.facts.uuid, 0))
        for card in cards
        if card.reading is not None and _has_links_of_its_own(card)
    }
    expected = {name: _expected([card for card in cards if card.facts.name == name], shown) for name in _names(cards)}
    found = {}
    for card in cards:
        uuid = card.facts.uuid
        if card.reading is None or uuid not in shown:
            continue
        wanted, switched = expected.get(card.facts.name, (0, False))
        states, partly = card.reading.nvlink_up, Signal.NVLINK_STATE in card.reading.missing
        if partly and not fitted.get(uuid):
            wanted = 0
        if partly and not states:
            continue
        if states or (wanted and switched):
            unread = shown[uuid] - len(states)
            found[uuid] = max(sum(not up for up in states.values()), wanted - active_links(card) - unread)
    return found


def _has_links_of_its_own(card: CardState) -> bool:
    return not card.facts.mig and card.facts.instance is None


def _names(cards: Sequence[CardState]) -> set[str]:
    return {card.facts.name for card in cards if card.facts.name}


def _expected(siblings: Sequence[CardState], shown: Mapping[str, int]) -> tuple[int, bool]:
    """Give how many links each should have (0: nothing is expected), and whether they lead to a switch."""
    judged = [card for card in siblings if card.facts.uuid in shown]
    counts = Counter(shown[card.facts.uuid] for card in judged)
    if len(judged) < _FEWEST_SIBLINGS:
        return 0, False
    links, cards = counts.most_common(1)[0]
    if cards * 2 <= len(judged):
        return 0, False
    switched = any(
        end.kind == "switch" for card in judged if card.topology is not None for end in card.topology.links.values()
    )
    return links, switched


class _Work(Struct):
    """Since when a card has worked without a pause, and when its PCIe link was last at its best."""

    at: float
    busy_since: float | None = None
    best_at: float | None = None


class PcieLinkTracker:
    """Follows each card's work and PCIe link from reading to reading; forgets cards that are no longer listed."""

    def __init__(self) -> None:
        self._work: dict[str, _Work] = {}

    def judge(self, cards: Sequence[CardState]) -> Mapping[str, bool]:
        """Say of each card that can be judged now whether its PCIe link is degraded.  uuid → degraded."""
        listed = {card.facts.uuid for card in cards}
        for uuid in [uuid for uuid in self._work if uuid not in listed]:
            del self._work[uuid]
        found = {}
        for card in cards:
            if card.reading is None:
                self._work.pop(card.facts.uuid, None)
                continue
            best = _at_best(card.reading)
            work = self._follow(card.facts.uuid, card.reading)
            if best:
                work.best_at = work.at
            if best is not None and work.busy_since is not None and work.at - work.busy_since >= JUDGED_AFTER:
                found[card.facts.uuid] = work.best_at is None or work.at - work.best_at >= JUDGED_AFTER
        return found

    def _follow(self, uuid: str, reading: CardReading) -> _Work:
        work = self._work.get(uuid)
        if work is None or reading.at < work.at:
            work = self._work[uuid] = _Work(at=reading.at)
        work.at = reading.at
        if not _works(reading):
            work.busy_since = None
        elif work.busy_since is None:
            work.busy_since = reading.at
        return work


def _works(reading: CardReading) -> bool:
    share = reading.signals.get(Signal.SM_ACTIVE, reading.signals.get(Signal.UTILIZATION))
    return share is not None and share > WORKING


def _at_best(reading: CardReading) -> bool | None:
    """Say whether generation and width stand at their highest; None when neither can be compared."""
    pairs = (
        (Signal.PCIE_LINK_GENERATION, Signal.PCIE_LINK_GENERATION_MAX),
        (Signal.PCIE_LINK_WIDTH, Signal.PCIE_LINK_WIDTH_MAX),
    )
    signals = reading.signals
    compared = [signals[now] >= signals[most] for now, most in pairs if now in signals and most in signals]
    return all(compared) if compared else None


def _shown(card: CardState) -> int:
    """Count the links of which the card showed a state; 0 where it did not of all that it has."""
    partly = card.reading is None or Signal.NVLINK_STATE in card.reading.missing
    return 0 if card.reading is None or partly else len(card.reading.nvlink_up)


def _link_states(reading: CardReading) -> tuple[Mapping[int, bool], Missing | None]:
    return reading.nvlink_up, reading.missing.get(Signal.NVLINK_STATE)


class TopologyTracker:
    """Makes the page's topology, snapshot by snapshot.  Paths are made anew only when what they stand on changed."""

    def __init__(self) -> None:
        self._pcie = PcieLinkTracker()
        self._fitted: dict[str, int] = {}  # uuid → the most NVLinks that the card ever showed
        self._stands_on: object = None
        self._made = Topology()

    def look(self, cards: Sequence[CardState], assignments: Sequence[GpuAssignment]) -> Topology:
        """Give paths, groups and the health of links; to be called once for each snapshot, in its order."""
        stands_on = [
            [(card.facts, card.topology, card.reading and _link_states(card.reading)) for card in cards],
            tuple(assignments),
        ]
        if stands_on != self._stands_on:
            paths = peer_paths(cards)
            self._made = Topology(paths=tuple(paths.values()), groups=group_paths(cards, assignments, paths))
            self._stands_on = stands_on
        degraded, down = self._pcie.judge(cards), nvlinks_down(cards, self._fitted)
        self._fitted = {card.facts.uuid: max(self._fitted.get(card.facts.uuid, 0), _shown(card)) for card in cards}
        links = {
            card.facts.uuid: LinkHealth(
                pcie_degraded=degraded.get(card.facts.uuid),
                nvlinks_down=down.get(card.facts.uuid),
                fabric_problems=fabric_problems(card.reading),
            )
            for card in cards
            if card.reading is not None
        }
        return Topology(paths=self._made.paths, groups=self._made.groups, links=links)
