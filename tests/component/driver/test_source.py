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
def node(tmp_path):
    started = []

    def start(plan=None, **options):
        one = Node(tmp_path / f"plan{len(started)}.json", plan or {}, **options)
        started.append(one)
        one.source.start()
        return one

    yield start
    for one in started:
        one.source.stop()
        try:
            assert one.until(lambda: not one.source._thread.is_alive())
            assert one.until(lambda: not any(alive(pid) for pid in one.pids))
        finally:
            for pid in filter(alive, one.pids):
                os.kill(pid, signal.SIGKILL)


def test_cards_are_read_and_announced(node):
    one = node()
    first = one.view()
    assert (first.status.up, first.status.reason, first.cards, first.driver) == (False, "starting", (), None)
    assert one.until(one.up)
    before = one.updates
    at = one.card().reading.at
    assert one.until(lambda: one.updates > before + 2 and one.card().reading.at > at)
    view = one.view()
    assert view.driver == DriverFacts(driver_version="590.48.01", nvml_version="13.590", cuda_version="13.1")
    assert view.status.up and view.status.source == "driver"
    assert [state.facts.index for state in view.cards] == [0, 1]
    assert view.cards[0].reading.signals[Signal.POWER] == pytest.approx(412)


def test_without_the_library_the_source_is_down_and_no_process_stays(node):
    one = node(module="pynvml", options="", interval=1.0)
    if one.until(lambda: one.view().status.reason == "library" or one.view().status.up) and one.view().status.up:
        pytest.skip("this machine has a GPU driver")
    assert one.until(lambda: one.pid is None)
    view = one.view()
    assert (view.status.up, view.status.reason, view.cards, view.driver) == (False, "library", (), None)
    assert view.status.failures["library"] >= 1


def test_a_driver_that_is_loaded_later_is_found_without_a_restart(node):
    one = node({"calls": {"nvmlInit": {"error": 9}}})
    assert one.until(lambda: one.view().status.reason == "driver")
    one.plan({})
    assert one.until(one.up)
    assert one.view().status.reason == ""


def test_a_mismatch_withdraws_replaces_the_worker_and_heals(node):
    one = node()
    assert one.until(one.up)
    pid = one.pid
    one.plan({"calls": {"nvmlInit": {"error": 18}, "*": {"error": 18}}})
    assert one.until(lambda: one.view().status.reason == "mismatch" and not one.up("GPU-a"))
    assert one.until(lambda: one.reason("GPU-a") == "mismatch" and one.card().reading is None)
    one.plan({})
    assert one.until(one.up)
    assert one.pid != pid
    assert one.most == 1
    assert one.view().status.failures["mismatch"] >= 1


def test_a_lost_card_does_not_stop_its_neighbours(node):
    one = node({"at": {"GPU-b": LOST}, "cards": ["GPU-a", "GPU-b", "GPU-c"]})
    assert one.until(lambda: one.up("GPU-a", "GPU-c"))
    one.plan({"cards": ["GPU-a", "GPU-b", "GPU-c"]})
    assert one.until(lambda: one.up("GPU-b"))
    one.plan({"at": {"GPU-b": LOST}, "cards": ["GPU-a", "GPU-b", "GPU-c"]})
    assert one.until(lambda: one.reason("GPU-b") == "lost")
    assert one.card("GPU-b").reading is None
    at = one.card("GPU-c").reading.at
    assert one.until(lambda: one.up("GPU-a", "GPU-c") and one.card("GPU-c").reading.at > at + 3 * INTERVAL)
    assert one.reason("GPU-b") == "lost"
    assert len(one.pids) == 1


def test_a_card_that_needs_a_reset_says_so_and_recovers(node):
    one = node()
    assert one.until(one.up)
    one.plan({"at": {"GPU-a": RESET}})
    assert one.until(lambda: one.reason("GPU-a") == "reset_required")
    one.plan({})
    assert one.until(one.up)


def test_one_failing_call_in_many_costs_a_field_once(node):
    one = node({"calls": {"nvmlDeviceGetPerformanceState": {"error": 999, "every": 2}}})
    assert one.until(lambda: one.up() and Signal.PERFORMANCE_STATE not in one.card().reading.signals)
    assert missing(one.card().reading) == {Signal.PERFORMANCE_STATE: Missing.ERROR}
    assert one.until(
        lambda: one.up() and sum(one.card(u).status.failures.get("signal_error", 0) for u in ("GPU-a", "GPU-b")) > 2
    )
    assert one.view().status.up


def test_a_card_that_sleeps_for_ever_hangs_alone(node):
    one = node()
    assert one.until(one.up)
    pid = one.pid
    one.plan({"at": {"GPU-b": BLOCK}})
    assert one.until(lambda: one.reason("GPU-b") == "hung")
    state = one.card("GPU-b")
    assert state.status.hung and state.reading is None and state.last_read_at is not None
    at = one.card().reading.at
    assert one.until(lambda: one.up("GPU-a") and one.card().reading.at > at + 5 * INTERVAL)
    assert one.pid == pid
    one.plan({})
    assert one.until(one.up)


def test_a_card_that_goes_on_hanging_gets_a_new_worker(node, monkeypatch):
    monkeypatch.setattr(restarts, "HANG_FIRST", 0.5)
    one = node()
    assert one.until(one.up)
    one.plan({"at": {"GPU-b": BLOCK}})
    assert one.until(lambda: len(one.pids) == 2)
    assert one.until(lambda: one.up("GPU-a") and one.view().status.up)
    # A card that has not answered since hangs still, whoever asks it.
    assert one.card("GPU-b").status.hung
    assert one.most == 1
    one.plan({})
    assert one.until(one.up)


def test_when_all_cards_hang_the_worker_is_replaced_and_never_two_are_alive(node, monkeypatch):
    monkeypatch.setattr(restarts, "HANG_FIRST", 1e6)  # the patience for single cards is not what acts here
    one = node()
    assert one.until(one.up)
    one.plan({"at": {"GPU-a": BLOCK, "GPU-b": BLOCK}})
    assert one.until(lambda: one.view().status.hung)
    assert one.until(lambda: one.reason("GPU-a") == one.reason("GPU-b") == "hung")
    assert one.until(lambda: len(one.pids) > 1)
    one.plan({})
    assert one.until(one.up)
    assert one.most == 1
    assert one.view().status.failures["hung"] >= 1


def test_a_call_that_holds_the_interpreter_is_a_hang_too(node):
    one = node()
    assert one.until(one.up)
    one.plan({"at": {"GPU-a": {"nvmlDeviceGetTemperatureV": {"hold": 30}}}})
    assert one.until(lambda: one.view().status.hung)
    one.plan({})
    assert one.until(one.up)
    assert one.most == 1


def test_an_initialisation_that_hangs_blocks_nothing_and_is_given_up(node, monkeypatch):
    monkeypatch.setattr(source, "INIT_DEADLINE", 1.5)
    before = time.monotonic()
    one = node({"calls": {"nvmlInit": {"block": True}}})
    assert one.view().status.reason == "starting"
    assert time.monotonic() - before < 1.0
    assert one.until(lambda: one.view().status.reason == "hung" and one.view().status.hung)
    one.plan({})
    assert one.until(one.up)


def test_an_abort_in_the_library_is_survived_and_counted(node):
    one = node()
    assert one.until(one.up)
    one.plan({"calls": {"nvmlDeviceGetTemperatureV": {"abort": True}}})
    assert one.until(lambda: one.view().status.failures.get("crashed", 0) >= 2)
    assert one.until(lambda: one.view().status.reason == "crashed")
    one.plan({})
    assert one.until(one.up)
    assert one.most == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_worker_that_is_killed_or_stopped_is_replaced(node, number):
    one = node()
    assert one.until(one.up)
    pid = one.pid
    os.kill(pid, number)
    assert one.until(lambda: one.pid not in {None, pid} and one.up())
    assert not alive(pid)
    assert one.view().status.failures == ({"hung": 1} if number == signal.SIGSTOP else {"crashed": 1})
    assert one.most == 1


def test_a_worker_at_its_memory_cap_is_recycled_without_the_cards_going_down(node):
    one = node({"at": {"GPU-a": {"nvmlDeviceGetTemperatureV": {"leak": 20 * 2**20}}}}, interval=0.2, deadline=5.0)
    assert one.until(one.up)
    assert one.until(lambda: one.view().status.failures.get("recycled") or not one.up())
    one.plan({})
    assert one.up()
    assert one.until(lambda: one.view().status.up)
    assert one.up()


def test_a_worker_that_survives_sigkill_is_waited_for_and_stop_is_not_held_up(node, monkeypatch):
    """As a call stuck in the kernel would do: the signal is sent and nothing happens."""
    monkeypatch.setattr(supervisor, "KILL_DEADLINE", 0.1)
    one = node()
    assert one.until(one.up)
    real, pid = supervisor.WorkerProcess.kill, one.pid
    stuck = one.source._supervisor._worker
    monkeypatch.setattr(supervisor.WorkerProcess, "kill", lambda *_: None)
    os.kill(pid, signal.SIGSTOP)
    assert one.until(lambda: one.view().status.hung)
    assert one.until(lambda: one.reason("GPU-a") == "hung" and one.card().reading is None)
    threads = threading.active_count()
    cycles, run_cycle = [], one.source._run_cycle
    monkeypatch.setattr(one.source, "_run_cycle", lambda: cycles.append(None) or run_cycle())
    assert one.until(lambda: len(cycles) >= 5)
    assert one.pid == pid and alive(pid)
    assert threading.active_count() == threads
    real(stuck)
    monkeypatch.undo()
    assert one.until(lambda: one.pid not in {None, pid} and one.up())


def test_stop_gives_up_on_a_worker_that_cannot_be_killed(node, monkeypatch):
    one = node()
    assert one.until(one.up)
    stuck, real = one.source._supervisor._worker, supervisor.WorkerProcess.kill
    monkeypatch.setattr(supervisor.WorkerProcess, "kill", lambda *_: None)
    os.kill(stuck.pid, signal.SIGSTOP)
    before = time.monotonic()
    one.source.stop(timeout=1.0)
    assert time.monotonic() - before < 3.0
    real(stuck)
    stuck._child.wait()


def reinitialise(one, cards):
    """Let the driver be initialised again, with other GPUs."""
    one.plan({"cards": cards, "calls": {"nvmlDeviceGetTemperatureV": {"error": 1}}})
    assert one.until(lambda: all(state.status.failures.get("uninitialized") for state in one.view().cards))
    one.plan({"cards": cards})


def test_cards_that_move_or_leave_keep_their_uuid(node):
    one = node({"cards": ["GPU-a", "GPU-b", "GPU-c"]})
    assert one.until(lambda: one.up("GPU-a", "GPU-b", "GPU-c"))
    reinitialise(one, ["GPU-c", "GPU-a"])
    assert one.until(lambda: one.reason("GPU-b") == "lost" and one.up("GPU-a", "GPU-c"))
    assert one.until(lambda: one.up("GPU-a", "GPU-c") and one.card("GPU-c").labels == ("0", "GPU-c"))
    assert one.until(lambda: one.card("GPU-a").labels == ("1", "GPU-a"))
    reinitialise(one, ["GPU-c", "GPU-a", "GPU-b"])
    assert one.until(lambda: one.up("GPU-a", "GPU-b", "GPU-c"))
    assert one.card("GPU-b").facts.index == 2
    assert len(one.pids) == 1


def test_the_kernel_knows_the_threads_by_name(node):
    one = node()
    assert one.until(one.up)

    def names(pid):
        tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/comm")
        return {path.read_text().rstrip("\n") for path in tasks}

    assert one.until(lambda: {"shardwatch-nvml", "gpu-0", "gpu-1", "nvml-init", "nvml-events"} <= names(one.pid))
    assert "topology" in names(one.pid)
    assert "nvml-supervisor" in names("self")
    assert pathlib.Path(f"/proc/{one.pid}/comm").read_text() == "shardwatch-nvml\n"


def test_garbage_from_the_driver_is_absent_and_counted(node):
    one = node(
        {
            "calls": {
                "nvmlDeviceGetTemperatureV": {"return": 2**32 - 1},
                "nvmlDeviceGetPerformanceState": {"return": 32},
            }
        }
    )
    assert one.until(one.up)
    state = one.card()
    assert missing(state.reading) == {
        Signal.TEMPERATURE_GPU: Missing.INVALID,
        Signal.PERFORMANCE_STATE: Missing.INVALID,
    }
    assert state.status.failures["signal_invalid"] >= 2


def test_a_driver_that_prints_disturbs_nothing(node):
    one = node({"calls": {"nvmlDeviceGetTemperatureV": {"print": 1_000_000}}})
    assert one.until(one.up)
    at = one.card().reading.at
    assert one.until(lambda: one.up() and one.card().reading.at > at + 3 * INTERVAL)
    assert one.view().status.failures == {}


def test_a_worker_that_cannot_be_started_is_said_and_tried_again(node, monkeypatch):
    def refused(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    real = supervisor.WorkerProcess
    monkeypatch.setattr(supervisor, "WorkerProcess", refused)
    one = node()
    assert one.until(lambda: one.view().status.reason == "spawn")
    monkeypatch.setattr(supervisor, "WorkerProcess", real)
    assert one.until(one.up)


def test_nonsense_from_the_worker_replaces_it(node):
    one = node()
    assert one.until(one.up)
    pid = one.pid
    one.source._supervisor._worker._frames._data += b"\xff\xff\xff\xff"
    assert one.until(lambda: one.pid not in {None, pid} and one.up())
    assert one.view().status.failures == {"protocol": 1}


def test_a_mistake_in_the_supervisor_is_survived(node, monkeypatch, caplog):
    one = node()
    assert one.until(one.up)
    pid, real = one.pid, one.source._registry.check_hangs
    monkeypatch.setattr(one.source._registry, "check_hangs", lambda *_: 1 / 0)
    assert one.until(lambda: "supervisor" in caplog.text)
    monkeypatch.setattr(one.source._registry, "check_hangs", real)
    assert one.until(lambda: one.pid not in {None, pid} and one.up())


def test_an_owner_that_raises_does_not_stop_the_cards(tmp_path, node, caplog):
    one = node()
    one.source._on_update = lambda: 1 / 0
    assert one.until(one.up)
    at = one.card().reading.at
    assert one.until(lambda: one.up() and one.card().reading.at > at + 2 * INTERVAL)
    assert "event=internal_error source=driver" in caplog.text


def test_the_interval_can_be_changed_while_running(node):
    one = node(interval=60.0)
    assert one.until(one.up)
    at = one.card().reading.at
    one.source.reconfigure(INTERVAL, DEADLINE)
    assert one.until(lambda: one.up() and one.card().reading.at > at)
    assert one.until(lambda: one.up() and one.card().reading.at > at + 2 * INTERVAL)


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


def test_a_shorter_interval_takes_no_card_down_until_it_has_had_the_time_to_answer():
    one, asked = Clocked(interval=20.0, deadline=1.0), []
    one.answer(0.0)
    one.now = 15.0
    one.source.reconfigure(1.0, 1.0)
    one.source._watch(SimpleNamespace(closed=False, send=asked.append), 15.0, suspended=False)
    assert [question.ask for question in asked] == [True]  # at once
    assert one.up(15.0) and one.up(16.0)
    assert not one.up(16.01)  # asked, and did not answer within the deadline
    one.answer(16.5)
    assert one.up(18.5) and not one.up(18.6)


@pytest.mark.parametrize(("interval", "second"), [(20.0, SECOND_READ), (0.1, 0.1)])
def test_cards_are_asked_a_second_time_soon_for_what_is_measured_between_two_reads(interval, second):
    one, asked = Clocked(interval=interval, deadline=1.0), []
    worker = SimpleNamespace(closed=False, send=asked.append)
    one.source._watch(worker, second - 0.01, suspended=False)
    assert asked == []
    one.source._watch(worker, second, suspended=False)
    assert [question.ask for question in asked] == [True]
    assert one.source._next_read == second + interval


def test_figures_of_cards_that_were_let_go_of_are_withdrawn_on_time_not_at_the_next_look():
    one = Clocked(interval=1.0, deadline=0.2)
    one.answer(0.0)
    one.source.release(released=True)
    one.now = 0.5
    assert one.source._run_cycle() == pytest.approx(0.7)
    one.now, one.news = 1.201, []
    one.source._run_cycle()
    assert one.news and one.source.state(1.201).cards[0].reading is None
    assert one.source._run_cycle() == 1.0


def test_each_state_of_the_driver_is_logged_once(node, caplog):
    caplog.set_level(logging.INFO)
    one = node({"calls": {"nvmlInit": {"error": 9}}})
    assert one.until(lambda: one.view().status.failures.get("driver", 0) >= 2)
    one.plan({})
    assert one.until(one.up)
    read_at = one.card().reading.at
    assert one.until(lambda: one.card().reading.at > read_at + 3 * INTERVAL)
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


def test_a_daemon_that_stood_still_does_not_blame_the_worker(node):
    one = node()
    assert one.until(one.up)
    source = one.source
    worker = SimpleNamespace(closed=False, send=lambda _: True)
    with source._lock:
        source._requested_at = time.monotonic() - 100
    source._watch(worker, time.monotonic(), suspended=True)
    assert one.view().status.up
