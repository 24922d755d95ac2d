"""Rates under DCGM's names: between readings of a counter, never over a gap, a restart or a card that left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Signal
from exporter.render.dcgm.rates import COUNTERS, MAX_GAP, MIN_SPAN, LinkRateTracker, RateTracker
from tests.support.builders import card
from tests.support.dcgm_card import FULL, full_card, moved, page, samples
from tests.support.dcgm_contract import full
from tests.support.records import replace


def test_a_gpu_has_no_rate_before_its_second_reading():
    tracker = RateTracker()
    assert tracker.update([moved(0.0, pcie_transmit=5.0)]) == {"GPU-0000": {}}
    assert tracker.update([moved(0.0, pcie_transmit=5.0)]) == {"GPU-0000": {}}, "the same reading again"
    assert tracker.update([moved(2.0, pcie_transmit=25.0)]) == {"GPU-0000": {Signal.PCIE_TRANSMIT: 10.0}}


@given(st.lists(st.floats(0.1, MAX_GAP - MIN_SPAN - 1.0), min_size=1, max_size=60), st.floats(0.0, 1e12))
def test_a_steady_flow_has_its_own_rate_however_often_it_is_read(gaps, flow):
    tracker, at, rates = RateTracker(), 0.0, {}
    tracker.update([moved(at, nvlink_receive=7.0)])
    for gap in gaps:
        at += gap
        rates = tracker.update([moved(at, nvlink_receive=7.0 + flow * at)])
    assert rates["GPU-0000"][Signal.NVLINK_RECEIVE] == pytest.approx(flow, rel=1e-6, abs=1e-6)


def test_a_rate_covers_the_last_half_minute_only():
    tracker, sent = RateTracker(), 0.0
    for second in range(200):
        sent += 1000.0 if second < 100 else 0.0
        rate = tracker.update([moved(float(second), pcie_receive=sent)])["GPU-0000"].get(Signal.PCIE_RECEIVE, 0.0)
        if 3 < second < 100:
            assert rate == pytest.approx(1000.0)
        if second >= 100 + 2 * MIN_SPAN:
            assert rate == 0.0


def test_a_counter_that_starts_anew_has_no_rate_until_it_is_read_again():
    tracker = RateTracker()
    tracker.update([moved(0.0, pcie_transmit=1e9, pcie_receive=1.0)])
    assert tracker.update([moved(1.0, pcie_transmit=5.0, pcie_receive=2.0)]) == {"GPU-0000": {}}
    assert tracker.update([moved(2.0, pcie_transmit=9.0, pcie_receive=4.0)])["GPU-0000"][Signal.PCIE_TRANSMIT] == 4.0


def test_a_gap_longer_than_a_minute_is_no_rate():
    tracker = RateTracker()
    tracker.update([moved(0.0, pcie_transmit=0.0)])
    assert tracker.update([moved(MAX_GAP + 1.0, pcie_transmit=1e6)]) == {"GPU-0000": {}}


def test_a_counter_that_comes_later_waits_for_its_own_second_reading_and_a_gpu_that_goes_is_removed():
    tracker = RateTracker()
    tracker.update([moved(0.0, pcie_transmit=0.0)])
    assert set(tracker.update([moved(1.0, pcie_transmit=1.0, nvlink_transmit=9.0)])["GPU-0000"]) == {
        Signal.PCIE_TRANSMIT
    }
    assert tracker.update([card(0, up=False)]) == {}
    assert tracker._samples == {}
    assert len(COUNTERS) == 4


def test_what_the_gpu_measures_itself_goes_before_its_counters():
    gpu = full_card(0)
    measured = replace(gpu.reading, traffic={("pcie", "transmit"): 77.0, ("nvlink", "receive"): 88.0})
    rows = samples(page("fields=all", replace(FULL, cards=(replace(gpu, reading=measured),))))
    assert rows[full("PROF_PCIE_TX_BYTES")][1] == "77"
    assert rows[full("PROF_NVLINK_RX_BYTES")][1] == "88"
    assert rows[full("PROF_PCIE_RX_BYTES")][1] == "8193"


def links_at(at, **counted):
    gpu = card(0)
    both = {int(link[1:]): (count / 2, count / 2) for link, count in counted.items()}
    return replace(gpu, reading=replace(gpu.reading, nvlink_bytes=both, nvlink_bytes_at=at))


def test_a_link_has_the_rate_between_its_last_two_reads():
    tracker = LinkRateTracker()
    assert tracker.update([links_at(0.0, l0=100.0)]) == {"GPU-0000": {}}
    assert tracker.update([links_at(10.0, l0=1100.0, l1=5.0)]) == {"GPU-0000": {0: 100.0}}
    assert tracker.update([links_at(10.0, l0=1100.0, l1=5.0)]) == {"GPU-0000": {0: 100.0}}, "the same read again"
    assert tracker.update([links_at(20.0, l0=1100.0, l1=25.0)]) == {"GPU-0000": {0: 0.0, 1: 2.0}}


def test_a_link_that_counts_anew_or_was_long_not_read_has_no_rate():
    tracker = LinkRateTracker()
    tracker.update([links_at(0.0, l0=100.0)])
    assert tracker.update([links_at(10.0, l0=5.0)]) == {"GPU-0000": {}}
    assert tracker.update([links_at(11.0 + MAX_GAP, l0=9.0)]) == {"GPU-0000": {}}
    assert tracker.update([card(0)]) == {}
