"""The whole daemon against a driver that fails in every way a driver is known to fail.

The real binding loads a library built from tests/support/fake_nvml.c; D1 to D25 are the rows of the fault list.  Each
scenario below runs one daemon; scenarios run side by side, and tests share their results.  XID events (D24) are in
test_driver_events.py; profiling, instances (MIG) and letting go of the cards (D22) in test_driver_work_signals.py.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import pathlib
import re
import shutil
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from tests.support.nvml_node import COUNT, FRESH, INIT, INTERVAL, Node, build, uuid
from tests.support.scenarios import Scenarios
from tests.support.tools import tool

pytestmark = pytest.mark.slow

CAPTURE = pathlib.Path(__file__).parents[2] / "captures" / "vllm-0.32.0-real-cpu-idle.prom"
SIDE_BY_SIDE = 5
# What the daemon takes from these deadlines is tested with a clock of their own; here it is what it does then.
INIT_DEADLINE = {"exporter.driver.daemon.source.INIT_DEADLINE": 6.0}
OPEN_DEADLINE = {"exporter.driver.daemon.registry.OPEN_DEADLINE": 6.0}
HANG_FIRST = {"exporter.driver.daemon.restarts.HANG_FIRST": 4.0}
LACKING = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetGpuFabricInfoV")
TEMPERATURE, STATE = "nvmlDeviceGetTemperatureV", "nvmlDeviceGetPerformanceState"
scenario = Scenarios()


class Harness:
    """Folder, libraries and an engine for all scenarios; ends every daemon that a scenario leaves."""

    def __init__(self, compiler, folder):
        self.folder, self.nodes, self.lock = folder, [], threading.Lock()
        self.library = build(compiler, folder / "lib")
        self.poor_library = build(compiler, folder / "poor", LACKING)
        page = CAPTURE.read_bytes()

        class Engine(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
        self.engine = f"http://127.0.0.1:{self.server.server_port}/metrics"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def node(self, library=None, **more):
        with self.lock:
            folder = self.folder / f"node{len(self.nodes)}"
            self.nodes.append(None)
            place = len(self.nodes) - 1
        node = Node(folder, library or self.library, **more)
        self.nodes[place] = node
        return node

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        for node in self.nodes:
            if node is not None:
                node.stop()


@pytest.fixture(scope="module")
def result_of(request, tmp_path_factory):
    """Return what returns a scenario's result; the scenarios of all tests that will run start at the first one."""
    harness = Harness(tool("cc"), tmp_path_factory.mktemp("driver"))
    with scenario.running(request, harness, SIDE_BY_SIDE) as result_of:
        yield result_of
    harness.close()


def dead_but_for_a_thread(pid):
    """Return whether a process was killed, and a thread of it stays: its parent can bury it only when that is gone."""
    path = pathlib.Path(f"/proc/{pid}")
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in (path / "task").iterdir()]
    return (path / "stat").read_text().rpartition(")")[2].split()[0] == "Z" and len(states) > 1


def port_is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True


def whole(node, *numbers):
    numbers = numbers or range(node.count)
    return lambda page: page.up(*numbers) and page.why() is None


def engine_is_up(page):
    return page.get("llm_up", replica="e") == 1 and page.why("engine:e") is None


def index(page, number):
    (sample,) = page.all("gpu_up", uuid=uuid(number))
    return sample.labels["gpu"]


def grown(node, name, numbers, seconds=4 * INTERVAL, **labels):
    """Return by how much each card's counter rises in some time."""
    before = node.page()
    after = node.during(seconds)[-1]
    return {n: after.card(name, n, **labels) - before.card(name, n, **labels) for n in numbers}


# ---------------------------------------------------------------- a driver that is not there, or not yet right


@scenario
def initialisation_hangs(harness):
    """D14."""
    node = harness.node(plan=[f"on * {INIT} block"], engine=harness.engine, constants=INIT_DEADLINE)
    first = node.page()
    assert first.why() == "starting" and not first.all("gpu_up")
    pid = node.worker()
    assert node.until(engine_is_up).why() == "starting"
    page = node.until(lambda page: page.failures("hung") >= 1)
    assert page.why() == "hung" and page.hung() == 1 and engine_is_up(page)
    node.plan()
    node.until(whole(node))
    assert node.worker() != pid and node.most_workers == 1
    return node


def test_an_initialisation_that_never_returns_delays_no_page_and_is_given_up(result_of):
    result_of(initialisation_hangs)


@scenario
def shutdown_hangs(harness):
    """D14 again, on the way to a second initialisation for the sake of a lost card."""
    node = harness.node(constants=INIT_DEADLINE)
    node.until(whole(node))
    pid = node.worker()
    node.plan(f"on {uuid(1)} * code 15", "on * nvmlShutdown block")
    node.until(lambda page: not page.up(0))
    node.until(lambda page: page.up(0, 2, 3) and page.failures("hung") == 1)
    assert node.worker() != pid
    node.spared = {0, 2, 3}
    node.during(6.0)  # a lost card would cause another one after two seconds
    assert node.page().why(1) == "lost" and node.most_workers == 1
    return node


def test_a_shutdown_that_never_returns_is_given_up_and_not_tried_again(result_of):
    result_of(shutdown_hangs)


@scenario
def unidentified(harness):
    """D5, D11 from the start: cards that never say who they are."""
    opens = "nvmlDeviceGetHandleByIndex_v2"
    node = harness.node(
        plan=[f"on {uuid(1)} {opens} code 15", f"on {uuid(2)} {opens} block"], constants=OPEN_DEADLINE
    )
    node.until(lambda page: page.up(0, 3))
    node.spared = {0, 3}
    page = node.until(lambda page: page.why("gpu:unknown-1") == "lost")
    assert page.get("gpu_up", gpu="1", uuid="unknown-1") == 0
    node.until(lambda page: page.why("gpu:unknown-2") == "hung" and page.hung("gpu:unknown-2") == 1)
    node.spared = set()
    node.plan()
    page = node.until(whole(node))
    assert not page.all("gpu_up", uuid="unknown-1") + page.all("gpu_up", uuid="unknown-2")
    assert len(re.findall("source=gpu:unknown-1 state=down reason=lost gpu=1", node.log())) == 1
    return node


def test_gpus_that_are_lost_or_hang_from_the_start_are_seen(result_of):
    result_of(unidentified)


@scenario
def library_absent(harness):
    """D1."""
    folder = harness.folder / "later"
    folder.mkdir()
    node = harness.node(folder, engine=harness.engine)
    page = node.until(lambda page: page.why() == "library")
    assert page.get("shardwatch_source_up", source="driver") == 0 and not page.all("gpu_up")
    page = node.until(lambda page: page.failures("library") >= 2 and engine_is_up(page))
    shutil.copy(harness.library / "libnvidia-ml.so.1", folder)
    node.until(whole(node))
    assert node.most_workers == 1
    return node


def test_without_the_library_engines_are_served_and_a_later_one_is_found(result_of):
    node = result_of(library_absent)
    assert len(re.findall("source=driver state=down reason=library", node.log())) == 1


@scenario
def driver_late(harness):
    """D2, D3."""
    node = harness.node(plan=[f"on * {INIT} code 9"])
    node.until(lambda page: page.why() == "driver" and page.failures("driver") >= 2)
    node.plan(f"on * {INIT} code 18")
    node.until(lambda page: page.why() == "mismatch" and page.failures("mismatch") >= 2)
    node.plan()
    node.until(whole(node))
    assert node.most_workers == 1
    return node


def test_a_driver_that_is_loaded_late_and_in_the_wrong_version_first_is_found(result_of):
    node = result_of(driver_late)
    assert re.findall(r"source=driver (state=up|state=down reason=\w+)", node.log()) == [
        "state=down reason=driver", "state=down reason=mismatch", "state=up",
    ]  # fmt: skip


@scenario
def driver_replaced(harness):
    """D4."""
    node = harness.node(plan=["build 1"])
    node.until(whole(node))
    pid = node.worker()
    node.plan("build 2", f"on * {INIT} code 18")
    page = node.until(lambda page: page.why() == "mismatch" and not any(map(page.up, range(4))))
    assert {page.why(number) for number in range(4)} == {"mismatch"}
    assert not page.names_of(0) and page.card("gpu_data_age_seconds", 0) > 0
    node.plan("build 2")
    node.until(whole(node))
    assert node.worker() != pid and node.process.poll() is None and node.most_workers == 1
    return node


def test_a_driver_upgrade_withdraws_the_gpus_and_a_new_worker_loads_the_new_library(result_of):
    result_of(driver_replaced)


SETTLED = {"sw_power_cap", "sync_boost"}
THERMAL = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def times(page):
    return {s.labels["reason"]: s.value for s in page.all("gpu_clock_event_seconds_total")}


@scenario
def driver_branches(harness):
    """Field ids that moved, on one daemon: each plan is a driver that was reloaded."""
    node = harness.node(cards=1)
    times_by_branch = {}
    for version in ("570.172.08", "580.65.06", "580.95.05"):
        node.plan(f"driver {version}", f"on * {STATE} code 1")
        node.until(lambda page, v=version: page.all("gpu_driver_info", driver_version=v))
        node.plan(f"driver {version}")
        node.until(whole(node))
        # Seconds of throttling tell the unit; fields that are not asked for must not turn up meanwhile.
        wanted = SETTLED if version.startswith("570") else {*SETTLED, *THERMAL}
        page = node.until(lambda page, w=wanted: w <= times(page).keys())
        times_by_branch[version] = times(page), {reason for page in node.during(2.0) for reason in times(page)}
    return times_by_branch


def test_thermal_time_is_read_from_the_fields_of_the_driver_branch(result_of):
    times_by_branch = result_of(driver_branches)
    assert times_by_branch["570.172.08"][1] <= SETTLED
    for version in ("580.65.06", "580.95.05"):
        times_now, ever = times_by_branch[version]
        assert ever <= {*SETTLED, *THERMAL}
        assert times_now["hw_thermal_slowdown"] == times_now["hw_power_brake_slowdown"] == 0
        assert times_now["sw_power_cap"] == pytest.approx(times_now["sw_thermal_slowdown"], rel=0.01)


# ---------------------------------------------------------------- one card in trouble among others


@scenario
def lost_and_reset(harness):
    """D5, D6."""
    node = harness.node()
    node.until(whole(node))
    node.spared = {0, 3}
    node.plan(f"on {uuid(1)} * code 15", f"on {uuid(2)} * code 16")
    page = node.until(lambda page: page.why(1) == "lost" and page.why(2) == "reset_required")
    assert not page.names_of(1) | page.names_of(2)
    assert page.card("gpu_up", 1) == 0 == page.hung(1)
    rise = grown(node, "gpu_energy_joules_total", (0, 3))
    node.during(6.0)  # at least one initialisation for the sake of the lost card
    node.plan(f"on {uuid(1)} * code 15")
    back = node.until(lambda page: page.up(2))
    assert back.why(1) == "lost" and back.why(2) is None
    asked = node.call_counts()
    return SimpleNamespace(node=node, rise=rise, initialisations=asked[INIT])


def test_a_lost_gpu_is_withdrawn_and_the_others_advance(result_of):
    result = result_of(lost_and_reset)
    assert all(joules > 0 for joules in result.rise.values()), result.rise
    assert 2 <= result.initialisations <= 4
    assert len(re.findall(r"source=gpu:\S+ state=down reason=lost gpu=1", result.node.log())) == 1


def test_a_gpu_that_was_reset_comes_back_without_the_lost_one(result_of):
    assert re.search(r"source=gpu:\S+ state=up gpu=2", result_of(lost_and_reset).node.log())


@scenario
def signals_in_trouble(harness):
    """D7, D8, D9, D10, D23."""
    ones = [
        f"value {uuid(5)} * -1",
        f"field {uuid(5)} 185 d nan",
        f"field {uuid(5)} 83 s -5",
        f"field {uuid(5)} * u -1",
    ]
    node = harness.node(harness.poor_library, cards=8, plan=[
        *ones, f"on {uuid(1)} nvmlDeviceGetMarginTemperature code 3", f"field {uuid(1)} 82 code 3",
        f"on {uuid(2)} nvmlDeviceGetMemoryInfo_v2 code 25", f"on {uuid(2)} {STATE} code 25",
        f"on {uuid(3)} {STATE} code 4", f"field {uuid(3)} 230 code 4",
    ])  # fmt: skip
    node.until(whole(node))
    node.spared = set(range(8))
    healthy = node.during(1.0)[-1]
    node.plan(
        *ones, f"on {uuid(4)} * code 999 every 50",
        f"value {uuid(6)} nvmlDeviceGetSamples 255", f"value {uuid(6)} nvmlDeviceGetUtilizationRates 255",
        f"value {uuid(6)} {STATE} 32", f"field {uuid(6)} 82 d inf", f"field {uuid(6)} 197 x 7",
        f"field {uuid(6)} 185 i -1", f"value {uuid(6)} nvmlDeviceGetRemappedRows 4000000000",
    )  # fmt: skip
    pages = node.during(7.0)
    node.plan(f"since {time.monotonic() - 1}")
    node.during(3 * INTERVAL)
    return SimpleNamespace(node=node, healthy=healthy, pages=pages, asked=node.call_counts(), after=node.page())


def test_what_a_gpu_does_not_support_is_absent_and_asked_once(result_of):
    result = result_of(signals_in_trouble)
    assert result.healthy.missing(1)["temperature_memory"] == "unsupported"
    assert "temperature_memory" not in result.healthy.missing(0)
    assert result.healthy.card("gpu_temperature_celsius", 1, sensor="memory") is None
    assert result.asked["1:field:82"] == result.asked["1:nvmlDeviceGetMarginTemperature"] == 1
    assert result.asked["0:field:82"] > 10


def test_missing_symbols_and_struct_versions_fall_back_or_are_absent(result_of):
    page = result_of(signals_in_trouble).healthy
    # The library lacks the newer temperature and clock event calls: the older ones answer.
    assert page.card("gpu_temperature_celsius", 0, sensor="gpu") == 40
    assert page.card("gpu_clock_event_active", 0, reason="sw_power_cap") == 1
    assert page.missing(0)["fabric_state"] == "unsupported"
    assert page.missing(2).keys() - page.missing(0).keys() == {"memory_reserved", "performance_state"}
    assert page.card("gpu_memory_used_bytes", 2) == 32e9


def test_signals_without_permission_say_so(result_of):
    missing = result_of(signals_in_trouble).healthy.missing(3)
    assert missing["performance_state"] == missing["recovery_action"] == "no_permission"


def test_a_call_that_fails_now_and_then_costs_its_signal_that_time(result_of):
    result = result_of(signals_in_trouble)
    gaps = [frozenset(k for k, v in page.missing(4).items() if v == "error") for page in result.pages]
    assert len(set(gaps)) > 3 and any(not gap for gap in gaps)
    assert 3 <= result.pages[-1].failures("signal_error", 4) - result.healthy.failures("signal_error", 4)
    assert result.pages[-1].failures("signal_error", 0) == 0


def test_garbage_is_absent_and_counted_and_never_shown(result_of):
    result = result_of(signals_in_trouble)
    page = result.pages[-1]
    for number in (5, 6):
        assert page.failures("signal_invalid", number) > 10
        assert page.card("gpu_utilization_ratio", number) is None
        assert page.missing(number)["utilization"] == page.missing(number)["performance_state"] == "invalid"
    assert page.card("gpu_power_watts", 5) == page.card("gpu_power_watts", 6) is None
    assert page.card("gpu_pcie_transmit_bytes_total", 6) is None
    # All that a card keeps that answers all-ones: a margin of -1 degrees can be true.
    assert page.names_of(5) - {"gpu_signal_missing_info"} == {"gpu_temperature_margin_celsius"}
    assert page.card("gpu_utilization_ratio", 7) == pytest.approx(0.57)


def test_counters_that_start_anew_are_shown_as_they_are(result_of):
    result = result_of(signals_in_trouble)
    before, after = (page.card("gpu_energy_joules_total", 7) for page in (result.pages[-1], result.after))
    assert 0 < after < before
    # A clock event counter that fell is another field or garbage until it has risen again.
    assert result.after.card("gpu_clock_event_seconds_total", 7, reason="sw_power_cap") < 100


@scenario
def one_card_hangs(harness):
    """D11 for one card."""
    node = harness.node(constants=HANG_FIRST)
    node.until(whole(node))
    pid = node.worker()
    node.spared = {0, 2, 3}
    node.plan(f"on {uuid(1)} {TEMPERATURE} block")
    page = node.until(lambda page: page.hung(1) == 1)
    assert page.why(1) == "hung" and not page.names_of(1) and page.why() is None
    rise = grown(node, "gpu_energy_joules_total", (0, 2, 3))
    aged = node.during(1.0)[-1].card("gpu_data_age_seconds", 1)
    node.plan()
    page = node.until(lambda page: page.up(1))
    assert page.hung(1) == 0 and node.worker() == pid  # a late answer is as good as a new worker
    node.plan(f"on {uuid(1)} {TEMPERATURE} block")
    node.until(lambda page: page.hung(1) == 1)
    node.spared = set()
    node.until(lambda page: node.workers() not in ([], [pid]) and page.up(0, 2, 3))
    assert node.page().why(1) == "hung"
    assert node.most_workers == 1
    return SimpleNamespace(node=node, rise=rise, aged=aged)


def test_a_gpu_that_hangs_stops_no_other_and_later_costs_one_worker(result_of):
    result = result_of(one_card_hangs)
    assert all(joules > 0 for joules in result.rise.values()), result.rise
    assert result.aged > FRESH


ESSENTIAL = (
    ("gpu_utilization_ratio", {}),
    ("gpu_memory_used_bytes", {}),
    ("gpu_temperature_celsius", {"sensor": "gpu"}),
    ("gpu_power_watts", {}),
    ("gpu_clock_hertz", {"domain": "sm"}),
    ("gpu_clock_event_active", {"reason": "sw_power_cap"}),
)


def stays_with_what_matters(page):
    """Return whether the slow GPU keeps its essential signals while it costs the others none of theirs."""
    essential = all(page.card(name, 1, **labels) is not None for name, labels in ESSENTIAL)
    others = {why for number in (0, 2, 3) for why in page.missing(number).values()}
    return page.up(1) and essential and not {"slow", "busy"} & others


@scenario
def slow_card(harness):
    """D16: every call of one card takes 100 ms, then 400; its deadline leaves 0.75 s for a read."""
    node = harness.node(engine=harness.engine)
    healthy = node.until(whole(node))
    node.spared = {0, 2, 3}  # not the slow one: without CPU time it goes over its deadline for a moment
    skipped = {"source": f"gpu:{uuid(1)}"}
    node.plan(f"on {uuid(1)} * sleep 100")
    pages = node.throughout(stays_with_what_matters, 8.0)
    rise = grown(node, "gpu_energy_joules_total", (0, 2, 3), seconds=3.0)
    count = pages[-1].get("shardwatch_source_polls_skipped_total", **skipped)
    duration = pages[-1].get("shardwatch_source_poll_duration_seconds", **skipped)
    node.plan(f"on {uuid(1)} * sleep 400")
    page = node.until(lambda page: page.up(1) and "slow" in page.missing(1).values())
    assert page.hung(1) == 0
    node.until(engine_is_up)
    node.plan()
    node.until(lambda page: "slow" not in page.missing(1).values() and page.names_of(1) >= healthy.names_of(1))
    assert node.most_workers == 1
    return SimpleNamespace(pages=pages, page=page, rise=rise, duration=duration, skipped=count, log=node.log())


def test_a_gpu_of_slow_calls_stays_up_with_what_matters_and_its_polls_are_skipped(result_of):
    result = result_of(slow_card)
    assert all(map(stays_with_what_matters, result.pages))
    assert result.skipped > 10 and 0.3 < result.duration < 1.5
    assert all(joules > 0 for joules in result.rise.values())
    assert not re.search(f"source=gpu:{uuid(1)} state=down", result.log)


def test_what_there_is_no_time_for_is_absent_as_slow(result_of):
    page = result_of(slow_card).page
    names = {"sm_active": "gpu_sm_active_ratio", "pcie_link_width": "gpu_pcie_link_width", "power": "gpu_power_watts"}
    for what, name in names.items():
        assert (page.missing(1).get(what) == "slow") == (page.card(name, 1) is None), what


# ---------------------------------------------------------------- all cards at once


@scenario
def all_cards_hang(harness):
    """D11; then the end while a call hangs."""
    node = harness.node(engine=harness.engine)
    node.until(whole(node))
    pid = node.worker()
    node.plan(f"on * {TEMPERATURE} block")
    page = node.until(lambda page: page.why() == "hung" and {page.why(n) for n in range(4)} == {"hung"})
    assert page.hung() == 1 and engine_is_up(page) and not page.names_of(0)
    node.until(lambda _: node.workers() not in ([], [pid]))
    node.plan()
    node.until(whole(node))
    node.plan(f"on * {TEMPERATURE} block")
    node.until(lambda page: page.hung(0) == 1)
    code, seconds = node.stop()
    assert node.most_workers == 1
    return SimpleNamespace(code=code, seconds=seconds, free=port_is_free(node.port))


def test_when_all_gpus_hang_the_worker_is_replaced_and_two_workers_never_overlap(result_of):
    result_of(all_cards_hang)


def test_sigterm_ends_it_and_frees_the_port_while_calls_hang(result_of):
    result = result_of(all_cards_hang)
    assert (result.code, result.free) == (0, True) and result.seconds < 5


@scenario
def state_d(harness):
    """D12."""
    node = harness.node(cards=2)
    node.until(whole(node))
    pid = node.worker()
    node.plan(f"on * {TEMPERATURE} vfork 600")
    node.until(lambda _: len(node.group(pid)) == 3)  # each card's thread waits for its vfork child
    node.plan()
    node.until(lambda page: page.failures("hung") == 1)
    node.until(whole(node))
    assert node.worker() != pid
    assert node.most_workers == 1
    assert node.group(pid) == []  # its vfork children included
    return node


def test_a_call_in_state_d_that_sigkill_ends_is_ended(result_of):
    result_of(state_d)


@scenario
def unkillable(harness):
    """D13; held by a tracer instead of a frozen file system, which would need root and a loop device."""
    held = harness.folder / "held"
    held.touch()
    try:
        node = harness.node(engine=harness.engine)
        node.until(whole(node))
        pid = node.worker()
        node.plan(f"on * {TEMPERATURE} outlive {held}")
        node.until(lambda page: page.why() == "hung" and page.hung(0) == 1)
        node.during(1.0)
        before = node.footprint()
        pages = node.during(6.0)
        after = node.footprint()
        alive = node.workers()
        assert alive == [pid], (alive, f"the kernel refuses to hold a thread: {held.read_text() or 'it does not'}")
        assert dead_but_for_a_thread(pid)
        assert {page.why() for page in pages} == {"hung"} and engine_is_up(pages[-1])
        code, seconds = node.stop()
        assert dead_but_for_a_thread(pid) and port_is_free(node.port)
        node.plan()
        node.start(f"127.0.0.1:{node.port}")
        node.until(whole(node))
        assert dead_but_for_a_thread(pid)
    finally:
        held.unlink()
    assert node.most_workers == 1
    return SimpleNamespace(code=code, seconds=seconds, before=before, after=after)


def test_while_a_call_survives_sigkill_there_is_one_worker_and_nothing_grows(result_of):
    result = result_of(unkillable)
    assert result.after[1:] == result.before[1:] and result.after[0] - result.before[0] < 4, (
        result.before,
        result.after,
    )


def test_sigterm_ends_it_and_a_successor_takes_the_port_while_a_call_survives_sigkill(result_of):
    result = result_of(unkillable)
    assert result.code == 0 and result.seconds < 5


@scenario
def interpreter_held(harness):
    """D15."""
    node = harness.node(cards=2, engine=harness.engine)
    node.until(whole(node))
    pid = node.worker()
    node.plan(f"on {uuid(1)} {TEMPERATURE} gil 40")
    # Counted, since the next worker may be up before anybody sees the reason; and it holds the interpreter in turn.
    node.until(lambda page: page.failures("hung") >= 1 and engine_is_up(page))
    node.until(lambda _: node.workers() not in ([], [pid]))
    node.plan()
    node.until(whole(node))
    assert node.most_workers == 1
    return node


def test_a_call_that_holds_the_interpreter_holds_up_its_own_process_only(result_of):
    result_of(interpreter_held)


@scenario
def crashes(harness):
    """D17, in a call that no worker can do without."""
    node = harness.node(cards=2, engine=harness.engine)
    node.until(whole(node))
    node.plan(f"on * {COUNT} segv")
    os.kill(node.worker(), signal.SIGKILL)
    page = node.until(lambda page: page.failures("crashed") >= 3)
    node.plan(f"on * {COUNT} abort")
    pages = node.during(6.0)
    page = pages[-1]
    assert page.why() == "crashed" and engine_is_up(page)
    count = page.failures("crashed")
    node.plan()
    node.until(whole(node))
    cores = [path.name for path in node.folder.iterdir() if "core" in path.name]
    assert node.most_workers == 1
    return SimpleNamespace(count=count, cores=cores, log=node.log())


def test_a_library_that_crashes_is_tried_ever_less_often_and_leaves_no_core(result_of):
    result = result_of(crashes)
    assert 4 <= result.count <= 8 and result.cores == []


@scenario
def one_call_crashes(harness):
    """D17, in a call about one card; then in the one that opens another, and in the wait for events."""
    node = harness.node()
    node.until(whole(node))
    state = f"on {uuid(1)} {STATE} segv"
    node.plan(state)
    page = node.until(lambda page: page.missing(1).get("performance_state") == "crashed")
    node.until(whole(node))
    node.spared = {0, 1, 2, 3}
    after = [page, *node.during(3.0)]
    node.spared = set()
    opening = f"on {uuid(2)} nvmlDeviceGetHandleByIndex_v2 abort"
    node.plan(state, opening, f"on {uuid(2)} {TEMPERATURE} code 15")
    page = node.until(lambda page: page.why(2) == "crashed" and page.up(0, 1, 3))
    after.append(page)
    opened = page.failures("crashed")
    node.plan(state, opening, "on * nvmlEventSetWait_v2 segv")
    deaf = node.until(lambda page: page.why("nvml_events") == "crashed" and page.up(0, 1, 3))
    assert node.most_workers == 1
    node.spared = {0, 1, 3}
    return SimpleNamespace(after=after, opened=opened, deaf=deaf, page=node.during(3.0)[-1], log=node.log())


def test_a_call_that_crashes_is_left_out_and_all_else_comes_back(result_of):
    result = result_of(one_call_crashes)
    for page in result.after:
        assert page.failures("crashed") <= 2 and page.missing(1)["performance_state"] == "crashed"
        assert page.card("gpu_performance_state", 1) is None
        assert page.card("gpu_power_watts", 1) == 301 and "performance_state" not in page.missing(0)
    assert "event=call_crashed source=gpu:" + uuid(1) + " function=nvmlDeviceGetPerformanceState" in result.log


def test_a_gpu_whose_opening_crashes_is_left_alone_and_so_is_a_wait_for_events_that_does(result_of):
    result = result_of(one_call_crashes)
    assert (result.opened, result.deaf.failures("crashed"), result.page.failures("crashed")) == (2, 3, 3), result.log
    assert result.page.why(2) == "crashed" and result.page.up(0, 1, 3)


@scenario
def leaks(harness):
    """D18: 10 MiB a second, as 5 MiB a poll of one second would be twice."""
    node = harness.node(cards=2)
    node.until(whole(node))
    pid = node.worker()
    node.plan(f"on {uuid(1)} {TEMPERATURE} leak 2097152")
    max_mebibytes = oldest = 0.0
    until = time.monotonic() + 60
    while node.workers() in ([], [pid]) and time.monotonic() < until:
        oldest = max(oldest, node.page().card("gpu_data_age_seconds", 0))
        with contextlib.suppress(OSError):
            pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
            max_mebibytes = max(max_mebibytes, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        time.sleep(0.05)
    for page in node.during(2.0):
        oldest = max(oldest, page.card("gpu_data_age_seconds", 0))
    page = node.until(whole(node))
    assert node.worker() != pid and node.most_workers == 1
    return SimpleNamespace(most=max_mebibytes, oldest=oldest, recycled=page.failures("recycled"))


def test_a_library_that_leaks_is_recycled_at_the_cap_without_a_gap(result_of):
    result = result_of(leaks)
    assert result.recycled >= 1 and 60 < result.most < 150 and result.oldest < FRESH + 1.5, result


@scenario
def killed_and_stopped(harness):
    """D19."""
    node = harness.node(cards=2)
    node.until(whole(node))
    for number, reason in ((signal.SIGKILL, "crashed"), (signal.SIGSTOP, "hung")):
        pid = node.worker()
        os.kill(pid, number)
        node.until(lambda page, p=pid, r=reason: node.workers() not in ([], [p]) and page.failures(r) == 1)
        node.until(whole(node))
    assert node.most_workers == 1
    return node


def test_a_worker_that_is_killed_or_stopped_is_replaced(result_of):
    result_of(killed_and_stopped)


@scenario
def cards_come_and_go(harness):
    """D20, D21; while it lasts every page is checked for figures under another card's name."""
    node = harness.node()
    node.until(whole(node))
    node.plan(order=[3, 1, 0])
    page = node.until(lambda page: page.why(2) == "lost" and page.up(0, 1, 3) and index(page, 3) == "0")
    absent = page.names_of(2)
    joules = page.card("gpu_energy_joules_total", 0)
    node.plan(order=[2, 3, 0, 1])
    page = node.until(lambda page: whole(node)(page) and index(page, 2) == "0")
    places = {n: index(page, n) for n in range(4)}
    assert page.card("gpu_energy_joules_total", 0) > joules
    assert node.most_workers == 1
    return SimpleNamespace(gone=absent, places=places, initialisations=node.call_counts()[INIT])


def test_gpus_that_leave_return_and_move_keep_their_uuid(result_of):
    result = result_of(cards_come_and_go)
    assert result.gone == set()
    assert result.places == {2: "0", 3: "1", 0: "2", 1: "3"}
    assert result.initialisations == 3


@scenario
def prints(harness):
    """D25: two cards, each 100 kB to both outputs five times a second."""
    node = harness.node(cards=2)
    node.until(whole(node))
    node.during(1.0)
    before = node.footprint()
    node.spared = {0, 1}
    node.plan(f"on * {TEMPERATURE} print 100000", f"on * {COUNT} print 100000")
    node.during(5.0)
    rise = grown(node, "gpu_energy_joules_total", (0, 1))
    after = node.footprint()
    assert node.page().failures("protocol") == 0 and node.most_workers == 1
    return SimpleNamespace(log=node.log(), rise=rise, before=before, after=after)


def test_a_library_that_prints_reaches_neither_log_nor_protocol(result_of):
    result = result_of(prints)
    assert not re.search("xxx|yyy|stdio", result.log)
    assert all(joules > 0 for joules in result.rise.values())
    assert result.after[0] - result.before[0] < 4 and result.after[1:] == result.before[1:], (
        result.before,
        result.after,
    )
