"""Every query of every dashboard, run by a real Prometheus over virtual nodes: well, in trouble, idle, dead."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import pytest

from dashboards.definitions import DASHBOARDS, problems
from dashboards.no_data_text import Requires
from dashboards.panels.panel import Cell, PanelKind
from tests.support import servers
from tests.support.dashboard_days import prometheus_over
from tests.support.dashboard_queries import filled
from tests.support.tools import tool
from tests.support.virtual_node import UNIX_START

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ALWAYS = {Requires.RULES}
NODE = ALWAYS | {Requires.ENGINE, Requires.NVLINK, Requires.GATEWAY, Requires.PRICE, Requires.SUPPORT}
BUSY = NODE | {Requires.TRAFFIC}
JOBS = {
    "healthy": ("healthy", "full", BUSY | {Requires.FULL, Requires.REPLICAS, Requires.GROUPS}),
    "brake": ("brake", "common", BUSY | {Requires.GROUPS, Requires.REPLICAS, Requires.STRAGGLER}),
    "skew": ("skew", "common", BUSY | {Requires.RANKS}),
    "lost": ("hang", "common", NODE | {Requires.XID}),
    "idle": ("idle", "common", NODE | {Requires.GROUPS}),
    "engines": ("engines", "full", ALWAYS | {Requires.ENGINE, Requires.TRAFFIC, Requires.FULL, Requires.KIND}),
}
NEVER_HERE = {
    Requires.TROUBLE,
    Requires.PICKER,
    Requires.FEATURE,
    Requires.PRESSURE,
    Requires.FANS,
    Requires.MIG,
    Requires.ABSENT,
    Requires.IMAGE,
    Requires.TLS,
    Requires.ACCESS,
    Requires.RAY,
    Requires.BATCH,
    Requires.NEWER,
    Requires.OLDER,
    Requires.C2C,
    Requires.SXID,
    Requires.READ,
    Requires.STORE,
    Requires.OWNER,  # owners are there, versions that processes loaded are not
    Requires.NIC,
    Requires.MULTI_NODE,
    Requires.PUSH,
    Requires.MODEL_PRICE,
}  # no job provides these
# Labels of which an empty value is a fact; Prometheus drops them.
MAY_BE_EMPTY = {"rank", "reason", "workload", "slurm_job", "unit", "user", "tensor", "pipeline"}
SUBJECT_TABLES = {"What is wrong"}  # a row is a node, a GPU or a replica, and leaves the other columns empty


@dataclass
class Answers:
    """What Prometheus said: by job, and per (dashboard, panel, place of the series)."""

    of: dict = field(default_factory=dict)
    dead: dict = field(default_factory=dict)
    absent_card: list = field(default_factory=list)
    marks: dict = field(default_factory=dict)


def every_series():
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for place, series in enumerate(panel.series):
                yield (dashboard.uid.value, panel.title.en, place), panel, series


def ask(prometheus, panel, series, job):
    expr = filled(str(series.expr), job=job)
    instant = (
        panel.kind in {PanelKind.STAT, PanelKind.BAR_GAUGE, PanelKind.GAUGE, PanelKind.TABLE}
        and series.cell is not Cell.TREND
    )
    return prometheus.now(expr) if instant else prometheus.lately(expr)


@pytest.fixture(scope="module")
def answers():
    for name in ("prometheus", "promtool"):
        tool(name)
    result = Answers()
    targets = {job: (scenario, series) for job, (scenario, series, _) in JOBS.items()}
    with servers.scratch() as folder, prometheus_over(folder, targets, dead="idle") as (alive, dead):
        for job in JOBS:
            result.of[job] = {key: ask(alive, panel, query, job) for key, panel, query in every_series()}
            notes = {note.name.en: str(note.expr) for dashboard in DASHBOARDS for note in dashboard.annotations}
            result.marks[job] = {name: alive.lately(filled(expr, job=job)) for name, expr in notes.items()}
        result.absent_card = alive.now('gpu_up{job="lost"} == 0')
        result.dead = {key: ask(dead, panel, query, "idle") for key, panel, query in every_series()}
        for (uid, title, _), panel, _ in every_series():
            if panel.exporter_down is not None:
                result.dead[uid, title, "down"] = dead.now(filled(str(panel.exporter_down), job="idle"))
    return result


@pytest.mark.parametrize("job", JOBS)
def test_a_panel_has_data_wherever_what_it_needs_is_there(answers, job):
    provided = JOBS[job][2]
    empty = [
        key for key, panel, series in every_series()
        if {*panel.requires, *series.requires} <= provided and not answers.of[job][key]
    ]  # fmt: skip
    assert not empty, "\n".join(map(str, empty))


def test_what_has_data_nowhere_says_what_trouble_it_waits_for(answers):
    mute = [
        key for key, panel, series in every_series()
        if not any(answers.of[job][key] for job in JOBS) and not {*panel.requires, *series.requires} & NEVER_HERE
    ]  # fmt: skip
    assert mute == []


@pytest.mark.parametrize("job", JOBS)
def test_every_value_is_a_number_and_not_infinite(answers, job):
    odd = []
    for key, panel, series in every_series():
        ratio_of_nothing = Requires.TRAFFIC in {*panel.requires, *series.requires}
        for _labels, values in answers.of[job][key]:
            numbers = [float(value) for value in values]
            if any(math.isinf(value) for value in numbers) or (
                not ratio_of_nothing and any(map(math.isnan, numbers))
            ):
                odd.append((key, numbers))
    assert odd == []


@pytest.mark.parametrize("job", JOBS)
def test_every_series_carries_the_labels_that_its_legend_names(answers, job):
    wrong = []
    for key, panel, series in every_series():
        named = set(re.findall(r"\{\{(\w+)\}\}", series.legend.en)) | set(panel.rows)
        subjects = set(problems.SUBJECT) if panel.title.en in SUBJECT_TABLES else set()
        for labels, _ in answers.of[job][key]:
            if not named - MAY_BE_EMPTY - subjects <= set(labels) or (subjects and not subjects & set(labels)):
                wrong.append((key, named, labels))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("job", JOBS)
def test_no_panel_draws_one_series_twice(answers, job):
    """Two series with one legend cannot be told apart."""
    twice = []
    for key, panel, series in every_series():
        named = re.findall(r"\{\{(\w+)\}\}", series.legend.en)
        if panel.kind in {PanelKind.TABLE, PanelKind.HEATMAP}:
            continue
        legends = [tuple(labels.get(name, "") for name in named) for labels, _ in answers.of[job][key]]
        if len(set(legends)) != len(legends):
            twice.append((key, legends))
    assert twice == []


def test_marks_are_read_from_what_daemons_really_show(answers):
    for job in JOBS:
        (started,) = answers.marks[job]["Shardwatch starts"]
        labels, values = started
        assert labels["version"] and float(values[-1]) / 1000 == UNIX_START, job
        assert answers.marks[job]["Configuration reloads"]
        assert not answers.marks[job]["Engine restarts"] and not answers.marks[job]["Gateway restarts"], job
    lost = {labels["xid"] for labels, _ in answers.marks["lost"]["XID events"]}
    assert "79" in lost and not answers.marks["healthy"]["XID events"]


def test_a_lost_gpu_shows_on_the_dashboards(answers):
    assert len(answers.absent_card) == 1
    lost = answers.of["lost"]["shardwatch-node", "GPUs lost", 0]
    assert [values for _, values in lost] == [["1"]]
    states = answers.of["lost"]["shardwatch-node", "GPUs side by side", 0]
    assert sorted(values for _, values in states) == [["0"]] + [["1"]] * 7
    frozen = answers.of["lost"]["shardwatch-fleet", "Replicas frozen", 0]
    assert [values for _, values in frozen] == [["1"]]


PROBLEMS_OF = {
    "healthy": set(),
    "engines": set(),
    "lost": {"GPU lost: XID 79, fallen off the bus", "frozen: no progress, no tokens"},
    "brake": {"the group waits for this GPU: power brake"},
}


@pytest.mark.parametrize("job", PROBLEMS_OF)
def test_the_first_dashboard_says_what_is_wrong_and_nothing_where_all_is_well(answers, job):
    words = {mapping.value: mapping.text.en for mapping in problems.PROBLEMS}
    found = answers.of[job]["shardwatch-now", "What is wrong", 0]
    assert {words[float(value)] for _, (value,) in found} == PROBLEMS_OF[job]


def test_a_replica_that_stopped_has_no_latency_and_still_its_share_of_a_gateway(answers):
    def shown(place):
        return {labels["replica"] for labels, _ in answers.of["lost"]["shardwatch-now", "Who is affected", place]}

    assert shown(0) == {"chat-a", "chat-b"}
    assert shown(3) == shown(4) == {"chat-a"}
    assert shown(6) == {"chat-a", "chat-b"}


def test_the_gpu_that_others_wait_for_is_named_with_its_cause(answers):
    (shown,) = answers.of["brake"]["shardwatch-fleet", "Stragglers", 0]
    labels, values = shown
    assert labels["gpu"] == "1" and labels["cause"] == "power_brake" and values == ["1"]
    held = answers.of["brake"]["shardwatch-node", "Throttle timeline", 0]
    assert sorted(labels["gpu"] for labels, values in held if values[-1] == "1") == ["1"]


def test_a_down_exporter_is_shown_by_every_single_figure(answers):
    """``exporter down`` must not look like ``no traffic``; only what is not of that exporter may have data."""
    silent = []
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            if panel.exporter_down is not None and panel.title.en not in {"Exporters down", "Alerts firing"}:
                key = dashboard.uid.value, panel.title.en
                figures = [answers.dead[(*key, place)] for place, _ in enumerate(panel.series)]
                down = [values for _, values in answers.dead[(*key, "down")]]
                if any(figures) or down != [["0"]]:
                    silent.append((key, figures, down))
    assert silent == []
    counted = answers.dead["shardwatch-fleet", "Exporters down", 0]
    assert [values for _, values in counted] == [["1"]]


def test_a_dead_exporters_figures_do_not_stand_as_if_it_lived(answers):
    stale = []
    for key, panel, series in every_series():
        if panel.kind in {PanelKind.BAR_GAUGE, PanelKind.TABLE} and "shardwatch_build_info" not in str(series.expr):
            of_prometheus = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}
            alive = series.cell is not Cell.TREND and not series.expr.sources & of_prometheus
            if alive and "$__range" not in str(series.expr) and "rate" not in str(series.expr) and answers.dead[key]:
                stale.append(key)
    assert stale == []
