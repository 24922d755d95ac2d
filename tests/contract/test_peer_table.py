"""The comparison with other exporters in docs/performance.md has the shape that ``make bench-peers`` writes."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.bench import peers, peers_table
from tests.bench.peers_table import CASES, Measured

DOCUMENT = (pathlib.Path(__file__).parents[2] / "docs" / "performance.md").read_text()
MEASURED = Measured(cpu=1.234, pss=45.67, p50=0.8, p99=12.34, first_page=0.3, first_data=1.25, series=1348)
RESULTS = {case.name: dict.fromkeys(case.peers, MEASURED) for case in CASES}
WRITTEN = peers_table.render(RESULTS, "2 cores, 8 GiB", {"vmagent": "1.2.3"})


def shape(table: str) -> list[str]:
    """Return the table with every number, date, machine and version replaced."""
    lines = [line for line in table.splitlines() if line]
    facts, rows = lines[:2], lines[2:]
    assert re.fullmatch(r"Measured on \d{4}-\d\d-\d\d: \d+ cores.*, \d+ GiB.*\.", facts[0]), facts[0]
    assert re.search(r"\bvmagent \d+\.\d+", facts[1]), facts[1]
    return [re.sub(r"(?<=\| )[\d.,]+(?= ?(%|MiB|ms|s|\|))", "#", row) for row in rows]


def test_the_documented_table_is_one_that_the_benchmark_writes():
    assert shape(peers_table.between(DOCUMENT)) == shape(WRITTEN)


def test_the_documented_table_names_the_version_of_every_other_exporter():
    _, versions, *_ = peers_table.between(DOCUMENT).splitlines()
    for name in set(peers.PEERS) - {"Shardwatch"}:
        assert re.search(rf"\b{re.escape(name)} \d+\.\d+", versions), name


def test_every_case_has_us_and_exporters_that_can_be_run():
    assert [case.name for case in CASES] == ["W8", "D8", "W16", "G8", "starved", "TLS"]
    for case in CASES:
        assert case.peers[0] == "Shardwatch"
        assert set(case.peers) <= set(peers.PEERS)


def test_a_table_replaces_the_one_before_and_nothing_else():
    document = f"before\n{peers_table.BEGIN}\nold\n{peers_table.END}\nafter\n"
    new = peers_table.replaced(document, WRITTEN)
    assert peers_table.between(new) == WRITTEN
    assert new.replace(WRITTEN, "old") == document
    with pytest.raises(ValueError, match="markers"):
        peers_table.replaced("no markers", WRITTEN)
