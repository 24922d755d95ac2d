"""What is wrong with links: PCIe judged under load only, NVLinks that are gone, a switch fabric in trouble."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.links import JUDGED_AFTER, PcieLinkTracker, TopologyTracker, fabric_problems, nvlinks_down
from exporter.driver.nvml.probes import bit_error_ratio
from exporter.model import (
    CardFacts,
    CardReading,
    CardState,
    CardTopology,
    GpuAssignment,
    GpuLabels,
    LinkEnd,
    MigInstance,
    Missing,
    Peer,
    Signal,
    SourceStatus,
)
from tests.support.examples import examples
from tests.support.records import replace

SWITCHED = CardTopology(links={0: LinkEnd(kind="switch")})


def card(index=0, *, at=0.0, name="H100", up=None, mig=False, read=True, missing=None, topology=None, **signals):
    """``up``: how many links are active, or (active, down)."""
    active, down = up if isinstance(up, tuple) else (up or 0, 0)
    states = {link: link < active for link in range(active + down)}
    values = {Signal(name): float(value) for name, value in signals.items()}
    reading = CardReading(at=at, signals=values, missing=missing or {}, nvlink_up=states)
    return CardState(
        facts=CardFacts(index=index, uuid=f"GPU-{index}", name=name, mig=mig),
        status=SourceStatus(source="gpu", up=read),
        reading=reading if read else None,
        last_read_at=at,
        labels=GpuLabels(str(index), f"GPU-{index}"),
        topology=topology,
    )


def link(at, *, busy=0.5, generation=5, width=16, **more):
    return card(
        at=at, utilization=busy, pcie_link_generation=generation, pcie_link_generation_max=5,
        pcie_link_width=width, pcie_link_width_max=16, **more,
    )  # fmt: skip


def judged(*cards):
    watch = PcieLinkTracker()
    return [watch.judge([gpu]).get("GPU-0") for gpu in cards]


# ---------------------------------------------------------------- PCIe


def test_a_link_is_judged_after_half_a_minute_of_work_and_not_before():
    verdicts = judged(*[link(at) for at in range(0, 40, 5)])
    assert verdicts == [None] * 6 + [False] * 2


def test_a_clock_that_begins_anew_begins_the_judgement_anew():
    verdicts = judged(*[link(at) for at in (*range(1000, 1040, 5), *range(0, 40, 5))])
    assert verdicts[:8] == verdicts[8:] == [None] * 6 + [False] * 2


@pytest.mark.parametrize("fault", [{"generation": 3}, {"width": 8}, {"generation": 1, "width": 1}])
def test_a_link_below_its_best_for_all_that_time_is_degraded(fault):
    assert judged(*[link(at, **fault) for at in range(0, 40, 5)])[-1] is True


def test_an_idle_gpu_lowers_its_link_and_is_not_judged():
    assert judged(*[link(at, busy=0.10, generation=1) for at in range(0, 400, 5)]) == [None] * 80
    assert judged(*[link(at, busy=0.0 if at == 30 else 1.0, generation=1) for at in range(0, 60, 5)])[-1] is None


def test_one_moment_at_its_best_acquits_the_link_for_half_a_minute():
    verdicts = judged(*[link(at, generation=5 if at == 20 else 4) for at in range(0, 65, 5)])
    assert verdicts[6:10] == [False] * 4 and verdicts[10] is True


def test_work_is_measured_by_sm_activity_where_there_is_any():
    assert judged(*[link(at, busy=1.0, sm_active=0.05, generation=1) for at in range(0, 60, 5)])[-1] is None
    assert judged(*[link(at, busy=0.0, sm_active=0.5, generation=1) for at in range(0, 60, 5)])[-1] is True


def test_a_gpu_that_was_away_or_a_link_that_cannot_be_compared_is_not_judged():
    away = [link(at, read=at != 25) for at in range(0, 50, 5)]
    assert judged(*away)[-1] is None
    unknown = [card(at=at, utilization=1, pcie_link_generation=3) for at in range(0, 60, 5)]
    assert judged(*unknown)[-1] is None
    width = [card(at=at, utilization=1, pcie_link_width=8, pcie_link_width_max=16) for at in range(0, 60, 5)]
    assert judged(*width)[-1] is True


def test_gpus_that_are_gone_are_removed():
    watch = PcieLinkTracker()
    watch.judge([link(0.0)])
    watch.judge([])
    assert watch.judge([link(100.0)]) == {}, "it starts anew"


@examples(100)
@given(st.lists(st.tuples(st.floats(0.1, 20), st.floats(0, 1), st.integers(1, 6), st.sampled_from([4, 8, 16]))))
def test_whatever_happens_a_verdict_needs_work_all_the_time_and_agrees_with_it(steps):
    at, history, watch = 0.0, [], PcieLinkTracker()
    for gap, busy, generation, width in steps:
        at += gap
        history.append((at, busy, generation >= 5 and width >= 16))
        verdict = watch.judge([link(at, busy=busy, generation=generation, width=width)]).get("GPU-0")
        idle = [then for then, share, _ in history if share <= 0.10]
        since = [then for then, _, _ in history if not idle or then > idle[-1]]
        if not since or at - since[0] < JUDGED_AFTER:
            assert verdict is None
        else:
            assert verdict is not any(best and at - then < JUDGED_AFTER for then, _, best in history)


# ---------------------------------------------------------------- NVLink


def test_links_that_were_up_and_are_not_are_down():
    assert nvlinks_down([card(0, up=(16, 2)), card(1, up=18)]) == {"GPU-0": 2, "GPU-1": 0}


def test_links_that_were_down_before_the_daemon_are_found_beside_most_gpus_of_the_name():
    cards = [card(i, up=18) for i in range(3)] + [card(3, up=15), card(4, up=(17, 1))]
    assert nvlinks_down(cards) == {"GPU-0": 0, "GPU-1": 0, "GPU-2": 0, "GPU-3": 3, "GPU-4": 1}


def test_a_gpu_without_any_link_is_at_fault_only_where_the_others_lead_to_a_switch():
    bridged = [card(i, up=12) for i in range(3)]
    assert "GPU-3" not in nvlinks_down([*bridged, card(3)])
    wired = [replace(gpu, topology=SWITCHED) for gpu in bridged]
    assert nvlinks_down([*wired, card(3)])["GPU-3"] == 12


def test_no_majority_no_expectation():
    assert nvlinks_down([card(0, up=18), card(1, up=4)]) == {"GPU-0": 0, "GPU-1": 0}
    even = [card(0, up=18), card(1, up=18), card(2, up=4), card(3, up=4)]
    assert set(nvlinks_down(even).values()) == {0}
    others = [card(i, up=18) for i in range(3)] + [card(3, up=4, name="A100"), card(4, up=4, name="")]
    assert set(nvlinks_down(others).values()) == {0}


def test_gpus_that_cannot_be_judged_are_left_out():
    cards = [card(i, up=18) for i in range(3)]
    unread = card(4, missing={Signal.NVLINK_STATE: Missing.ERROR})
    assert set(nvlinks_down([*cards, card(3, read=False), unread, card(5, up=(10, 8), mig=True)])) == {
        "GPU-0",
        "GPU-1",
        "GPU-2",
    }
    assert nvlinks_down([card(i) for i in range(8)]) == {}, "cards without NVLink"


def test_a_link_that_was_not_read_this_time_is_not_down():
    watch = TopologyTracker()
    watch.update([card(i, up=18) for i in range(4)], ())
    partly = [card(i, up=18) for i in range(3)] + [card(3, up=(16, 1))]
    assert watch.update(partly, ()).links["GPU-3"].nvlinks_down == 1, "one down, one not read"


def test_a_link_that_was_never_read_makes_no_straggler_and_links_seen_down_still_count():
    partly = {Signal.NVLINK_STATE: Missing.ERROR}
    others = [card(i, up=18) for i in range(3)]
    assert nvlinks_down([*others, card(3, up=17, missing=partly)])["GPU-3"] == 0
    assert nvlinks_down([*others, card(3, up=(15, 2), missing=partly)])["GPU-3"] == 2
    watch = TopologyTracker()
    watch.update([*others, card(3, up=17, missing=partly)], ())
    assert watch.update([*others, card(3, up=17, missing=partly)], ()).links["GPU-3"].nvlinks_down == 0
    assert watch.update([*others, card(3, up=15)], ()).links["GPU-3"].nvlinks_down == 3
    missed = [*others, card(3, up=14, missing=partly)]
    assert watch.update(missed, ()).links["GPU-3"].nvlinks_down == 3, "it is known how many it has"


def test_instances_of_a_mig_enabled_gpu_have_no_links_of_their_own():
    cards = [card(i, up=18, topology=SWITCHED) for i in range(3)]
    part = card(3)
    cut = MigInstance(number=0, parent="GPU-9", gpu_instance=1, compute_instance=0)
    assert "GPU-3" in nvlinks_down([*cards, part])
    assert "GPU-3" not in nvlinks_down([*cards, replace(part, facts=replace(part.facts, instance=cut))])


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 18), st.integers(0, 18), st.booleans(), st.booleans()), max_size=8))
def test_never_fewer_are_down_than_are_seen_down_and_never_more_than_a_gpu_could_have(cards):
    made = [
        card(i, up=(active, down), read=read, topology=SWITCHED if switched else None)
        for i, (active, down, read, switched) in enumerate(cards)
    ]
    for uuid, down in nvlinks_down(made).items():
        active, down_seen, _, _ = cards[int(uuid[4:])]
        assert down_seen <= down <= 36 - active


# ---------------------------------------------------------------- fabric


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ({}, ()),
        ({"fabric_state": 3}, ()),
        ({"fabric_state": 1}, ("not_started",)),
        ({"fabric_state": 2, "fabric_status": 27}, ("in_progress",)),
        ({"fabric_state": 3, "fabric_status": 999}, ("failed",)),
        ({"fabric_state": 3, "fabric_health": 0b10_01_0001_10_10_10_10}, ()),
        ({"fabric_state": 3, "fabric_health": 0x1}, ("degraded_bandwidth",)),
        ({"fabric_state": 3, "fabric_health": 0x1 << 2}, ("route_recovery",)),
        ({"fabric_state": 3, "fabric_health": 0x1 << 4}, ("route_unhealthy",)),
        ({"fabric_state": 3, "fabric_health": 0x1 << 6}, ("access_timeout_recovery",)),
        ({"fabric_state": 3, "fabric_health": 0x4 << 8}, ("no_partition",)),
        ({"fabric_state": 3, "fabric_health": 0xF << 8}, ("incorrect_configuration",)),
        ({"fabric_state": 3, "fabric_health": 0x2 << 12}, ("no_partition_assigned",)),
        ({"fabric_state": 3, "fabric_health": 0x2 << 14}, ("manager_disconnected",)),
        ({"fabric_state": 3, "fabric_summary": 1}, ()),
        ({"fabric_state": 3, "fabric_summary": 2}, ("unhealthy",)),
        ({"fabric_state": 3, "fabric_summary": 3}, ("limited_capacity",)),
        ({"fabric_state": 3, "fabric_summary": 2, "fabric_health": 0x1}, ("degraded_bandwidth",)),
        ({"fabric_state": 3, "fabric_health": 0x1 | 0x5 << 8}, ("degraded_bandwidth", "insufficient_nvlinks")),
    ],
)
def test_the_health_bits_of_a_fabric_have_names(signals, expected):
    if signals.get("fabric_health") == 0b10_01_0001_10_10_10_10:
        signals = {**signals, "fabric_health": 0b01_01_0001_10_10_10_10}  # connected, partition assigned
    assert fabric_problems(card(**signals).reading) == expected


@examples(200)
@given(st.integers(0, 2**32 - 1), st.integers(0, 16))
def test_any_health_bits_give_distinct_words(health, state):
    problems = fabric_problems(card(fabric_health=health, fabric_state=state).reading)
    assert len(set(problems)) == len(problems) and all(problem.isidentifier() for problem in problems)


# ---------------------------------------------------------------- bit errors


@pytest.mark.parametrize(
    ("raw", "ratio"), [(0x50F, 5e-15), (0x10C, 1e-12), (0x0FF, 0.0), (0xF00, 15.0), (0x108, 1e-8)]
)
def test_bit_error_ratios_are_mantissa_times_ten_to_minus_exponent(raw, ratio):
    assert bit_error_ratio(raw) == pytest.approx(ratio)


# ---------------------------------------------------------------- all together


def test_paths_are_made_anew_only_when_something_changed():
    def pair(up):
        return [
            card(
                i,
                up=up,
                topology=CardTopology(peers={f"GPU-{1 - i}": Peer(pci_path="NODE", access={"nvlink": "ok"})}),
            )
            for i in range(2)
        ]

    watch, assignments = (
        TopologyTracker(),
        [GpuAssignment(uuid="GPU-0", replica="r"), GpuAssignment(uuid="GPU-1", replica="r")],
    )
    first = watch.update(pair(18), assignments)
    assert first.groups[0].worst == "NV18" and first.links["GPU-0"].nvlinks_down == 0
    again = watch.update(pair(18), assignments)
    assert again.paths is first.paths
    fewer = watch.update(pair((17, 1)), assignments)
    assert fewer.groups[0].worst == "NV17" and fewer.links["GPU-0"].nvlinks_down == 1
    assert watch.update(pair((17, 1)), ()).groups == ()
    assert watch.update([], ()).links == {}
