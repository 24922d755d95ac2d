"""What each scenario says of itself is on the metrics endpoint of a daemon that watches it, at the time it says."""

from __future__ import annotations

import operator
import re

import pytest

from exporter.catalog.spec import SeriesSet
from exporter.simulate.scenarios import SCENARIOS, find
from tests.support.virtual_node import VirtualNode

COMPARED = {"==": operator.eq, ">": operator.gt, "<": operator.lt}
EXPRESSION = re.compile(r"([a-z_]+)\{(.*)\} (==|>|<) (\S+)")


def holds(expr, page):
    name, labels, comparison, number = EXPRESSION.fullmatch(expr).groups()
    wanted = set(labels.split(","))
    values = [
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith(f"{name}{{") and wanted <= set(line[len(name) + 1 :].rpartition("}")[0].split(","))
    ]
    return any(COMPARED[comparison](value, float(number)) for value in values)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_symptom_shows_in_the_default_series_when_it_should_and_not_before_the_fault(scenario):
    assert scenario.expect, "whoever starts the demo must be told what to watch"
    node = VirtualNode(scenario.name, interval=1.0, series=SeriesSet.COMMON)
    fault = max((fault.at for fault in scenario.faults), default=0.0)
    if scenario.faults:
        node.live_until(fault)
        before = node.page()
        assert not [symptom.expr for symptom in scenario.expect if holds(symptom.expr, before)]
    for symptom in sorted(scenario.expect, key=lambda symptom: symptom.within):
        node.live_until(fault + symptom.within)
        assert holds(symptom.expr, node.page()), symptom.expr


def test_the_guide_names_the_second_of_the_fault_and_what_to_watch():
    assert find("brake").guide(fault_at=60.0) == (
        "After 60 s the power supply brakes GPU 1 to 70% of its clock.",
        (
            'Watch gpu_straggler{gpu="1",replica="chat-a",cause="power_brake"} == 1 (about 80 s after the start):'
            " the other GPUs of chat-a wait for GPU 1."
        ),
    )
