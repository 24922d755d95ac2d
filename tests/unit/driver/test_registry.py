"""What the page would say of each card: fresh, old, hung, lost, moved or back again, and which of it is logged."""

from __future__ import annotations

import logging

import pytest

from exporter.catalog import metrics
from exporter.driver import protocol
from exporter.driver.daemon.registry import EXPIRE_AFTER, OPEN_DEADLINE, RELEASED, CardRegistry
from exporter.model import CardFacts, CardReading, Missing, Signal, Snapshot


def facts(index=0, uuid="GPU-a"):
    return CardFacts(index=index, uuid=uuid)


def reading(at, **parts):
    return CardReading(at=at, signals={Signal.POWER: at}, **parts)


def answer(at, index=0, uuid="GPU-a", **parts):
    return protocol.CardRead(index=index, uuid=uuid, cycle=1, duration=0.5, reading=reading(at, **parts))


def failure(reason="lost", index=0, uuid="GPU-a"):
    return protocol.CardFailed(index=index, uuid=uuid, cycle=1, reason=reason)


@pytest.fixture
def registry():
    """Two cards that answered at 100."""
    made = CardRegistry()
    made.on_initialised(2)
    for index, uuid in enumerate(("GPU-a", "GPU-b")):
        made.on_found(facts(index, uuid), 100.0)
        made.on_read(answer(100.0, index, uuid), 5000.0)
    return made


def card(registry, uuid="GPU-a", now=100.0, down=""):
    return next(state for state in registry.view(now, 3.0, down) if state.facts.uuid == uuid)


def test_a_fresh_reading_is_shown_with_its_times(registry):
    state = card(registry)
    assert state.status.up and not state.status.hung
    assert (state.status.source, state.status.duration, state.labels) == ("gpu:GPU-a", 0.5, ("0", "GPU-a"))
    assert (state.status.last_success, state.status.last_success_unix_time, state.last_read_at) == (
        100.0,
        5000.0,
        100.0,
    )
    assert state.reading.signals[Signal.POWER] == 100.0


def test_an_old_reading_is_withdrawn_and_its_age_stays(registry):
    assert card(registry, now=103.5).status.up  # it took half a second to make
    state = card(registry, now=103.6)
    assert (state.reading, state.status.up, state.status.reason) == (None, False, "slow")
    assert state.last_read_at == 100.0
    assert card(registry, now=103.6, down="mismatch").status.reason == "mismatch"


@pytest.mark.parametrize("duration, until", [(1e9, 106.0), (-5.0, 103.0), (1.5, 104.5)])
def test_however_long_a_reading_took_it_grows_old(registry, duration, until):
    registry.on_read(
        protocol.CardRead(index=0, uuid="GPU-a", cycle=1, duration=duration, reading=reading(100.0)), 5000.0
    )
    assert card(registry, now=until).status.up and not card(registry, now=until + 0.1).status.up


def test_a_gpu_that_hangs_is_withdrawn_and_the_others_are_not(registry):
    registry.on_heartbeat(protocol.Heartbeat(cycle=2, busy={0: 1.0}), 101.0)
    assert registry.check_hangs(102.0, 2.0).hung == 0
    verdict = registry.check_hangs(102.1, 2.0)
    assert (verdict.hung, verdict.answering, verdict.settled) == (1, 1, False)
    state = card(registry, now=102.1)
    assert (state.status.up, state.status.reason, state.status.hung, state.reading) == (False, "hung", True, None)
    assert state.status.failures == {"hung": 1} and state.status.skipped == 1
    assert card(registry, "GPU-b", now=102.1).status.up
    registry.check_hangs(110.0, 2.0)
    assert card(registry, now=110.0).status.failures == {"hung": 1}  # once for each time, not for each look


def test_a_late_answer_ends_the_hang(registry):
    registry.on_heartbeat(protocol.Heartbeat(cycle=2, busy={0: 5.0}), 101.0)
    registry.check_hangs(101.0, 2.0)
    registry.on_read(answer(101.5), 5001.0)
    assert card(registry, now=102.0).status.up
    assert registry.check_hangs(102.0, 2.0).settled


def test_a_gpu_slow_in_many_calls_does_not_hang(registry):
    for cycle in range(2, 10):
        registry.on_heartbeat(protocol.Heartbeat(cycle=cycle, busy={0: 0.1}), 100.0 + cycle)
        assert registry.check_hangs(100.0 + cycle, 2.0).hung == 0
    assert card(registry, now=109.0).status.reason == "slow"
    assert card(registry, now=109.0).status.skipped == 8


def test_the_moment_a_gpu_begins_to_hang_is_known_beforehand(registry):
    assert registry.next_hang(100.0, 2.0) is None
    registry.on_heartbeat(protocol.Heartbeat(cycle=2, busy={0: 1.0, 1: 0.5}), 101.0)
    assert registry.next_hang(101.25, 2.0) == 0.75
    assert registry.next_hang(102.25, 2.0) == 0.25
    assert registry.next_hang(103.0, 2.0) is None


def test_a_gpu_of_a_new_worker_is_starting_not_slow(registry):
    registry.on_initialised(2)
    assert card(registry, now=110.0).status.reason == "starting"
    registry.on_read(answer(110.0), 5010.0)
    assert card(registry, now=114.0).status.reason == "slow"
    assert card(registry, "GPU-b", now=114.0).status.reason == "starting"


def test_the_first_handle_of_a_gpu_may_take_long(registry):
    registry.on_initialised(1)
    registry.on_heartbeat(protocol.Heartbeat(cycle=1, busy={0: 10.0}), 200.0)
    assert registry.check_hangs(200.0, 2.0).hung == 0
    assert registry.check_hangs(200.0 + OPEN_DEADLINE, 2.0).hung == 1


def test_a_hang_lasts_until_the_gpu_answers_not_until_the_worker_is_replaced(registry):
    registry.on_heartbeat(protocol.Heartbeat(cycle=2, busy={0: 5.0}), 101.0)
    registry.check_hangs(101.0, 2.0)
    registry.on_driver_down()
    registry.on_initialised(2)
    registry.on_found(facts(1, "GPU-b"), 102.0)
    registry.on_read(answer(102.0, 1, "GPU-b"), 5001.0)
    assert not registry.check_hangs(102.0, 2.0).settled
    assert card(registry, now=102.0).status.reason == "hung"


def test_a_lost_gpu_stays_visible_and_comes_back_under_its_uuid(registry):
    registry.on_failed(failure("reset_required"), 101.0)
    registry.on_failed(failure("reset_required"), 102.0)
    state = card(registry, now=102.0)
    assert (state.status.up, state.status.reason, state.reading) == (False, "reset_required", None)
    assert state.status.failures == {"reset_required": 2}
    registry.on_read(answer(103.0), 5003.0)
    assert card(registry, now=103.0).status.up


@pytest.mark.parametrize(
    "reason,shown", [("uninitialized", "lost"), ("error", "lost"), ("reset_required", "reset_required")]
)
def test_a_gpu_that_failed_before_it_was_not_counted_any_more_is_lost_unless_it_named_a_lasting_reason(
    registry, reason, shown
):
    registry.on_failed(failure(reason), 101.0)
    registry.on_initialised(1)
    registry.on_found(facts(0, "GPU-b"), 102.0)
    registry.on_read(answer(102.0, 0, "GPU-b"), 5002.0)
    registry.check_hangs(102.0, 2.0)
    assert card(registry, now=102.0).status.reason == shown
    failures = card(registry, now=102.0).status.failures
    registry.check_hangs(103.0, 2.0)
    assert card(registry, now=103.0).status.failures == failures, "counted once"


def test_a_gpu_that_is_no_longer_counted_is_lost_and_a_moved_one_is_not(registry):
    registry.on_initialised(1)
    registry.on_found(facts(0, "GPU-b"), 101.0)
    registry.check_hangs(101.0, 2.0)
    assert card(registry, "GPU-a", now=101.0).status.up  # nobody has answered yet: not known to be lost
    registry.on_read(answer(101.0, 0, "GPU-b"), 5001.0)
    registry.check_hangs(101.0, 2.0)
    assert card(registry, "GPU-a", now=101.0).status.reason == "lost"
    moved = card(registry, "GPU-b", now=101.0)
    assert (moved.status.up, moved.labels) == (True, ("0", "GPU-b"))


def test_an_index_without_a_uuid_is_the_absent_gpu_that_stood_there(registry):
    registry.on_initialised(2)
    registry.on_found(facts(0), 101.0)
    registry.on_read(answer(101.0), 5001.0)
    registry.on_failed(failure("reset_required", index=1, uuid=""), 101.0)
    registry.check_hangs(101.0, 2.0)
    assert card(registry, "GPU-b", now=101.0).status.reason == "reset_required"


def test_a_lost_gpu_is_removed_after_a_day(registry):
    registry.on_initialised(1)
    registry.on_found(facts(0, "GPU-b"), 101.0)
    for now in (101.0, 100.0 + EXPIRE_AFTER, 102.0 + EXPIRE_AFTER):
        registry.on_read(answer(now, 0, "GPU-b"), 5001.0)
        registry.check_hangs(now, 2.0)
        kept = [state.facts.uuid for state in registry.view(now, 3.0, "")]
        assert kept == (["GPU-a", "GPU-b"] if now <= 100.0 + EXPIRE_AFTER else ["GPU-b"])


def kept(registry, now):
    return [state.facts.uuid for state in registry.view(now, 3.0, "")]


@pytest.mark.parametrize("workers", [True, False])
def test_a_gpu_that_hangs_for_days_is_not_forgotten(registry, workers):
    for hour in range(1, 60):
        now = 100.0 + 3600.0 * hour
        if workers and hour % 6 == 0:  # a new worker for its sake, in which it hangs again
            registry.on_initialised(2)
            registry.on_found(facts(0), now)
            registry.on_found(facts(1, "GPU-b"), now)
        registry.on_read(answer(now), 5000.0)
        registry.on_heartbeat(protocol.Heartbeat(cycle=2, busy={1: 50.0}), now)
        registry.check_hangs(now, 2.0)
        assert kept(registry, now) == ["GPU-a", "GPU-b"]
        assert card(registry, "GPU-b", now=now).status.reason == "hung"


def test_a_gpu_whose_handle_hangs_for_days_is_not_forgotten(registry):
    registry.on_initialised(2)
    registry.on_found(facts(0), 100.0)
    for now in (200.0, 200.0 + EXPIRE_AFTER, 900.0 + EXPIRE_AFTER):
        registry.on_read(answer(now), 5000.0)
        registry.on_heartbeat(protocol.Heartbeat(cycle=2, busy={1: now - 100.0}), now)
        registry.check_hangs(now, 2.0)
        assert kept(registry, now)[:2] == ["GPU-a", "GPU-b"]


def test_gpus_that_were_released_for_days_are_all_present_at_the_first_read_and_after(registry):
    now = 200.0 + EXPIRE_AFTER
    registry.on_driver_down()
    registry.on_initialised(2)
    registry.on_found(facts(0), now)
    registry.check_hangs(now, 2.0)
    assert kept(registry, now) == ["GPU-a", "GPU-b"]
    registry.on_found(facts(1, "GPU-b"), now)
    registry.check_hangs(now, 2.0)
    for index, uuid in enumerate(("GPU-a", "GPU-b")):
        registry.on_read(answer(now, index, uuid), 5000.0)
        registry.check_hangs(now, 2.0)
        assert card(registry, uuid, now=now).status.up


def test_links_that_never_were_up_are_hidden_and_one_that_fell_is_shown(registry):
    registry.on_read(answer(101.0, nvlink_up={0: True, 1: False}), 5001.0)
    assert card(registry, now=101.0).reading.nvlink_up == {0: True}
    registry.on_driver_down()
    registry.on_initialised(2)
    registry.on_read(answer(102.0, nvlink_up={0: False, 1: False}), 5002.0)
    assert card(registry, now=102.0).reading.nvlink_up == {0: False}


def test_a_kind_of_arithmetic_is_shown_from_its_first_use_on(registry):
    registry.on_read(answer(101.0, pipe_active={"fp32": 0.25, "fp64": 0.0}), 1e9)
    assert set(card(registry).pipes) == {"fp32"}
    registry.on_read(answer(102.0, pipe_active={"fp32": 0.0, "fp64": 0.0}), 1e9)
    rows = metrics.GPU_PIPE_ACTIVE_RATIO.read(Snapshot(at=102.0, unix_time=1e9, cards=(card(registry, now=102.0),)))
    assert list(rows) == [(("0", "GPU-a", "fp32"), 0.0)]


def test_signals_that_failed_are_counted_and_those_a_gpu_lacks_are_not(registry):
    missing = {Signal.POWER: Missing.ERROR, Signal.ENERGY: Missing.INVALID, Signal.FAN_SPEED: Missing.UNSUPPORTED}
    registry.on_read(answer(101.0, missing=missing), 5001.0)
    assert card(registry, now=101.0).status.failures == {"signal_error": 1, "signal_invalid": 1}


def test_a_cycle_is_complete_when_all_that_can_answer_have(registry):
    registry.on_heartbeat(protocol.Heartbeat(cycle=2, busy={}), 101.0)
    assert registry.waiting() and not registry.complete()
    registry.on_read(answer(101.0), 5001.0)
    assert not registry.complete()
    registry.on_read(answer(101.0, 1, "GPU-b"), 5001.0)
    assert registry.complete() and not registry.waiting()
    registry.on_heartbeat(protocol.Heartbeat(cycle=3, busy={0: 1.0}), 102.0)
    registry.on_read(answer(102.0, 1, "GPU-b"), 5002.0)
    assert registry.complete()


def test_signals_that_no_gpu_of_this_kind_has_are_only_logged_for_debugging(registry, caplog):
    caplog.set_level(logging.DEBUG)
    registry.on_read(answer(101.0, missing={Signal.FAN_SPEED: Missing.UNSUPPORTED}), 5000.0)
    registry.log_changes(101.0, 3.0, "")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "event=unsupported_signals source=gpu:GPU-a gpu=0 signals=fan_speed:unsupported")
    ]


def test_each_state_is_logged_on_entering_and_on_leaving(registry, caplog):
    caplog.set_level(logging.INFO)
    for now in (100.0, 100.5):
        registry.log_changes(now, 3.0, "")
    for now in (101.0, 101.5):
        registry.on_failed(failure(), now)
        registry.log_changes(now, 3.0, "")
    for now in (102.0, 102.5):
        registry.on_read(answer(now), 5000.0)
        registry.log_changes(now, 3.0, "")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "event=state_changed source=gpu:GPU-a state=down reason=lost gpu=0",
        "event=state_changed source=gpu:GPU-a state=up gpu=0",
    ]


def test_signals_that_a_gpu_lacks_are_logged_once(registry, caplog):
    caplog.set_level(logging.INFO)
    missing = {
        Signal.FAN_SPEED: Missing.UNSUPPORTED,
        Signal.ENERGY: Missing.NO_PERMISSION,
        Signal.POWER: Missing.ERROR,
    }
    for now in (101.0, 102.0):
        registry.on_read(answer(now, missing=missing), 5000.0)
        registry.log_changes(now, 3.0, "")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "event=unsupported_signals source=gpu:GPU-a gpu=0 signals=fan_speed:unsupported,energy:no_permission"
    ]


# ---- GPUs that were removed on purpose


def initialised_with(registry, now, *uuids):
    """Initialise the driver anew with these GPUs, all of which answer."""
    registry.on_initialised(len(uuids))
    for index, uuid in enumerate(uuids):
        registry.on_found(facts(index, uuid), now)
        registry.on_read(answer(now, index, uuid), 5000.0)
    registry.check_hangs(now, 2.0)


def shown(registry, now):
    registry.check_hangs(now, 2.0)
    return [state.facts.uuid for state in registry.view(now, 3.0, "")]


def test_what_is_not_counted_after_the_gpus_were_acquired_is_not_expected_any_more(registry):
    registry.accept_absent(30.0)
    initialised_with(registry, 200.0, "GPU-b", "GPU-c")
    assert card(registry, "GPU-a", now=229.0).status.reason == "starting"  # who removed it expects no page
    assert shown(registry, 229.0) == ["GPU-a", "GPU-b", "GPU-c"]
    assert shown(registry, 230.0) == ["GPU-b", "GPU-c"]
    assert [gone.uuid for gone in registry.removed()] == ["GPU-a"]


def test_a_gpu_that_is_lost_later_stays(registry):
    registry.accept_absent(30.0)
    registry.check_hangs(100.0, 2.0)  # nothing is absent
    initialised_with(registry, 110.0, "GPU-b")
    assert shown(registry, 200.0) == ["GPU-a", "GPU-b"] and registry.removed() == ()


def test_a_gpu_that_comes_back_in_time_stays_and_may_be_lost_again(registry):
    registry.accept_absent(30.0)
    initialised_with(registry, 200.0, "GPU-b")
    initialised_with(registry, 210.0, "GPU-a", "GPU-b")
    initialised_with(registry, 220.0, "GPU-b")
    assert shown(registry, 300.0) == ["GPU-a", "GPU-b"] and registry.removed() == ()


def test_a_gpu_that_was_removed_is_not_missing_once_it_is_back(registry):
    registry.accept_absent(0.0)
    initialised_with(registry, 200.0, "GPU-b")
    assert [gone.uuid for gone in registry.removed()] == ["GPU-a"]
    initialised_with(registry, 300.0, "GPU-a", "GPU-b")
    assert registry.removed() == () and card(registry, "GPU-a", now=300.0).status.up


def test_what_was_removed_is_named_for_a_day(registry):
    registry.accept_absent(0.0)
    initialised_with(registry, 200.0, "GPU-b")
    registry.check_hangs(200.0 + EXPIRE_AFTER, 2.0)
    assert registry.removed() != ()
    registry.check_hangs(201.0 + EXPIRE_AFTER, 2.0)
    assert registry.removed() == ()


def test_while_a_gpu_cannot_be_identified_none_is_taken_for_removed(registry):
    registry.accept_absent(0.0)
    registry.on_initialised(2)
    registry.on_found(facts(0, "GPU-c"), 200.0)
    registry.on_read(answer(200.0, 0, "GPU-c"), 5000.0)
    registry.on_failed(failure("no_permission", index=1, uuid=""), 200.0)
    registry.on_failed(protocol.CardFailed(index=5, uuid="", cycle=1, reason="no_permission"), 200.0)
    assert {"GPU-a", "GPU-b", "GPU-c"} <= set(shown(registry, 200.0)) and registry.removed() == ()


def test_released_gpus_show_nothing_however_fresh_it_is(registry):
    state = card(registry, now=100.0, down=RELEASED)
    assert (state.reading, state.status.reason) == (None, RELEASED)
