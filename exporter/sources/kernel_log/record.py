"""One record of a kernel log, whichever way it came, and the time that a text log wrote before it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timezone

_UNIX = re.compile(r"(\d{9,11}\.\d{1,9})\s")  # journalctl -o short-unix
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?\s")
_CLASSIC = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d{1,9})?\s")  # without year and zone
_DAY = 86_400.0
_MARKS = (b"NVRM: ", b"SXid (")  # of the cards' driver, and of the switches'


def of_driver(data: bytes) -> bool:
    """Say whether a line may be about a card or a switch; cheap, because it is asked of every line there is."""
    return _MARKS[0] in data or _MARKS[1] in data


@dataclass(frozen=True, slots=True)
class Record:
    """A line and when it was written; ``old``: before the log was opened.  ``unix_time`` None: it does not say."""

    text: str
    unix_time: float | None
    old: bool


def written_at(line: str, now: float) -> float | None:
    """Read the time at the beginning of a line (Unix time); None where there is none.  ``now`` gives the year.

    Never later than ``now``, as a zone may be unknown; None where more than a day later: a clock was wrong.  An error
    from the future would stay news for as long as that is away.
    """
    moment = _written(line, now)
    return min(moment, now) if moment is not None and moment <= now + _DAY else None


def _written(line: str, now: float) -> float | None:
    if found := _UNIX.match(line):
        return float(found[1])
    try:
        if found := _ISO.match(line):
            return _iso(found[1], found[2], found[3] or "0", found[4])
        if found := _CLASSIC.match(line):
            return _classic(found[1], now)
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
