"""A part of the straggler matrix: who is claimed is a straggler, for that cause, and who is one is found."""

from __future__ import annotations

import pytest

from tests.bench.straggler_matrix import CASES, LOADS, PRECISION, RECALL, Cell, Score, run

CYCLES = 100


def scores(scenario: str, load: str, size: int) -> tuple[Score, Score]:
    (case,) = (case for case in CASES if case.name == scenario)
    (traffic,) = (candidate for candidate in LOADS if candidate.name == load)
    return run(Cell(case, traffic, size), CYCLES)


@pytest.mark.parametrize(
    ("scenario", "load", "size"),
    [
        ("power brake to 85 %", "saturated", 2),
        ("thermal throttling", "steady", 8),
        ("NVLink that retries", "steady", 4),
        ("PCIe with a quarter of its lanes", "saturated", 4),
    ],
)
def test_a_straggler_is_found_with_its_cause_with_and_without_work_signals(scenario, load, size):
    for score in scores(scenario, load, size):
        assert score.true > 20 and score.found > 10
        assert score.precision >= PRECISION and score.recall >= RECALL, score


def test_another_tenant_is_found_where_work_is_measured_and_never_mistaken_for_a_cause_where_it_is_not():
    with_gpm, without = scores("other tenant 15 %", "saturated", 4)
    assert with_gpm.precision >= PRECISION and with_gpm.recall >= RECALL, with_gpm
    assert without.false == 0, without


@pytest.mark.parametrize(
    ("scenario", "load", "size"),
    [
        ("memory of one GPU full", "saturated", 4),
        ("all GPUs at a power limit of 50 %", "steady", 8),
        ("uneven utilisation", "steady", 8),
        ("healthy", "light", 2),
    ],
)
def test_a_group_without_a_straggler_has_none_claimed(scenario, load, size):
    for score in scores(scenario, load, size):
        assert score.cycles == CYCLES
        assert (score.false, score.true) == (0, 0), score
