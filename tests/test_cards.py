"""The daemon's side of the driver: what the page would say while cards, driver and worker fail in every way."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from exporter.model import CardFacts, CardReading, DriverFacts, Missing, Signal
from exporter.sources import backoff
from exporter.sources.backoff import HangPatience, Restarts
from exporter.sources.driver import cards, pipe, worker_keeper
from exporter.sources.driver.card_book import FORGET_AFTER, OPEN_DEADLINE, CardBook
from exporter.sources.driver.cards import DRIVER_MODULES, CardSource
from exporter.sources.driver.nvml_gpm import SIGNALS as WORK

PATIENCE = 30.0
INTERVAL, DEADLINE = 0.1, 0.6
LOST, RESET = {"*": {"error": 15}}, {"*": {"error": 16}}
BLOCK = {"nvmlDeviceGetTemperatureV": {"block": True}}


# ---- the book


def missing(reading):
    """Give what is absent beside the work signals, which this driver does not have."""
    return {signal: why for signal, why in reading.missing.items() if signal not in WORK}


def facts(index=0, uuid="GPU-a"):
    return CardFacts(index=index, uuid=uuid)


def reading(at, **parts):
    return CardReading(at=at, signals={Signal.POWER: at}, **parts)


def answer(at, index=0, uuid="GPU-a", **parts):
    return pipe.CardRead(index=index, uuid=uuid, cycle=1, duration=0.5, reading=reading(at, **parts))


def failure(reason="lost", index=0, uuid="GPU-a"):
    return pipe.CardFailed(index=index, uuid=uuid, cycle=1, reason=reason)


@pytest.fixture
def book():
    """Two cards that answered at 100."""
    made = CardBook()
    made.begin(2)
    for index, uuid in enumerate(("GPU-a", "GPU-b")):
        made.found(facts(index, uuid), 100.0)
        made.read(answer(100.0, index, uuid), 5000.0)
    return made


def card(book, uuid="GPU-a", now=100.0, down=""):
    return next(state for state in book.view(now, 3.0, down) if state.facts.uuid == uuid)


def test_a_fresh_reading_is_shown_with_its_times(book):
    state = card(book)
    assert state.status.up and not state.status.hung
    assert (state.status.source, state.status.duration, state.labels) == ("gpu:GPU-a", 0.5, ("0", "GPU-a"))
    assert (state.status.last_success, state.status.last_success_wall, state.last_read_at) == (100.0, 5000.0, 100.0)
    assert state.reading.signals[Signal.POWER] == 100.0


def test_an_old_reading_is_withdrawn_and_its_age_stays(book):
    assert card(book, now=103.0).status.up
    state = card(book, now=103.1)
    assert (state.reading, state.status.up, state.status.reason) == (None, False, "slow")
    assert state.last_read_at == 100.0
    assert card(book, now=103.1, down="mismatch").status.reason == "mismatch"


def test_a_card_that_hangs_is_withdrawn_and_its_neighbour_is_not(book):
    book.beat(pipe.Beat(cycle=2, busy={0: 1.0}), 101.0)
    assert book.judge(102.0, 2.0).hung == 0
    verdict = book.judge(102.1, 2.0)
    assert (verdict.hung, verdict.answering, verdict.settled) == (1, 1, False)
    state = card(book, now=102.1)
    assert (state.status.up, state.status.reason, state.status.hung, state.reading) == (False, "hung", True, None)
    assert state.status.failures == {"hung": 1} and state.status.skipped == 1
    assert card(book, "GPU-b", now=102.1).status.up
    book.judge(110.0, 2.0)
    assert card(book, now=110.0).status.failures == {"hung": 1}  # once for each time, not for each look


def test_a_late_answer_ends_the_hang(book):
    book.beat(pipe.Beat(cycle=2, busy={0: 5.0}), 101.0)
    book.judge(101.0, 2.0)
    book.read(answer(101.5), 5001.0)
    assert card(book, now=102.0).status.up
    assert book.judge(102.0, 2.0).settled


def test_a_card_slow_in_many_calls_does_not_hang(book):
    for cycle in range(2, 10):
        book.beat(pipe.Beat(cycle=cycle, busy={0: 0.1}), 100.0 + cycle)
        assert book.judge(100.0 + cycle, 2.0).hung == 0
    assert card(book, now=109.0).status.reason == "slow"
    assert card(book, now=109.0).status.skipped == 8


def test_the_moment_a_card_begins_to_hang_is_known_beforehand(book):
    assert book.next_hang(100.0, 2.0) is None
    book.beat(pipe.Beat(cycle=2, busy={0: 1.0, 1: 0.5}), 101.0)
    assert book.next_hang(101.25, 2.0) == 0.75
    assert book.next_hang(102.25, 2.0) == 0.25
    assert book.next_hang(103.0, 2.0) is None


def test_a_card_of_a_new_worker_is_starting_not_slow(book):
    book.begin(2)
    assert card(book, now=110.0).status.reason == "starting"
    book.read(answer(110.0), 5010.0)
    assert card(book, now=114.0).status.reason == "slow"
    assert card(book, "GPU-b", now=114.0).status.reason == "starting"


def test_the_first_handle_of_a_card_may_take_long(book):
    book.begin(1)
    book.beat(pipe.Beat(cycle=1, busy={0: 10.0}), 200.0)
    assert book.judge(200.0, 2.0).hung == 0
    assert book.judge(200.0 + OPEN_DEADLINE, 2.0).hung == 1


def test_a_hang_lasts_until_the_card_answers_not_until_the_worker_is_replaced(book):
    book.beat(pipe.Beat(cycle=2, busy={0: 5.0}), 101.0)
    book.judge(101.0, 2.0)
    book.end()
    book.begin(2)
    book.found(facts(1, "GPU-b"), 102.0)
    book.read(answer(102.0, 1, "GPU-b"), 5001.0)
    assert not book.judge(102.0, 2.0).settled
    assert card(book, now=102.0).status.reason == "hung"


def test_a_lost_card_stays_visible_and_comes_back_under_its_uuid(book):
    book.failed(failure("reset_required"), 101.0)
    book.failed(failure("reset_required"), 102.0)
    state = card(book, now=102.0)
    assert (state.status.up, state.status.reason, state.reading) == (False, "reset_required", None)
    assert state.status.failures == {"reset_required": 2}
    book.read(answer(103.0), 5003.0)
    assert card(book, now=103.0).status.up


def test_a_card_that_is_no_longer_counted_is_lost_and_a_moved_one_is_not(book):
    book.begin(1)
    book.found(facts(0, "GPU-b"), 101.0)
    book.judge(101.0, 2.0)
    assert card(book, "GPU-a", now=101.0).status.up  # nobody has answered yet: not known to be lost
    book.read(answer(101.0, 0, "GPU-b"), 5001.0)
    book.judge(101.0, 2.0)
    assert card(book, "GPU-a", now=101.0).status.reason == "lost"
    moved = card(book, "GPU-b", now=101.0)
    assert (moved.status.up, moved.labels) == (True, ("0", "GPU-b"))


def test_an_index_without_a_uuid_is_the_absent_card_that_stood_there(book):
    book.begin(2)
    book.found(facts(0), 101.0)
    book.read(answer(101.0), 5001.0)
    book.failed(failure("reset_required", index=1, uuid=""), 101.0)
    book.judge(101.0, 2.0)
    assert card(book, "GPU-b", now=101.0).status.reason == "reset_required"


def test_a_lost_card_is_forgotten_after_a_day(book):
    book.begin(1)
    book.found(facts(0, "GPU-b"), 101.0)
    for now in (101.0, 100.0 + FORGET_AFTER, 102.0 + FORGET_AFTER):
        book.read(answer(now, 0, "GPU-b"), 5001.0)
        book.judge(now, 2.0)
        kept = [state.facts.uuid for state in book.view(now, 3.0, "")]
        assert kept == (["GPU-a", "GPU-b"] if now <= 100.0 + FORGET_AFTER else ["GPU-b"])


def test_links_that_never_were_up_are_hidden_and_one_that_fell_is_shown(book):
    book.read(answer(101.0, nvlink_up={0: True, 1: False}), 5001.0)
    assert card(book, now=101.0).reading.nvlink_up == {0: True}
    book.end()
    book.begin(2)
    book.read(answer(102.0, nvlink_up={0: False, 1: False}), 5002.0)
    assert card(book, now=102.0).reading.nvlink_up == {0: False}


def test_signals_that_failed_are_counted_and_those_a_card_lacks_are_not(book):
    missing = {Signal.POWER: Missing.ERROR, Signal.ENERGY: Missing.INVALID, Signal.FAN_SPEED: Missing.UNSUPPORTED}
    book.read(answer(101.0, missing=missing), 5001.0)
    assert card(book, now=101.0).status.failures == {"signal_error": 1, "signal_invalid": 1}


def test_a_cycle_is_complete_when_all_that_can_answer_have(book):
    book.beat(pipe.Beat(cycle=2, busy={}), 101.0)
    assert book.waiting() and not book.complete()
    book.read(answer(101.0), 5001.0)
    assert not book.complete()
    book.read(answer(101.0, 1, "GPU-b"), 5001.0)
    assert book.complete() and not book.waiting()
    book.beat(pipe.Beat(cycle=3, busy={0: 1.0}), 102.0)
    book.read(answer(102.0, 1, "GPU-b"), 5002.0)
    assert book.complete()


def test_each_state_is_logged_on_entering_and_on_leaving(book, caplog):
    caplog.set_level(logging.INFO)
    for now in (100.0, 100.5):
        book.log_changes(now, 3.0, "")
    for now in (101.0, 101.5):
        book.failed(failure(), now)
        book.log_changes(now, 3.0, "")
    for now in (102.0, 102.5):
        book.read(answer(now), 5000.0)
        book.log_changes(now, 3.0, "")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["card state=lost gpu=0 uuid=GPU-a", "card state=up gpu=0 uuid=GPU-a"]


def test_signals_that_a_card_lacks_are_logged_once(book, caplog):
    caplog.set_level(logging.INFO)
    missing = {
        Signal.FAN_SPEED: Missing.UNSUPPORTED,
        Signal.ENERGY: Missing.NO_PERMISSION,
        Signal.POWER: Missing.ERROR,
    }
    for now in (101.0, 102.0):
        book.read(answer(now, missing=missing), 5000.0)
        book.log_changes(now, 3.0, "")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["card absent_signals=fan_speed:unsupported,energy:no_permission gpu=0 uuid=GPU-a"]


# ---- patience


def test_useless_drivers_are_tried_ever_less_often():
    restarts = Restarts()
    assert [restarts.delay("library", now, 0.0) for now in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert restarts.delay("library", 100.0, backoff.WORKED) == 1


def test_three_deaths_in_a_minute_are_forgiven_and_the_fourth_waits():
    restarts = Restarts()
    delays = [restarts.delay("crashed", now, 0.0) for now in (0.0, 1.0, 2.0, 3.0, 4.0)]
    assert delays == [backoff.AT_ONCE] * 3 + [1, 2]
    slow = Restarts()
    assert {slow.delay("crashed", now, 0.0) for now in range(0, 3000, 30)} == {backoff.AT_ONCE}


def test_a_mismatch_is_tried_at_once_then_steadily_then_rarely():
    restarts = Restarts()
    assert restarts.delay("mismatch", 0.0, 100.0) == backoff.AT_ONCE
    assert {restarts.delay("mismatch", now, 0.0) for now in (1.0, 60.0, 119.0)} == {2.0}
    assert restarts.delay("mismatch", 121.0, 0.5) == 10.0


def test_a_recycled_worker_is_replaced_at_once_unless_it_is_recycled_all_the_time():
    restarts = Restarts()
    assert {restarts.delay("recycled", now, 20.0) for now in range(10)} == {backoff.AT_ONCE}
    assert restarts.delay("recycled", 20.0, 1.0) == backoff.AT_ONCE
    assert [restarts.delay("recycled", now, 1.0) for now in (21.0, 22.0, 23.0)][-1] == 1


def test_a_hanging_card_gets_a_new_worker_after_ten_seconds_then_ever_less_often():
    patience, times = HangPatience(), []
    for now in range(2500):
        if patience.due(float(now), hung=True, settled=False):
            times.append(now)
    gaps = [after - before for before, after in zip(times, times[1:])]
    assert times[0] == 10
    assert gaps == [60, 120, 240, 480, 600, 600][: len(gaps)] and len(gaps) >= 5
    patience.due(2600.0, hung=False, settled=False)  # a new worker, the card has not answered yet
    assert not patience.due(2601.0, hung=True, settled=False)
    patience.due(2700.0, hung=False, settled=True)
    assert not patience.due(2701.0, hung=True, settled=False)
    assert patience.due(2711.0, hung=True, settled=False)


# ---- real workers


class Node:
    """A CardSource over a planned driver."""

    def __init__(self, path, plan, **options):
        self.path = path
        self.plan(plan)
        self.updates = 0
        options = {
            "module": "tests.fake_nvml",
            "options": str(path),
            "interval": INTERVAL,
            "deadline": DEADLINE,
            **options,
        }
        self.source = CardSource(on_update=self.count, **options)
        self.pids = set()
        self.most = 0

    def count(self):
        self.updates += 1

    def plan(self, plan):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(plan))
        os.replace(new, self.path)

    @property
    def pid(self):
        worker = self.source._keeper._worker
        return worker.pid if worker is not None else None

    def view(self):
        return self.source.state(time.monotonic())

    def card(self, uuid="GPU-a"):
        return next((state for state in self.view().cards if state.facts.uuid == uuid), None)

    def up(self, *uuids):
        states = {state.facts.uuid: state for state in self.view().cards}
        return all(uuid in states and states[uuid].status.up for uuid in uuids or ("GPU-a", "GPU-b"))

    def reason(self, uuid):
        state = self.card(uuid)
        return state.status.reason if state is not None else None

    def until(self, condition, patience=PATIENCE):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if self.pid:
                self.pids.add(self.pid)
            self.most = max(self.most, len([pid for pid in self.pids if alive(pid)]))
            if condition():
                return True
            time.sleep(0.01)
        return False


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


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
    monkeypatch.setattr(backoff, "HANG_FIRST", 0.5)
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
    monkeypatch.setattr(backoff, "HANG_FIRST", 1e6)  # the patience for single cards is not what acts here
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
    monkeypatch.setattr(cards, "INIT_DEADLINE", 1.5)
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
    monkeypatch.setattr(worker_keeper, "KILL_DEADLINE", 0.1)
    one = node()
    assert one.until(one.up)
    real, pid = worker_keeper.WorkerProcess.kill, one.pid
    stuck = one.source._keeper._worker
    monkeypatch.setattr(worker_keeper.WorkerProcess, "kill", lambda *_: None)
    os.kill(pid, signal.SIGSTOP)
    assert one.until(lambda: one.view().status.hung)
    assert one.until(lambda: one.reason("GPU-a") == "hung" and one.card().reading is None)
    threads = threading.active_count()
    time.sleep(1.5)
    assert one.pid == pid and alive(pid)
    assert threading.active_count() == threads
    real(stuck)
    monkeypatch.undo()
    assert one.until(lambda: one.pid not in {None, pid} and one.up())


def test_stop_gives_up_on_a_worker_that_cannot_be_killed(node, monkeypatch):
    one = node()
    assert one.until(one.up)
    stuck, real = one.source._keeper._worker, worker_keeper.WorkerProcess.kill
    monkeypatch.setattr(worker_keeper.WorkerProcess, "kill", lambda *_: None)
    os.kill(stuck.pid, signal.SIGSTOP)
    before = time.monotonic()
    one.source.stop(timeout=1.0)
    assert time.monotonic() - before < 3.0
    real(stuck)
    stuck._child.wait()


def test_cards_that_move_or_leave_keep_their_uuid(node):
    one = node({"cards": ["GPU-a", "GPU-b", "GPU-c"]})
    assert one.until(lambda: one.up("GPU-a", "GPU-b", "GPU-c"))
    one.plan({"cards": ["GPU-c", "GPU-a"]})
    one.source._keeper._worker.send(pipe.Initialise())
    assert one.until(lambda: one.reason("GPU-b") == "lost" and one.up("GPU-a", "GPU-c"))
    assert one.until(lambda: one.up("GPU-a", "GPU-c") and one.card("GPU-c").labels == ("0", "GPU-c"))
    assert one.until(lambda: one.card("GPU-a").labels == ("1", "GPU-a"))
    one.plan({"cards": ["GPU-c", "GPU-a", "GPU-b"]})
    one.source._keeper._worker.send(pipe.Initialise())
    assert one.until(lambda: one.up("GPU-a", "GPU-b", "GPU-c"))
    assert one.card("GPU-b").facts.index == 2
    assert len(one.pids) == 1


@pytest.mark.slow
def test_a_changed_number_of_cards_is_noticed(node):
    one = node({"cards": ["GPU-a"]})
    assert one.until(lambda: one.up("GPU-a"))
    one.plan({"cards": ["GPU-a", "GPU-b"]})
    assert one.until(one.up)


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

    real = worker_keeper.WorkerProcess
    monkeypatch.setattr(worker_keeper, "WorkerProcess", refused)
    one = node()
    assert one.until(lambda: one.view().status.reason == "spawn")
    monkeypatch.setattr(worker_keeper, "WorkerProcess", real)
    assert one.until(one.up)


def test_nonsense_from_the_worker_replaces_it(node):
    one = node()
    assert one.until(one.up)
    pid = one.pid
    one.source._keeper._worker._frames._data += b"\xff\xff\xff\xff"
    assert one.until(lambda: one.pid not in {None, pid} and one.up())
    assert one.view().status.failures == {"protocol": 1}


def test_a_mistake_in_the_supervisor_is_survived(node, monkeypatch, caplog):
    one = node()
    assert one.until(one.up)
    pid, real = one.pid, one.source._book.judge
    monkeypatch.setattr(one.source._book, "judge", lambda *_: 1 / 0)
    assert one.until(lambda: "supervisor" in caplog.text)
    monkeypatch.setattr(one.source._book, "judge", real)
    assert one.until(lambda: one.pid not in {None, pid} and one.up())


def test_an_owner_that_raises_does_not_stop_the_cards(tmp_path, node, caplog):
    one = node()
    one.source._on_update = lambda: 1 / 0
    assert one.until(one.up)
    at = one.card().reading.at
    assert one.until(lambda: one.up() and one.card().reading.at > at + 2 * INTERVAL)
    assert "announced" in caplog.text


def test_the_interval_can_be_changed_while_running(node):
    one = node(interval=60.0)
    assert one.until(one.up)
    at = one.card().reading.at
    one.source.reconfigure(INTERVAL, DEADLINE)
    assert one.until(lambda: one.up() and one.card().reading.at > at)
    assert one.until(lambda: one.up() and one.card().reading.at > at + 2 * INTERVAL)


def test_each_state_of_the_driver_is_logged_once(node, caplog):
    caplog.set_level(logging.INFO)
    one = node({"calls": {"nvmlInit": {"error": 9}}})
    assert one.until(lambda: one.view().status.failures.get("driver", 0) >= 2)
    one.plan({})
    assert one.until(one.up)
    time.sleep(3 * INTERVAL)
    lines = [record.getMessage().split(":")[0] for record in caplog.records if "gpu driver" in record.getMessage()]
    assert lines == ["gpu driver state=driver", "gpu driver state=up version=590.48.01"]


def test_stop_works_before_start_and_twice(tmp_path):
    source = CardSource(module="tests.fake_nvml", options=str(tmp_path / "none"))
    source.stop()
    source.reconfigure(1.0, 2.0)
    assert source.state(time.monotonic()).status.reason == "starting"
    other = CardSource(module="tests.fake_nvml", options=str(tmp_path / "none"))
    other.start()
    other.stop()
    other.stop()
    assert not other._thread.is_alive()


def test_the_modules_for_settings_are_the_real_and_the_simulated_driver():
    assert DRIVER_MODULES == ("pynvml", "exporter.simulate.cards")


def test_a_daemon_that_stood_still_does_not_blame_the_worker(node):
    one = node()
    assert one.until(one.up)
    source = one.source
    worker = SimpleNamespace(closed=False, send=lambda _: True)
    with source._lock:
        source._asked_at = time.monotonic() - 100
    source._watch(worker, time.monotonic(), stolen=True)
    assert one.view().status.up
