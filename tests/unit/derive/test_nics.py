"""What follows from ports: which are down, their best rate, and the GPUs beside them."""

from __future__ import annotations

import pytest

from exporter.derive.nics import NicTracker, pci_path
from exporter.model.nic import NicPort, NicPortKey, PciLocation
from tests.support.builders import card
from tests.support.records import replace

UP = {"state": "active", "physical_state": "link_up"}
SEARCHING = {"state": "down", "physical_state": "polling"}


def port(device="mlx5_0", *, number="1", path=(), numa=None, **more):
    location = PciLocation(path=path, numa_node=numa)
    more = {"adapter": "MT4129", "link_layer": "infiniband", **more}
    return NicPort(key=NicPortKey(device, number), location=location, **more)


def down(states):
    return [state.is_down for state in states]


def test_a_port_that_was_active_is_down_when_it_is_not():
    tracker = NicTracker()
    assert down(tracker.update([port(**UP)], {}, ())) == [False]
    assert down(tracker.update([port(**SEARCHING)], {}, ())) == [True]
    assert down(tracker.update([port(**UP)], {}, ())) == [False]


def test_a_port_that_never_was_active_is_not_down():
    assert down(NicTracker().update([port(**SEARCHING)], {}, ())) == [False]


def test_a_port_that_was_disabled_is_not_down():
    tracker = NicTracker()
    tracker.update([port(**UP)], {}, ())
    assert down(tracker.update([port(state="down", physical_state="disabled")], {}, ())) == [False]


def test_a_port_whose_state_is_not_told_is_not_judged():
    assert down(NicTracker().update([port()], {}, ())) == [None]


@pytest.mark.parametrize(
    ("equal", "changes", "expected"),
    [(3, {}, True), (2, {}, False), (3, {"adapter": "MT4123"}, False), (3, {"number": "2"}, False)],
)
def test_a_port_that_looks_for_a_peer_is_down_where_enough_equal_ones_are_up(equal, changes, expected):
    others = [port(f"mlx5_{index}", **UP) for index in range(1, 1 + equal)]
    searching = port(**{**SEARCHING, **changes})
    assert down(NicTracker().update([searching, *others], {}, ()))[0] is expected


def test_one_equal_port_without_a_cable_makes_it_doubtful():
    others = [port(f"mlx5_{index}", **UP) for index in range(1, 5)]
    ports = [port(**SEARCHING), port("mlx5_9", **SEARCHING), *others]
    assert down(NicTracker().update(ports, {}, ()))[:2] == [False, False]


def test_a_port_that_went_and_came_back_begins_anew():
    tracker = NicTracker()
    tracker.update([port(**UP, rate=50e9)], {}, ())
    assert tracker.update([], {}, ()) == ()
    (state,) = tracker.update([port(**SEARCHING)], {}, ())
    assert (state.is_down, state.max_rate) == (False, None)


def test_the_best_rate_is_kept_while_the_link_is_slower_or_down():
    tracker = NicTracker()
    rates = []
    for rate in (25e9, 50e9, 25e9, None):
        (state,) = tracker.update([port(**UP, rate=rate)], {}, ())
        rates.append(state.max_rate)
    assert rates == [25e9, 50e9, 50e9, 50e9]


SWITCH = ("pci0000:60", "0000:60:01.0", "0000:61:00.0")


@pytest.mark.parametrize(
    ("nic", "gpu", "expected"),
    [
        ((*SWITCH, "0000:62:00.0", "0000:65:00.0"), (*SWITCH, "0000:62:01.0", "0000:66:00.0"), "PIX"),
        ((*SWITCH, "0000:62:00.0", "0000:65:00.0"), (*SWITCH, "0000:62:01.0", "0000:70:00.0", "0000:71:00.0"), "PXB"),
        (("pci0000:60", "0000:60:01.0", "0000:65:00.0"), ("pci0000:60", "0000:60:02.0", "0000:66:00.0"), "PHB"),
        (("pci0000:60", "0000:60:01.0", "0000:65:00.0"), ("pci0000:80", "0000:80:02.0", "0000:86:00.0"), "NODE"),
        (("pci0000:60", "0000:65:00.0"), (), ""),
        ((), (), ""),
    ],
)
def test_the_path_between_two_devices_has_the_words_of_nvidia_smi(nic, gpu, expected):
    first, second = PciLocation(path=nic, numa_node=0), PciLocation(path=gpu, numa_node=0)
    assert pci_path(first, second) == pci_path(second, first) == expected


@pytest.mark.parametrize(("other", "expected"), [(0, "NODE"), (1, "SYS"), (None, "")])
def test_between_host_bridges_the_numa_nodes_decide(other, expected):
    nic = PciLocation(path=("pci0000:60", "0000:65:00.0"), numa_node=0)
    gpu = PciLocation(path=("pci0000:80", "0000:86:00.0"), numa_node=other)
    assert pci_path(nic, gpu) == expected


def gpu(index, pci):
    made = card(index)
    return replace(made, facts=replace(made.facts, pci_bus_id=f"00000000:{pci}:00.0"))


def test_the_nearest_gpus_are_those_with_the_shortest_path():
    gpus = {
        "0000:66:00": PciLocation(path=(*SWITCH, "0000:62:01.0", "0000:66:00.0"), numa_node=0),
        "0000:67:00": PciLocation(path=(*SWITCH, "0000:62:02.0", "0000:67:00.0"), numa_node=0),
        "0000:86:00": PciLocation(path=("pci0000:80", "0000:86:00.0"), numa_node=1),
    }
    cards = [gpu(0, "66"), gpu(1, "67"), gpu(2, "86"), card(3)]
    near = port(path=(*SWITCH, "0000:62:00.0", "0000:65:00.0"), numa=0, **UP)
    far = port("mlx5_1", path=("pci0000:a0", "0000:a1:00.0"), numa=1, **UP)
    unknown = port("mlx5_2", **UP)
    states = NicTracker().update([near, far, unknown], gpus, cards)
    found = [[(each.uuid, each.path) for each in state.nearest] for state in states]
    assert found == [[("GPU-0000", "PIX"), ("GPU-0001", "PIX")], [("GPU-0002", "NODE")], []]
