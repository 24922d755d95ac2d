"""The whole daemon against a driver whose profiling, instances (MIG) and counters behave as real ones have been seen to.

As in test_driver_faults.py the real binding loads the library built from tests/support/fake_nvml.c.  A metric's value
there is its id out of 100, and an instance's is its GPU instance, so that a figure under another name is seen.
"""

from __future__ import annotations

import os
import pathlib
import signal
import time
from types import SimpleNamespace

import pytest

from exporter.driver.daemon.registry import OPEN_DEADLINE
from tests.support.nvml_node import COUNT, DEADLINE, INTERVAL, Node, build, uuid
from tests.support.scenarios import Scenarios
from tests.support.tools import tool

pytestmark = pytest.mark.slow

SUPPORT, TAKE, EVALUATE = "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"
MIG_TAKE, MODE = "nvmlGpmMigSampleGet", "nvmlDeviceGetMigMode"
ALLOCATE, FREE = "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"
COMMON = {
    "gpu_sm_active_ratio": 0.02,
    "gpu_sm_occupancy_ratio": 0.03,
    "gpu_tensor_active_ratio": 0.05,
    "gpu_dram_active_ratio": 0.10,
}
SIGNALS = ("sm_active", "sm_occupancy", "tensor_active", "dram_active", "graphics_active", "pipe_active", "traffic")
# Every return code of the library, those that end an initialisation or a card among them.
CODES = [*range(1, 31), 999]
HANG_FIRST = {"exporter.driver.daemon.restarts.HANG_FIRST": 4.0}
scenario = Scenarios()


@pytest.fixture(scope="module")
def result_of(request, tmp_path_factory):
    """Return what returns a scenario's result; the scenarios of the tests that will run go on four at a time."""
    folder = tmp_path_factory.mktemp("work")
    library = build(tool("cc"), folder / "lib")
    nodes = []

    def start_node(name, **more):
        nodes.append(Node(folder / name, library, **more))
        return nodes[-1]

    with scenario.running(request, start_node, 4) as result_of:
        yield result_of
    for node in nodes:
        node.stop()


def works(*numbers):
    """Return whether these cards show their work."""
    return lambda page: all(page.card("gpu_sm_active_ratio", number) is not None for number in numbers)


def why(page, number):
    return {page.missing(number).get(signal) for signal in SIGNALS}


def open_files(pid):
    """Return the driver's library among what a process has mapped; [] for a process that is gone."""
    try:
        return [line for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines() if "nvidia" in line]
    except OSError:
        return []


# ---------------------------------------------------------------- work of whole cards


@scenario
def healthy(start_node):
    node = start_node("healthy")
    page = node.until(works(0, 1, 2, 3))
    before = node.call_counts()
    node.during(2.0)
    after = node.call_counts()
    rise = {name: after[f"0:{name}"] - before[f"0:{name}"] for name in (TAKE, EVALUATE, "nvmlDeviceGetSamples")}
    node.plan(f"on * {TAKE} sleep 20", f"on * {EVALUATE} sleep 5")  # long enough to meet
    node.during(2.0)
    return SimpleNamespace(page=page, asked=node.call_counts(), rise=rise)


def test_work_is_shown_in_base_units_under_its_own_names(result_of):
    page = result_of(healthy).page
    for name, value in COMMON.items():
        assert page.card(name, 2) == pytest.approx(value), name
    assert page.card("gpu_graphics_active_ratio", 2) == pytest.approx(0.01)
    pipes = {s.labels["pipe"]: s.value for s in page.all("gpu_pipe_active_ratio", uuid=uuid(2))}
    assert pipes == pytest.approx(
        {"integer": 0.04, "tensor_dfma": 0.06, "tensor_hmma": 0.07, "tensor_dmma": 0.08, "tensor_imma": 0.09,
         "fp64": 0.11, "fp32": 0.12, "fp16": 0.13}
    )  # fmt: skip
    rates = {
        (s.labels["link"], s.labels["direction"]): s.value / 2**20
        for s in page.all("gpu_traffic_bytes_per_second", uuid=uuid(2))
    }
    assert rates == pytest.approx(
        {("pcie", "transmit"): 20, ("pcie", "receive"): 21, ("nvlink", "receive"): 60, ("nvlink", "transmit"): 61}
    )


def test_a_cycle_costs_one_sample_and_one_evaluation(result_of):
    rise = result_of(healthy).rise
    cycles = rise["nvmlDeviceGetSamples"] / 4  # two kinds of samples in each cycle, each in two calls
    assert cycles > 4 and abs(rise[TAKE] - cycles) <= 2 and abs(rise[EVALUATE] - cycles) <= 2, rise


def test_no_two_profiling_calls_overlap_and_buffers_are_two_for_each_gpu(result_of):
    asked = result_of(healthy).asked
    assert asked.get("gpm_overlap", 0) == 0
    assert asked[ALLOCATE] == 8


@scenario
def troubled(start_node):
    """Each card another trouble; what a card does not have is asked once."""
    node = start_node("troubled", cards=6, plan=[
        f"value {uuid(1)} {SUPPORT} 0", f"gpm {uuid(2)} 2 value nan", f"gpm {uuid(2)} 5 value 255",
        f"gpm {uuid(2)} 10 value -3", f"gpm {uuid(2)} 20 value 1e30", f"gpm {uuid(2)} 12 value inf",
        f"gpm {uuid(3)} 5 code 3", f"gpm {uuid(3)} 6 code 3", f"on {uuid(4)} {SUPPORT} code 13",
        f"gpm {uuid(5)} 2 value 100.4",
    ])  # fmt: skip
    page = node.until(works(0, 3, 5))
    node.spared = set(range(6))
    page = node.during(2.0)[-1]
    asked = node.call_counts()
    return SimpleNamespace(page=page, asked=asked)


def test_an_older_gpu_or_driver_has_no_work_signals_and_says_so_once(result_of):
    result = result_of(troubled)
    for number in (1, 4):
        assert why(result.page, number) == {"unsupported"}
        assert not set(COMMON) & result.page.names_of(number)
        assert result.asked[f"{number}:{SUPPORT}"] == 1 and f"{number}:{TAKE}" not in result.asked
        assert result.page.failures("signal_error", number) == 0


def test_nan_and_what_cannot_be_are_dropped_with_a_reason_and_the_rest_stays(result_of):
    page = result_of(troubled).page
    missing = page.missing(2)
    for name in ("sm_active", "tensor_active", "dram_active", "pipe_active", "traffic"):
        assert missing[name] == "invalid", name
    assert page.card("gpu_sm_occupancy_ratio", 2) == pytest.approx(0.03)
    assert not page.all("gpu_pipe_active_ratio", uuid=uuid(2), pipe="fp32")
    assert page.all("gpu_pipe_active_ratio", uuid=uuid(2), pipe="fp16")
    assert not page.all("gpu_traffic_bytes_per_second", uuid=uuid(2), direction="transmit", link="pcie")
    assert page.failures("signal_invalid", 2) > 3 and page.failures("signal_invalid", 0) == 0
    assert page.card("gpu_sm_active_ratio", 5) == 1.0  # a little more than all is rounding


def test_a_metric_that_the_gpu_lacks_is_read_once_and_costs_no_other(result_of):
    result = result_of(troubled)
    assert result.page.missing(3)["tensor_active"] == "unsupported"
    assert result.page.card("gpu_sm_active_ratio", 3) == pytest.approx(0.02)
    assert "pipe_active" not in result.page.missing(3)
    assert result.asked["3:gpm:5"] == result.asked["3:gpm:6"] == 1 < result.asked["3:gpm:2"]


@scenario
def codes(start_node):
    """Every return code on every profiling call, one after another, for two of the cards."""
    node = start_node("codes")
    node.until(works(0, 1, 2, 3))
    pid = node.worker()
    node.spared = {0, 1, 2, 3}
    for number in CODES:
        for function in (TAKE, EVALUATE):
            node.plan(f"on {uuid(1)} {function} code {number}", f"gpm {uuid(2)} * code {number}")
            node.page()
            time.sleep(1.5 * INTERVAL)
    node.plan(f"on {uuid(1)} {TAKE} code 4")
    denied = node.until(lambda page: page.missing(1).get("sm_active") in {"no_permission", "unsupported"})
    node.plan()
    page = node.until(works(0, 3))
    return SimpleNamespace(
        page=page, denied=denied, same=node.worker() == pid, log=node.log(), asked=node.call_counts()
    )


def test_no_return_code_of_a_profiling_call_costs_more_than_the_work_signals(result_of):
    result = result_of(codes)  # all cards stayed up on every page
    assert result.same and "reason=lost" not in result.log and result.asked["nvmlInitWithFlags"] == 1


@scenario
def permission(start_node):
    """The permission is taken away while the daemon runs, as in containers that are not privileged, and comes back."""
    node = start_node("permission", cards=2)
    node.until(works(0, 1))
    node.spared = {0, 1}
    node.plan(f"on {uuid(1)} {TAKE} code 4")
    page = node.until(lambda page: page.missing(1).get("sm_active") == "no_permission")
    denied = node.during(1.0)[-1]
    node.plan()
    return SimpleNamespace(page=page, denied=denied, back=node.until(works(0, 1)), log=node.log())


def test_a_permission_that_is_lost_after_a_while_is_a_reason_and_comes_back(result_of):
    result = result_of(permission)
    assert why(result.denied, 1) == {"no_permission"}
    assert result.denied.card("gpu_sm_active_ratio", 1) is None and works(0)(result.denied)
    assert result.back.card("gpu_sm_active_ratio", 1) == pytest.approx(0.02)
    assert result.log.count("sm_active:no_permission") == 1


@scenario
def hangs(start_node):
    """A profiling call of one card never returns."""
    node = start_node("hangs", constants=HANG_FIRST)
    node.until(works(0, 1, 2, 3))
    node.spared = {0, 2, 3}
    node.plan(f"on {uuid(1)} {TAKE} block")
    page = node.until(lambda page: page.hung(1) == 1)
    later = node.during(2.0)[-1]
    node.spared = set()  # the worker is replaced
    again = node.until(lambda page: page.up(1) and works(0, 2, 3)(page))
    node.spared = {0, 1, 2, 3}
    resting = node.during(3 * DEADLINE)
    overlap = node.call_counts().get("gpm_overlap", 0)
    return SimpleNamespace(
        page=page,
        later=later,
        again=again,
        resting=resting,
        overlap=overlap,
        workers=node.most_workers,
        log=node.log(),
    )


def test_a_profiling_call_that_hangs_costs_its_gpu_and_the_others_only_their_work_signals(result_of):
    result = result_of(hangs)
    assert result.page.why(1) == "hung" and result.page.card("gpu_power_watts", 1) is None
    for number in (0, 2, 3):
        assert why(result.later, number) == {"busy"}
        assert result.later.card("gpu_power_watts", number) == 300 + number
        assert result.later.failures("signal_error", number) == 0
    assert result.overlap == 0 and result.workers == 1


def test_a_new_worker_lets_profiling_of_the_gpu_rest_that_hung_in_it_and_all_else_comes_back(result_of):
    result = result_of(hangs)
    for page in (result.again, *result.resting):
        assert works(0, 2, 3)(page) and why(page, 1) == {"busy"} and page.card("gpu_power_watts", 1) == 301
    assert result.log.count(f"event=profiling_hung source=gpu:{uuid(1)}") == 1


@scenario
def crashes(start_node):
    """A profiling call of one card kills the process; after a while it does not."""
    node = start_node("crashes")
    node.until(works(0, 1, 2, 3))
    node.plan(f"on {uuid(1)} {TAKE} abort", f"on {uuid(1)} {SUPPORT} segv")
    first = node.until(lambda page: works(0, 2, 3)(page) and why(page, 1) == {"crashed"} and page.up(1))
    node.spared = {0, 1, 2, 3}
    return SimpleNamespace(first=first, pages=node.during(3 * DEADLINE), log=node.log(), workers=node.most_workers)


def test_a_profiling_call_that_crashes_costs_one_worker_and_then_only_that_gpus_work_signals(result_of):
    result = result_of(crashes)
    for page in (result.first, *result.pages):
        assert page.failures("crashed") == 1 and works(0, 2, 3)(page) and why(page, 1) == {"crashed"}
        assert page.card("gpu_power_watts", 1) == 301 and page.card("gpu_up", 1) == 1
    assert result.log.count(" function=nvmlGpmSampleGet skipped=nvmlGpm ") == result.workers == 1


@scenario
def initialised_again(start_node):
    """Indices move, so that the driver is initialised anew; twice."""
    node = start_node("again")
    node.until(works(0, 1, 2, 3))
    node.plan(order=[0, 1, 2])
    node.until(lambda page: node.call_counts().get("nvmlShutdown") == 1 and works(0, 1, 2)(page))
    node.plan(order=[3, 2, 1, 0])
    node.until(lambda page: node.call_counts()["nvmlShutdown"] > 1 and works(0, 1, 2, 3)(page))
    return SimpleNamespace(page=node.page(), asked=node.call_counts())


def test_buffers_are_given_back_before_the_driver_is_shut_down(result_of):
    asked = result_of(initialised_again).asked
    assert asked["nvmlShutdown"] >= 2
    assert asked[ALLOCATE] - asked[FREE] == 8


@scenario
def ended(start_node):
    """Asked to end while all is well, and while a card hangs."""
    results = []
    for name, plan in (("ended", []), ("ended_hanging", [f"on {uuid(1)} nvmlDeviceGetTemperatureV block"])):
        node = start_node(name, cards=2)
        node.until(works(0, 1))
        node.plan(*plan)
        node.until(lambda page, p=plan: not p or page.hung(1) == 1)
        code, seconds = node.stop()
        results.append(SimpleNamespace(code=code, seconds=seconds, asked=node.call_counts()))
    return results


def held(asked):
    """Return what the driver lent and was not given back: buffers, sets of events, initialisations."""
    pairs = ((ALLOCATE, FREE), ("nvmlEventSetCreate", "nvmlEventSetFree"), ("nvmlInitWithFlags", "nvmlShutdown"))
    return [asked.get(allocate, 0) - asked.get(back, 0) for allocate, back in pairs]


def test_everything_is_given_back_at_the_end(result_of):
    assert held(result_of(ended)[0].asked) == [0, 0, 0]


def test_buffers_are_freed_at_the_end_unless_a_gpu_hangs_which_blocks_nothing(result_of):
    well, hanging = result_of(ended)
    assert well.code == hanging.code == 0 and max(well.seconds, hanging.seconds) < 5
    assert well.asked[ALLOCATE] == well.asked[FREE] == 4 == hanging.asked[ALLOCATE]


# ---------------------------------------------------------------- instances


PARTS = ("MIG-aaaaaaaa-0000-0000-0000-000000000005", "MIG-aaaaaaaa-0000-0000-0000-000000000006")


def part(number, place, instance, profile="1g.18gb"):
    return f"mig {uuid(0)} {place} {instance} 0 {profile} {PARTS[number]}"


def of(page, name, number, **labels):
    return page.get(name, uuid=PARTS[number], **labels)


@scenario
def divided(start_node):
    mode = f"value {uuid(0)} {MODE} 1"
    node = start_node("divided", cards=2, plan=[mode, part(0, 0, 9), part(1, 2, 13, "2g.35gb")])
    whole = node.until(lambda page: of(page, "gpu_sm_active_ratio", 1) is not None and page.up(0, 1))
    node.spared = {0, 1}
    node.plan(mode, part(1, 2, 13, "2g.35gb"), f"on {PARTS[1]} nvmlDeviceGetMemoryInfo_v2 code 4")
    fewer = node.until(lambda page: not page.all("gpu_up", uuid=PARTS[0]) and of(page, "gpu_up", 1) == 1)
    node.plan(mode, part(0, 5, 9), part(1, 2, 13, "2g.35gb"))
    again = node.until(lambda page: of(page, "gpu_up", 0) == of(page, "gpu_up", 1) == 1)
    node.spared = {1}
    node.plan(mode, part(0, 5, 9), f"on {uuid(0)} * code 15")
    lost = node.until(lambda page: page.why(0) == "lost")
    node.plan(part(0, 5, 9), part(1, 2, 13))
    joined = node.until(lambda page: page.up(0) and not page.all("gpu_up", uuid=PARTS[0]))
    return SimpleNamespace(whole=whole, fewer=fewer, again=again, lost=lost, joined=joined, log=node.log())


def test_instances_are_gpus_of_their_own_with_profile_and_parent(result_of):
    page = result_of(divided).whole
    (facts,) = page.all("gpu_mig_info", uuid=PARTS[1])
    assert facts.labels == {
        "gpu": "0:2", "uuid": PARTS[1], "parent_uuid": uuid(0), "profile": "2g.35gb", "gpu_instance": "13",
        "compute_instance": "0",
    }  # fmt: skip
    assert of(page, "gpu_memory_total_bytes", 0) == 141e9 and of(page, "gpu_processes", 0) == 1
    # Work comes through the parent, by GPU instance.
    assert of(page, "gpu_sm_active_ratio", 0) == pytest.approx(0.09)
    assert of(page, "gpu_dram_active_ratio", 1) == pytest.approx(0.13)
    assert of(page, "gpu_power_watts", 0) is None and of(page, "gpu_utilization_ratio", 0) is None
    (info,) = page.all("gpu_info", uuid=PARTS[1])
    assert info.labels["name"] == "Fake H200 MIG 2g.35gb"


def test_what_a_mig_enabled_gpu_does_not_report_is_absent_with_the_reason(result_of):
    page = result_of(divided).whole
    assert why(page, 0) == {"mig"} == {page.missing(0)[name] for name in ("utilization", "processes")}
    assert page.card("gpu_power_watts", 0) == 300 and page.card("gpu_memory_used_bytes", 0) == 30e9
    assert page.missing(1).get("utilization") is None and works(1)(page)
    reasons = {s.labels["signal"]: s.labels["reason"] for s in page.all("gpu_signal_missing_info", uuid=PARTS[0])}
    assert reasons["utilization"] == "mig"


def test_instances_come_and_go_with_holes_in_the_list(result_of):
    result = result_of(divided)
    assert not result.fewer.all("gpu_mig_info", uuid=PARTS[0]) and not result.fewer.why(f"gpu:{PARTS[0]}")
    refused = {
        s.labels["signal"]: s.labels["reason"] for s in result.fewer.all("gpu_signal_missing_info", uuid=PARTS[1])
    }
    assert refused.get("memory_used") in {None, "no_permission"}  # that plan came into force a moment before
    (facts,) = result.again.all("gpu_mig_info", uuid=PARTS[0])
    assert facts.labels["gpu"] == "0:5"
    assert result.log.count(f"event=mig_instance_removed source=gpu:{PARTS[0]} gpu=0:0") == 1


def test_instances_share_the_fate_of_their_gpu_and_vanish_when_it_is_whole_again(result_of):
    result = result_of(divided)
    assert of(result.lost, "gpu_up", 0) == 0 and result.lost.why(f"gpu:{PARTS[0]}") == "lost"
    assert of(result.lost, "gpu_sm_active_ratio", 0) is None
    assert works(0)(result.joined) or result.joined.missing(0).get("sm_active") == "starting"
    assert not result.joined.all("gpu_mig_info")


@scenario
def denied(start_node):
    """Instances that may not be opened."""
    mode = f"value {uuid(0)} {MODE} 1"
    node = start_node(
        "denied", cards=2, plan=[mode, part(0, 0, 9), f"on {uuid(0)} nvmlDeviceGetMigDeviceHandleByIndex code 4"]
    )
    page = node.until(lambda page: page.missing(0).get("instances") == "no_permission")
    node.plan(mode, part(0, 0, 9))
    back = node.until(lambda page: of(page, "gpu_up", 0) == 1)
    return SimpleNamespace(page=page, back=back, log=node.log())


def test_a_mig_enabled_gpu_whose_instances_may_not_be_opened_is_reported_as_such(result_of):
    result = result_of(denied)
    assert result.page.up(0, 1) and not result.page.all("gpu_mig_info")
    assert "instances" not in result.page.missing(1) and result.log.count("instances:no_permission") == 1
    assert "instances" not in result.back.missing(0)


@scenario
def released(start_node):
    """D22."""
    node = start_node("released", cards=2)
    node.until(works(0, 1))
    pid = node.worker()
    mapped = open_files(pid)
    asked_at = time.monotonic()
    os.kill(node.pid, signal.SIGUSR1)
    while open_files(pid) and time.monotonic() - asked_at < 10:
        time.sleep(0.02)
    closed_after = time.monotonic() - asked_at
    page = node.until(lambda page: page.why() == "released" and not page.names_of(0))
    pages = node.during(3.0)
    alive, asked = node.workers(), node.call_counts()
    node.plan(f"value {uuid(0)} {MODE} 1", part(0, 0, 9))  # what it was released for
    os.kill(node.pid, signal.SIGUSR2)
    back = node.until(lambda page: page.up(0, 1) and of(page, "gpu_up", 0) == 1)
    return SimpleNamespace(
        mapped=mapped, closed_after=closed_after, page=page, pages=pages, alive=alive, back=back, log=node.log(),
        asked=asked,
    )  # fmt: skip


def test_it_releases_the_gpus_within_two_seconds_and_acquires_them_again(result_of):
    result = result_of(released)
    assert result.mapped and result.closed_after < 2.0 and result.alive == []
    assert {page.why() for page in result.pages} == {"released"} == {page.why(0) for page in result.pages}
    assert result.page.get("gpu_up", uuid=uuid(0)) == 0 and result.page.hung() == 0
    assert result.back.why() is None and result.back.failures("released") == 0
    assert result.log.count("source=driver state=down reason=released") == 1


def test_what_the_driver_allocated_is_freed_when_the_gpus_are_released(result_of):
    assert held(result_of(released).asked) == [0, 0, 0]


@scenario
def released_hanging(start_node):
    """D22 while a card hangs, and while the wait for events does: nobody waits for either longer than a moment."""
    results = []
    for name, hangs_in in (("released_card", "nvmlDeviceGetTemperatureV"), ("released_wait", "nvmlEventSetWait_v2")):
        node = start_node(name, cards=2)
        node.until(works(0, 1))
        node.plan(f"on * {hangs_in} block")
        time.sleep(3 * INTERVAL)
        pid, asked_at = node.worker(), time.monotonic()
        os.kill(node.pid, signal.SIGUSR1)
        while node.workers() == [pid] and time.monotonic() - asked_at < 10:
            time.sleep(0.02)
        seconds = time.monotonic() - asked_at
        page = node.until(lambda page: page.why() == "released")
        results.append(
            SimpleNamespace(seconds=seconds, hung=page.hung(), held=held(node.call_counts()), alive=node.workers())
        )
    return results


def test_a_call_that_hangs_does_not_keep_the_gpus_from_being_released(result_of):
    card, wait = result_of(released_hanging)
    assert card.seconds < 2.0 > wait.seconds and card.alive == wait.alive == []
    assert card.hung == wait.hung == 0
    assert wait.held[0] == 0, "buffers wait for the cards only"
    assert wait.held[1:] == [1, 1], "a driver is not shut down under a call"


# ---------------------------------------------------------------- counters whose unit or id is disputed


@scenario
def microseconds(start_node):
    standing = [f"field * {number} q 123456789" for number in (74, 269)]  # their unit cannot be seen
    node = start_node("microseconds", cards=1, plan=standing)
    early = node.until(lambda page: page.up(0) and "clock_event_time" in page.missing(0))
    # Below what stood: a leap upwards is as long as the machine has been up, and may look like nanoseconds.
    node.plan("unit 1e6", f"since {time.monotonic() - 60.0}")
    node.until(lambda page: page.all("gpu_clock_event_seconds_total", reason="sw_thermal_slowdown"))
    first, asked_at = node.page(), time.monotonic()
    page = node.during(3.0)[-1]
    # From reading to reading: on a machine that is short of CPU time a page shows an older one.
    older = [shown.card("gpu_data_age_seconds", 0) for shown in (first, page)]
    return SimpleNamespace(
        early=early, first=first, page=page, seconds=time.monotonic() - asked_at + older[0] - older[1]
    )


def test_a_driver_that_counts_microseconds_is_found_out(result_of):
    result = result_of(microseconds)
    for reason in ("sw_power_cap", "sw_thermal_slowdown"):
        rise = [page.card("gpu_clock_event_seconds_total", 0, reason=reason) for page in (result.first, result.page)]
        assert rise[1] - rise[0] == pytest.approx(result.seconds, abs=1.0)
    assert result.early.missing(0).get("clock_event_time") == "unverified"


@scenario
def wrong_ids(start_node):
    """Fields 269 to 271 hold something else: a switch, a number that runs without a reason, one that stands still."""
    wrong = [f"field {uuid(0)} 269 u 1", f"field {uuid(1)} 269 q 123456789"]
    node = start_node("wrong_ids", cards=2, plan=wrong)
    node.until(lambda page: page.all("gpu_clock_event_seconds_total", uuid=uuid(1), reason="sw_power_cap"))
    return node.during(12.0)


def test_fields_that_hold_something_else_are_never_shown_as_time(result_of):
    pages = result_of(wrong_ids)
    assert not [s for page in pages for s in page.all("gpu_clock_event_seconds_total", reason="sw_thermal_slowdown")]
    assert pages[-1].missing(0)["clock_event_time"] == "unverified"
    assert pages[-1].card("gpu_clock_event_seconds_total", 0, reason="sw_power_cap") > 0


# ---------------------------------------------------------------- bad input, and findings of earlier reviews


@scenario
def garbage(start_node):
    node = start_node("garbage", cards=2, plan=[
        f"value {uuid(0)} nvmlDeviceGetUtilizationRates 1000000000", f"value {uuid(0)} nvmlDeviceGetSamples 1000000000",
        f"value {uuid(0)} nvmlDeviceGetTemperatureV 255",
    ])  # fmt: skip
    node.until(lambda page: page.up(0, 1))
    return node.during(1.5)[-1]


def test_a_billion_percent_and_255_degrees_are_absent(result_of):
    page = result_of(garbage)
    assert page.missing(0)["utilization"] == page.missing(0)["temperature_gpu"] == "invalid"
    assert page.card("gpu_utilization_ratio", 0) is None and page.card("gpu_utilization_ratio", 1) is not None


@scenario
def moved(start_node):
    """Indices move without an initialisation, and a card that comes back is opened by an index that is another's."""
    node = start_node("moved")
    node.until(works(0, 1, 2, 3))
    node.plan("live 1", f"on {uuid(1)} nvmlDeviceGetTemperatureV code 16", order=[1, 0, 2, 3])
    node.until(lambda page: page.why(1) == "reset_required")
    node.plan("live 1", order=[1, 0, 2, 3])
    page = node.until(lambda page: page.up(0, 1, 2, 3) and page.get("gpu_up", gpu="0", uuid=uuid(1)) == 1)
    return SimpleNamespace(page=page, initialisations=node.call_counts()["nvmlInitWithFlags"])


def test_indices_that_move_without_an_initialisation_lead_to_one(result_of):
    result = result_of(moved)
    assert result.page.get("gpu_up", gpu="1", uuid=uuid(0)) == 1
    assert 2 <= result.initialisations <= 4


@scenario
def counting(start_node):
    node = start_node("counting", cards=2)
    node.until(lambda page: page.up(0, 1))
    node.spared = {0, 1}
    node.plan(f"on * {COUNT} block")
    page = node.until(lambda page: page.hung() == 1)
    node.plan()
    back = node.until(lambda page: page.hung() == 0)
    return SimpleNamespace(page=page, back=back, log=node.log())


def test_a_driver_that_never_finishes_counting_its_gpus_is_said_to_hang_while_they_are_read(result_of):
    result = result_of(counting)
    assert result.page.why() is None and result.page.failures("count_hung") == 1 == result.back.failures("count_hung")
    assert result.log.count("event=device_count_hung") == result.log.count("event=device_count_recovered") == 1


@scenario
def first_read(start_node):
    """A new worker's first read hangs after the card has said who it is."""
    begun = time.monotonic()
    node = start_node("first_read", cards=2, plan=[f"on {uuid(1)} nvmlDeviceGetTemperatureV block"])
    page = node.until(lambda page: page.hung(1) == 1)
    return SimpleNamespace(page=page, seconds=time.monotonic() - begun)


def test_a_first_read_that_hangs_is_found_by_the_ordinary_deadline(result_of):
    result = result_of(first_read)
    assert result.page.up(0) and result.seconds < OPEN_DEADLINE, result.seconds


@scenario
def unified(start_node):
    """A part without memory of its own, and a virtual one: most questions are refused."""
    refused = ["MemoryInfo", "MemoryInfo_v2", "PowerUsage", "EnforcedPowerLimit", "TemperatureV", "Temperature"]
    refused += ["EncoderUtilization", "DecoderUtilization", "NvLinkState", "CurrPcieLinkWidth", "RemappedRows"]
    refused += ["TotalEnergyConsumption", "TotalEccErrors"]
    node = start_node("unified", cards=2, plan=[
        *[f"on {uuid(0)} nvmlDeviceGet{name} code 3" for name in refused], f"field {uuid(0)} * code 3",
        f"on {uuid(0)} {SUPPORT} code 3", f"on {uuid(0)} nvmlDeviceGetMigMode code 3",
    ])  # fmt: skip
    node.until(lambda page: page.up(0, 1))
    return node.during(1.5)[-1]


def test_a_virtual_gpu_or_one_without_memory_of_its_own_shows_what_it_has(result_of):
    page = result_of(unified)
    missing = page.missing(0)
    for name in ("memory_total", "memory_used", "power", "energy", "temperature_gpu", "ecc_corrected_volatile"):
        assert missing[name] == "unsupported", name
    assert why(page, 0) == {"unsupported"}
    assert page.card("gpu_utilization_ratio", 0) is not None and page.card("gpu_memory_total_bytes", 0) is None
    assert page.failures("signal_error", 0) == page.failures("signal_invalid", 0) == 0
