"""The XIDs of the last five minutes: what rose while somebody looks, and the newest of what came just before."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.render.dcgm.query import parse_query
from exporter.render.dcgm.recent import WINDOW, ClockEventWindow, XidWindow
from exporter.render.dcgm_pages import IDLE_TTL, DcgmPageStore
from tests.support.builders import Clock, snapshot
from tests.support.dcgm_card import FULL, families, full_card, page, samples, xid
from tests.support.records import replace

WALL = 1.7e9


def at(window, second, *xids):
    return window.update(xids, float(second), WALL + second)


def test_events_leave_the_window_five_minutes_after_they_were_counted():
    window = XidWindow()
    assert at(window, 0, xid(0, 79)) == {}
    assert at(window, 10, xid(0, 79, 1), xid(1, 13, 2)) == {"GPU-0000": {79: 1}, "GPU-0001": {13: 2}}
    assert at(window, 200, xid(0, 79, 4), xid(1, 13, 2)) == {"GPU-0000": {79: 4}, "GPU-0001": {13: 2}}
    assert at(window, 9 + WINDOW, xid(0, 79, 4), xid(1, 13, 2))["GPU-0001"] == {13: 2}
    assert at(window, 10 + WINDOW, xid(0, 79, 4), xid(1, 13, 2)) == {"GPU-0000": {79: 3}}
    assert at(window, 200 + WINDOW, xid(0, 79, 4), xid(1, 13, 2)) == {}


def test_of_what_came_before_the_first_look_the_newest_of_each_code_counts():
    window = XidWindow()
    before = (xid(0, 79, 7, WALL - 20), xid(0, 13, 3, WALL - WINDOW - 1), xid(1, 48, 2, WALL - 100))
    assert at(window, 0, *before) == {"GPU-0000": {79: 1}, "GPU-0001": {48: 1}}
    assert at(window, WINDOW - 100, *before) == {"GPU-0000": {79: 1}}
    assert at(window, WINDOW - 20, *before) == {}


def test_a_clock_on_the_wall_that_jumps_moves_no_event():
    window = XidWindow()
    assert window.update([xid(0, 79, 1, WALL + 9e9)], 0.0, WALL) == {"GPU-0000": {79: 1}}
    assert window.update([xid(0, 79, 1, WALL + 9e9)], WINDOW - 1, WALL - 9e9) == {"GPU-0000": {79: 1}}
    assert window.update([xid(0, 79, 1, WALL + 9e9)], WINDOW, WALL) == {}


def test_codes_counted_together_have_no_number_to_be_shown_under():
    window = XidWindow()
    at(window, 0)
    assert at(window, 1, xid(0, None, 5)) == {}


@given(st.lists(st.tuples(st.floats(0.1, 100.0), st.integers(0, 3)), max_size=60))
def test_the_window_holds_what_came_in_it(steps):
    window, now, count, came = XidWindow(), 0.0, 0, []
    at(window, now, xid(0, 62))
    for gap, times in steps:
        now, count = now + gap, count + times
        came.append((now, times))
        shown = window.update([xid(0, 62, count)], now, WALL)
        expected = sum(times for moment, times in came if moment > now - WINDOW)
        assert Counter(shown.get("GPU-0000", {})) == Counter({62: expected} if expected else {})


@pytest.mark.parametrize("query", ["fields=all", "dialect=4.9&fields=all"])
def test_a_gpu_without_events_shows_0_without_a_code_and_one_with_some_each_code(query):
    family = families(page(query))["DCGM_EXP_XID_ERRORS_COUNT"]
    assert family.type == "gauge"
    shown = {(sample.labels["gpu"], sample.labels.get("xid")): sample.value for sample in family.samples}
    assert shown == {("0", None): 0.0, ("1", "13"): 2.0, ("1", "48"): 1.0}
    assert {sample.labels["window_size_in_ms"] for sample in family.samples} == {"300000"}


def test_a_gpu_without_a_subscription_has_no_window():
    shot = snapshot(cards=(full_card(0),))
    assert "DCGM_EXP_XID_ERRORS_COUNT" not in samples(page("fields=all", shot, recent={}))


def test_the_window_is_kept_while_it_is_requested():
    clock = Clock()
    pages = DcgmPageStore(clock=clock, hostname=lambda: "node-1")
    wanted = parse_query("fields=all")

    def publish(seconds, count):
        clock.tick(seconds)
        pages.publish(replace(FULL, xids=(xid(0, 79, count),), at=clock.now))

    def shown():
        return samples(pages.page(wanted, gzip=False).decode())["DCGM_EXP_XID_ERRORS_COUNT"][1]

    publish(1.0, 0)
    assert shown() == "0"
    publish(1.0, 2)
    assert shown() == "2"
    publish(IDLE_TTL + 1.0, 2)
    assert pages._tracked is None


# -- clock events


def read_at(second, *active):
    gpu = full_card()
    events = {**dict.fromkeys(gpu.reading.clock_events, False), **dict.fromkeys(active, True)}
    return replace(gpu, reading=replace(gpu.reading, at=float(second), clock_events=events))


def test_readings_in_which_the_clocks_were_reduced_are_counted_for_five_minutes():
    window = ClockEventWindow()
    assert window.update([read_at(0, "sw_power_cap")]) == {"GPU-0000": {"sw_power_cap": 1}}
    assert window.update([read_at(0, "sw_power_cap")]) == {"GPU-0000": {"sw_power_cap": 1}}, "the same reading again"
    assert window.update([read_at(1)]) == {"GPU-0000": {"sw_power_cap": 1}}
    both = window.update([read_at(WINDOW - 1, "sw_power_cap", "hw_thermal_slowdown")])
    assert both == {"GPU-0000": {"sw_power_cap": 2, "hw_thermal_slowdown": 1}}
    assert window.update([read_at(WINDOW)])["GPU-0000"]["sw_power_cap"] == 1
    assert window.update([]) == {}


def test_the_page_names_clock_events_as_dcgms_exporter_does():
    text = page("fields=all")
    lines = [line for line in text.splitlines() if line.startswith("DCGM_EXP_CLOCK_EVENTS_COUNT{")]
    assert [line.partition("window_size_in_ms=")[2] for line in lines] == [
        '"300000"} 0', '"300000",clock_event="power_cap"} 120', '"300000",clock_event="hw_thermal"} 3'
    ]  # fmt: skip
