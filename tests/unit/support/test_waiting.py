"""Waiting ends as soon as the condition holds, and a failure says what was seen last."""

from __future__ import annotations

import sys

import pytest

from tests.support.waiting import until, wait_until

needs_positions = pytest.mark.skipif(sys.version_info < (3, 11), reason="older Pythons keep no columns")


def test_a_condition_that_holds_ends_the_wait_at_once():
    looks = []
    until(lambda: looks.append(1) or len(looks) == 3)
    assert len(looks) == 3


def test_a_condition_that_never_holds_is_given_up():
    assert not wait_until(lambda: False, 0.02)


@needs_positions
def test_a_failure_shows_every_operand_of_the_condition():
    found, wanted = ["a"], ["a", "b"]
    with pytest.raises(AssertionError) as failure:
        until(lambda: found == wanted and len(found) > 3, 0.02)
    assert str(failure.value) == (
        "not so within 0.02 s: found == wanted and len(found) > 3;"
        " last seen: found = ['a'], wanted = ['a', 'b'], len(found) = 1"
    )


@needs_positions
def test_a_condition_over_several_lines_is_shown_too():
    state = {"up": False}
    with pytest.raises(AssertionError, match="state\\['up'\\] = False"):
        until(
            lambda: (
                state["up"]
                and not state
            ),
            0.02,
        )  # fmt: skip


def test_a_function_shows_what_it_returned():
    def answer():
        return []

    with pytest.raises(AssertionError, match=r"answer\(\) = \[\]"):
        until(answer, 0.02)


def test_an_operand_that_raises_is_shown_as_its_error():
    broken = {}
    with pytest.raises(KeyError):
        until(lambda: broken["up"], 0.02)
