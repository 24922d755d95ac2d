"""The kernel log out of systemd's journal: followed by a child, old and new told apart, gone when it is gone."""

from __future__ import annotations

import os
import signal
import time

import pytest

from exporter.errors import SourceError
from exporter.sources.kernel_log import journal, log
from exporter.sources.kernel_log.journal import JournalLog
from exporter.sources.kernel_log.log import KernelLog

NOW = 1_795_176_000.0
OLD = "1795172400.500000 node kernel: NVRM: Xid (PCI:0000:65:00): {}, x"
NEW = "1795176001.500000 node kernel: NVRM: Xid (PCI:0000:65:00): {}, x"


class Program:
    """A journalctl of one's own: says what stands in a file, then follows it; notes each start."""

    def __init__(self, folder):
        self.folder, self.said, self.starts = folder, folder / "said", folder / "starts"
        self.said.write_text("")
        self.write(f'exec tail -n +1 -s 0.02 -f "{self.said}"')

    def write(self, body):
        path = self.folder / "journalctl"
        fresh = self.folder / "fresh"
        fresh.write_text(f'#!/bin/sh\necho "$$ $*" >> "{self.starts}"\n{body}\n')
        fresh.chmod(0o755)
        fresh.replace(path)
        return path

    def say(self, *lines):
        with open(self.said, "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def started(self):
        return [line.split() for line in self.starts.read_text().splitlines()] if self.starts.exists() else []


@pytest.fixture
def program(tmp_path, monkeypatch):
    fake_program = Program(tmp_path)
    monkeypatch.setattr(journal, "PROGRAMS", (str(tmp_path / "nowhere"), str(tmp_path / "journalctl")))
    monkeypatch.setattr(log, "DEVICE", str(tmp_path / "kmsg"))
    monkeypatch.setattr(log, "TEXT", str(tmp_path / "kern.log"))
    return fake_program


@pytest.fixture
def opened(program):
    made = []

    def make(clock=time.monotonic):
        made.append(KernelLog(None, clock=clock, unix_now=lambda: NOW))
        return made[-1]

    yield make
    for kernel_log in made:
        kernel_log.close()


def until(read, count, seconds=10.0):
    """Read until so many entries have come."""
    end, entries = time.monotonic() + seconds, []
    while len(entries) < count:
        assert time.monotonic() < end, entries
        entries += read()
        time.sleep(0.01)
    return [(entry.message.xid, entry.old) for entry in entries]


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_where_neither_device_nor_file_can_be_read_the_journal_is_followed(program, opened):
    program.say("1795172400.1 node kernel: Linux version 6.1", OLD.format(79))
    kernel_log = opened()
    assert until(kernel_log.read, 1) == [(79, True)]
    program.say(NEW.format(48), "1795176001.6 node kernel: eth0: link up", NEW.format(74))
    assert until(kernel_log.read, 2) == [(48, False), (74, False)]
    assert kernel_log.read() == []
    (_, *options) = program.started()[0]
    assert {"--dmesg", "--follow", "--output=short-unix", "SYSLOG_FACILITY=0"} <= set(options) and len(
        program.started()
    ) == 1


def test_a_message_is_new_after_a_while_although_the_clock_was_set_back(program, opened, monkeypatch):
    monkeypatch.setattr(journal, "OLD_FOR", 0.0)
    program.say(OLD.format(79))
    assert until(opened().read, 1) == [(79, False)]


def test_the_child_ends_with_the_log_and_another_one_follows_when_it_died(program, opened):
    program.say("1795172400.1 node kernel: Linux version 6.1")
    kernel_log = opened()
    assert kernel_log.read() == []
    first = int(program.started()[0][0])
    os.kill(first, signal.SIGKILL)
    with pytest.raises(SourceError) as caught:
        for _ in range(500):
            kernel_log.read()
            time.sleep(0.01)
    assert caught.value.reason == "unreadable"
    program.say(NEW.format(79))
    assert until(kernel_log.read, 1) == [(79, False)]
    second = int(program.started()[1][0])
    kernel_log.close()
    assert gone(first) and gone(second)


@pytest.mark.parametrize("body", ["echo no permission >&2; exit 1", "sleep 60", "exec /nowhere/at/all"])
def test_a_journal_that_shows_nothing_is_none_and_is_not_tried_again_soon(program, opened, monkeypatch, body):
    monkeypatch.setattr(journal, "PROOF", 0.5)
    program.write(body)
    now = [1000.0]
    kernel_log = opened(lambda: now[0])
    for _ in range(3):
        with pytest.raises(SourceError, match="kmsg is not there.*systemd-journal"):
            kernel_log.read()
    assert len(program.started()) == 1
    assert all(gone(start[0]) for start in program.started())
    now[0] += log.JOURNAL_PERIOD
    program.say("1795172400.1 node kernel: Linux version 6.1")
    program.write(f'exec tail -n +1 -s 0.02 -f "{program.said}"')
    assert kernel_log.read() == []
    assert len(program.started()) == 2


def test_a_configured_path_is_the_only_place_that_is_looked_at(program, tmp_path):
    kernel_log = KernelLog(str(tmp_path / "other.log"), unix_now=lambda: NOW)
    with pytest.raises(SourceError):
        kernel_log.read()
    assert program.started() == []


def test_a_line_without_end_is_skipped_in_bounded_memory(program, monkeypatch):
    monkeypatch.setattr(journal, "MAX_BYTES", 1 << 20)
    program.say("1795172400.1 node kernel: Linux version 6.1")
    kernel_log = JournalLog(unix_now=lambda: NOW)
    try:
        program.say("NVRM: " + "x" * 2_000_000, NEW.format(79))
        end, entries = time.monotonic() + 10.0, []
        while not entries and time.monotonic() < end:
            entries += kernel_log.read()
            assert len(kernel_log._rest) <= journal.MAX_LINE + journal._READ
            time.sleep(0.01)
        assert [record.message for record in entries] == [NEW.format(79).partition(" kernel: ")[2]]
    finally:
        kernel_log.close()
