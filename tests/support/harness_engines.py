"""Engines for the harness of the fault matrix: they count their seconds by polls, and one may be changed beside a good one."""

from __future__ import annotations

import pathlib

import pytest

from tests.support.fault_matrix import Harness
from tests.support.living_engines import living_page

CAPTURES = sorted((pathlib.Path(__file__).parents[1] / "captures").glob("*.prom"))


class Engine:
    """Counts its seconds by polls; ``change`` turns its good page into what the engine says instead."""

    def __init__(self, change=lambda page: page, **settings):
        self.seconds = 0
        self.change = change
        self.settings = settings

    def __call__(self):
        self.seconds += 1
        return self.change(living_page(self.seconds, **self.settings))


def beside_a_healthy_one(change, turns=3, **more):
    """Run a changed engine beside a good one; the good one's figures must be what they always are."""
    harness = Harness({"bad": Engine(change), "good": Engine()}, **more)
    for _ in range(turns):
        harness.turn()
    page = harness.checked()
    assert page.value("llm_up", replica="good") == 1.0
    assert page.value("llm_generation_tokens_total", replica="good") == 1000.0 * turns
    assert page.value("llm_generation_token_rate", replica="good") == pytest.approx(1000.0)
    assert page.value("shardwatch_dropped_series") == 0.0
    return page


def appended(*lines):
    return lambda page: page + b"".join(line + b"\n" for line in lines)


def odd(page, reason):
    return sum(page.all("shardwatch_source_oddities_total", source="engine:bad", reason=reason))


def tokens(page, engine="bad"):
    return page.all("llm_generation_tokens_total", replica=engine)
