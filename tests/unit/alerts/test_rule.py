"""Rules that could not work are refused when they are built."""

from __future__ import annotations

import pytest

from alerts import panel_ids
from alerts.lookups import bound, lookup
from alerts.rule import Alert, Component, Group, Recording, RuleError
from exporter.catalog import metrics as m
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import rate, select, sum_by


def good(**changed):
    given = {
        "name": "CardLost",
        "severity": Severity.WARNING,
        "component": Component.GPU,
        "expr": select(m.GPU_UP).equals(0),
        "for_": "1m",
        "panel": panel_ids.FLEET_GPUS,
        "summary": Text("card {{ $labels.gpu }}", "卡 {{ $labels.gpu }}"),
        "description": Text("{{ $value | humanize }}", "{{ $value | humanize }}"),
        "action": Text("Reset it.", "请复位。"),
    }
    return Alert(**given | changed)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"name": "card_lost"}, "CamelCase"),
        ({"severity": Severity.CRITICAL}, "only symptoms may be critical"),
        ({"expr": select(m.GPU_ENERGY_JOULES_TOTAL)}, "raw counter"),
        ({"for_": "30s"}, "one failed scrape"),
        ({"for_": "5 minutes"}, "no duration"),
        ({"keep_firing_for": "10s"}, "one failed scrape"),
        ({"labels": {"severity": "page"}}, "cannot be set"),
        ({"summary": Text("card {{ $labels.replica }}", "卡 {{ $labels.replica }}")}, "names replica"),
        ({"summary": Text("card {{ $labels.gpu }}", "卡 {{ $labels.uuid }}")}, "other labels in one language"),
        ({"summary": Text("card", "")}, "empty in zh"),
        ({"summary": Text("{{ $value | humanize }}", "{{ $value | humanize }}")}, "must not change"),
        ({"summary": Text("x" * 161, "x")}, "one line of at most 160"),
        ({"action": Text("x" * 401, "x")}, "one line of at most 400"),
        ({"action": Text("", "x")}, "empty in en"),
        ({"summary": Text("card {{ $labels.gpu", "卡 {{ $labels.gpu")}, "does not close"),
        ({"description": Text("{{ $value }}", "{{ $value }}")}, "humanize"),
        ({"description": Text('{{ query "up" }}', '{{ query "up" }}')}, "allowed are"),
        ({"description": Text("{{ with $labels.replica }}{{ . }}{{ end }}", "{{ . }}")}, "allowed are"),
        (
            {"description": Text("{{ with $labels.replica }}{{ . }}", "卡"), "optional_labels": frozenset({"replica"})},
            "begins a part about a value of a label",
        ),
        ({"description": lookup(select(m.LLM_UP, **bound("replica")), "x", "x")}, "names replica"),
        ({"description": Text("{{ . | first | value | humanize }}", "x")}, "allowed are"),
        ({"description": Text("{{ $externalLabels.x }}", "{{ $externalLabels.x }}")}, "allowed are"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_alert_that_could_not_work_is_refused_while_it_is_built(changed, why):
    assert good().name == "CardLost"
    with pytest.raises(RuleError, match=why):
        good(**changed)


def test_a_rule_that_holds_in_its_expression_needs_no_for_and_still_ends_late():
    assert good(for_="0s", held="seen in two scrapes").for_ == "0s"
    with pytest.raises(RuleError, match="one failed scrape"):
        good(for_="0s", held="seen in two scrapes", keep_firing_for="10s")


def test_a_recording_with_a_false_level_is_refused():
    tokens = sum_by(rate(select(m.LLM_GENERATION_TOKENS_TOTAL), "5m"), "job", "model")
    assert Recording(level=("job", "model"), noun="llm_tokens", operations="rate5m", expr=tokens).name == (
        "job_model:llm_tokens:rate5m"
    )
    with pytest.raises(RuleError, match="the result has"):
        Recording(level=("job",), noun="llm_tokens", operations="rate5m", expr=tokens)
    with pytest.raises(RuleError, match="drop _total"):
        Recording(level=("job", "model"), noun="llm_tokens_total", operations="rate5m", expr=tokens)
    with pytest.raises(RuleError, match="between 15 s and 5 min"):
        Group(name="slow", rules=(), interval="10m")
