"""How cards are joined: what is asked of the driver, how it travels, and the words and groups made of it."""

from __future__ import annotations

from itertools import permutations

import pytest
from builders import replica
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.catalog.topology import TOPOLOGY
from exporter.derive.topology import badness, group_paths, peer_paths
from exporter.errors import DriverError
from exporter.model import (
    CardFacts,
    CardReading,
    CardState,
    CardTopology,
    LinkEnd,
    Missing,
    Ownership,
    Peer,
    Signal,
    Snapshot,
    SourceStatus,
    Topology,
)
from exporter.model.topology import CAPABILITIES, PCI_PATHS, STATUSES
from exporter.simulate.plan import Plan
from exporter.sources.driver import pipe
from exporter.sources.driver.nvml import initialise, load_driver, open_card
from exporter.sources.driver.nvml_errors import CardCalls
from exporter.sources.driver.nvml_topology import Interrupted, TopologyReader
from tests.fake_nvml import FakeDriver

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
        labels=(str(index), uuid),
        topology=CardTopology(peers=known, links=links or {}),
    )


def words(cards):
    return {(pair[0][-1], pair[1][-1]): path.path for pair, path in peer_paths(cards).items()}


def together(*indices, name="r", rank=""):
    return [Ownership(uuid=f"GPU-{index}", replica=name, rank=rank) for index in indices]


def group(cards, owners):
    (found,) = group_paths(cards, owners, peer_paths(cards))
    return found


OK = {"nvlink": "ok"}
REFUSED = {"nvlink": "not_supported", "read": "ok"}


# ---------------------------------------------------------------- words


def test_cards_behind_a_switch_are_joined_by_the_links_of_the_card_with_fewer():
    links = dict.fromkeys(range(18), SWITCH)
    cards = [
        card(0, up=range(18), links=links, peers={1: ("SYS", OK)}),
        card(1, up=range(17), links=links, peers={0: ("SYS", OK)}),
    ]
    assert words(cards) == {("0", "1"): "NV17", ("1", "0"): "NV17"}


def test_cards_that_are_wired_directly_count_the_links_between_them_only():
    to = {index: LinkEnd(kind="gpu", pci_bus_id=bus(index).lower()) for index in range(3)}
    cards = [
        card(0, up=range(6), links={0: to[1], 1: to[1], 2: to[1], 3: to[1], 4: to[2], 5: to[2]}),
        card(1, up=range(4), links={0: to[0], 1: to[0], 2: to[0], 3: to[0]}, peers={2: ("PHB", OK)}),
        card(2, up=range(2), links={0: to[0], 1: to[0]}),
    ]
    found = words(cards)
    assert found["0", "1"] == found["1", "0"] == "NV4" and found["0", "2"] == found["2", "0"] == "NV2"
    assert found["1", "2"] == found["2", "1"] == "PHB"


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
    never = card(0, peers={1: ("SYS", OK)}, missing={Signal.NVLINK_STATE: Missing.UNSUPPORTED})
    assert words([never, card(1)])["0", "1"] == "SYS"


def test_a_card_that_is_not_read_or_not_known_has_no_paths():
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
    assert sorted(sorted(order), key=badness) == order


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
    found = group(switched(range(8)), together(*range(8)))
    assert (found.worst, found.over_pcie, found.cross_sockets) == ("NV18", False, True)
    found = group(switched(range(4)), together(*range(4)))
    assert (found.worst, found.over_pcie, found.cross_sockets) == ("NV18", False, False)


def test_one_pair_without_nvlink_makes_the_group_talk_over_pcie():
    found = group(switched(range(8), refuse=[5]), together(*range(8)))
    assert (found.worst, found.over_pcie) == ("SYS", True)


def test_one_card_or_cards_of_different_ranks_are_no_group():
    cards = switched(range(4))
    paths = peer_paths(cards)
    assert group_paths(cards, together(0), paths) == ()
    assert group_paths(cards, together(0, rank="0") + together(1, rank="1"), paths) == ()
    assert group_paths(cards, together(7, 8), paths) == (), "cards that are not here"
    (found,) = group_paths(cards, together(0, 1, rank="0") + together(2, 3, rank="1"), paths)
    assert found.worst == "NV18"


def test_an_unknown_pair_leaves_the_answer_open_unless_another_pair_settles_it():
    known = {1: ("NODE", REFUSED)}
    cards = [card(0, peers=known), card(1), card(2)]
    found = group(cards, together(0, 1, 2))
    assert (found.worst, found.over_pcie, found.cross_sockets) == ("", True, None)
    joined = [
        card(0, up=[0], links={0: SWITCH}, peers={1: ("NODE", OK)}),
        card(1, up=[0], links={0: SWITCH}),
        card(2),
    ]
    assert group(joined, together(0, 1, 2)).over_pcie is None


def test_sockets_are_told_by_numa_nodes_where_the_driver_names_no_path():
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


@settings(max_examples=150, deadline=None)
@given(any_cards(), st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.sampled_from(["", "0"]))))
def test_paths_are_symmetric_and_groups_never_better_than_their_pairs(cards, owned):
    owners = [Ownership(uuid=f"GPU-{index}", replica=name, rank=rank) for index, name, rank in owned]
    paths = peer_paths(cards)
    for (one, other), path in paths.items():
        assert paths[other, one].path == path.path
        assert path.path in PCI_PATHS or int(path.path.removeprefix("NV")) > 0
    found = group_paths(cards, owners, paths)
    assert found == group_paths(cards[::-1], owners[::-1], peer_paths(cards[::-1]))
    for row in found:
        used = [path for path in paths.values() if path.path == row.worst]
        assert not row.worst or used
        if row.over_pcie is False:
            assert row.worst.startswith("NV")
        if row.worst in PCI_PATHS:
            assert row.over_pcie is True
        if row.worst == "SYS":
            assert row.cross_sockets is True


# ---------------------------------------------------------------- the driver


HANDLES = {"GPU-a": "a", "GPU-b": "b"}


class Joined:
    """A driver that knows two cards with two links each to a switch; ``codes``: function → code to refuse with."""

    def __init__(self, **codes):
        self.codes = codes
        self.asked = []
        self.NVMLError = FakeDriver.NVMLError

    def __getattr__(self, name):
        if not name.startswith("nvml") or self.codes.get(name) == 13:
            raise AttributeError(name)
        return lambda handle, *args: self.answer(name, handle, *args)

    def answer(self, name, handle, *args):
        self.asked.append((name, handle, *args))
        code = self.codes.get(name) or self.codes.get(f"{name}:{handle}")
        if code:
            raise FakeDriver.NVMLError(code)
        if name == "nvmlDeviceGetFieldValues":
            from tests.fake_nvml import item  # noqa: PLC0415

            return [item(2) for _ in args[0]]
        return {
            "nvmlDeviceGetTopologyCommonAncestor": 40,
            "nvmlDeviceGetP2PStatus": 5 if args[-1] == 4 else 0,
            "nvmlDeviceGetNvLinkRemoteDeviceType": 2,
        }[name]


def read(driver):
    reader = TopologyReader(driver)
    return reader.read(HANDLES), reader.whole


def test_pairs_and_links_are_asked_with_the_driver_s_own_numbers():
    driver = Joined()
    found, whole = read(driver)
    assert whole
    assert found["GPU-a"] == CardTopology(
        peers={
            "GPU-b": Peer(
                pci_path="NODE",
                access={"read": "ok", "write": "ok", "nvlink": "ok", "atomics": "ok", "pci": "not_supported"},
            )
        },
        links={0: SWITCH, 1: SWITCH},
    )
    assert {asked[3] for asked in driver.asked if asked[0] == "nvmlDeviceGetP2PStatus"} == {0, 1, 2, 3, 4}


ANCESTOR, ACCESS, END = (
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
)


@pytest.mark.parametrize("code", [2, 3, 4, 6, 10, 13, 17, 19, 21, 25, 27, 999])
def test_each_refusal_costs_its_own_answer_and_only_passing_ones_are_asked_again_soon(code):
    found, whole = read(Joined(**{ANCESTOR: code}))
    assert found["GPU-a"].peers["GPU-b"].pci_path == "" and found["GPU-a"].peers["GPU-b"].access["read"] == "ok"
    assert whole is (code in {2, 3, 4, 13, 25})
    found, _ = read(Joined(**{ACCESS: code}))
    assert found["GPU-a"].peers["GPU-b"] == Peer(pci_path="NODE")
    found, _ = read(Joined(**{END: code, "nvmlDeviceGetNvLinkRemotePciInfo": 3}))
    assert found["GPU-a"].links == {} and found["GPU-a"].peers["GPU-b"].pci_path == "NODE"


def test_a_card_that_is_lost_on_the_way_costs_its_pairs_only():
    found, whole = read(Joined(**{f"{ANCESTOR}:b": 15}))
    assert not whole and found["GPU-a"].peers["GPU-b"].pci_path == "NODE" and found["GPU-b"].peers == {}
    found, whole = read(Joined(**{"nvmlDeviceGetFieldValues:a": 15}))
    assert not whole and set(found) == {"GPU-b"}


@pytest.mark.parametrize("code", [1, 9, 12, 18])
def test_a_driver_that_is_over_ends_the_pass(code):
    with pytest.raises(DriverError):
        read(Joined(**{ACCESS: code}))


def test_a_refused_pair_of_linked_cards_is_asked_again_because_the_fabric_may_be_starting():
    driver = Joined()
    answer = driver.answer
    driver.answer = lambda name, handle, *args: 5 if name == ACCESS else answer(name, handle, *args)
    found, whole = read(driver)
    assert found["GPU-a"].peers["GPU-b"].access["nvlink"] == "not_supported" and not whole


@pytest.mark.parametrize("garbage", [-1, 7, 2**32 - 1, None, "40", 3.5])
def test_answers_that_mean_nothing_are_left_out(garbage):
    driver = Joined()
    answer = driver.answer
    driver.answer = lambda name, handle, *args: (
        answer(name, handle, *args) if name == "nvmlDeviceGetFieldValues" else garbage
    )
    found, _ = read(driver)
    assert found["GPU-a"].peers["GPU-b"] == Peer()
    assert {end.kind for end in found["GPU-a"].links.values()} <= {"unknown"}


def test_a_pass_is_left_when_somebody_else_needs_the_driver():
    driver, turns = Joined(), iter([True, True, True])
    with pytest.raises(Interrupted):
        TopologyReader(driver, lambda: next(turns, False)).read(HANDLES)
    assert not any(asked[1] == "b" for asked in driver.asked)


def test_the_binding_s_own_objection_counts_as_not_supported():
    class ArgumentError(Exception):
        pass

    def refuse(*_):
        raise ArgumentError("argument 3: wrong type")

    driver = Joined()
    driver.nvmlDeviceGetP2PStatus = refuse
    found, whole = read(driver)
    assert found["GPU-a"].peers["GPU-b"] == Peer(pci_path="NODE") and whole
    assert CardCalls(driver, "a").call("nvmlDeviceGetP2PStatus", "b", (0,), key="k") is Missing.UNSUPPORTED


# ---------------------------------------------------------------- the pipe and the page


def test_topologies_pass_the_pipe_unchanged():
    found, _ = read(Joined())
    message = pipe.TopologyRead(cards=found)
    (frame,) = pipe.FrameBuffer().feed(pipe.encode(message))
    assert pipe.decode(frame) == message


@pytest.mark.parametrize(
    "card_body",
    [
        {"peers": {"GPU-b": ["XXX", {}]}, "links": {}},
        {"peers": {"GPU-b": ["SYS", {"fly": "ok"}]}, "links": {}},
        {"peers": {"GPU-b": ["SYS", {"read": "maybe"}]}, "links": {}},
        {"peers": {"GPU-b": ["SYS", []]}, "links": {}},
        {"peers": {"GPU-b": "SYS"}, "links": {}},
        {"peers": {}, "links": {"64": ["switch", ""]}},
        {"peers": {}, "links": {"x": ["switch", ""]}},
        {"peers": {}, "links": {"0": ["moon", ""]}},
        {"peers": {}, "links": {"0": ["gpu", 7]}},
        {"peers": {str(i): ["SYS", {}] for i in range(65)}, "links": {}},
        {"peers": {}},
        [],
        None,
    ],
)
def test_what_no_worker_writes_is_refused_as_broken_protocol(card_body):
    import json  # noqa: PLC0415

    frame = json.dumps({"kind": "TopologyRead", "cards": {"GPU-a": card_body}}).encode()
    with pytest.raises(DriverError):
        pipe.decode(frame)


def test_rows_name_peer_path_and_access_and_replicas_their_worst_path():
    cards = tuple(switched(range(2), refuse=[0]))
    paths = peer_paths(cards)
    owners = together(0, 1, name="a")
    seen = Snapshot(
        at=1.0,
        wall=1.0,
        cards=cards,
        replicas=(replica("a"),),
        topology=Topology(paths=tuple(paths.values()), groups=group_paths(cards, owners, paths)),
    )
    rows = {metric.name: list(metric.read(seen)) for metric in TOPOLOGY}
    assert rows["gpu_peer_path_info"][0] == (("0", "GPU-0", "GPU-1", "NODE", "read"), 1.0)
    assert rows["llm_card_path_info"] == [(("a", "vllm", "m", "NODE"), 1.0)]
    assert rows["llm_cards_over_pcie"] == [(("a", "vllm", "m"), 1.0)]
    assert rows["llm_cards_cross_sockets"] == [(("a", "vllm", "m"), 0.0)]


def test_order_of_cards_does_not_matter():
    cards = switched(range(3), refuse=[1])
    expected = words(cards)
    assert all(words(order) == expected for order in permutations(cards))


# ---------------------------------------------------------------- simulated nodes


def simulated(scenario):
    driver = load_driver("exporter.simulate.cards", Plan(scenario=scenario).dumps())
    _, count = initialise(driver)
    opened = [open_card(driver, index) for index in range(count)]
    return TopologyReader(driver).read({facts.uuid: calls.handle for calls, facts in opened})


def test_simulated_cards_are_joined_as_their_kind_is():
    joined = simulated("healthy")
    assert len(joined) == 8 and all(one.links == dict.fromkeys(range(18), SWITCH) for one in joined.values())
    assert {peer.access["nvlink"] for one in joined.values() for peer in one.peers.values()} == {"ok"}
    over_pcie = simulated("pcie")
    assert not any(one.links for one in over_pcie.values())
    first = [peer.pci_path for peer in over_pcie[next(iter(over_pcie))].peers.values()]
    assert first == ["PHB"] * 3 + ["SYS"] * 4
