"""Sums over a card's NVLinks, while single links fail, come back, or count anew."""

from __future__ import annotations

import pytest

from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import open_card
from exporter.driver.nvml.nvlink_counters import NvLinkCounters
from exporter.driver.nvml.shared import SharedState
from exporter.model import Missing
from tests.support.fake_nvml import FakeDriver, item
from tests.support.nvml_reading import make_reader, refuse

ERROR, UNSUPPORTED, SLOW = Missing.ERROR, Missing.UNSUPPORTED, Missing.SLOW


def totals(*readings):
    sums = NvLinkCounters()
    return [sums.total(161, values) for values in readings]


def test_a_sum_is_that_of_the_links_that_are_fitted():
    assert totals([3.0, 4.0, UNSUPPORTED], [5.0, 4.0, UNSUPPORTED]) == [7.0, 9.0]


@pytest.mark.parametrize("why", [ERROR, UNSUPPORTED, Missing.INVALID])
def test_a_link_that_stops_answering_keeps_its_part_and_goes_on_from_there(why):
    assert totals([10.0, 100.0], [11.0, why], [12.0, why], [13.0, 130.0]) == [110.0, 111.0, 112.0, 143.0]


def test_a_number_that_cannot_be_counts_as_no_answer():
    assert totals([10.0, 100.0], [10.0, float(2**64 - 1)]) == [110.0, 110.0]


def test_a_link_that_counts_anew_adds_what_it_has_counted_since():
    assert totals([10.0, 100.0], [10.0, 0.0], [10.0, 7.0]) == [110.0, 110.0, 117.0]


def test_there_is_no_sum_before_every_link_that_may_answer_has():
    assert totals([10.0, ERROR], [11.0, ERROR], [12.0, 100.0], [12.0, ERROR]) == [ERROR, ERROR, 112.0, 112.0]


def test_there_is_no_sum_while_no_link_answers():
    assert totals([10.0, 1.0], [SLOW, SLOW], [ERROR, UNSUPPORTED], [UNSUPPORTED, UNSUPPORTED], [10.0, 2.0]) == [
        11.0, SLOW, ERROR, UNSUPPORTED, 12.0,
    ]  # fmt: skip


def test_what_a_link_counted_before_it_was_seen_is_no_news():
    assert totals([10.0, UNSUPPORTED], [10.0, 5000.0], [10.0, 5003.0]) == [10.0, 10.0, 13.0]


def linked(numbers):
    """Return a driver whose card answers ``numbers`` for field 161 of its two links; a negative one is a code."""
    driver = FakeDriver({})
    plain = driver.field

    def field(question):
        link = {161: 0, (161, 1): 1}.get(question)
        if link is None:
            return plain(question)
        number = numbers[link]
        return item(number) if number >= 0 else item(code=-number)

    driver.field = field
    return driver


def test_a_sum_goes_on_over_a_new_initialisation_in_which_a_link_refuses():
    numbers, shared = [10, 100], SharedState()
    driver = linked(numbers)

    def replays():
        calls, facts = open_card(driver, 0, shared.skipped_calls)
        return GpuReader(driver, calls, facts, "590.48.01", shared).read(slow=True).nvlink_errors["replay"]

    assert replays() == 110
    numbers[:] = [12, -3]
    shared.release(driver)
    assert replays() == 112


def test_links_behind_one_that_fails_are_counted_where_the_driver_does_not_say_how_many_there_are():
    driver = FakeDriver({"fields": {"91": {"code": 3}}})
    failing = {1}
    driver._nvmlDeviceGetNvLinkState = lambda _, link: (
        refuse(3) if link >= 4 else refuse(999) if link in failing else 1
    )
    reader = make_reader(driver)
    assert reader.read(slow=True).nvlink_up == {0: True, 2: True, 3: True}
    failing.clear()
    assert reader.read(slow=True).nvlink_up == dict.fromkeys(range(4), True)
