"""What counters grew by during the last minutes."""

from __future__ import annotations

import pytest

from exporter.diagnosis.counters import CounterWindow

NAME = ("a", "tokens")


def window(*values):
    """Return the window after a sample each 10 s; None: the counter could not be read."""
    found = CounterWindow()
    for turn, value in enumerate(values):
        found.update(10.0 * turn, {} if value is None else {NAME: value})
    return found


@pytest.mark.parametrize(
    ("values", "increase", "rate"),
    [
        ((), None, None),
        ((5.0,), None, None),
        ((5.0, 25.0), 20.0, 2.0),
        ((5.0, 25.0, 3.0), 23.0, 1.15),  # reset: what was counted before is kept, what was lost is not guessed
        ((5.0, 25.0, None), None, None),
        ((5.0, 905.0, None, 925.0), None, None),
        ((5.0, 905.0, None, 925.0, 945.0), 20.0, 2.0),
    ],
)  # fmt: skip
def test_a_counter_grows_since_it_was_last_missing(values, increase, rate):
    found = window(*values)
    assert found.increase(NAME) == increase
    assert found.rate(NAME) == (rate if rate is None else pytest.approx(rate))
