"""What the dashboards ask of a Prometheus over a thousand nodes, and how many curves they draw: counted from the queries."""

from __future__ import annotations

import math

import promql_parser
import pytest

from dashboards.definitions import DASHBOARDS
from dashboards.panels.panel import PanelKind
from dashboards.thresholds import TOP_N
from tests.support.dashboard_queries import dashboard, panels
from tests.unit.dashboards.test_lint import nodes, parsed

NODES, CARDS, REPLICAS, MODELS = 1000, 8, 2, 10
POINTS = 1000  # as many as Grafana asks of a wide panel
MAX_SAMPLES = 25_000_000  # half of what Prometheus loads for one query before it refuses
MAX_SERIES = 150  # beyond, nobody finds one
# Strips of states, which no largest value would choose from: on them one looks at the nodes that one has chosen.
STRIPS = {"Exporters up", "Sources up", "Hung calls"}
PER_NODE = {"gpu": CARDS, "replica": REPLICAS}
OTHERS = {  # other labels, and the largest number of values per GPU or replica
    "le": 23, "objective": 4, "window": 2, "reason": 5, "sensor": 2, "xid": 16, "error": 2, "type": 4, "pipe": 6, "domain": 3,
    "link": 18, "cause": 2, "quantile": 3, "outcome": 4, "signal": 10, "group": REPLICAS,
    "source": 20, "currency": 1,
}  # fmt: skip


def size(labels, fixed=(), instances=NODES):
    """Return how many series have these labels."""
    free = set(labels) - set(fixed)
    many = math.prod(OTHERS[item] for item in free if item in OTHERS)
    if "instance" not in free:
        return (
            many * math.prod(PER_NODE[item] for item in free if item in PER_NODE) * (MODELS if "model" in free else 1)
        )
    each = CARDS if "gpu" in free or "uuid" in free else REPLICAS if "replica" in free else 1
    return many * each * instances


def curves(dashboard):
    for panel in dashboard.panels:
        if panel.kind in {
            PanelKind.TIME_SERIES,
            PanelKind.STATE_TIMELINE,
            PanelKind.STATUS_HISTORY,
            PanelKind.BAR_GAUGE,
        }:
            for series in panel.series:
                yield panel, series


def kept(expr):
    """Return how many series a query keeps at most, where it says so."""
    root = parsed(str(expr))
    if isinstance(root, promql_parser.AggregateExpr) and str(root.op) in {"topk", "bottomk"}:
        return root.param.val
    return math.inf


@pytest.mark.parametrize("uid", ["shardwatch-fleet", "shardwatch-efficiency", "shardwatch-self"])
def test_a_dashboard_of_all_nodes_draws_few_curves_over_a_thousand(uid):
    shown = next(shown_dashboard for shown_dashboard in DASHBOARDS if shown_dashboard.uid.value == uid)
    many = {
        panel.title.en for panel, item in curves(shown)
        if min(size(item.expr.labels), kept(item.expr)) > MAX_SERIES and panel.title.en not in STRIPS
    }  # fmt: skip
    assert many == set()
    assert sum(kept(item.expr) == TOP_N for _, item in curves(shown)) >= 3


@pytest.mark.parametrize("uid", ["shardwatch-node", "shardwatch-gpu-health"])
def test_a_dashboard_of_gpus_draws_the_curves_of_one_node_until_more_are_chosen(uid):
    shown = next(shown_dashboard for shown_dashboard in DASHBOARDS if shown_dashboard.uid.value == uid)
    assert shown.per_gpu
    many = {
        panel.title.en: size(item.expr.labels, instances=1) for panel, item in curves(shown)
        if size(item.expr.labels, instances=1) > MAX_SERIES
    }  # fmt: skip
    assert many == {}


def labels_read(expr, known):
    """Yield, of each selector of a query, the labels of its family and those that it fixes."""
    for node, _ in nodes(parsed(expr)):
        if isinstance(node, promql_parser.VectorSelector):
            fixed = {item.name for item in node.matchers.matchers if str(item.op) == "MatchOp.Equal"}
            yield known[node.name], fixed


def test_no_curve_of_the_fleet_makes_prometheus_load_more_than_half_of_what_it_may():
    from tests.unit.dashboards.test_queries import exposed  # noqa: PLC0415 - what families there are

    known = exposed()
    heavy = {}
    for panel in panels(dashboard("shardwatch-fleet")):
        for target in panel.get("targets", ()):
            if target["range"]:
                points = min(POINTS, panel.get("maxDataPoints") or POINTS)
                samples = sum(size(*each) for each in labels_read(target["expr"], known)) * points
                if samples > MAX_SAMPLES:
                    heavy[panel["title"], target["refId"]] = samples
    assert heavy == {}


def test_what_the_count_would_refuse():
    buckets = {"job", "instance", "replica", "engine", "model", "le"}
    assert size(buckets) * POINTS == 46_000_000 > MAX_SAMPLES
    assert size({"instance", "gpu"}) == 8000 > MAX_SERIES > size({"instance", "gpu"}, instances=1)
