"""The grid on which things repeat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exporter.runtime.poll.ticker import Ticker


def test_lateness_does_not_add_up():
    beat = Ticker(1.0, 100.0)
    for now in (100.3, 101.2, 102.4):
        beat.advance(now)
    assert beat.due == 103.0
    assert beat.skipped == 0


def test_a_suspended_minute_is_one_poll_and_sixty_skipped_ones():
    beat = Ticker(1.0, 100.0)
    beat.advance(160.0)
    assert beat.due == 161.0
    assert beat.skipped == 60
    assert beat.wait(160.5) == 0.5


def test_a_postponed_beat_goes_on_from_there():
    beat = Ticker(1.0, 100.0)
    beat.postpone(100.0, 30.0)
    assert beat.wait(100.0) == 30.0
    beat.advance(130.0)
    assert beat.due == 131.0


@given(st.floats(0.1, 60.0), st.lists(st.floats(0.0, 600.0), max_size=20))
def test_the_next_due_time_is_always_ahead_by_at_most_one_interval(interval, steps):
    beat, now = Ticker(interval, 0.0), 0.0
    for step in steps:
        now = max(beat.due, now + step)
        beat.advance(now)
        assert now < beat.due + 1e-9
        assert beat.due <= now + interval + 1e-6
