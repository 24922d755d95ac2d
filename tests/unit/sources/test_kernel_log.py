"""The kernel log: what the driver writes there is found in all its shapes, and nothing in it can do harm."""

from __future__ import annotations

import errno
import os
import socket
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exporter.errors import SourceError
from exporter.model import WHOLE_GPU
from exporter.sources.kernel_log import journal, kmsg, log, text_log
from exporter.sources.kernel_log.kmsg import Kmsg
from exporter.sources.kernel_log.log import KernelLog
from exporter.sources.kernel_log.messages import MAX_DETAIL, GpuNameMessage, MessageParser, XidMessage
from exporter.sources.kernel_log.record import message_of_journal_line, message_of_line, written_at
from tests.support.builders import Clock


@pytest.fixture(autouse=True)
def no_journal(monkeypatch):
    """Leave the journal of the machine of the tests alone; test_kernel_journal.py has one of its own."""
    monkeypatch.setattr(journal, "PROGRAMS", ())


UUID = "GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7"
GONE = "NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python3, GPU has fallen off the bus."


def read(*lines):
    parser = MessageParser()
    return [message for line in lines if (message := parser.parse(message_of_line(line))) is not None]


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize(
    "line, pci, xid",
    [
        (GONE, "0000:65:00", 79),
        ("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.", "0000:65:00", 79),
        ("NVRM: Xid (PCI:0000:05:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception", "0000:05:00", 13),
        ("NVRM: Xid (PCI:0000:65:00 GPU-I:05): 94, pid=7, name=x, Contained: SM", "0000:65:00", 94),
        ("NVRM: Xid (PCI:0000:65:00 GPU-I:05 GPU-CI:00): 94, pid=7, name=x, Contained: SM", "0000:65:00", 94),
        ("[   12.345678] NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", 14),
        ("NVRM: Xid (PCI:0000:AF:00.0): 48, DBE", "0000:af:00", 48),
        (
            "NVRM: Xid (PCI:00000009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6)",
            "0009:01:00",
            149,
        ),
        ("NVRM: Xid (PCI:10000:e1:00): 31, Ch 0000000a", "10000:e1:00", 31),
        ("NVRM: Xid (PCI:18:00): 62, 0000", "0000:18:00", 62),
        ("NVRM: Xid (PCI:0000:65:00): 119", "0000:65:00", 119),
        ("Nov 20 10:40:00 node1 kernel: [  12.345678] " + GONE, "0000:65:00", 79),
        ("2026-11-20T10:40:00.123456+00:00 node1 kernel: " + GONE, "0000:65:00", 79),
        ("1763635200.123456 node1 kernel: " + GONE, "0000:65:00", 79),
        ("Nov 20 10:40:00 node1 kern.warn kernel: " + GONE, "0000:65:00", 79),
        ("2026-11-20T10:40:00,123456+00:00 " + GONE, "0000:65:00", 79),
        ("[Fri Nov 20 10:40:00 2026] " + GONE, "0000:65:00", 79),
        ("[  12.345678] [  T123] " + GONE, "0000:65:00", 79),
        ("<4>[  12.345678] " + GONE, "0000:65:00", 79),
        ("kern  :err   : [  12.345678] " + GONE, "0000:65:00", 79),
    ],
)
def test_an_xid_is_found_in_every_shape(line, pci, xid):
    (message,) = read(line)
    assert isinstance(message, XidMessage) and (message.pci, message.xid, message.inferred) == (pci, xid, False)


@pytest.mark.parametrize(
    "lines",
    [
        ["NVRM: GPU 0000:29:00.0: GPU has fallen off the bus."],
        ["NVRM: GPU at PCI:0000:29:00: GPU has fallen off the bus."],
        ["NVRM: GPU at 0000:29:00.0 has fallen off the bus."],
        ["NVRM: The NVIDIA GPU 0000:29:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus."],
        [
            "NVRM: The NVIDIA GPU 0000:29:00.0",
            "eth0: link up",
            "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ],
    ],
)
def test_a_gpu_that_is_said_to_be_gone_is_an_inferred_79(lines):
    (message,) = read(*lines)
    assert isinstance(message, XidMessage) and (message.pci, message.xid, message.inferred) == (
        "0000:29:00",
        79,
        True,
    )


@pytest.mark.parametrize(
    "inside, instance",
    [
        ("", WHOLE_GPU),
        (" GPU-I:05", (5, None)),
        (" GPU-I:13 GPU-CI:02", (13, 2)),
        (" GPU-I:x", WHOLE_GPU),
        (" GPU-I:99999999", WHOLE_GPU),
        (" GPU-CI:02", WHOLE_GPU),
    ],
)
def test_the_instance_that_an_error_befell_is_read(inside, instance):
    (message,) = read(f"NVRM: Xid (PCI:0000:65:00{inside}): 94, pid=7, name=GPU-I:07, x")
    assert (message.xid, message.instance) == (94, instance)


def test_a_sentence_that_breaks_off_names_no_gpu_for_ever():
    message = read(
        "NVRM: The NVIDIA GPU 0000:29:00.0",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "NVRM: something else",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert message == []


def test_the_line_that_names_a_gpu_is_read():
    assert read(f"NVRM: GPU at PCI:0000:65:00: {UUID}") == [GpuNameMessage(pci="0000:65:00", uuid=UUID)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: ",
        "Xid (PCI:0000:65:00): 79, without the driver's name",
        "nvidia-nvswitch3: Xid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46",
        "NVRM: Xid (invalid): 79, x",
        "NVRM: Xid error: xyz",
        "NVRM: Xid (PCI:0000:65:00): seventy-nine",
        "NVRM: Xid (PCI:0000:65:00): 0, nothing",
        "NVRM: Xid (PCI:0000:65:00): 99999999999, no code",
        "NVRM: Xid (PCI:0000:65:00): 70000, beyond",
        "NVRM: GPU at PCI:0000:65:00: GPU-no-uuid",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01",
    ],
)
def test_everything_else_is_no_xid(line):
    assert read(line) == []


@given(st.text(max_size=300), st.text(max_size=300))
@example("NVRM: Xid (PCI:0000:65:00): 79, name=", "\n\x1b[31m\x00\u202e\ud800" * 50)
@example("NVRM: Xid (", "0" * 300)
@example("NVRM: The NVIDIA GPU 0000:29:00.0", "fallen off the bus")
def test_hostile_text_gives_a_small_printable_record_or_nothing(before, after):
    for message in read(before + after, after + before, f"NVRM: Xid (PCI:0000:65:00): 79, name={before}{after}"):
        if isinstance(message, XidMessage):
            assert 0 < message.xid <= 65_535 and len(message.pci) <= 16
            assert len(message.detail) <= MAX_DETAIL and (message.detail.isprintable() or not message.detail)


def test_a_line_of_any_length_costs_little():
    hostile = ("NVRM: Xid (" + "0:" * 2_000_000, "NVRM: GPU at " * 300_000, "NVRM: " * 500_000 + GONE)
    begun = time.process_time()
    assert read(*hostile) == []
    assert time.process_time() - begun < 5.0


# ---------------------------------------------------------------- forged messages

# A process may be called anything (15 bytes), and so may its program (which the kernel names as well).
PROGRAM = "NVRM: Xid (PCI:0000:19:00): 79, pid=1, x"
CRASH = "{comm}[1234]: segfault at 0 ip 000055d0 sp 00007ffc error 4 in {program}[55d0+1000]"


@pytest.mark.parametrize(
    "program",
    [
        PROGRAM,
        f"x\\x0a{PROGRAM}",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Fatal, Link 30 x",
        f"NVRM: GPU at PCI:0000:19:00: {UUID}",
        "NVRM: GPU 0000:19:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:19:00.0 fallen off the bus",
    ],
)
@pytest.mark.parametrize("before", ["", "Nov 20 10:40:00 node1 kernel: ", "[   12.345678] ", "<4>[ 12.3] "])
def test_a_crashing_program_of_any_name_is_no_error_of_a_gpu(program, before):
    crash = CRASH.format(comm=program[:15], program=program)
    assert read(before + crash, before + f"traps: {crash}", before + f"audit: comm={program}") == []


def test_a_crashing_program_does_not_end_a_sentence_of_the_driver():
    ours = "NVRM: The NVIDIA GPU 0000:29:00.0"
    theirs = CRASH.format(comm="NVRM: fallen of", program="fallen off the bus")
    assert read(ours, theirs) == []


@pytest.mark.parametrize("priority", [12, 8, 30, 1 << 40])
def test_a_record_that_a_program_wrote_into_the_ring_is_skipped(ring, priority):
    ring.put(GONE, priority=priority)
    assert ring.device.read() == []


def test_the_journal_says_which_messages_are_the_kernels():
    assert message_of_journal_line("1763635200.123456 node1 kernel: " + GONE) == GONE
    for line in (
        "1763635200.123456 node1 kernelx[7]: " + GONE,
        "1763635200.123456 node1 logger[7]: kernel: " + GONE,
        "                                   " + GONE,  # the second line of a message with a newline
        GONE,
        "",
    ):
        assert message_of_journal_line(line) is None


# ---------------------------------------------------------------- times

NOON = 1_795_176_000.0  # 2026-11-20 12:00:00 UTC


@pytest.fixture
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "line, unix_time",
    [
        ("1795172400.500000 node kernel: x", NOON - 3600 + 0.5),
        ("2026-11-20T11:00:00.250000+00:00 node kernel: x", NOON - 3600 + 0.25),
        ("2026-11-20T13:00:00+0200 node kernel: x", NOON - 3600),
        ("2026-11-20T11:00:00Z node kernel: x", NOON - 3600),
        ("2026-11-20 11:00:00,123 node kernel: x", NOON - 3600 + 0.123),
        ("Nov 20 11:00:00 node kernel: x", NOON - 3600),
        ("2026-11-20T20:00:00 node kernel: x", NOON),
        ("2099-01-01T00:00:00Z node kernel: x", None),
        ("4070912400.5 node kernel: x", None),
        ("Dec 31 23:59:59 node kernel: x", 1_767_225_599.0),
        ("Feb 31 23:59:59 node kernel: x", None),
        ("2026-13-20T11:00:00Z node kernel: x", None),
        ("[   12.345678] x", None),
        ("x", None),
    ],
)
def test_the_time_before_a_line_is_read_in_the_usual_notations(utc, line, unix_time):
    assert written_at(line, NOON) == (pytest.approx(unix_time) if unix_time is not None else None)


@given(
    st.from_regex(
        r"\A(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]?\d{0,9}(Z|[+-]\d{4})? |[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )"
    )
)
def test_a_time_that_cannot_be_is_none(line):
    unix_time = written_at(line, NOON)
    assert unix_time is None or isinstance(unix_time, float)


# ---------------------------------------------------------------- text


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kern.log"


def opened(path, clock):
    return KernelLog(str(path), clock=clock, unix_now=lambda: NOON)


def xids(entries):
    return [(entry.message.xid, entry.old) for entry in entries]


def line(xid):
    return f"1795172400.5 node kernel: NVRM: Xid (PCI:0000:65:00): {xid}, x\n"


def append(path, text):
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


@pytest.fixture
def following(path, clock):
    made = []

    def make(**more):
        made.append(opened(path, clock))
        return made[-1]

    yield make
    for kernel_log in made:
        kernel_log.close()


def test_what_stands_in_a_file_is_old_and_what_is_added_is_new(path, following):
    path.write_text(line(79) + "1 something else\n")
    kernel_log = following()
    (first,) = kernel_log.read()
    assert (first.message.xid, first.old, first.unix_time) == (79, True, 1_795_172_400.5)
    assert kernel_log.read() == []
    append(path, line(48) + line(74))
    new = kernel_log.read()
    assert xids(new) == [(48, False), (74, False)] and {entry.unix_time for entry in new} == {NOON}


def test_a_line_that_arrives_in_pieces_is_read_when_it_is_whole(path, following):
    path.write_text("")
    kernel_log = following()
    assert kernel_log.read() == []
    for piece in line(79)[:-1]:
        append(path, piece)
        assert kernel_log.read() == []
    append(path, "\n")
    assert xids(kernel_log.read()) == [(79, False)]


def test_a_rotated_file_is_followed_and_nothing_is_lost_or_read_twice(path, following):
    path.write_text("")
    kernel_log = following()
    kernel_log.read()
    append(path, line(48))
    path.rename(path.with_suffix(".1"))
    path.write_text(line(74))
    assert xids(kernel_log.read()) == [(48, False), (74, False)]
    append(path, line(79))
    assert xids(kernel_log.read()) == [(79, False)]


def test_a_file_that_is_cut_and_written_anew_is_read_from_its_beginning(path, following):
    path.write_text(line(48) * 3)
    kernel_log = following()
    kernel_log.read()
    path.write_text(line(79))
    assert xids(kernel_log.read()) == [(79, False)]


def test_a_file_that_comes_later_is_new(path, following):
    kernel_log = following()
    with pytest.raises(SourceError) as caught:
        kernel_log.read()
    assert caught.value.reason == "missing"
    path.write_text(line(79))
    assert xids(kernel_log.read()) == [(79, False)]


def test_a_file_that_vanishes_is_missing_until_it_is_back(path, following):
    path.write_text("")
    kernel_log = following()
    kernel_log.read()
    path.unlink()
    with pytest.raises(SourceError, match="not there"):
        kernel_log.read()
    path.write_text(line(79))
    assert xids(kernel_log.read()) == [(79, False)]


def test_what_stands_in_a_file_that_may_be_read_from_now_on_only_is_old(path, following, monkeypatch):
    path.write_text(line(79))
    kernel_log = following()
    opened_by_system = os.open

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    for _ in range(2):
        with pytest.raises(SourceError) as caught:
            kernel_log.read()
    assert caught.value.reason == "no_permission"
    monkeypatch.setattr(os, "open", opened_by_system)
    append(path, line(48))
    assert xids(kernel_log.read()) == [(79, True), (48, True)], (
        "nobody knows what of it came since the daemon's start"
    )
    append(path, line(74))
    assert xids(kernel_log.read()) == [(74, False)]


def test_a_pipe_is_read_whoever_writes_and_whenever(path, following):
    os.mkfifo(path)
    kernel_log = following()
    assert kernel_log.read() == []
    for xid in (79, 48):
        with open(path, "w", encoding="utf-8") as writer:
            writer.write(line(xid))
        assert xids(kernel_log.read()) == [(xid, False)]
    assert kernel_log.read() == []


def test_only_the_end_of_a_huge_file_is_looked_at(path, following, monkeypatch):
    monkeypatch.setattr(text_log, "BACKLOG", 1000)
    path.write_text(line(48) * 100 + line(79))
    kernel_log = following()
    entries = kernel_log.read()
    assert xids(entries)[-1] == (79, True) and len(entries) == 1000 // len(line(48)) == len(set(map(id, entries)))


def test_an_endless_line_is_skipped_in_bounded_memory(path, following, monkeypatch):
    monkeypatch.setattr(text_log, "MAX_BYTES", 1 << 20)
    path.write_text("")
    kernel_log = following()
    kernel_log.read()
    append(path, "NVRM: " + "x" * 5_000_000)
    for _ in range(6):
        assert kernel_log.read() == []
        assert len(kernel_log._log._rest) <= text_log.MAX_LINE + text_log._READ
    append(path, "\n" + line(79))
    assert xids(kernel_log.read()) == [(79, False)]


def test_a_flood_is_read_in_turns(path, following, monkeypatch):
    monkeypatch.setattr(text_log, "MAX_BYTES", text_log._READ)
    path.write_text("")
    kernel_log = following()
    kernel_log.read()
    append(path, line(13) * 5000)
    turns = []
    while message := kernel_log.read():
        turns.append(len(message))
    assert sum(turns) == 5000 and len(turns) >= 3


def test_bytes_that_are_no_text_do_no_harm(path, following):
    path.write_bytes(b"")
    kernel_log = following()
    kernel_log.read()
    with open(path, "ab") as file:
        file.write(b"\xff\xfe\x00NVRM: \xff\n\n" + line(79).encode().replace(b"x\n", b"\xff\x00\x1b[2J\n"))
    (entry,) = kernel_log.read()
    assert entry.message.xid == 79 and entry.message.detail.isprintable()


def test_a_folder_is_no_log(tmp_path, clock):
    with pytest.raises(SourceError) as caught:
        KernelLog(str(tmp_path), clock=clock).read()
    assert caught.value.reason == "not_a_log"


def test_without_permission_it_says_what_would_help(path, clock, monkeypatch):
    path.write_text(line(79))

    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SourceError, match="CAP_SYSLOG") as caught:
        opened(path, clock).read()
    assert caught.value.reason == "no_permission"


def test_without_a_path_the_device_comes_first_and_its_refusal_is_reported(tmp_path, clock, monkeypatch):
    first, second = tmp_path / "kmsg", tmp_path / "kern.log"
    monkeypatch.setattr(log, "DEVICE", str(first))
    monkeypatch.setattr(log, "TEXT", str(second))
    kernel_log = KernelLog(None, clock=clock, unix_now=lambda: NOON)
    with pytest.raises(SourceError, match="kmsg"):
        kernel_log.read()
    second.write_text("")
    assert kernel_log.read() == []
    append(second, line(79))
    assert xids(kernel_log.read()) == [(79, False)]
    kernel_log.close()


# ---------------------------------------------------------------- the device


class Ring:
    """A /dev/kmsg of one's own: a datagram socket, because a read takes one record and no more."""

    def __init__(self, monkeypatch, clock):
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        theirs.setblocking(False)
        descriptor = theirs.detach()
        monkeypatch.setattr(kmsg.os, "open", lambda *_: descriptor)
        self.device = Kmsg("/dev/kmsg", clock=clock, unix_now=lambda: NOON)
        monkeypatch.undo()

    def put(self, text, *, seconds=990.0, properties="", priority=4):
        self.ours.send(f"{priority},123,{int(seconds * 1e6)},-;{text}\n{properties}".encode())

    def close(self):
        self.device.close()
        self.ours.close()


@pytest.fixture
def ring(monkeypatch, clock):
    kernel_ring = Ring(monkeypatch, clock)
    yield kernel_ring
    kernel_ring.close()


def test_records_in_the_ring_are_old_with_their_time_and_later_ones_are_new(ring):
    ring.put(GONE, seconds=900.0)
    ring.put("eth0: link up")
    (old,) = ring.device.read()
    assert (old.message, old.old, old.unix_time) == (GONE, True, NOON - 100.0)
    ring.put(GONE, seconds=999.0)
    (new,) = ring.device.read()
    assert (new.old, new.unix_time) == (False, NOON)


def test_what_the_driver_of_the_switches_says_is_a_record_too(ring):
    ring.device.read()
    ring.put("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error")
    ring.put("nvidia-nvswitch3: open (major=510)")
    (record,) = ring.device.read()
    assert (record.old, read(record.message)[0].sxid) == (False, 24007)


def test_properties_and_escapes_of_a_record_are_not_its_text(ring):
    ring.put(
        "NVRM: The NVIDIA GPU 0000:18:00.0\\x0aNVRM: fallen off the bus", properties=" SUBSYSTEM=pci\n NVRM: x=1\n"
    )
    (record,) = ring.device.read()
    assert record.message == "NVRM: The NVIDIA GPU 0000:18:00.0 NVRM: fallen off the bus"
    assert read(record.message)[0].xid == 79


@pytest.mark.parametrize(
    "data",
    [b"NVRM: ", b";NVRM: x", b"4,1,x,-;NVRM: x", b"4,1,99999999999999999999999,-;NVRM: x", b"9" * 40 + b";NVRM: x"],
)
def test_a_record_that_is_none_does_no_harm(ring, data):
    ring.ours.send(data)
    assert all(record.unix_time is None or record.unix_time <= NOON for record in ring.device.read())


def test_under_a_flood_records_become_new_after_a_while(ring, clock, monkeypatch):
    monkeypatch.setattr(kmsg, "MAX_READS", 1)
    ring.put(GONE)
    assert ring.device.read()[0].old
    clock.tick(kmsg.OLD_FOR + 1.0)
    ring.put(GONE)
    assert not ring.device.read()[0].old


def test_records_that_were_overwritten_are_counted_and_the_next_is_read(ring, monkeypatch):
    real, failures = os.read, [OSError(errno.EPIPE, "overrun"), OSError(errno.EINVAL, "too long")]

    def reads(descriptor, size):
        if failures:
            raise failures.pop(0)
        return real(descriptor, size)

    ring.put(GONE)
    monkeypatch.setattr(kmsg.os, "read", reads)
    assert len(ring.device.read()) == 1
    assert ring.device.overruns == 1


def test_a_device_that_fails_is_unreadable_and_opened_again(tmp_path, clock, monkeypatch):
    kernel_log = KernelLog(None, clock=clock)
    monkeypatch.setattr(log, "DEVICE", str(tmp_path / "a"))
    (tmp_path / "a").write_text("")
    assert kernel_log.read() == []

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(text_log.os, "pread", fail)
    with pytest.raises(SourceError, match="Input/output error") as caught:
        kernel_log.read()
    assert caught.value.reason == "unreadable" and kernel_log._log is None
    monkeypatch.undo()


def can_open(path):
    """Return whether it can be opened; the kernel may refuse what the mode allows."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def test_the_real_device_is_read_to_its_end_without_waiting_or_says_why_not():
    kernel_log = KernelLog("/dev/kmsg")
    if not can_open("/dev/kmsg"):
        with pytest.raises(SourceError, match="CAP_SYSLOG"):
            kernel_log.read()
        return
    for _ in range(100):
        kernel_log.read()
        if not kernel_log._log._old:
            break
    assert not kernel_log._log._old, "its end was never reached"
    assert all(entry.old is False for entry in kernel_log.read())
    kernel_log.close()
