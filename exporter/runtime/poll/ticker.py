"""When a thing that repeats is due: on a fixed grid of the monotonic clock, never in a burst.

Due times are multiples of the interval from the first one, so that lateness does not add up.  Whoever is late by
whole intervals skips them: after a suspended minute there is one poll, not sixty.
"""

from __future__ import annotations


class Ticker:
    """The grid of one repeating thing; owned by the thread that follows it."""

    def __init__(self, interval: float, first: float) -> None:
        self.interval = interval
        self.due = first
        self.skipped = 0

    def wait(self, now: float) -> float:
        """Return the seconds until the next due time; 0 when it has come."""
        return max(0.0, self.due - now)

    def advance(self, now: float) -> None:
        """Move to the first due time after ``now``, counting those that were missed."""
        self.due += self.interval
        if self.due <= now:
            missed = int((now - self.due) / self.interval) + 1
            self.skipped += missed
            self.due += missed * self.interval

    def restart(self, interval: float, first: float) -> None:
        """Follow another grid from ``first`` on; what was skipped stays counted."""
        self.interval, self.due = interval, first

    def postpone(self, now: float, delay: float) -> None:
        """Move the next due time to ``delay`` seconds from now; the grid goes on from there."""
        self.due = now + delay
