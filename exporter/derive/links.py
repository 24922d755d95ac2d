"""Link health of cards: PCIe below its maximum, NVLinks down, problems of the NVSwitch fabric.

PCIe: an idle card lowers its link to save power.  The link is therefore judged only if the card was busy (more than
a tenth of the time) in every reading of the last ``JUDGED_AFTER`` seconds, and it is degraded if in none of them
both generation and width were at their maximum.  Otherwise it is not judged, and nothing is exposed.

NVLink: a link is down if it was active since the daemon started and is not now.  A link that was down before is
found by comparison: where more than half of the node's cards of the same name (at least three) have the same number
of links, that number is expected of the others.  Not of a card without any link, unless the others' links lead to a
switch: bridges between pairs are optional, a missing link to the switch is a fault.  With MIG enabled links may be
off, and nothing is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from exporter.derive.topology import active_links, group_paths, peer_paths
from exporter.model import EMPTY, CardReading, CardState, GpuAssignment, LinkHealth, Missing, Signal, Topology

JUDGED_AFTER = 30.0  # seconds of continuous work
WORKING = 0.10  # ratio of time; below that a card may lower its link
_FEWEST_SIBLINGS = 3

# Health bits of the fabric: name, shift, the bad values.  Two bits each: 1 yes, 2 no, 0 not supported.
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
_FABRIC_SUMMARIES = {2.0: "unhealthy", 3.0: "limited_capacity"}  # used where no bit is more specific
_FABRIC_STATES = {1.0: "not_started", 2.0: "in_progress"}


def fabric_problems(reading: CardReading) -> tuple[str, ...]:
    """Return what keeps a card from using the NVSwitch fabric fully; empty if nothing does or nothing is known."""
    problems = []
    state = reading.signals.get(Signal.FABRIC_STATE)
    if state in _FABRIC_STATES:
        problems.append(_FABRIC_STATES[state])
    elif state is not None and reading.signals.get(Signal.FABRIC_STATUS):
        problems.append("failed")
    health = int(reading.signals.get(Signal.FABRIC_HEALTH, 0.0))
    problems += [name for name, shift, bad in _FABRIC_FLAGS if health >> shift & 0x3 in bad]
    configuration = health >> 8 & 0xF
    if configuration < len(_FABRIC_CONFIGURATION):
        problems += [name for name in [_FABRIC_CONFIGURATION[configuration]] if name]
    else:
        problems.append("incorrect_configuration")
    summary = _FABRIC_SUMMARIES.get(reading.signals.get(Signal.FABRIC_SUMMARY, 0.0))
    if summary is not None and not problems:
        problems.append(summary)
    return tuple(problems)


def nvlinks_down(cards: Sequence[CardState], max_links: Mapping[str, int] = EMPTY) -> Mapping[str, int]:
    """Return the NVLinks down by uuid, for each card that has, or should have, any.

    ``max_links``: uuid → most links that the card ever reported.  A link that was not read now is not down, and
    a card whose links were never all read is not compared with the others.
    """
    reported = {
        card.facts.uuid: max(len(card.reading.nvlink_up), max_links.get(card.facts.uuid, 0))
        for card in cards
        if card.reading is not None and _has_links_of_its_own(card)
    }
    expected = {
        name: _expected([card for card in cards if card.facts.name == name], reported) for name in _names(cards)
    }
    counts = {}
    for card in cards:
        uuid = card.facts.uuid
        if card.reading is None or uuid not in reported:
            continue
        expected_links, switched = expected.get(card.facts.name, _ExpectedLinks())
        states, partly = card.reading.nvlink_up, Signal.NVLINK_STATE in card.reading.missing
        if partly and not max_links.get(uuid):
            expected_links = 0
        if partly and not states:
            continue
        if states or (expected_links and switched):
            silent = reported[uuid] - len(states)
            counts[uuid] = max(sum(not up for up in states.values()), expected_links - active_links(card) - silent)
    return counts


def _has_links_of_its_own(card: CardState) -> bool:
    return not card.facts.mig and card.facts.instance is None


def _names(cards: Sequence[CardState]) -> set[str]:
    return {card.facts.name for card in cards if card.facts.name}


class _ExpectedLinks(NamedTuple):
    """How many links each GPU of one name should have (0: not known), and whether they lead to a switch."""

    links: int = 0
    switched: bool = False


def _expected(siblings: Sequence[CardState], reported: Mapping[str, int]) -> _ExpectedLinks:
    """Return the links that most GPUs of one name have."""
    judged = [card for card in siblings if card.facts.uuid in reported]
    counts = Counter(reported[card.facts.uuid] for card in judged)
    if len(judged) < _FEWEST_SIBLINGS:
        return _ExpectedLinks()
    links, cards = counts.most_common(1)[0]
    if cards * 2 <= len(judged):
        return _ExpectedLinks()
    switched = any(
        end.kind == "switch" for card in judged if card.topology is not None for end in card.topology.links.values()
    )
    return _ExpectedLinks(links, switched)


class _Work(Struct):
    """Since when a card has been busy without a pause, and when its PCIe link was last at its maximum."""

    at: float
    busy_since: float | None = None
    at_maximum_at: float | None = None


class PcieLinkTracker:
    """Evaluates PCIe links from reading to reading; drops cards that are no longer listed."""

    def __init__(self) -> None:
        self._work: dict[str, _Work] = {}

    def judge(self, cards: Sequence[CardState]) -> Mapping[str, bool]:
        """Return whether the PCIe link is degraded, by uuid, for each card that can be judged now."""
        listed = {card.facts.uuid for card in cards}
        for uuid in [uuid for uuid in self._work if uuid not in listed]:
            del self._work[uuid]
        degraded = {}
        for card in cards:
            if card.reading is None:
                self._work.pop(card.facts.uuid, None)
                continue
            at_maximum = _at_maximum(card.reading)
            work = self._update(card.facts.uuid, card.reading)
            if at_maximum:
                work.at_maximum_at = work.at
            if at_maximum is not None and work.busy_since is not None and work.at - work.busy_since >= JUDGED_AFTER:
                degraded[card.facts.uuid] = work.at_maximum_at is None or work.at - work.at_maximum_at >= JUDGED_AFTER
        return degraded

    def _update(self, uuid: str, reading: CardReading) -> _Work:
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


def _at_maximum(reading: CardReading) -> bool | None:
    """Return whether generation and width are at their maximum; None if neither can be compared."""
    pairs = (
        (Signal.PCIE_LINK_GENERATION, Signal.PCIE_LINK_GENERATION_MAX),
        (Signal.PCIE_LINK_WIDTH, Signal.PCIE_LINK_WIDTH_MAX),
    )
    signals = reading.signals
    compared = [signals[now] >= signals[maximum] for now, maximum in pairs if now in signals and maximum in signals]
    return all(compared) if compared else None


def _reported_links(card: CardState) -> int:
    """Return the number of links with a state; 0 if that of some link is missing."""
    partly = card.reading is None or Signal.NVLINK_STATE in card.reading.missing
    return 0 if card.reading is None or partly else len(card.reading.nvlink_up)


def _link_states(reading: CardReading) -> tuple[Mapping[int, bool], Missing | None]:
    return reading.nvlink_up, reading.missing.get(Signal.NVLINK_STATE)


class TopologyTracker:
    """Computes the topology of each snapshot; paths only when their input has changed."""

    def __init__(self) -> None:
        self._pcie = PcieLinkTracker()
        self._max_links: dict[str, int] = {}  # uuid → the maximum NVLinks that the card ever reported
        self._inputs: object = None
        self._topology = Topology()

    def update(self, cards: Sequence[CardState], assignments: Sequence[GpuAssignment]) -> Topology:
        """Return paths, groups and link health; called once for each snapshot, in order."""
        inputs = [
            [(card.facts, card.topology, card.reading and _link_states(card.reading)) for card in cards],
            tuple(assignments),
        ]
        if inputs != self._inputs:
            paths = peer_paths(cards)
            self._topology = Topology(paths=tuple(paths.values()), groups=group_paths(cards, assignments, paths))
            self._inputs = inputs
        degraded, down = self._pcie.judge(cards), nvlinks_down(cards, self._max_links)
        self._max_links = {
            card.facts.uuid: max(self._max_links.get(card.facts.uuid, 0), _reported_links(card)) for card in cards
        }
        links = {
            card.facts.uuid: LinkHealth(
                pcie_degraded=degraded.get(card.facts.uuid),
                nvlinks_down=down.get(card.facts.uuid),
                fabric_problems=fabric_problems(card.reading),
            )
            for card in cards
            if card.reading is not None
        }
        return Topology(paths=self._topology.paths, groups=self._topology.groups, links=links)
