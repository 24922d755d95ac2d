"""The GPU that the others wait for: judged on work, for every cause, and silent where nobody is to blame."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.straggler import Judgement, judge
from exporter.derive.straggler_cause import LINK_COST
from exporter.derive.straggler_evidence import GpuEvidence
from exporter.model import Cause
from tests.support.records import replace

CALM = {
    "gpu_idle": False,
    "sw_power_cap": False,
    "hw_slowdown": False,
    "sw_thermal_slowdown": False,
    "hw_thermal_slowdown": False,
    "hw_power_brake_slowdown": False,
}
GIGA = 1e9


def event(*names):
    return CALM | dict.fromkeys(names, True)


def member(index, **more):
    """A GPU that waits a fifth of its time: 100 % utilisation, work as everybody's."""
    usual = {
        "busy": 0.70,
        "dram": 0.50,
        "tensor": 0.20,
        "resident": 1.0,
        "memory_activity": 0.55,
        "clock": 1.98 * GIGA,
        "clock_max": 1.98 * GIGA,
        "power_ratio": 0.6,
        "margin": 30.0,
        "events": CALM,
        "memory_free": 0.10,
        "pcie_capacity": 63 * GIGA,
        "pcie_rate": 1e7,
        "nvlinks": 18,
        "nvlink_rate": 5 * GIGA,
        "nvlink_recovery_rate": 0.0,
        "processes": frozenset({100 + index}),
    }
    return GpuEvidence(uuid=f"GPU-{index:04d}", **(usual | more))


def blind(index, **more):
    """The same on a GPU without GPM."""
    return member(index, busy=None, dram=None, tensor=None, **more)


def slow(index, ratio=1.2, clock=1.6 * GIGA, make=member, **more):
    """A GPU that needs ``ratio`` times as long for the same work; tensor cycles at its clock are the same work."""
    tensor = {"tensor": 0.20 * 1.98 * GIGA / clock} if make is member else {}
    measured = {"busy": 0.70 * ratio} if make is member else {}
    return make(index, clock=clock, **(measured | tensor | more))


def group(*odd, size=4, make=member):
    """``odd`` GPUs come first; the others are as usual."""
    return [*odd, *[make(index) for index in range(len(odd), size)]]


def causes(judgement: Judgement):
    return {uuid: suspicion.cause for uuid, suspicion in judgement.suspects.items()}


FIRST = "GPU-0000"

CAUSES = [
    (Cause.THERMAL, {"events": event("sw_thermal_slowdown")}),
    (Cause.THERMAL, {"events": event("hw_thermal_slowdown", "hw_slowdown")}),
    (Cause.THERMAL, {"events": {}, "margin": 0.0}),
    (Cause.POWER_CAP, {"events": event("sw_power_cap")}),
    (Cause.POWER_CAP, {"events": {}, "power_ratio": 1.0}),
    (Cause.POWER_BRAKE, {"events": event("hw_power_brake_slowdown", "hw_slowdown")}),
    (Cause.CLOCK_LOCK, {}),
]


# ── Every cause ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", [member, blind])
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize(("cause", "shown"), CAUSES)
def test_a_gpu_held_at_a_lower_clock_is_a_straggler_with_its_cause(cause, shown, size, make):
    judgement = judge(group(slow(0, make=make, **shown), size=size, make=make))
    assert causes(judgement) == {FIRST: cause}
    assert judgement.suspects[FIRST].slowdown == (pytest.approx(1.2) if make is member else None)


def test_of_several_clock_events_the_first_is_the_cause():
    everything = event("sw_thermal_slowdown", "sw_power_cap")
    assert causes(judge(group(slow(0, events=everything)))) == {FIRST: Cause.THERMAL}


def test_a_slow_gpu_whose_clock_is_as_high_as_the_others_is_not_slow_because_of_an_event():
    judgement = judge(group(slow(0, ratio=1.3, clock=1.98 * GIGA, events=event("sw_power_cap"))))
    assert causes(judgement) == {FIRST: Cause.UNKNOWN}


def test_a_gpu_that_is_slow_for_no_visible_reason_must_be_very_slow_and_not_one_of_two():
    assert causes(judge(group(slow(0, ratio=1.3, clock=1.98 * GIGA)))) == {FIRST: Cause.UNKNOWN}
    assert judge(group(slow(0, ratio=1.15, clock=1.98 * GIGA))) == Judgement(judged=True)
    assert judge(group(slow(0, ratio=1.3, clock=1.98 * GIGA), size=2)) == Judgement(judged=True)


@pytest.mark.parametrize("make", [member, blind])
@pytest.mark.parametrize("size", [2, 4])
def test_a_narrow_pcie_link_that_is_full_of_traffic_holds_up_the_group(make, size):
    over_pcie = {"nvlinks": 0, "nvlink_rate": None, "pcie_rate": 3 * GIGA, "make": make}
    narrow = make(0, nvlinks=0, nvlink_rate=None, pcie_rate=3 * GIGA, pcie_capacity=63 * GIGA / 4)
    del over_pcie["make"]
    judgement = judge([narrow, *[make(index, **over_pcie) for index in range(1, size)]])
    assert causes(judgement) == {FIRST: Cause.PCIE}
    # 3 of 12.6 GB/s: 0.238 of the time, of which three quarters would be saved.
    assert judgement.suspects[FIRST].slowdown == pytest.approx(1 / (1 - 0.238 * 0.75), rel=1e-3)


def test_a_narrow_pcie_link_without_traffic_costs_nothing():
    assert judge(group(member(0, pcie_capacity=63 * GIGA / 4))) == Judgement(judged=True)


def test_a_group_whose_gpus_all_use_narrow_pcie_has_no_straggler():
    alike = {"nvlinks": 0, "pcie_capacity": 8 * GIGA, "pcie_rate": 6 * GIGA}
    assert judge([member(index, **alike) for index in range(8)]) == Judgement(judged=True)


@pytest.mark.parametrize("make", [member, blind])
@pytest.mark.parametrize(
    ("cause", "at_limit"), [(Cause.POWER_CAP, {"power_ratio": 0.99}), (Cause.THERMAL, {"margin": 1.0})]
)
def test_a_gpu_at_its_limit_has_no_clock_lock_when_no_read_has_seen_the_event(cause, at_limit, make):
    assert causes(judge(group(slow(0, make=make, **at_limit), make=make))) == {FIRST: cause}
    idle = slow(0, make=make, **at_limit, events=event("gpu_idle"))
    assert cause not in causes(judge(group(idle, make=make))).values()


BUSY_NVLINK = {"nvlink_rate": 250 * GIGA}


@pytest.mark.parametrize("make", [member, blind])
@pytest.mark.parametrize(
    "shown", [{"nvlinks": 12, **BUSY_NVLINK}, {"nvlinks": 0, "nvlink_rate": 0.0}, {"nvlink_recovery_rate": 40.0}]
)
def test_nvlinks_that_are_too_few_for_the_traffic_or_recover_again_and_again_delay_the_group(shown, make):
    others = [make(index, **(BUSY_NVLINK if shown.get("nvlinks") else {})) for index in (1, 2, 3)]
    assert causes(judge([make(0, **shown), *others])) == {FIRST: Cause.NVLINK}


def test_a_group_waits_for_nvlinks_that_are_down_as_long_as_their_share_of_the_traffic_takes():
    busy = [member(index, **BUSY_NVLINK) for index in (1, 2, 3)]
    judgement = judge([member(0, nvlinks=12, **BUSY_NVLINK), *busy])
    # 250 of 480 GB/s: 0.52 of the time, of which a third would be saved.
    assert judgement.suspects[FIRST].slowdown == pytest.approx(1 / (1 - 0.52 / 3), rel=1e-2)


@pytest.mark.parametrize("active", [17, 9, 1])
def test_nvlinks_that_are_down_cost_nothing_where_next_to_nothing_is_sent(active):
    assert judge(group(member(0, nvlinks=active), make=lambda index: member(index, nvlink_rate=1e8))).suspects == {}


def test_nvlinks_that_are_down_or_recover_alike_everywhere_make_no_straggler():
    assert judge([member(index, nvlinks=9, **BUSY_NVLINK) for index in range(4)]) == Judgement(judged=True)
    assert judge([member(index, nvlink_recovery_rate=40.0) for index in range(4)]) == Judgement(judged=True)


def test_links_that_were_not_read_are_not_down_and_those_that_were_read_as_inactive_are():
    assert judge(group(member(0, nvlinks=None, **BUSY_NVLINK))) == Judgement(judged=True)
    others = [member(index, **BUSY_NVLINK) for index in (1, 2, 3)]
    assert causes(judge([member(0, nvlinks=None, nvlinks_down=6, **BUSY_NVLINK), *others])) == {FIRST: Cause.NVLINK}
    assert judge(group(member(0, nvlinks=18), *[member(i, nvlinks=None) for i in (1, 2, 3)])).suspects == {}
    unread = [member(1, nvlinks=None, **BUSY_NVLINK), member(2, nvlinks=None, **BUSY_NVLINK), others[2]]
    assert causes(judge([member(0, nvlinks=12, **BUSY_NVLINK), *unread])) == {FIRST: Cause.NVLINK}
    assert judge([member(i, nvlinks=None, nvlinks_down=2, **BUSY_NVLINK) for i in range(4)]).suspects == {}


def test_recovering_nvlinks_make_a_suspect_only_of_a_gpu_that_has_more_than_ten_times_the_others():
    others = [member(index, nvlink_recovery_rate=4.0) for index in (1, 2, 3)]
    assert causes(judge([member(0, nvlink_recovery_rate=41.0), *others])) == {FIRST: Cause.NVLINK}
    assert judge([member(0, nvlink_recovery_rate=39.0), *others]) == Judgement(judged=True)


STALLED = {"busy": 0.03, "dram": 0.005, "tensor": 0.001}


@pytest.mark.parametrize(("resident", "expected"), [(1.0, {FIRST: Cause.NVLINK}), (0.1, {})])
def test_a_group_that_hardly_works_waits_for_recovering_nvlinks_while_its_kernels_are_resident(resident, expected):
    stalled = [member(i, **STALLED, resident=resident) for i in (1, 2, 3)]
    recovering = member(0, **STALLED, resident=resident, nvlink_recovery_rate=40.0)
    judged = judge([recovering, *stalled])
    assert causes(judged) == expected and judged.judged is bool(expected)
    assert judge([member(0, **STALLED, resident=resident), *stalled]) == Judgement()


@pytest.mark.parametrize("make", [member, blind])
def test_a_gpu_without_free_memory_that_keeps_up_is_no_straggler(make):
    assert judge(group(make(0, memory_free=0.0), make=make)) == Judgement(judged=True)


def test_full_memory_is_the_cause_of_a_measured_slowdown_that_nothing_else_explains():
    full = {"memory_free": 0.0, "clock": 1.98 * GIGA}
    judgement = judge(group(slow(0, ratio=1.15, **full)))
    assert causes(judgement) == {FIRST: Cause.MEMORY_PRESSURE}
    assert judgement.suspects[FIRST].slowdown == pytest.approx(1.15)
    hot = slow(0, memory_free=0.0, events=event("sw_thermal_slowdown"))
    assert causes(judge(group(hot))) == {FIRST: Cause.THERMAL}
    assert causes(judge([slow(0, ratio=1.15, **full), *[member(i, memory_free=0.005) for i in (1, 2, 3)]])) == {}


@pytest.mark.parametrize("users", [{"processes": frozenset({100, 999})}, {"replicas": 2}])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_gpu_shared_with_another_tenant_has_that_cause(users, size):
    busy = {"busy": 0.95, "dram": 0.7, "tensor": 0.3, "memory_activity": 0.8, "events": event("sw_power_cap")}
    assert causes(judge(group(member(0, **busy, **users), size=size))) == {FIRST: Cause.OTHER_TENANT}
    without = blind(0, memory_activity=0.8, **users)
    assert causes(judge(group(without, size=size, make=blind))) == {FIRST: Cause.OTHER_TENANT}


VISITORS = [{"processes": frozenset({100, 999})}, {"replicas": 2}]
COMPUTING = [
    {"busy": 0.98, "dram": 0.52, "tensor": 0.5},  # mostly tensor cores
    {"busy": 0.98, "dram": 0.52},  # neither much memory nor tensor cores
    {"busy": 0.98, "dram": 0.52, "tensor": 0.22, "clock": 1.75 * GIGA, "events": event("sw_power_cap")},
]


@pytest.mark.parametrize("users", VISITORS)
@pytest.mark.parametrize("work", COMPUTING)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_visitor_that_computes_and_hardly_reads_memory_is_found_too(work, users, size):
    assert causes(judge(group(member(0, **work, **users), size=size))) == {FIRST: Cause.OTHER_TENANT}


@pytest.mark.parametrize("work", COMPUTING)
def test_more_work_of_any_kind_is_no_other_tenant_where_the_gpu_has_one_process(work):
    assert Cause.OTHER_TENANT not in causes(judge(group(member(0, **work)))).values()


@pytest.mark.parametrize("users", VISITORS)
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize(("cause", "shown"), CAUSES)
def test_a_visitor_that_does_nothing_does_not_excuse_what_holds_the_clock_down(cause, shown, users, size):
    assert causes(judge(group(slow(0, ratio=1.24, **shown, **users), size=size))) == {FIRST: cause}


@pytest.mark.parametrize(("busy", "expected"), [(0.83, {}), (0.85, {FIRST: Cause.OTHER_TENANT})])
def test_in_a_pair_busy_processors_alone_must_say_much(busy, expected):
    visited = member(0, busy=busy, processes=frozenset({100, 999}))
    assert causes(judge(group(visited, size=2))) == expected


def test_another_tenant_does_not_hide_another_gpu_that_is_slow():
    visited = member(0, busy=0.98, dram=0.52, processes=frozenset({100, 999}))
    hot = slow(1, events=event("sw_thermal_slowdown"))
    assert causes(judge(group(visited, hot, size=8))) == {FIRST: Cause.OTHER_TENANT, "GPU-0001": Cause.THERMAL}


def test_a_helper_process_on_a_gpu_that_waits_longer_or_does_other_work_is_no_tenant():
    helped = {"processes": frozenset({100, 999})}
    waits = {"dram": 0.15, "tensor": 0.05}
    spinning = member(0, resident=0.98, busy=0.31, **waits, **helped)
    assert judge([spinning, *[member(i, resident=0.5, busy=0.24, **waits) for i in (1, 2, 3)]]).suspects == {}
    prefill, decode = member(0, busy=0.9, dram=0.2, tensor=0.6, **helped), member(1, busy=0.6, dram=0.6, tensor=0.1)
    assert judge([prefill, decode]) == Judgement()


@pytest.mark.parametrize("kind", ["busy", "tensor"])
def test_work_that_scatters_among_the_others_is_no_proof_of_a_visitor(kind):
    usual = {"busy": 0.5, "tensor": 0.2}[kind]
    others = [member(i, **{"busy": 0.5, kind: usual * (1 + 0.06 * i)}) for i in range(1, 8)]
    first = member(0, **{"busy": 0.5, kind: usual * 1.5}, processes=frozenset({100, 999}))
    assert Cause.OTHER_TENANT not in causes(judge([first, *others])).values()


def test_a_process_that_does_nothing_or_holds_contexts_on_all_gpus_is_no_tenant():
    assert judge(group(member(0, processes=frozenset({100, 999})))) == Judgement(judged=True)
    workers = frozenset({100, 101, 102, 103})  # every worker has opened a context on the first GPU
    assert judge(group(member(0, dram=0.58, busy=0.8, processes=workers))) == Judgement(judged=True)
    group_members = [member(index, processes=frozenset({100}), dram=0.5 + 0.08 * (index == 0)) for index in range(4)]
    assert judge(group_members) == Judgement(judged=True)


@pytest.mark.parametrize("size", [2, 4])
def test_another_tenant_is_found_where_one_process_drives_all_gpus_of_the_group(size):
    visited = member(0, processes=frozenset({100, 999}), dram=0.7, busy=0.95)
    driven = [member(index, processes=frozenset({100})) for index in range(1, size)]
    assert causes(judge([visited, *driven])) == {FIRST: Cause.OTHER_TENANT}


# ── Nobody to blame ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_waiting_gpus_at_full_utilisation_are_no_stragglers_and_hide_none(size):
    waiting = [member(index, busy=0.55) for index in range(1, size)]
    assert causes(judge([slow(0, ratio=1.0, events=event("sw_thermal_slowdown")), *waiting])) == {
        FIRST: Cause.THERMAL
    }
    assert judge([member(0, busy=0.55), *waiting]) == Judgement(judged=True)


def test_utilisation_alone_changes_nothing():
    """A GPU at half the others' utilisation, or twice it, does the same work in the same time."""
    for resident in (0.5, 0.8, 1.0):
        assert judge([member(0, resident=resident), *[member(i, resident=0.7) for i in (1, 2, 3)]]).suspects == {}


def test_a_gpu_that_spins_longer_in_the_same_collective_is_not_slow():
    """Cards over PCIe: 98 % utilisation on the first, half of that on the others, and all of it waiting."""
    spinning = member(0, resident=0.98, busy=0.31, dram=0.15, tensor=0.05)
    assert judge([spinning, *[member(i, resident=0.5, busy=0.24, dram=0.15, tensor=0.05) for i in (1, 2, 3)]]) == (
        Judgement(judged=True)
    )


@pytest.mark.parametrize("make", [member, blind])
def test_an_idle_group_is_not_judged(make):
    idle = {"resident": 0.0, "memory_activity": 0.0, "clock": 0.345 * GIGA, "events": event("gpu_idle")}
    if make is member:
        idle |= {"busy": 0.0, "dram": 0.0, "tensor": 0.0}
    hot = make(0, **(idle | {"clock": 0.2 * GIGA, "events": event("sw_thermal_slowdown"), "memory_free": 0.0}))
    assert judge([hot, *[make(index, **idle) for index in range(1, 4)]]) == Judgement()


@pytest.mark.parametrize("make", [member, blind])
@pytest.mark.parametrize("reason", ["sw_power_cap", "sw_thermal_slowdown", "hw_power_brake_slowdown"])
def test_gpus_that_are_all_held_alike_have_no_straggler(reason, make):
    held = [make(i, clock=(1.5 + 0.01 * i) * GIGA, events=event(reason), power_ratio=1.0) for i in range(8)]
    assert judge(held) == Judgement(judged=True)


@pytest.mark.parametrize("make", [member, blind])
def test_a_busy_gpu_at_its_power_limit_is_no_straggler_as_long_as_it_keeps_up(make):
    capped = make(0, events=event("sw_power_cap"), power_ratio=1.0, clock=1.93 * GIGA)
    assert judge(group(capped, make=make)) == Judgement(judged=True)


@pytest.mark.parametrize(
    ("ratio", "hot", "expected"),
    [
        (1.19, (0,), {FIRST: Cause.THERMAL}),
        (1.07, (0,), {}),
        (1.19, (0, 1), {}),
        (1.25, (0, 1), {FIRST: Cause.THERMAL}),
    ],
)
def test_without_work_measured_a_pair_takes_an_event_on_one_gpu_only_or_a_far_lower_clock(ratio, hot, expected):
    clocks = (1.98 * GIGA / ratio, 1.98 * GIGA)
    events = [event("sw_thermal_slowdown") if index in hot else CALM for index in (0, 1)]
    pair = [blind(index, clock=clock, events=events[index]) for index, clock in enumerate(clocks)]
    assert causes(judge(pair)) == expected


def test_without_work_measured_clocks_that_scatter_protect_a_gpu_that_is_only_a_little_lower():
    held = {"events": event("sw_power_cap"), "power_ratio": 1.0}
    scattered = [blind(i, clock=clock * GIGA, **held) for i, clock in enumerate((1.80, 1.74, 1.66, 1.60))]
    assert judge([blind(9, clock=1.52 * GIGA, **held), *scattered]) == Judgement(judged=True)
    much = blind(9, clock=1.1 * GIGA, **held)
    assert causes(judge([much, *scattered])) == {"GPU-0009": Cause.POWER_CAP}


def test_a_group_of_which_only_half_is_measured_is_judged_by_clocks():
    held = slow(0, events=event("sw_thermal_slowdown"))
    judgement = judge([held, member(1), blind(2), blind(3)])
    assert causes(judgement) == {FIRST: Cause.THERMAL}
    assert judgement.suspects[FIRST].slowdown is None, "a comparison of two would say how much"
    assert judge([held, member(1), member(2), blind(3)]).suspects[FIRST].slowdown == pytest.approx(1.2)


def test_without_work_measured_a_clock_that_is_a_little_lower_or_idle_makes_no_straggler():
    hot = event("sw_thermal_slowdown")
    assert judge(group(blind(0, clock=1.87 * GIGA, events=hot), make=blind)) == Judgement(judged=True)
    assert judge(group(blind(0, clock=0.345 * GIGA, events=event("gpu_idle")), make=blind)) == Judgement(judged=True)


def test_work_that_is_spread_unevenly_is_the_schedulers_and_not_a_gpus():
    """98 % utilisation on the first GPU, 48 % on the last, and the first is hot from all that."""
    shares = (0.98, 0.9, 0.83, 0.76, 0.69, 0.62, 0.55, 0.48)
    skewed = [member(i, busy=0.8 * s, dram=0.6 * s, tensor=0.2 * s, resident=s) for i, s in enumerate(shares)]
    assert judge(skewed).suspects == {}
    hot = replace(skewed[0], clock=1.7 * GIGA, events=event("sw_thermal_slowdown", "sw_power_cap"))
    assert judge([hot, *skewed[1:]]).suspects == {}
    unmeasured = [replace(evidence, busy=None, dram=None, tensor=None) for evidence in [hot, *skewed[1:]]]
    assert judge(unmeasured).suspects == {}


def test_one_gpu_that_does_more_of_the_same_work_is_out_of_step_and_not_slow():
    hot_expert = member(0, busy=0.95, dram=0.68, tensor=0.27)
    assert judge(group(hot_expert)) == Judgement(judged=True)


def test_two_gpus_that_do_different_work_are_not_judged():
    busier = slow(0, ratio=1.3, events=event("sw_thermal_slowdown"), dram=0.65)
    assert judge(group(busier, size=2)) == Judgement()


def test_a_gpu_alone_is_never_judged():
    assert judge([slow(0, events=event("sw_thermal_slowdown"))]) == Judgement()
    assert judge([]) == Judgement()


# ── More than one, and less than all ────────────────────────────────────────────────────────────────────────────


def test_of_two_slow_gpus_the_slower_one_is_waited_for_and_equals_both():
    hot = event("sw_thermal_slowdown")
    slower = [slow(0, ratio=1.3, events=hot), slow(1, ratio=1.15, events=hot)]
    assert causes(judge(group(*slower, size=8))) == {FIRST: Cause.THERMAL}
    braked = [slow(index, ratio=1.3, events=event("hw_power_brake_slowdown")) for index in (0, 1)]
    assert causes(judge(group(*braked, size=8))) == dict.fromkeys((FIRST, "GPU-0001"), Cause.POWER_BRAKE)


def test_scatter_among_the_others_protects_a_gpu_that_is_only_a_little_worse():
    scattered = [member(i, busy=0.70 * (1 + 0.05 * i)) for i in range(7)]
    assert judge([slow(9, ratio=1.32, events=event("sw_thermal_slowdown")), *scattered]).suspects == {}


@pytest.mark.parametrize(
    "lost", ["dram", "tensor", "resident", "margin", "memory_free", "pcie_capacity", "processes"]
)
def test_a_signal_that_no_gpu_has_is_not_needed(lost):
    gpus = group(slow(0, events=event("sw_thermal_slowdown")))
    judgement = judge([replace(evidence, **{lost: None}) for evidence in gpus])
    assert causes(judgement) == {FIRST: Cause.THERMAL}


def test_a_gpu_whose_work_was_not_read_is_left_out_of_the_comparison():
    gpus = group(slow(0, events=event("sw_thermal_slowdown")))
    assert causes(judge([*gpus, blind(9)])) == {FIRST: Cause.THERMAL}


def test_without_work_and_clocks_nothing_is_judged():
    assert judge([blind(index, clock=None) for index in range(4)]) == Judgement()
    assert judge([GpuEvidence(uuid=str(index)) for index in range(4)]) == Judgement()


# ── Properties ──────────────────────────────────────────────────────────────────────────────────────────────────

SHARES = st.none() | st.floats(0.0, 1.0)
ANY = st.builds(
    GpuEvidence,
    uuid=st.uuids().map(str),
    busy=SHARES,
    dram=SHARES,
    tensor=SHARES,
    resident=SHARES,
    memory_activity=SHARES,
    clock=st.none() | st.floats(1e6, 3e9),
    clock_max=st.none() | st.floats(1e6, 3e9),
    power_ratio=st.none() | st.floats(0.0, 2.0),
    margin=st.none() | st.floats(-20.0, 80.0),
    events=st.dictionaries(st.sampled_from(sorted(CALM)), st.booleans()),
    memory_free=SHARES,
    pcie_capacity=st.none() | st.floats(1e8, 1e12),
    pcie_rate=st.none() | st.floats(0.0, 1e15),
    nvlinks=st.none() | st.integers(0, 18),
    nvlinks_down=st.integers(0, 18),
    nvlink_rate=st.none() | st.floats(0.0, 1e13),
    nvlink_recovery_rate=st.none() | st.floats(0.0, 1e6),
    processes=st.none() | st.frozensets(st.integers(1, 9), max_size=4),
    replicas=st.integers(1, 3),
)


@given(st.lists(ANY, max_size=8, unique_by=lambda evidence: evidence.uuid), st.randoms())
def test_whatever_was_read_the_judgement_is_finite_and_does_not_depend_on_the_order(gpus, chance):
    judgement = judge(gpus)
    assert judgement.suspects.keys() <= {evidence.uuid for evidence in gpus}
    assert judgement.judged or not judgement.suspects
    for suspicion in judgement.suspects.values():
        assert suspicion.slowdown is None or (math.isfinite(suspicion.slowdown) and suspicion.slowdown >= LINK_COST)
    mixed = list(gpus)
    chance.shuffle(mixed)
    assert judge(mixed) == judgement


@given(st.floats(0.3, 1.15), st.floats(0.3, 1.9), st.integers(3, 8))
def test_more_or_less_load_on_all_gpus_changes_neither_the_gpu_nor_the_slowdown(busy, dram, size):
    gpus = group(slow(0, events=event("sw_thermal_slowdown")), size=size)
    scaled = [replace(evidence, busy=evidence.busy * busy, dram=evidence.dram * dram) for evidence in gpus]
    judgement = judge(scaled)
    assert causes(judgement) == {FIRST: Cause.THERMAL}
    assert judgement.suspects[FIRST].slowdown == pytest.approx(1.2)


@given(st.lists(st.floats(0.98, 1.02), min_size=2, max_size=8), st.data())
def test_gpus_that_differ_little_are_never_stragglers(noise, data):
    events = st.sampled_from(sorted(CALM)).map(event)
    gpus = [
        member(i, busy=0.7 * n, dram=0.5 * n, clock=1.9 * GIGA * n, events=data.draw(events))
        for i, n in enumerate(noise)
    ]
    assert judge(gpus) == Judgement(judged=True)
