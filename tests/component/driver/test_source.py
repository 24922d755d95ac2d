"""The daemon's side of the driver: real workers, while cards, driver and worker fail in every way."""

from __future__ import annotations

import logging
import os
import pathlib
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from exporter.driver import protocol
from exporter.driver.daemon import restarts, source, supervisor
from exporter.driver.daemon.source import SECOND_READ, CardSource
from exporter.driver.nvml.gpm import SIGNALS as WORK
from exporter.model import CardFacts, CardReading, DriverFacts, Missing, Signal
from tests.support.watched_cards import DEADLINE, INTERVAL, Node, alive

LOST, RESET = {"*": {"error": 15}}, {"*": {"error": 16}}
BLOCK = {"nvmlDeviceGetTemperatureV": {"block": True}}


def missing(reading):
    """Return what is absent beside the work signals, which this driver does not have."""
    return {signal: why for signal, why in reading.missing.items() if signal not in WORK}


@pytest.fixture
def start_node(tmp_path):
    started = []

    def start(plan=None, **options):
        node = Node(tmp_path / f"plan{len(started)}.json", plan or {}, **options)
        started.append(node)
        node.source.start()
        return node

    yield start
    for node in started:
        node.source.stop()
        try:
            assert node.until(lambda: not node.source._thread.is_alive())
            assert node.until(lambda: not any(alive(pid) for pid in node.pids))
        finally:
            for pid in filter(alive, node.pids):
                os.kill(pid, signal.SIGKILL)


def test_gpus_are_read_and_announced(start_node):
    node = start_node()
    first = node.view()
    assert (first.status.up, first.status.reason, first.cards, first.driver) == (False, "starting", (), None)
    assert node.until(node.up)
    before = node.updates
    at = node.card().reading.at
    assert node.until(lambda: node.updates > before + 2 and node.card().reading.at > at)
    view = node.view()
    assert view.driver == DriverFacts(driver_version="590.48.01", nvml_version="13.590", cuda_version="13.1")
    assert view.status.up and view.status.source == "driver"
    assert [state.facts.index for state in view.cards] == [0, 1]
    assert view.cards[0].reading.signals[Signal.POWER] == pytest.approx(412)


def test_without_the_library_the_source_is_down_and_no_process_stays(start_node):
    node = start_node(module="pynvml", options="", interval=1.0)
    if node.until(lambda: node.view().status.reason == "library" or node.view().status.up) and node.view().status.up:
        pytest.skip("this machine has a GPU driver")
    assert node.until(lambda: node.pid is None)
    view = node.view()
    assert (view.status.up, view.status.reason, view.cards, view.driver) == (False, "library", (), None)
    assert view.status.failures["library"] >= 1


def test_a_driver_that_is_loaded_later_is_found_without_a_restart(start_node):
    node = start_node({"calls": {"nvmlInit": {"error": 9}}})
    assert node.until(lambda: node.view().status.reason == "driver")
    node.plan({})
    assert node.until(node.up)
    assert node.view().status.reason == ""


def test_a_mismatch_withdraws_replaces_the_worker_and_heals(start_node):
    node = start_node()
    assert node.until(node.up)
    pid = node.pid
    node.plan({"calls": {"nvmlInit": {"error": 18}, "*": {"error": 18}}})
    assert node.until(lambda: node.view().status.reason == "mismatch" and not node.up("GPU-a"))
    assert node.until(lambda: node.reason("GPU-a") == "mismatch" and node.card().reading is None)
    node.plan({})
    assert node.until(node.up)
    assert node.pid != pid
    assert node.most == 1
    assert node.view().status.failures["mismatch"] >= 1


def test_a_lost_gpu_does_not_stop_the_others(start_node):
    node = start_node({"at": {"GPU-b": LOST}, "cards": ["GPU-a", "GPU-b", "GPU-c"]})
    assert node.until(lambda: node.up("GPU-a", "GPU-c"))
    node.plan({"cards": ["GPU-a", "GPU-b", "GPU-c"]})
    assert node.until(lambda: node.up("GPU-b"))
    node.plan({"at": {"GPU-b": LOST}, "cards": ["GPU-a", "GPU-b", "GPU-c"]})
    assert node.until(lambda: node.reason("GPU-b") == "lost")
    assert node.card("GPU-b").reading is None
    at = node.card("GPU-c").reading.at
    assert node.until(lambda: node.up("GPU-a", "GPU-c") and node.card("GPU-c").reading.at > at + 3 * INTERVAL)
    assert node.reason("GPU-b") == "lost"
    assert len(node.pids) == 1


def test_a_gpu_that_needs_a_reset_says_so_and_recovers(start_node):
    node = start_node()
    assert node.until(node.up)
    node.plan({"at": {"GPU-a": RESET}})
    assert node.until(lambda: node.reason("GPU-a") == "reset_required")
    node.plan({})
    assert node.until(node.up)


def test_one_failing_call_in_many_costs_a_field_once(start_node):
    node = start_node({"calls": {"nvmlDeviceGetPerformanceState": {"error": 999, "every": 2}}})
    assert node.until(lambda: node.up() and Signal.PERFORMANCE_STATE not in node.card().reading.signals)
    assert missing(node.card().reading) == {Signal.PERFORMANCE_STATE: Missing.ERROR}
    assert node.until(
        lambda: node.up() and sum(node.card(u).status.failures.get("signal_error", 0) for u in ("GPU-a", "GPU-b")) > 2
    )
    assert node.view().status.up


def test_a_gpu_that_blocks_for_ever_hangs_alone(start_node):
    node = start_node()
    assert node.until(node.up)
    pid = node.pid
    node.plan({"at": {"GPU-b": BLOCK}})
    assert node.until(lambda: node.reason("GPU-b") == "hung")
    state = node.card("GPU-b")
    assert state.status.hung and state.reading is None and state.last_read_at is not None
    at = node.card().reading.at
    assert node.until(lambda: node.up("GPU-a") and node.card().reading.at > at + 5 * INTERVAL)
    assert node.pid == pid
    node.plan({})
    assert node.until(node.up)


def test_a_gpu_that_goes_on_hanging_gets_a_new_worker(start_node, monkeypatch):
    monkeypatch.setattr(restarts, "HANG_FIRST", 0.5)
    node = start_node()
    assert node.until(node.up)
    node.plan({"at": {"GPU-b": BLOCK}})
    assert node.until(lambda: len(node.pids) == 2)
    assert node.until(lambda: node.up("GPU-a") and node.view().status.up)
    # A card that has not answered since hangs still, whoever asks it.
    assert node.card("GPU-b").status.hung
    assert node.most == 1
    node.plan({})
    assert node.until(node.up)


def test_when_all_gpus_hang_the_worker_is_replaced_and_two_never_run_at_once(start_node, monkeypatch):
    monkeypatch.setattr(restarts, "HANG_FIRST", 1e6)  # the patience for single cards is not what acts here
    node = start_node()
    assert node.until(node.up)
    node.plan({"at": {"GPU-a": BLOCK, "GPU-b": BLOCK}})
    assert node.until(lambda: node.view().status.hung)
    assert node.until(lambda: node.reason("GPU-a") == node.reason("GPU-b") == "hung")
    assert node.until(lambda: len(node.pids) > 1)
    node.plan({})
    assert node.until(node.up)
    assert node.most == 1
    assert node.view().status.failures["hung"] >= 1


def test_a_call_that_holds_the_interpreter_is_a_hang_too(start_node):
    node = start_node()
    assert node.until(node.up)
    node.plan({"at": {"GPU-a": {"nvmlDeviceGetTemperatureV": {"hold": 30}}}})
    assert node.until(lambda: node.view().status.hung)
    node.plan({})
    assert node.until(node.up)
    assert node.most == 1


def test_an_initialisation_that_hangs_blocks_nothing_and_is_given_up(start_node, monkeypatch):
    monkeypatch.setattr(source, "INIT_DEADLINE", 1.5)
    before = time.monotonic()
    node = start_node({"calls": {"nvmlInit": {"block": True}}})
    assert node.view().status.reason == "starting"
    assert time.monotonic() - before < 1.0
    assert node.until(lambda: node.view().status.reason == "hung" and node.view().status.hung)
    node.plan({})
    assert node.until(node.up)


def test_an_abort_in_the_library_is_survived_and_counted(start_node):
    node = start_node()
    assert node.until(node.up)
    node.plan({"calls": {"nvmlDeviceGetTemperatureV": {"abort": True}}})
    assert node.until(lambda: node.view().status.failures.get("crashed", 0) >= 2)
    assert node.until(lambda: node.view().status.reason == "crashed")
    node.plan({})
    assert node.until(node.up)
    assert node.most == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_worker_that_is_killed_or_stopped_is_replaced(start_node, number):
    node = start_node()
    assert node.until(node.up)
    pid = node.pid
    os.kill(pid, number)
    assert node.until(lambda: node.pid not in {None, pid} and node.up())
    assert not alive(pid)
    assert node.view().status.failures == ({"hung": 1} if number == signal.SIGSTOP else {"crashed": 1})
    assert node.most == 1


def test_a_worker_at_its_memory_cap_is_recycled_without_the_gpus_going_down(start_node):
    node = start_node(
        {"at": {"GPU-a": {"nvmlDeviceGetTemperatureV": {"leak": 20 * 2**20}}}}, interval=0.2, deadline=5.0
    )
    assert node.until(node.up)
    assert node.until(lambda: node.view().status.failures.get("recycled") or not node.up())
    node.plan({})
    assert node.up()
    assert node.until(lambda: node.view().status.up)
    assert node.up()


def test_a_worker_that_survives_sigkill_is_waited_for_and_stop_is_not_held_up(start_node, monkeypatch):
    """As a call stuck in the kernel would do: the signal is sent and nothing happens."""
    monkeypatch.setattr(supervisor, "KILL_DEADLINE", 0.1)
    node = start_node()
    assert node.until(node.up)
    real, pid = supervisor.WorkerProcess.kill, node.pid
    stuck = node.source._supervisor._worker
    monkeypatch.setattr(supervisor.WorkerProcess, "kill", lambda *_: None)
    os.kill(pid, signal.SIGSTOP)
    assert node.until(lambda: node.view().status.hung)
    assert node.until(lambda: node.reason("GPU-a") == "hung" and node.card().reading is None)
    threads = threading.active_count()
    cycles, run_cycle = [], node.source._run_cycle
    monkeypatch.setattr(node.source, "_run_cycle", lambda: cycles.append(None) or run_cycle())
    assert node.until(lambda: len(cycles) >= 5)
    assert node.pid == pid and alive(pid)
    assert threading.active_count() == threads
    real(stuck)
    monkeypatch.undo()
    assert node.until(lambda: node.pid not in {None, pid} and node.up())


def test_stop_gives_up_on_a_worker_that_cannot_be_killed(start_node, monkeypatch):
    node = start_node()
    assert node.until(node.up)
    stuck, real = node.source._supervisor._worker, supervisor.WorkerProcess.kill
    monkeypatch.setattr(supervisor.WorkerProcess, "kill", lambda *_: None)
    os.kill(stuck.pid, signal.SIGSTOP)
    before = time.monotonic()
    node.source.stop(timeout=1.0)
    assert time.monotonic() - before < 3.0
    real(stuck)
    stuck._child.wait()


def reinitialise(node, cards):
    """Let the driver be initialised again, with other GPUs."""
    node.plan({"cards": cards, "calls": {"nvmlDeviceGetTemperatureV": {"error": 1}}})
    assert node.until(lambda: all(state.status.failures.get("uninitialized") for state in node.view().cards))
    node.plan({"cards": cards})


def test_gpus_that_move_or_leave_keep_their_uuid(start_node):
    node = start_node({"cards": ["GPU-a", "GPU-b", "GPU-c"]})
    assert node.until(lambda: node.up("GPU-a", "GPU-b", "GPU-c"))
    reinitialise(node, ["GPU-c", "GPU-a"])
    assert node.until(lambda: node.reason("GPU-b") == "lost" and node.up("GPU-a", "GPU-c"))
    assert node.until(lambda: node.up("GPU-a", "GPU-c") and node.card("GPU-c").labels == ("0", "GPU-c"))
    assert node.until(lambda: node.card("GPU-a").labels == ("1", "GPU-a"))
    reinitialise(node, ["GPU-c", "GPU-a", "GPU-b"])
    assert node.until(lambda: node.up("GPU-a", "GPU-b", "GPU-c"))
    assert node.card("GPU-b").facts.index == 2
    assert len(node.pids) == 1


def test_the_kernel_knows_the_threads_by_name(start_node):
    node = start_node()
    assert node.until(node.up)

    def names(pid):
        tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/comm")
        return {path.read_text().rstrip("\n") for path in tasks}

    assert node.until(lambda: {"shardwatch-nvml", "gpu-0", "gpu-1", "nvml-init", "nvml-events"} <= names(node.pid))
    assert "topology" in names(node.pid)
    assert "nvml-supervisor" in names("self")
    assert pathlib.Path(f"/proc/{node.pid}/comm").read_text() == "shardwatch-nvml\n"


def test_garbage_from_the_driver_is_absent_and_counted(start_node):
    node = start_node(
        {
            "calls": {
                "nvmlDeviceGetTemperatureV": {"return": 2**32 - 1},
                "nvmlDeviceGetPerformanceState": {"return": 32},
            }
        }
    )
    assert node.until(node.up)
    state = node.card()
    assert missing(state.reading) == {
        Signal.TEMPERATURE_GPU: Missing.INVALID,
        Signal.PERFORMANCE_STATE: Missing.INVALID,
    }
    assert state.status.failures["signal_invalid"] >= 2


def test_a_driver_that_prints_disturbs_nothing(start_node):
    node = start_node({"calls": {"nvmlDeviceGetTemperatureV": {"print": 1_000_000}}})
    assert node.until(node.up)
    at = node.card().reading.at
    assert node.until(lambda: node.up() and node.card().reading.at > at + 3 * INTERVAL)
    assert node.view().status.failures == {}


def test_a_worker_that_cannot_be_started_is_said_and_tried_again(start_node, monkeypatch):
    def refused(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    real = supervisor.WorkerProcess
    monkeypatch.setattr(supervisor, "WorkerProcess", refused)
    node = start_node()
    assert node.until(lambda: node.view().status.reason == "spawn")
    monkeypatch.setattr(supervisor, "WorkerProcess", real)
    assert node.until(node.up)


def test_nonsense_from_the_worker_replaces_it(start_node):
    node = start_node()
    assert node.until(node.up)
    pid = node.pid
    node.source._supervisor._worker._frames._data += b"\xff\xff\xff\xff"
    assert node.until(lambda: node.pid not in {None, pid} and node.up())
    assert node.view().status.failures == {"protocol": 1}


def test_a_mistake_in_the_supervisor_is_survived(start_node, monkeypatch, caplog):
    node = start_node()
    assert node.until(node.up)
    pid, real = node.pid, node.source._registry.check_hangs
    monkeypatch.setattr(node.source._registry, "check_hangs", lambda *_: 1 / 0)
    assert node.until(lambda: "supervisor" in caplog.text)
    monkeypatch.setattr(node.source._registry, "check_hangs", real)
    assert node.until(lambda: node.pid not in {None, pid} and node.up())


def test_an_owner_that_raises_does_not_stop_the_gpus(tmp_path, start_node, caplog):
    node = start_node()
    node.source._on_update = lambda: 1 / 0
    assert node.until(node.up)
    at = node.card().reading.at
    assert node.until(lambda: node.up() and node.card().reading.at > at + 2 * INTERVAL)
    assert "event=internal_error source=driver" in caplog.text


def test_the_interval_can_be_changed_while_running(start_node):
    node = start_node(interval=60.0)
    assert node.until(node.up)
    at = node.card().reading.at
    node.source.reconfigure(INTERVAL, DEADLINE)
    assert node.until(lambda: node.up() and node.card().reading.at > at)
    assert node.until(lambda: node.up() and node.card().reading.at > at + 2 * INTERVAL)


class Clocked:
    """A source without a worker that is told of one card; ``now`` is its clock."""

    def __init__(self, **options):
        self.now = 0.0
        self.news = []
        self.source = CardSource(**options, clock=lambda: self.now, on_update=lambda: self.news.append(self.now))
        self.source._apply(protocol.Initialised(facts=DriverFacts(), cards=1), 0.0, 0.0)
        self.source._apply(protocol.CardFound(facts=CardFacts(index=0, uuid="GPU-a")), 0.0, 0.0)

    def answer(self, at):
        reading = CardReading(at=at, signals={Signal.POWER: at})
        self.source._apply(protocol.CardRead(index=0, uuid="GPU-a", cycle=1, duration=0.0, reading=reading), at, at)

    def up(self, at):
        (card,) = self.source.state(at).cards
        return card.status.up


def test_a_shorter_interval_takes_no_gpu_down_until_it_has_had_the_time_to_answer():
    clocked, asked = Clocked(interval=20.0, deadline=1.0), []
    clocked.answer(0.0)
    clocked.now = 15.0
    clocked.source.reconfigure(1.0, 1.0)
    clocked.source._watch(SimpleNamespace(closed=False, send=asked.append), 15.0, suspended=False)
    assert [question.ask for question in asked] == [True]  # at once
    assert clocked.up(15.0) and clocked.up(16.0)
    assert not clocked.up(16.01)  # asked, and did not answer within the deadline
    clocked.answer(16.5)
    assert clocked.up(18.5) and not clocked.up(18.6)


@pytest.mark.parametrize(("interval", "second"), [(20.0, SECOND_READ), (0.1, 0.1)])
def test_gpus_are_read_a_second_time_soon_for_what_is_measured_between_two_reads(interval, second):
    clocked, asked = Clocked(interval=interval, deadline=1.0), []
    worker = SimpleNamespace(closed=False, send=asked.append)
    clocked.source._watch(worker, second - 0.01, suspended=False)
    assert asked == []
    clocked.source._watch(worker, second, suspended=False)
    assert [question.ask for question in asked] == [True]
    assert clocked.source._next_read == second + interval


def test_figures_of_released_gpus_are_withdrawn_at_once():
    clocked = Clocked(interval=1.0, deadline=0.2)
    clocked.answer(0.0)
    clocked.source.release(released=True)
    view = clocked.source.state(0.0)
    assert (view.status.reason, view.driver, view.cards[0].reading) == ("released", None, None)
    clocked.now, clocked.news = 0.5, []
    clocked.source._run_cycle()
    assert clocked.news and clocked.source.state(0.5).cards[0].reading is None


def test_each_state_of_the_driver_is_logged_once(start_node, caplog):
    caplog.set_level(logging.INFO)
    node = start_node({"calls": {"nvmlInit": {"error": 9}}})
    assert node.until(lambda: node.view().status.failures.get("driver", 0) >= 2)
    node.plan({})
    assert node.until(node.up)
    read_at = node.card().reading.at
    assert node.until(lambda: node.card().reading.at > read_at + 3 * INTERVAL)
    lines = [
        record.getMessage().partition(" error=")[0]
        for record in caplog.records
        if "source=driver" in record.getMessage()
    ]
    assert lines == [
        'event=state_changed source=driver state=down reason=driver hint="set gpu: {enabled: false} on a node without GPUs"',
        "event=state_changed source=driver state=up version=590.48.01",
    ]


def test_stop_works_before_start_and_twice(tmp_path):
    source = CardSource(module="tests.support.fake_nvml", options=str(tmp_path / "none"))
    source.stop()
    source.reconfigure(1.0, 2.0)
    assert source.state(time.monotonic()).status.reason == "starting"
    other = CardSource(module="tests.support.fake_nvml", options=str(tmp_path / "none"))
    other.start()
    other.stop()
    other.stop()
    assert not other._thread.is_alive()


def test_a_daemon_that_stood_still_does_not_restart_the_worker(start_node):
    node = start_node()
    assert node.until(node.up)
    source = node.source
    worker = SimpleNamespace(closed=False, send=lambda _: True)
    with source._lock:
        source._requested_at = time.monotonic() - 100
    source._watch(worker, time.monotonic(), suspended=True)
    assert node.view().status.up
