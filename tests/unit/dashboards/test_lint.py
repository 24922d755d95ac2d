"""The 17 rules of Grafana's dashboard-linter, written anew over the files; exclusions are data and have reasons."""

from __future__ import annotations

import functools
from datetime import timedelta

import promql_parser
import pytest

from dashboards.definitions import DASHBOARDS
from dashboards.panels.panel import _UNITS, NumberFormat
from tests.support.dashboard_queries import LANGUAGES, UIDS, dashboard, panels

# Rare durations stand for the macros, so that they are found again in the parsed query.
RATE, RANGE, STEP = timedelta(seconds=251), timedelta(seconds=367), timedelta(seconds=53)
MACROS = {
    "$__rate_interval_ms": "251000", "$__rate_interval": "251s", "$__range_s": "367", "$__range": "367s",
    "$__interval": "53s", "$__from": "1790000000000",
}  # fmt: skip
JUDGED = {"stat", "timeseries", "gauge"}  # the kinds that the linter looks into
# Those of its closed list that are in use, and one that it does not know: Grafana scales ``si:`` units (1.2 ktok/s).
UNITS = {
    "short", "none", "percentunit", "bytes", "binBps", "celsius", "watt", "joule", "hertz", "s", "cps", "reqps", "eps",
    "dtdurations", "sci", "si:tok/s",
}  # fmt: skip
# (rule, language, dashboard or *, panel or variable or metric) → why it does not hold there.
EXCLUSIONS = {
    ("template-datasource", "zh", "*", "datasource"): "the label is Chinese in the Chinese set",
    ("template-job", "zh", "*", "job"): "the label is Chinese in the Chinese set",
    ("template-instance", "zh", "*", "instance"): "the label is Chinese in the Chinese set",
    ("target-rate-interval", "en", "shardwatch-fleet", "TTFT SLO attainment"): "of the whole chosen time, one number",
    ("target-rate-interval", "zh", "shardwatch-fleet", "TTFT SLO 达成率"): "of the whole chosen time, one number",
    ("target-rate-interval", "en", "shardwatch-fleet", "ITL SLO attainment"): "of the whole chosen time",
    ("target-rate-interval", "zh", "shardwatch-fleet", "ITL SLO 达成率"): "of the whole chosen time",
    **{
        (
            "template-instance",
            "*",
            declared.uid.value,
            "-",
        ): "by GPU: a thousand nodes would put 8,000 series into each panel"
        for declared in DASHBOARDS
        if declared.per_gpu
    },
    **{
        ("target-counter-agg", language, uid, title): "a level since the reset, or a counter younger than the range"
        for language, uid, title in (
            ("en", "shardwatch-fleet", "Nodes by severity"),
            ("zh", "shardwatch-fleet", "节点（最严重在前）"),
            ("en", "shardwatch-gpu-health", "GPU problems"),
            ("zh", "shardwatch-gpu-health", "各卡的问题"),
            ("en", "shardwatch-node", "XIDs in the selected time range"),
            ("zh", "shardwatch-node", "所选时间内的 XID"),
        )
    },
    ("target-instance", "*", "*", "job_model_engine:llm_time_to_first_token_seconds:quantile_rate5m"): (
        "recorded by model on all of its nodes"
    ),
    ("target-job", "*", "*", "ALERTS"): "an alert keeps the labels of its expression, and many have no job left",
    ("target-instance", "*", "*", "ALERTS"): "as for the job",
    **{
        ("target-instance", "*", "*", f"job_model_class_objective:llm_error_budget_burn:ratio_rate{window}"): (
            "an SLO covers a model on all of its nodes"
        )
        for window in ("5m", "1h")
    },
}
used: set[tuple[str, str, str, str]] = set()


def excused(rule, language, uid, what):
    for key in EXCLUSIONS:
        if all(own in ("*", given) for own, given in zip(key, (rule, language, uid, what))):
            used.add(key)
            return True
    return False


@functools.cache
def parsed(expr):
    for macro, duration in MACROS.items():
        expr = expr.replace(macro, duration)
    return promql_parser.parse(expr)


def nodes(node, above=()):
    """Yield every node of a query with the nodes that it stands in."""
    yield node, above
    for name in ("lhs", "rhs", "expr", "args", "vector_selector", "param"):
        child = getattr(node, name, None)
        for item in child if isinstance(child, list) else [child]:
            if (
                item is not None
                and type(item).__module__ == type(node).__module__
                and not isinstance(item, (str, float))
            ):
                yield from nodes(item, (*above, node))


def selectors(expr):
    for node, above in nodes(parsed(expr)):
        if isinstance(node, promql_parser.VectorSelector):
            yield node, above


def variable(data, name):
    return next((item for item in data["templating"]["list"] if item["name"] == name), None)


def queries(data):
    for panel in panels(data):
        for target in panel.get("targets", ()):
            yield panel, target["expr"]


def template_datasource(data):
    source = [item for item in data["templating"]["list"] if item["type"] == "datasource"]
    if len(source) != 1 or source[0]["name"] != "datasource" or source[0]["query"] != "prometheus":
        yield "-", f"one data source variable called datasource, not {source}"
    elif source[0]["label"] != "Data source":
        yield "datasource", "the label is not Data source"


def template(name):
    def rule(data):
        template_variable = variable(data, name)
        if (
            template_variable is None
            or template_variable["type"] != "query"
            or template_variable["datasource"]["uid"] != "${datasource}"
        ):
            yield "-", f"no query variable {name} on ${{datasource}}"
        elif (
            not template_variable["multi"]
            or not template_variable["includeAll"]
            or template_variable["allValue"] != ".+"
        ):
            yield "-", f"{name}: many values, and .+ for all"
        elif template_variable["label"].lower() != name:
            yield name, f"the label is {template_variable['label']}"

    return rule


def template_label_promql(data):
    for item in data["templating"]["list"]:
        if item["type"] == "query":
            metric, _, label = item["query"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
            if not item["query"].startswith("label_values(") or not label.isidentifier() or not metric:
                yield item["name"], item["query"]
            else:
                parsed(metric)


def template_reload(data):
    for item in data["templating"]["list"]:
        if item["type"] == "query" and item["refresh"] != 2:
            yield item["name"], "is not asked again when the time changes"


def panel_datasource(data):
    for panel in panels(data):
        if panel.get("targets") and panel["datasource"]["uid"] != "${datasource}":
            yield panel["title"], "does not use the variable"


def panel_title_description(data):
    for panel in panels(data):
        if not panel["title"].strip() or len(panel["description"].strip()) < 8:
            yield panel["title"], "title and description"


def panel_units(data):
    for panel in panels(data):
        if panel["type"] in JUDGED and panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
            yield panel["title"], panel["fieldConfig"]["defaults"].get("unit")


def panel_no_targets(data):
    for panel in panels(data):
        if panel["type"] in JUDGED and not panel["targets"]:
            yield panel["title"], "asks nothing"


def target_logql(data):
    for panel in panels(data):
        for target in panel.get("targets", ()):
            if target["datasource"]["type"] == "loki":
                yield panel["title"], "LogQL is not checked here"


def target_logql_auto(data):
    for panel, expr in queries(data):
        if "$__auto" in expr:
            yield panel["title"], "an interval of LogQL"


def target_promql(data):
    for panel, expr in queries(data):
        try:
            parsed(expr)
        except ValueError as error:
            yield panel["title"], f"{expr}: {error}"


def target_rate_interval(data):
    for panel, expr in queries(data):
        for node, above in nodes(parsed(expr)):
            inside = [item.func.name for item in above if isinstance(item, promql_parser.Call)]
            if (
                isinstance(node, promql_parser.MatrixSelector)
                and {"rate", "irate"} & set(inside)
                and node.range != RATE
            ):
                yield panel["title"], expr


def target_label(label):
    def rule(data):
        for panel, expr in queries(data):
            for selector, _ in selectors(expr):
                given = [(item.name, str(item.op), item.value) for item in selector.matchers.matchers]
                if (label, "MatchOp.Re", f"${label}") not in given:
                    yield selector.name, f"{panel['title']}: {selector.name} {given}"

    return rule


def target_counter_agg(data):
    for panel, expr in queries(data):
        for selector, above in selectors(expr):
            calls = [item.func.name for item in above if isinstance(item, promql_parser.Call)]
            if selector.name.endswith("_total") and not {"rate", "irate", "increase"} & set(calls):
                yield panel["title"], expr


def uneditable(data):
    if data["editable"] is not False:
        yield "-", "can be changed in the browser, and the next update loses it"


RULES = {
    "template-datasource": template_datasource,
    "template-job": template("job"),
    "template-instance": template("instance"),
    "template-label-promql": template_label_promql,
    "template-on-time-change-reload": template_reload,
    "panel-datasource": panel_datasource,
    "panel-title-description": panel_title_description,
    "panel-units": panel_units,
    "panel-no-targets": panel_no_targets,
    "target-logql": target_logql,
    "target-logql-auto": target_logql_auto,
    "target-promql": target_promql,
    "target-rate-interval": target_rate_interval,
    "target-job": target_label("job"),
    "target-instance": target_label("instance"),
    "target-counter-agg": target_counter_agg,
    "uneditable-dashboard": uneditable,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_dashboards_keep_the_rule(rule, language):
    violations = [
        (uid, what, why)
        for uid in UIDS
        for what, why in RULES[rule](dashboard(uid, language))
        if not excused(rule, language, uid, what)
    ]
    assert violations == [], "mend these, or give the reason in EXCLUSIONS"


def test_all_seventeen_rules_are_here():
    assert len(RULES) == 17


def test_no_exclusion_is_left_over():
    for rule, check in RULES.items():
        for language in LANGUAGES:
            for uid in UIDS:
                for what, _ in check(dashboard(uid, language)):
                    excused(rule, language, uid, what)
    assert used == set(EXCLUSIONS)
    assert all(len(why) > 10 for why in EXCLUSIONS.values())


def test_every_unit_of_the_layer_is_one_that_the_linter_knows():
    assert {*_UNITS.values(), *(item.value for item in NumberFormat)} <= UNITS


def spoilt(change):
    data = dashboard("shardwatch-fleet")
    change(data, next(panel for panel in panels(data) if panel["type"] == "timeseries"))
    return data


SPOILERS = {
    "template-datasource": lambda data, panel: data["templating"]["list"].pop(0),
    "template-job": lambda data, panel: variable(data, "job").update(allValue=".*"),
    "template-instance": lambda data, panel: variable(data, "instance").update(multi=False),
    "template-label-promql": lambda data, panel: variable(data, "gpu").update(query="gpu_up"),
    "template-on-time-change-reload": lambda data, panel: variable(data, "gpu").update(refresh=1),
    "panel-datasource": lambda data, panel: panel["datasource"].update(uid="abc"),
    "panel-title-description": lambda data, panel: panel.update(description=""),
    "panel-units": lambda data, panel: panel["fieldConfig"]["defaults"].update(unit="tokens"),
    "panel-no-targets": lambda data, panel: panel["targets"].clear(),
    "target-logql": lambda data, panel: panel["targets"][0]["datasource"].update(type="loki"),
    "target-logql-auto": lambda data, panel: panel["targets"][0].update(expr="rate(a[$__auto])"),
    "target-promql": lambda data, panel: panel["targets"][0].update(expr="sum by ("),
    "target-rate-interval": lambda data, panel: panel["targets"][0].update(expr="rate(a_total[5m])"),
    "target-job": lambda data, panel: panel["targets"][0].update(expr='gpu_up{job="$job"}'),
    "target-instance": lambda data, panel: panel["targets"][0].update(expr='gpu_up{job=~"$job"}'),
    "target-counter-agg": lambda data, panel: panel["targets"][0].update(expr="a_total"),
    "uneditable-dashboard": lambda data, panel: data.update(editable=True),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_finds_what_breaks_it(rule):
    language = "en"
    data = spoilt(SPOILERS[rule])
    assert [what for what, _ in RULES[rule](data) if not excused(rule, language, data["uid"], what)]
