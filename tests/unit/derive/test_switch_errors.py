"""SXids, the errors of NVSwitches: found in the kernel log in all their shapes, counted once, bounded, absent before."""

from __future__ import annotations

import logging

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exporter.catalog.sxids import SXIDS
from exporter.derive import sxids
from exporter.derive.sxids import SxidCounters
from exporter.model import Snapshot, SxidReport
from exporter.runtime.gpu_events import GpuEvents
from exporter.sources.kernel_log.messages import MAX_DETAIL, MessageParser, XidMessage
from exporter.sources.kernel_log.record import message_of_line
from exporter.sources.kernel_log.switch_messages import SxidMessage
from exporter.sources.pci import PciDevices
from tests.support.builders import Clock

PLACE = "0000:c1:00"
HEAD = f"nvidia-nvswitch3: SXid (PCI:{PLACE}.0): "
LINE = HEAD + "12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"


def read(line):
    return MessageParser().parse(message_of_line(line))


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize(
    "line, sxid, severity, link",
    [
        (LINE, 12028, "non_fatal", 32),
        (HEAD + "24007, Fatal, Link 30 sourcetrack timeout error", 24007, "fatal", 30),
        (HEAD + "10003, Fatal, unhandled interrupt in handler(1234)", 10003, "fatal", None),
        (HEAD + "10001, Non-fatal, PRI WRITE FBP error, instance=0, chiplet=3", 10001, "non_fatal", None),
        (HEAD + "20001, Correctable, Link 05 TX replay", 20001, "correctable", 5),
        (HEAD + "10004, IO failure", 10004, "unrated", None),
        (HEAD + "30010, Module 3 access error", 30010, "unrated", None),
        (HEAD + "12028", 12028, "unrated", None),
        (HEAD + "12028, Fatal, Link 999 no such link", 12028, "fatal", None),
        (HEAD + "12028, Fatal, Link 9999999999 no such link", 12028, "fatal", None),
        ("Nov 20 10:40:00 node1 kernel: [  12.345678] " + LINE, 12028, "non_fatal", 32),
        ("1763635200.123456 node1 kernel: " + LINE, 12028, "non_fatal", 32),
        ("nvidia-nvswitch0: SXid (PCI:00000000:C1:00.0): 12028, Fatal, Link 00 x", 12028, "fatal", 0),
    ],
)
def test_an_error_of_a_switch_is_found_in_every_shape(line, sxid, severity, link):
    message = read(line)
    assert isinstance(message, SxidMessage)
    assert (message.pci, message.sxid, message.severity, message.link) == (PLACE, sxid, severity, link)


@pytest.mark.parametrize(
    "line",
    [
        HEAD + "12028, Severity 0 Engine instance 32 Sub-engine instance 00",
        HEAD + "12028, Data {0x000001c0, 0x00bd5c8a, 0x00000500, 0x00000064}",
        HEAD + "0, Fatal, Link 01",
        HEAD + "123456, Fatal, Link 01",
        HEAD + "garbled, Fatal",
        "nvidia-nvswitch3: SXid (PCI:nowhere): 12028, Fatal",
        "some daemon: SXid (PCI:0000:c1:00.0): 12028, Fatal",
        "SXid (",
    ],
)
def test_registers_of_an_error_and_everything_else_are_no_error_of_their_own(line):
    assert read(line) is None


def test_a_process_can_neither_hide_an_error_of_its_gpu_nor_forge_one_of_a_switch():
    message = read(f"NVRM: Xid (PCI:0000:65:00): 79, pid=1, name={LINE}, GPU has fallen off the bus.")
    assert isinstance(message, XidMessage) and (message.pci, message.xid) == ("0000:65:00", 79)


@given(st.text(max_size=300), st.text(max_size=300))
@example(LINE, "\n\x1b[31m\x00\u202e\ud800" * 50)
@example("nvidia-nvswitch3: SXid (", "0:" * 150)
def test_hostile_text_gives_a_small_printable_record_or_nothing(before, after):
    for line in (before + after, HEAD + before + after, LINE + after):
        message = read(line)
        if isinstance(message, SxidMessage):
            assert (
                0 < message.sxid <= 99_999 and len(message.pci) <= 16 and (message.link is None or message.link < 256)
            )
            assert len(message.detail) <= MAX_DETAIL and (message.detail.isprintable() or not message.detail)


# ---------------------------------------------------------------- counting


def report(sxid=12028, at=100.0, *, pci=PLACE, severity="non_fatal", link=32, old=False):
    return SxidReport(pci=pci, sxid=sxid, severity=severity, link=link, at=at, unix_time=1e9 + at, old=old)


def rows(book):
    return {sxid_count.labels: sxid_count.count for sxid_count in book.counts()}


def test_nothing_is_there_before_the_first():
    book = SxidCounters()
    assert book.counts() == () and book.counts() is book.counts()


def test_each_switch_code_and_severity_is_counted_by_itself():
    book = SxidCounters()
    for message in (report(), report(severity="fatal"), report(20001), report(pci="0000:c2:00"), report(at=200.0)):
        assert book.add(message)
    assert rows(book) == {
        (PLACE, "12028", "non_fatal"): 2,
        (PLACE, "12028", "fatal"): 1,
        (PLACE, "20001", "non_fatal"): 1,
        ("0000:c2:00", "12028", "non_fatal"): 1,
    }


def test_a_line_that_two_daemons_wrote_into_one_file_is_one_event():
    book = SxidCounters()
    assert [book.add(report(at=at)) for at in (100.0, 100.0, 100.9, 101.0)] == [True, False, False, True]
    assert rows(book) == {(PLACE, "12028", "non_fatal"): 2}


def test_an_error_of_several_links_at_once_is_several_events():
    book = SxidCounters()
    assert [book.add(report(link=link)) for link in (44, 45, 46, None)] == [True] * 4
    assert rows(book) == {(PLACE, "12028", "non_fatal"): 4}


def test_what_happened_before_the_start_is_seen_and_not_counted():
    book = SxidCounters()
    assert not book.add(report(old=True))
    (sxid_count,) = book.counts()
    assert (sxid_count.count, sxid_count.last_unix_time) == (0, 1e9 + 100.0)
    assert book.add(report(at=50.0))
    (sxid_count,) = book.counts()
    assert (sxid_count.count, sxid_count.last_unix_time) == (1, 1e9 + 100.0), "the newest, whatever comes last"


def test_codes_and_switches_without_end_share_a_name_and_keep_their_severity():
    book = SxidCounters()
    for number in range(1, 1000):
        book.add(report(number, severity="fatal" if number % 2 else "non_fatal"))
        book.add(report(number, pci=f"{number:04x}:00:00"))
    counts = rows(book)
    assert counts[PLACE, sxids.OTHER, "fatal"] > 0 < counts[PLACE, sxids.OTHER, "non_fatal"]
    assert len({pci for pci, _, _ in counts}) == sxids.MAX_SWITCHES + 1
    assert len(counts) < sxids.MAX_SWITCHES + 2 * (sxids.MAX_CODES + 2) + sxids.MAX_CODES
    before = len(counts)
    for link in range(5000):
        book.add(report(1, link=link))
    assert len(rows(book)) <= before + 1 and len(book._switches[PLACE]["1"]["non_fatal"].burst_started) <= 256


# ---------------------------------------------------------------- from the log to the page


@pytest.fixture
def events(tmp_path):
    clock, bus = Clock(1000.0), tmp_path / "bus"
    (bus / f"{PLACE}.0").mkdir(parents=True)
    (bus / f"{PLACE}.0" / "vendor").write_text("0x10de\n")
    return GpuEvents(driver=False, devices=PciDevices(str(bus)), clock=clock, unix_now=lambda: 1.7e9 + clock.now)


@pytest.fixture
def follow(events, tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("")
    events.watch(enabled=True, path=str(path))
    events._watch.poll_loop.stop()
    events._watch.poll_loop.join(5.0)

    def add(*lines):
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(f"1795172400.5 node kernel: {line}\n" for line in lines))
        events._watch.refresh()

    add()
    yield add
    events.stop()
    events._watch._log.close()


def page(events):
    snapshot = Snapshot(at=1.0, unix_time=1.0, sxids=events.switches())
    return {(metric.name, *labels): value for metric in SXIDS for labels, value in metric.read(snapshot)}


def test_an_error_of_a_switch_is_on_the_page_and_no_gpu_has_it(events, follow):
    assert page(events) == {}
    follow(
        LINE, HEAD + "12028, Severity 0 Engine instance 32 Sub-engine instance 00", HEAD + "12028, Data {0x1, 0x2}"
    )
    assert page(events) == {
        ("gpu_nvswitch_sxid_events_total", PLACE, "12028", "non_fatal"): 1.0,
        ("gpu_nvswitch_sxid_last_timestamp_seconds", PLACE, "12028", "non_fatal"): 1.7e9 + 1000.0,
    }
    assert events.view([]) == ()


def test_it_is_logged_once_with_its_link_and_a_fatal_one_as_an_error(events, follow, caplog):
    caplog.set_level(logging.INFO)
    follow(*[LINE] * 50, HEAD + "24007, Fatal, Link 30 sourcetrack\x1b[2J timeout error")
    records = [record for record in caplog.records if "event=sxid" in record.getMessage()]
    assert [record.levelname for record in records] == ["WARNING", "ERROR"]
    first, second = (record.getMessage() for record in records)
    assert "sxid=12028 severity=non_fatal pci=0000:c1:00 link=32" in first
    assert "sxid=24007 severity=fatal pci=0000:c1:00 link=30" in second and "\x1b" not in second
