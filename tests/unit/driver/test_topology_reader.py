"""How cards are joined, as the driver tells it: what is asked, what each refusal costs, and how it travels."""

from __future__ import annotations

import msgspec
import pytest

from exporter.driver import protocol
from exporter.driver.nvml.errors import DeviceCalls
from exporter.driver.nvml.library import initialise, load_driver, open_card
from exporter.driver.nvml.topology import Interrupted, TopologyReader
from exporter.errors import DriverError
from exporter.model import CardTopology, LinkEnd, Missing, Peer
from exporter.simulate.node_spec import NodeSpec
from tests.support.fake_nvml import FakeDriver

SWITCH = LinkEnd(kind="switch")


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
            from tests.support.fake_nvml import item  # noqa: PLC0415

            return [item(2) for _ in args[0]]
        return {
            "nvmlDeviceGetTopologyCommonAncestor": 40,
            "nvmlDeviceGetP2PStatus": 5 if args[-1] == 4 else 0,
            "nvmlDeviceGetNvLinkRemoteDeviceType": 2,
        }[name]


def read(driver):
    reader = TopologyReader(driver)
    return reader.read(HANDLES), reader.complete


def test_pairs_and_links_are_asked_with_the_driver_s_own_numbers():
    driver = Joined()
    topologies, complete = read(driver)
    assert complete
    assert topologies["GPU-a"] == CardTopology(
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
    topologies, complete = read(Joined(**{ANCESTOR: code}))
    assert (
        topologies["GPU-a"].peers["GPU-b"].pci_path == ""
        and topologies["GPU-a"].peers["GPU-b"].access["read"] == "ok"
    )
    assert complete is (code in {2, 3, 4, 13, 25})
    topologies, _ = read(Joined(**{ACCESS: code}))
    assert topologies["GPU-a"].peers["GPU-b"] == Peer(pci_path="NODE")
    topologies, _ = read(Joined(**{END: code, "nvmlDeviceGetNvLinkRemotePciInfo": 3}))
    assert topologies["GPU-a"].links == {} and topologies["GPU-a"].peers["GPU-b"].pci_path == "NODE"


def test_a_gpu_that_is_lost_on_the_way_costs_its_pairs_only():
    topologies, complete = read(Joined(**{f"{ANCESTOR}:b": 15}))
    assert not complete and topologies["GPU-a"].peers["GPU-b"].pci_path == "NODE" and topologies["GPU-b"].peers == {}
    topologies, complete = read(Joined(**{"nvmlDeviceGetFieldValues:a": 15}))
    assert not complete and set(topologies) == {"GPU-b"}


@pytest.mark.parametrize("code", [1, 9, 12, 18])
def test_a_driver_that_is_over_ends_the_pass(code):
    with pytest.raises(DriverError):
        read(Joined(**{ACCESS: code}))


def test_a_refused_pair_of_linked_gpus_is_tried_again_because_the_fabric_may_be_starting():
    driver = Joined()
    answer = driver.answer
    driver.answer = lambda name, handle, *args: 5 if name == ACCESS else answer(name, handle, *args)
    topologies, complete = read(driver)
    assert topologies["GPU-a"].peers["GPU-b"].access["nvlink"] == "not_supported" and not complete


@pytest.mark.parametrize("garbage", [-1, 7, 2**32 - 1, None, "40", 3.5])
def test_answers_that_mean_nothing_are_left_out(garbage):
    driver = Joined()
    answer = driver.answer
    driver.answer = lambda name, handle, *args: (
        answer(name, handle, *args) if name == "nvmlDeviceGetFieldValues" else garbage
    )
    topologies, _ = read(driver)
    assert topologies["GPU-a"].peers["GPU-b"] == Peer()
    assert {end.kind for end in topologies["GPU-a"].links.values()} <= {"unknown"}


def test_a_pass_ends_when_another_caller_needs_the_driver():
    driver, scheduler = Joined(), iter([True, True, True])
    with pytest.raises(Interrupted):
        TopologyReader(driver, lambda: next(scheduler, False)).read(HANDLES)
    assert not any(asked[1] == "b" for asked in driver.asked)


def test_the_binding_s_own_objection_counts_as_not_supported():
    class ArgumentError(Exception):
        pass

    def refuse(*_):
        raise ArgumentError("argument 3: wrong type")

    driver = Joined()
    driver.nvmlDeviceGetP2PStatus = refuse
    topologies, complete = read(driver)
    assert topologies["GPU-a"].peers["GPU-b"] == Peer(pci_path="NODE") and complete
    assert DeviceCalls(driver, "a").call("nvmlDeviceGetP2PStatus", "b", (0,), key="k") is Missing.UNSUPPORTED


# ---------------------------------------------------------------- the pipe


def test_topologies_pass_the_pipe_unchanged():
    topologies, _ = read(Joined())
    message = protocol.TopologyRead(cards=topologies)
    (frame,) = protocol.FrameBuffer().feed(protocol.encode(message))
    assert protocol.decode(frame) == message


@pytest.mark.parametrize(
    "body",
    [
        {"peers": {"GPU-b": {"pci_path": "FAR"}}},
        {"peers": {"GPU-b": {"access": {"fly": "ok"}}}},
        {"peers": {"GPU-b": {"access": {"read": "maybe"}}}},
        {"peers": {"GPU-b": {"access": []}}},
        {"peers": {"GPU-b": "SYS"}},
        {"peers": {"x" * 513: {}}},
        {"peers": {f"GPU-{number}": {} for number in range(65)}},
        {"links": {64: {"kind": "switch"}}},
        {"links": {"x": {"kind": "switch"}}},
        {"links": {0: {"kind": "moon"}}},
        {"links": {0: {"kind": "gpu", "pci_bus_id": 7}}},
        {"links": {0: {}}},
        [],
        None,
    ],
)
def test_what_no_worker_writes_is_refused_as_broken_protocol(body):
    frame = msgspec.msgpack.encode({"kind": "TopologyRead", "cards": {"GPU-a": body}})
    with pytest.raises(DriverError):
        protocol.decode(frame)


# ---------------------------------------------------------------- simulated nodes


def simulated(scenario):
    driver = load_driver("exporter.simulate.nvml", NodeSpec(scenario=scenario).dumps())
    _, count = initialise(driver)
    opened = [open_card(driver, index) for index in range(count)]
    return TopologyReader(driver).read({facts.uuid: calls.handle for calls, facts in opened})


def test_simulated_gpus_are_joined_as_their_kind_is():
    joined = simulated("healthy")
    assert len(joined) == 8 and all(
        topology.links == dict.fromkeys(range(18), SWITCH) for topology in joined.values()
    )
    assert {peer.access["nvlink"] for topology in joined.values() for peer in topology.peers.values()} == {"ok"}
    over_pcie = simulated("pcie")
    assert not any(topology.links for topology in over_pcie.values())
    first = [peer.pci_path for peer in over_pcie[next(iter(over_pcie))].peers.values()]
    assert first == ["PHB"] * 3 + ["SYS"] * 4
