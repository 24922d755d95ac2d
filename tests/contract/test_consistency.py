"""Nodes of one service that differ in their software are found by a query on the facts that every page carries."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml

from tests.support.promtool import check_rows, promtool_says
from tests.support.virtual_node import VirtualNode

RULES = pathlib.Path(__file__).parents[1] / "support" / "rules" / "consistency.test.yml"
FACTS = re.compile(r"^((?:gpu_driver|llm_engine)_info)\{(.*)\} 1\.0$", re.MULTILINE)
DRIVER, ENGINE = (question["expr"] for question in yaml.safe_load(RULES.read_text())["tests"][0]["promql_expr_test"])


def facts(instance, variant):
    """Return the facts of a node's page, as Prometheus stores them."""
    node = VirtualNode("drift", node=variant)
    node.live_until(10.0)
    return [
        f'{name}{{instance="{instance}",job="shardwatch",{labels}}}' for name, labels in FACTS.findall(node.page())
    ]


def test_the_rule_file_finds_differing_nodes_and_no_equal_ones(promtool):
    code, output = promtool_says(promtool, RULES)
    assert code == 0, output


@pytest.fixture(scope="module")
def drift():
    """Three nodes of one service: the second has other software."""
    return facts("node-a", 0), facts("node-b", 1), facts("node-c", 0)


def test_simulated_nodes_that_differ_are_found(promtool, tmp_path, drift):
    first, second, third = drift
    assert len(first) == len(second) == 3  # the driver, and two replicas
    series = [*first, *second, *third]
    model = "llama-3.3-70b-instruct"
    code, output = check_rows(promtool, tmp_path, series, DRIVER, {f'{{model="{model}"}}': 2})
    assert code == 0, output
    code, output = check_rows(promtool, tmp_path, series, ENGINE, {f'{{engine="vllm",model="{model}"}}': 2})
    assert code == 0, output


def test_simulated_nodes_that_are_equal_are_not(promtool, tmp_path, drift):
    first, _, third = drift
    for expression in (DRIVER, ENGINE):
        code, output = check_rows(promtool, tmp_path, [*first, *third], expression, {})
        assert code == 0, output


def test_the_question_can_be_answered_wrongly(promtool, tmp_path, drift):
    """The comparison is real: expecting nothing of differing nodes fails."""
    first, second, _ = drift
    code, output = check_rows(promtool, tmp_path, [*first, *second], DRIVER, {})
    assert code != 0
    assert "llama-3.3-70b-instruct" in output
