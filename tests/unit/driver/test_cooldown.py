"""Delays that double, and keys that are left alone for a while."""

from __future__ import annotations

from exporter.driver.cooldown import Backoff, Cooldown


def test_a_delay_doubles_up_to_its_limit_until_it_is_reset():
    backoff = Backoff(1.0, 6.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 6.0, 6.0]
    backoff.reset()
    assert backoff.next() == 1.0
    backoff.saturate()
    assert backoff.next() == 6.0


def test_a_key_that_fails_again_is_left_alone_for_twice_as_long_up_to_the_limit():
    cooldown, now, lengths = Cooldown(120.0, 600.0), 100.0, []
    for _ in range(5):
        lengths.append(cooldown.begin("GPU-a", now))
        assert cooldown.remaining(now + 1.0) == {"GPU-a": lengths[-1] - 1.0}
        now += lengths[-1] + 20.0
        assert cooldown.remaining(now) == {}
    assert lengths == [120.0, 240.0, 480.0, 600.0, 600.0]
    assert cooldown.begin("GPU-b", now) == 120.0


def test_a_key_that_was_well_for_as_long_as_the_limit_starts_anew():
    cooldown = Cooldown(120.0, 600.0)
    cooldown.begin("GPU-a", 0.0)
    assert cooldown.begin("GPU-a", 719.0) == 240.0
    assert cooldown.begin("GPU-a", 719.0 + 240.0 + 600.0) == 120.0
