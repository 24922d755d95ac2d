"""For how long a reading is shown, also while the interval or the deadline changes."""

from __future__ import annotations


class Freshness:
    """A reading is shown for an interval, after which the next is requested, and a deadline, in which it must arrive.

    Times are seconds; ``now`` is monotonic.  Not locked: its owner does that.
    """

    def __init__(self, interval: float, deadline: float) -> None:
        self.interval, self.deadline = interval, deadline
        self._grace = self._grace_until = 0.0

    def reconfigure(self, interval: float, deadline: float, now: float) -> bool:
        """Change interval and deadline; return whether a reading becomes stale sooner than before."""
        before = self.seconds(now)
        sooner = interval + deadline < before
        # What was fresh a moment ago is so until the GPUs, asked at once, have had the time to answer.
        self._grace, self._grace_until = (before, now + deadline) if sooner else (0.0, 0.0)
        self.interval, self.deadline = interval, deadline
        return sooner

    def seconds(self, now: float) -> float:
        """Return the seconds after which a reading is withdrawn."""
        usual = self.interval + self.deadline
        return max(usual, self._grace) if now <= self._grace_until else usual
