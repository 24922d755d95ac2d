"""How cards are joined, as words and groups: NVLink or the way over PCIe, and what a replica's worst pair is."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.catalog.topology import TOPOLOGY
from exporter.derive.topology import group_paths, path_order, peer_paths
from exporter.model import (
    CardFacts,
    CardReading,
    CardState,
    CardTopology,
    GpuAssignment,
    GpuLabels,
    LinkEnd,
    Missing,
    Peer,
    Signal,
    Snapshot,
    SourceStatus,
    Topology,
)
from exporter.model.topology import CAPABILITIES, PCI_PATHS, STATUSES
from tests.support.builders import replica
from tests.support.examples import examples

SWITCH = LinkEnd(kind="switch")


def bus(index):
    return f"00000000:{index + 16:02X}:00.0"


def card(index, *, up=None, links=None, peers=None, numa=None, missing=None, read=True):
    """``up``: active links; ``links``: link → far end; ``peers``: index → (PCI path, access)."""
    uuid = f"GPU-{index}"
    known = {f"GPU-{other}": Peer(pci_path=path, access=access) for other, (path, access) in (peers or {}).items()}
    reading = CardReading(
        at=1.0,
        signals={},
        missing=missing or {},
        nvlink_up=up if isinstance(up, dict) else dict.fromkeys(up or (), True),
    )
    return CardState(
        facts=CardFacts(index=index, uuid=uuid, pci_bus_id=bus(index), numa_node=numa),
        status=SourceStatus(source=f"gpu:{uuid}", up=read),
        reading=reading if read else None,
        last_read_at=1.0,
        labels=GpuLabels(str(index), uuid),
        topology=CardTopology(peers=known, links=links or {}),
    )


def words(cards):
    return {(pair[0][-1], pair[1][-1]): path.path for pair, path in peer_paths(cards).items()}


def together(*indices, name="r", rank=""):
    return [GpuAssignment(uuid=f"GPU-{index}", replica=name, rank=rank) for index in indices]


def group(cards, assignments):
    (group_path,) = group_paths(cards, assignments, peer_paths(cards))
    return group_path


OK = {"nvlink": "ok"}
REFUSED = {"nvlink": "not_supported", "read": "ok"}


# ---------------------------------------------------------------- words


def test_gpus_behind_a_switch_are_joined_by_the_links_of_the_gpu_with_fewer():
    links = dict.fromkeys(range(18), SWITCH)
    cards = [
        card(0, up=range(18), links=links, peers={1: ("SYS", OK)}),
        card(1, up=range(17), links=links, peers={0: ("SYS", OK)}),
    ]
    assert words(cards) == {("0", "1"): "NV17", ("1", "0"): "NV17"}


def test_gpus_that_are_wired_directly_count_the_links_between_them_only():
    to = {index: LinkEnd(kind="gpu", pci_bus_id=bus(index).lower()) for index in range(3)}
    cards = [
        card(0, up=range(6), links={0: to[1], 1: to[1], 2: to[1], 3: to[1], 4: to[2], 5: to[2]}),
        card(1, up=range(4), links={0: to[0], 1: to[0], 2: to[0], 3: to[0]}, peers={2: ("PHB", OK)}),
        card(2, up=range(2), links={0: to[0], 1: to[0]}),
    ]
    paths = words(cards)
    assert paths["0", "1"] == paths["1", "0"] == "NV4" and paths["0", "2"] == paths["2", "0"] == "NV2"
    assert paths["1", "2"] == paths["2", "1"] == "PHB"


def test_of_two_wired_gpus_the_one_with_fewer_links_counts_unless_it_shows_none():
    to = {index: LinkEnd(kind="gpu", pci_bus_id=bus(index)) for index in range(2)}
    four, two = card(0, up=range(4), links=dict.fromkeys(range(4), to[1])), dict.fromkeys(range(2), to[0])
    assert words([four, card(1, up=range(2), links=two)]) == {("0", "1"): "NV2", ("1", "0"): "NV2"}
    assert words([four, card(1)]) == {("0", "1"): "NV4", ("1", "0"): "NV4"}


def test_where_the_two_sides_differ_the_refusal_counts():
    links = dict.fromkeys(range(2), SWITCH)
    willing = card(0, up=range(2), links=links, peers={1: ("NODE", OK)})
    refusing = card(1, up=range(2), links=links, peers={0: ("NODE", REFUSED)})
    assert words([willing, refusing]) == {("0", "1"): "NODE", ("1", "0"): "NODE"}


@pytest.mark.parametrize("path", PCI_PATHS)
def test_without_links_the_way_over_pcie_is_the_word(path):
    assert words([card(0, peers={1: (path, REFUSED)}), card(1)]) == {("0", "1"): path, ("1", "0"): path}


def test_links_that_are_down_or_refused_leave_the_way_over_pcie():
    links = dict.fromkeys(range(2), SWITCH)
    down = card(0, up={0: False, 1: False}, links=links, peers={1: ("NODE", OK)})
    other = card(1, up=range(2), links=links)
    assert words([down, other])["0", "1"] == "NODE"
    refused = card(0, up=range(2), links=links, peers={1: ("NODE", REFUSED)})
    assert words([refused, other]) == {("0", "1"): "NODE", ("1", "0"): "NODE"}


def test_where_links_lead_may_be_unknown_as_long_as_the_driver_says_that_they_join():
    cards = [card(0, up=range(4), peers={1: ("SYS", OK)}), card(1, up=range(6))]
    assert words(cards)["0", "1"] == "NV4"


def test_a_path_that_might_be_nvlink_is_absent_rather_than_pcie():
    cards = [card(0, up=range(4), peers={1: ("SYS", {})}), card(1, up=range(4))]
    assert words(cards) == {}, "active links that lead nobody knows where"
    blind = card(0, links={0: SWITCH}, peers={1: ("SYS", OK)}, missing={Signal.NVLINK_STATE: Missing.ERROR})
    assert words([blind, card(1, up=[0], links={0: SWITCH})]) == {}
    partly = card(
        0, up=[1], links={0: LinkEnd(kind="gpu", pci_bus_id=bus(1)), 1: SWITCH}, missing=blind.reading.missing
    )
    assert words([partly, card(1, peers={0: ("SYS", {})})]) == {}, "the link that leads there was not read"
    assert words([partly, card(1, up=[0], links={0: SWITCH})])["0", "1"] == "NV1", "the others say enough"
    never = card(0, peers={1: ("SYS", OK)}, missing={Signal.NVLINK_STATE: Missing.UNSUPPORTED})
    assert words([never, card(1)])["0", "1"] == "SYS"


def test_a_gpu_that_is_not_read_or_not_known_has_no_paths():
    peers = {0: ("PIX", {}), 1: ("PIX", {}), 2: ("PIX", {})}
    cards = [card(0, peers=peers), card(1, peers=peers, read=False), card(2, peers=peers)]
    assert words(cards) == {("0", "2"): "PIX", ("2", "0"): "PIX"}
    assert words([card(0), card(1)]) == {}


def test_access_is_what_is_granted_or_why_nothing_is():
    cards = [
        card(0, peers={1: ("PHB", {"read": "ok", "write": "ok", "nvlink": "not_supported", "atomics": "ok"})}),
        card(1, peers={0: ("PHB", {"read": "chipset_not_supported", "nvlink": "not_supported"})}),
    ]
    paths = peer_paths(cards)
    assert paths["GPU-0", "GPU-1"].access == "read,write,atomics"
    assert paths["GPU-1", "GPU-0"].access == "chipset_not_supported"


def test_all_nvlink_is_better_than_all_pcie_and_more_links_than_fewer():
    order = ["NV18", "NV4", "NV1", *PCI_PATHS]
    assert sorted(sorted(order), key=path_order) == order


# ---------------------------------------------------------------- groups


def switched(numbers, *, refuse=()):
    links = dict.fromkeys(range(18), SWITCH)
    return [
        card(
            i, up=range(18), links=links, numa=i // 4,
            peers={j: ("NODE" if i // 4 == j // 4 else "SYS", REFUSED if {i, j} & {*refuse} else OK) for j in numbers if j != i},
        )
        for i in numbers
    ]  # fmt: skip


def test_a_group_over_nvlink_is_not_over_pcie_though_it_crosses_sockets():
    group_path = group(switched(range(8)), together(*range(8)))
    assert (group_path.worst, group_path.over_pcie, group_path.cross_sockets) == ("NV18", False, True)
    group_path = group(switched(range(4)), together(*range(4)))
    assert (group_path.worst, group_path.over_pcie, group_path.cross_sockets) == ("NV18", False, False)


def test_one_pair_without_nvlink_makes_the_group_use_pcie():
    group_path = group(switched(range(8), refuse=[5]), together(*range(8)))
    assert (group_path.worst, group_path.over_pcie) == ("SYS", True)


def test_one_gpu_or_gpus_of_different_ranks_are_no_group():
    cards = switched(range(4))
    paths = peer_paths(cards)
    assert group_paths(cards, together(0), paths) == ()
    assert group_paths(cards, together(0, rank="0") + together(1, rank="1"), paths) == ()
    assert group_paths(cards, together(7, 8), paths) == (), "cards that are not here"
    (group_path,) = group_paths(cards, together(0, 1, rank="0") + together(2, 3, rank="1"), paths)
    assert group_path.worst == "NV18"


def test_an_unknown_pair_leaves_the_answer_open_unless_another_pair_settles_it():
    known = {1: ("NODE", REFUSED)}
    cards = [card(0, peers=known), card(1), card(2)]
    group_path = group(cards, together(0, 1, 2))
    assert (group_path.worst, group_path.over_pcie, group_path.cross_sockets) == ("", True, None)
    joined = [
        card(0, up=[0], links={0: SWITCH}, peers={1: ("NODE", OK)}),
        card(1, up=[0], links={0: SWITCH}),
        card(2),
    ]
    assert group(joined, together(0, 1, 2)).over_pcie is None


def test_sockets_are_known_by_numa_nodes_where_the_driver_reports_no_path():
    assert group([card(0, numa=0), card(1, numa=1)], together(0, 1)).cross_sockets is True
    assert group([card(0, numa=1), card(1, numa=1)], together(0, 1)).cross_sockets is False
    assert group([card(0, numa=1), card(1)], together(0, 1)).cross_sockets is None


ENDS = st.sampled_from([SWITCH, LinkEnd(kind="unknown"), *(LinkEnd(kind="gpu", pci_bus_id=bus(i)) for i in range(4))])
PEERS = st.dictionaries(
    st.integers(0, 3),
    st.tuples(
        st.sampled_from(["", *PCI_PATHS]),
        st.dictionaries(st.sampled_from(CAPABILITIES), st.sampled_from(STATUSES)),
    ),
)


@st.composite
def any_cards(draw):
    return [
        card(
            index,
            up=draw(st.dictionaries(st.integers(0, 5), st.booleans())),
            links=draw(st.dictionaries(st.integers(0, 5), ENDS)),
            peers=draw(PEERS),
            numa=draw(st.sampled_from([None, 0, 1])),
            read=draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 4)))
    ]


@examples(150)
@given(any_cards(), st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.sampled_from(["", "0"]))))
def test_paths_are_symmetric_and_groups_never_better_than_their_pairs(cards, owned):
    assignments = [GpuAssignment(uuid=f"GPU-{index}", replica=name, rank=rank) for index, name, rank in owned]
    paths = peer_paths(cards)
    for (uuid, other), path in paths.items():
        assert paths[other, uuid].path == path.path
        assert path.path in PCI_PATHS or int(path.path.removeprefix("NV")) > 0
    groups = group_paths(cards, assignments, paths)
    assert groups == group_paths(cards[::-1], assignments[::-1], peer_paths(cards[::-1]))
    for row in groups:
        used = [path for path in paths.values() if path.path == row.worst]
        assert not row.worst or used
        if row.over_pcie is False:
            assert row.worst.startswith("NV")
        if row.worst in PCI_PATHS:
            assert row.over_pcie is True
        if row.worst == "SYS":
            assert row.cross_sockets is True


# ---------------------------------------------------------------- the page


def test_rows_name_peer_path_and_access_and_replicas_their_worst_path():
    cards = tuple(switched(range(2), refuse=[0]))
    paths = peer_paths(cards)
    assignments = together(0, 1, name="a")
    topology_snapshot = Snapshot(
        at=1.0,
        unix_time=1.0,
        cards=cards,
        replicas=(replica("a"),),
        topology=Topology(paths=tuple(paths.values()), groups=group_paths(cards, assignments, paths)),
    )
    rows = {metric.name: list(metric.read(topology_snapshot)) for metric in TOPOLOGY}
    assert rows["gpu_peer_path_info"][0] == (("0", "GPU-0", "GPU-1", "NODE", "read"), 1.0)
    assert rows["llm_card_path_info"] == [(("a", "vllm", "m", "NODE"), 1.0)]
    assert rows["llm_cards_over_pcie"] == [(("a", "vllm", "m"), 1.0)]
    assert rows["llm_cards_cross_sockets"] == [(("a", "vllm", "m"), 0.0)]


def test_the_way_back_has_a_row_only_where_it_differs():
    cards = (
        card(0, peers={1: ("PHB", {"read": "ok", "nvlink": "not_supported"}), 2: ("PHB", {"read": "ok"})}),
        card(1, peers={0: ("PHB", {"read": "chipset_not_supported", "nvlink": "not_supported"})}),
        card(2, peers={0: ("PHB", {"read": "ok"})}),
    )
    topology_snapshot = Snapshot(
        at=1.0, unix_time=1.0, cards=cards, topology=Topology(paths=tuple(peer_paths(cards).values()))
    )
    (paths,) = [metric for metric in TOPOLOGY if metric.name == "gpu_peer_path_info"]
    assert [labels[1:] for labels, _ in paths.read(topology_snapshot)] == [
        ("GPU-0", "GPU-1", "PHB", "read"),
        ("GPU-0", "GPU-2", "PHB", "read"),
        ("GPU-1", "GPU-0", "PHB", "chipset_not_supported"),
    ]


def test_order_of_gpus_does_not_matter():
    cards = switched(range(3), refuse=[1])
    expected = words(cards)
    assert all(words(order) == expected for order in permutations(cards))
