"""One message of a kernel log, whichever way it came: its text alone, and the time that a text log wrote before it.

An unprivileged user chooses parts of what the kernel writes: the name of a process that crashes, and the path of its
program, which may hold spaces, newlines and whole lines of a driver.  Such a name is at most 15 bytes long where it
begins a message; so readers look for the driver's messages at the beginning of a message only, and every way of
reading says where that is.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone

from msgspec import Struct

_UNIX = re.compile(r"(\d{9,11}\.\d{1,9})\s")  # journalctl -o short-unix
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?\s")
_CLASSIC = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d{1,9})?\s")  # without year and zone
_DAY = 86_400.0
_MARKS = (b"NVRM: ", b"SXid (", b"mlx5_core ")  # of the drivers of GPUs, of NVSwitches, and of adapters

# What stands before the message in a text log; every repetition is bounded.
_TIME = rf"(?:{_UNIX.pattern}|{_ISO.pattern}|{_CLASSIC.pattern})"
_BEFORE_MESSAGE = re.compile(
    rf"(?:{_TIME}(?:\S{{1,255}} (?:kern\.[a-z]{{1,9}} )?kernel: )?)?"  # a syslog daemon, or dmesg --time-format=iso
    r"(?:kern {0,4}:[a-z]{1,7} {0,4}: )?"  # dmesg --decode
    r"(?:<[0-7]>)?"  # priority: facility kern
    r"(?:\[[^\][]{1,40}\] ?){0,2}"  # the kernel's own time, and the caller
)
_JOURNAL_PREFIX = re.compile(r"\d{9,11}\.\d{1,9} \S{1,255} kernel: ")


def of_driver(data: bytes) -> bool:
    """Return whether a line may be about a GPU, a switch or an adapter; cheap, because every line is checked."""
    return _MARKS[0] in data or _MARKS[1] in data or _MARKS[2] in data


class KernelRecord(Struct, frozen=True):
    """A message without what a logger put before it; ``old``: written before the log was opened.

    ``unix_time`` is None where the log does not say when it was written.
    """

    message: str
    unix_time: float | None
    old: bool


def message_of_line(line: str) -> str:
    """Return the message in a line of a text log: the line without time, host and the kernel's name."""
    before = _BEFORE_MESSAGE.match(line)
    return line[before.end() :] if before is not None else line


def message_of_journal_line(line: str) -> str | None:
    """Return the kernel's message in a line of ``journalctl --dmesg -o short-unix``; None where it holds no other.

    The further lines of a message with newlines are indented, and so are none.
    """
    before = _JOURNAL_PREFIX.match(line)
    return line[before.end() :] if before is not None else None


def written_at(line: str, now: float) -> float | None:
    """Return the time at the beginning of a line (Unix time); None where there is none.  ``now`` gives the year.

    Never later than ``now``, as a zone may be unknown; None where more than a day later: a clock was wrong.  An error
    from the future would look recent for as long as that is away.
    """
    moment = _written(line, now)
    return min(moment, now) if moment is not None and moment <= now + _DAY else None


def _written(line: str, now: float) -> float | None:
    if match := _UNIX.match(line):
        return float(match[1])
    try:
        if match := _ISO.match(line):
            return _iso(match[1], match[2], match[3] or "0", match[4])
        if match := _CLASSIC.match(line):
            return _classic(match[1], now)
    except (ValueError, OverflowError):
        return None
    return None


def _iso(day: str, clock: str, fraction: str, zone: str | None) -> float:
    # Not the fraction: Python 3.10 reads three or six digits of it only.
    moment = datetime.fromisoformat(f"{day}T{clock}")
    if zone == "Z":
        moment = moment.replace(tzinfo=timezone.utc)
    elif zone:
        colon = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
        moment = datetime.fromisoformat(f"{day}T{clock}{colon}")
    return moment.timestamp() + float(f"0.{fraction}")


def _classic(text: str, now: float) -> float:
    year = time.localtime(now).tm_year
    moment = time.mktime(time.strptime(f"{year} {text}", "%Y %b %d %H:%M:%S"))
    if moment <= now + _DAY:
        return moment
    return time.mktime(time.strptime(f"{year - 1} {text}", "%Y %b %d %H:%M:%S"))  # written before New Year
