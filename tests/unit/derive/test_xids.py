"""Counting XIDs: each event once although two sources tell it, by UUID, bounded, whatever comes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.derive import xids
from exporter.derive.xids import MERGE_WINDOW, XidCounters
from exporter.model import BUS, KERNEL_LOG, NVML, CardFacts, GpuLabels, XidReport, canonical_pci
from tests.support.builders import card
from tests.support.records import replace

PCI = "0000:65:00"


def state(index=0, uuid="GPU-a", pci="00000000:65:00.0"):
    return replace(
        card(index), facts=CardFacts(index=index, uuid=uuid, pci_bus_id=pci), labels=GpuLabels(str(index), uuid)
    )


@pytest.fixture
def book():
    counters = XidCounters({74, 79})
    counters.update_gpus([state(), state(1, "GPU-b", "00000000:66:00.0")])
    return counters


def nvml(xid=79, at=100.0, uuid="GPU-a", **more):
    return XidReport(xid=xid, source=NVML, at=at, unix_time=1e9 + at, uuid=uuid, **more)


def log(xid=79, at=100.0, pci=PCI, source=KERNEL_LOG, **more):
    return XidReport(xid=xid, source=source, at=at, unix_time=1e9 + at, pci=pci, **more)


def count(book, xid=79, uuid="GPU-a"):
    matching = [xid_count for xid_count in book.counts("s") if xid_count.labels[1:3] == (uuid, str(xid))]
    assert len(matching) == 1, matching
    return matching[0].count


def rows(book):
    return {xid_count.labels[:3]: xid_count.count for xid_count in book.counts("s")}


def test_fatal_codes_are_there_from_the_start_and_others_when_they_come(book):
    always = {(gpu, uuid, xid): 0 for gpu, uuid in (("0", "GPU-a"), ("1", "GPU-b")) for xid in ("74", "79")}
    assert rows(book) == always
    assert all(xid_count.last_unix_time is None for xid_count in book.counts("s"))
    book.add(nvml(13))
    assert rows(book) == {**always, ("0", "GPU-a", "13"): 1}


@pytest.mark.parametrize(
    "first, second", [(nvml(), log(at=100.0 + MERGE_WINDOW)), (log(), nvml(at=100.0 + MERGE_WINDOW))]
)
def test_one_event_that_both_sources_report_counts_once(book, first, second):
    assert (book.add(first), book.add(second)) == (1, 0)
    assert count(book) == 1


def test_reports_further_apart_than_the_window_are_two_events(book):
    assert (book.add(nvml()), book.add(log(at=100.1 + MERGE_WINDOW))) == (1, 1)


def test_the_same_code_twice_from_the_driver_is_two_events_and_the_log_adds_none(book):
    for at in (100.0, 100.1, 100.2):
        book.add(nvml(at=at))
    for at in (100.0, 105.0, 110.0):
        assert book.add(log(at=at)) == 0
    assert count(book) == 3
    assert book.add(log(at=115.0)) == 1, "a fourth line is a fourth event"


@pytest.mark.parametrize("apart", [0.1, 0.6, 1.5, 4.0])
def test_several_lines_of_one_burst_are_one_event_however_slowly_they_come(book, apart):
    times = [100.0 + n * apart for n in range(10) if n * apart < xids.MAX_BURST]
    assert [book.add(log(at=at)) for at in times] == [1] + [0] * (len(times) - 1)


def test_a_line_after_a_pause_is_another_event(book):
    assert [book.add(log(at=at)) for at in (100.0, 104.9, 109.9, 114.9)] == [1, 0, 1, 1]


def test_a_fault_that_never_ends_goes_on_counting(book):
    new = [book.add(log(at=100.0 + n * 0.5)) for n in range(120)]
    assert [place for place, is_new in enumerate(new) if is_new] == [0, 20, 40, 60, 80, 100]


@pytest.mark.parametrize("line_first", [False, True])
def test_the_lines_that_follow_an_event_of_the_driver_add_nothing_to_it(book, line_first):
    if line_first:
        book.add(log(at=99.9))
    book.add(nvml(at=100.0))
    assert [book.add(log(at=100.2 + n * 0.6)) for n in range(10)] == [0] * 10
    assert count(book) == 1


def test_a_burst_that_began_before_the_gpu_was_known_goes_on_on_the_gpu():
    book = XidCounters({79})
    book.add(log(at=100.0))
    book.add(log(at=104.0))
    book.update_gpus([state()])
    assert [book.add(log(at=at)) for at in (108.0, 110.0)] == [0, 1]
    assert count(book) == 2


def test_other_codes_and_other_gpus_are_other_events(book):
    book.add(nvml())
    assert book.add(log(xid=74)) == 1
    assert book.add(log(pci="0000:66:00")) == 1
    assert (count(book), count(book, 74), count(book, uuid="GPU-b")) == (1, 1, 1)


@pytest.mark.parametrize(
    "reports",
    [
        [log(), log(source=BUS), nvml(at=101.0)],
        [log(source=BUS), log(at=100.5), nvml(at=101.0)],
        [nvml(), log(source=BUS, at=101.0), log(at=101.1), log(source=BUS, at=105.0)],
    ],
)
def test_the_message_that_a_gpu_is_lost_counts_only_without_an_xid_of_it(book, reports):
    for report in reports:
        book.add(report)
    assert count(book) == 1


def test_an_old_report_moves_the_last_time_and_counts_nothing(book):
    book.add(log(old=True))
    assert count(book) == 0
    (xid_count,) = [xid_count for xid_count in book.counts("s") if xid_count.last_unix_time is not None]
    assert xid_count.last_unix_time == 1e9 + 100.0
    assert book.add(nvml(at=101.0)) == 1, "an event now is not the old one again"


def test_the_newest_time_stays_whatever_order_reports_come_in(book):
    book.add(nvml(at=200.0))
    book.add(log(at=150.0, old=True))
    (xid_count,) = [xid_count for xid_count in book.counts("s") if xid_count.last_unix_time is not None]
    assert xid_count.last_unix_time == 1e9 + 200.0


def test_an_index_that_changes_takes_the_counter_along(book):
    book.add(nvml())
    book.update_gpus([state(5), state(0, "GPU-b", "00000000:66:00.0")])
    assert rows(book)["5", "GPU-a", "79"] == 1 and rows(book)["0", "GPU-b", "79"] == 0


def test_a_gpu_that_left_keeps_its_events_and_loses_its_zeros(book):
    book.add(nvml())
    book.update_gpus([])
    assert rows(book) == {("0", "GPU-a", "74"): 0, ("0", "GPU-a", "79"): 1}
    book.update_gpus([state(), state(1, "GPU-b", "00000000:66:00.0")])
    assert rows(book)["0", "GPU-a", "79"] == 1 and ("1", "GPU-b", "79") in rows(book)


def test_events_at_a_place_without_a_gpu_move_to_the_gpu_when_it_is_known():
    book = XidCounters({79})
    book.add(log())
    book.add(log(xid=13))
    assert rows(book) == {("", f"unknown-{PCI}", "79"): 1, ("", f"unknown-{PCI}", "13"): 1}
    book.update_gpus([state()])
    assert rows(book) == {("0", "GPU-a", "79"): 1, ("0", "GPU-a", "13"): 1}
    assert book.add(nvml(at=101.0)) == 0, "the event was told already"


def test_the_kernel_log_may_name_a_gpu_that_the_driver_does_not_list():
    book = XidCounters({79})
    book.add(log())
    book.set_uuid(PCI, "GPU-from-the-log")
    book.set_uuid("0000:77:00", "GPU-other")
    book.add(log(pci="0000:77:00"))
    assert rows(book) == {("", "GPU-from-the-log", "79"): 1, ("", "GPU-other", "79"): 1}
    book.update_gpus([state(3, "GPU-from-the-log")])
    assert rows(book)["3", "GPU-from-the-log", "79"] == 1
    book.set_uuid(PCI, "GPU-of-long-ago")
    assert book.add(log(at=200.0)) == 1
    assert rows(book)["3", "GPU-from-the-log", "79"] == 2, "the driver's word goes before the log's"


def test_a_report_without_a_gpu_is_kept_as_unknown(book):
    assert book.add(nvml(uuid="")) == 1
    assert rows(book)["", "unknown", "79"] == 1


def test_instances_and_unidentified_gpus_are_no_gpus_of_their_own():
    book = XidCounters({79})
    book.update_gpus([state(0, "MIG-1"), state(1, "unknown-1", "")])
    assert rows(book) == {}


def test_codes_beyond_the_bound_are_counted_together_and_fatal_ones_keep_their_name(book):
    for code in range(200, 300):
        book.add(nvml(code))
    book.add(nvml(79))
    counts = rows(book)
    of_card = {xid: number for (_, uuid, xid), number in counts.items() if uuid == "GPU-a"}
    assert len(of_card) == xids.MAX_CODES + 1
    assert (of_card["79"], of_card["other"], sum(of_card.values())) == (1, 100 - (xids.MAX_CODES - 2), 101)
    assert [xid_count.xid for xid_count in book.counts("s") if xid_count.labels[2] == "other"] == [None]


def test_unknown_pci_addresses_are_bounded_and_counted(book):
    for number in range(100):
        book.add(log(pci=f"0001:{number:02x}:00"))
    strangers = {uuid for _, uuid, _ in rows(book) if uuid.startswith("unknown")}
    assert (len(strangers), book.dropped) == (xids.MAX_UNKNOWN, 100 - xids.MAX_UNKNOWN)
    assert book.add(nvml()) == 1, "known cards have their room"


def test_the_same_gpus_again_notify_no_change():
    book = XidCounters({79})
    cards = [state()]
    assert (book.update_gpus(cards), book.update_gpus(cards), book.update_gpus([state(1)])) == (True, False, True)


EVENTS = st.lists(
    st.tuples(st.sampled_from([NVML, KERNEL_LOG]), st.integers(0, 99), st.integers(1, 4)), min_size=1, max_size=40
)


@given(EVENTS)
def test_within_one_window_the_source_that_reports_more_decides(events):
    """Reports in any order within the window: of n by one source and m by the other, max(n, m) count."""
    book = XidCounters({79})
    book.update_gpus([state()])
    reported, first, newest = Counter(), -100.0, -100.0
    for source, tenths, times in sorted(events, key=lambda event: event[1]):
        at = 100.0 + tenths / 10
        if source == NVML:
            book.add(nvml(at=at, times=times))
            reported[NVML] += times
        else:
            book.add(log(at=at))
            if at - newest >= xids.BURST or at - first >= xids.MAX_BURST:
                first, reported[KERNEL_LOG] = at, reported[KERNEL_LOG] + 1
            newest = at
    assert count(book) == max(reported.values())


@given(EVENTS, st.integers(1, 50))
def test_counters_never_fall_and_never_exceed_what_was_reported(events, stretch):
    book = XidCounters({79})
    book.update_gpus([state()])
    before = total = 0
    for place, (source, tenths, times) in enumerate(events):
        at = 100.0 + place * stretch / 10 + tenths
        new = book.add(nvml(at=at, times=times) if source == NVML else log(at=at))
        total += times if source == NVML else 1
        assert 0 <= new <= times
        assert before + new == count(book) <= total
        before = count(book)


def test_a_storm_is_counted_whole_in_little_memory(book):
    for tick in range(1000):
        book.add(nvml(at=100.0 + tick / 100, times=100))
        book.add(log(at=100.0 + tick / 100))
    tally = book._cards["GPU-a"].counters[79]
    assert count(book) == 100_000 and len(tally.pending) <= xids.MAX_PENDING


@pytest.mark.parametrize(
    "text, place",
    [
        ("00000000:1B:00.0", "0000:1b:00"),
        ("0000:1b:00", "0000:1b:00"),
        ("PCI:0000:1B:00", "0000:1b:00"),
        ("1b:00", "0000:1b:00"),
        ("00010000:E1:00.0", "10000:e1:00"),
        ("", ""),
        ("GPU-1", ""),
        ("0000:1b:00:11", ""),
        ("0000:1b:zz", ""),
    ],
)
def test_a_place_on_the_bus_has_one_spelling(text, place):
    assert canonical_pci(text) == place
