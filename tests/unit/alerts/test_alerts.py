"""Rules refuse what could not work, thresholds files are refused whole, and what is committed is what the code makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest
import yaml

from alerts import panel_ids
from alerts.__main__ import BAD_INPUT, DIFFERS, GENERATED, OK, main
from alerts.recordings import WINDOW
from alerts.registry import full_series_metrics, groups
from alerts.render import RESOURCE, RULES, files, runbook_url
from alerts.rule import Alert, Component, Group, Recording, RuleError, Severity
from alerts.slo import BOUNDS, CLASSES
from alerts.text import Language, Text
from alerts.thresholds import DEFAULTS
from alerts.tuning import Tuning, load, misfits, read
from exporter.catalog import CATALOG
from exporter.catalog import metrics as m
from exporter.config.settings import Settings
from exporter.errors import SettingsError
from exporter.promql import increase, rate, select, sum_by, vector
from tests.component.alerts.test_alert_rules import needs_promtool, promtool
from tests.support import alert_cases

ROOT = Path(__file__).parents[3]
FOUND = groups(Tuning())
ALERTS = [alert for group in FOUND for alert in group.alerts()]
RECORDINGS = [recording for group in FOUND for recording in group.recordings()]
EVERY = [*ALERTS, *RECORDINGS]


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
    }
    return Alert(**given | changed)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"name": "card_lost"}, "CamelCase"),
        ({"severity": Severity.CRITICAL}, "only what users feel"),
        ({"expr": select(m.GPU_ENERGY_JOULES_TOTAL)}, "raw counter"),
        ({"for_": "30s"}, "one failed scrape"),
        ({"for_": "5 minutes"}, "no duration"),
        ({"keep_firing_for": "10s"}, "one failed scrape"),
        ({"labels": {"severity": "page"}}, "cannot be set"),
        ({"summary": Text("card {{ $labels.replica }}", "卡 {{ $labels.replica }}")}, "names replica"),
        ({"summary": Text("card {{ $labels.gpu }}", "卡 {{ $labels.uuid }}")}, "other labels in one language"),
        ({"summary": Text("card", "")}, "empty in zh"),
        ({"summary": Text("{{ $value | humanize }}", "{{ $value | humanize }}")}, "stands still"),
        ({"summary": Text("x" * 161, "x")}, "one line of at most 160"),
        ({"summary": Text("card {{ $labels.gpu", "卡 {{ $labels.gpu")}, "does not close"),
        ({"description": Text("{{ $value }}", "{{ $value }}")}, "humanize"),
        ({"description": Text('{{ query "up" }}', '{{ query "up" }}')}, "allowed are"),
        ({"description": Text("{{ with $labels.replica }}{{ . }}{{ end }}", "{{ . }}")}, "allowed are"),
        (
            {"description": Text("{{ with $labels.replica }}{{ . }}", "卡"), "optional_labels": frozenset({"replica"})},
            "begins a part about replica",
        ),
        ({"description": Text("{{ $externalLabels.x }}", "{{ $externalLabels.x }}")}, "allowed are"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_alert_that_could_not_work_is_refused_while_it_is_built(changed, why):
    assert good().name == "CardLost"
    with pytest.raises(RuleError, match=why):
        good(**changed)


def test_a_recording_that_lies_about_its_level_is_refused():
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


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: "-".join(getattr(rule, "identity", (rule.name,))))
def test_every_selector_of_every_rule_names_what_somebody_exposes(rule):
    recorded = {recording.name: recording.known.labels for recording in RECORDINGS}
    for node in selectors(promql_parser.parse(str(rule.expr))):
        labels = recorded.get(node.name) or alert_cases.declared(node.name)
        assert {matcher.name for matcher in node.matchers.matchers} <= set(labels)
        for matcher in node.matchers.matchers:
            if matcher.name == "le":
                bounds = {bound for by_metric in BOUNDS.values() for values in by_metric.values() for bound in values}
                assert float(matcher.value) in bounds


def selectors(tree):
    found = []
    promql_parser.walk(
        tree, lambda node: found.append(node) if isinstance(node, promql_parser.VectorSelector) else None
    )
    assert found or "vector(" in str(tree), tree
    return found


def exposed(metric, label):
    """Give the values that a label has on the recorded pages."""
    pattern = re.compile(rf"^{metric}(?:_bucket|_count|_sum)?\{{(?:[^}}]*,)?{label}=\"([^\"]*)\"", re.MULTILINE)
    return {
        value for page in (ROOT / "tests" / "golden").rglob("*.prom") for value in pattern.findall(page.read_text())
    }


# Values that no recorded page happens to hold, each with where it comes from.
NOT_RECORDED = {
    ("shardwatch_source_up", "source", "driver"): "the daemon's name of the driver, in every live page",
    ("shardwatch_source_down_info", "source", "driver"): "the same",
    ("shardwatch_source_down_info", "reason", "released"): "exporter.driver.daemon.supervisor, after SIGUSR1",
    ("gateway_pool_requests_total", "pool", ""): "a gateway that counts only as a whole: nginx's stub_status",
}


def test_label_values_that_rules_ask_for_are_values_that_the_page_has():
    asked = set()
    for rule in EVERY:
        for node in selectors(promql_parser.parse(str(rule.expr))):
            if ":" not in node.name and node.name not in alert_cases.FOREIGN:
                for matcher in node.matchers.matchers:
                    if str(matcher.op) == "MatchOp.Equal" and matcher.name != "le":
                        asked.add((re.sub(r"_(bucket|count)\Z", "", node.name), matcher.name, matcher.value))
    assert len(asked) > 8
    missing = {one for one in asked - set(NOT_RECORDED) if one[2] not in exposed(one[0], one[1])}
    assert not missing


def test_what_alerts_read_by_window_is_what_window_missing_watches():
    watched = next(alert for alert in ALERTS if alert.name == "WindowMissing")
    read = {
        (node.name, matcher.value)
        for alert in ALERTS
        for node in selectors(promql_parser.parse(str(alert.expr)))
        for matcher in node.matchers.matchers
        if matcher.name == "window"
    }
    assert len(read) == 2
    assert {window for _, window in read} == {WINDOW}
    assert {name for name, _ in read} <= watched.expr.sources
    assert WINDOW in {window.label for window in Settings().windows}, "what ships must not fire it"


def test_alerts_that_users_need_by_default_read_the_common_set_of_series():
    full = full_series_metrics()
    lacking = {
        alert.name
        for alert in ALERTS
        if alert.expr.sources & full and alert.labels.get("objective") != "duration"  # as DurationSloBurn
    }
    assert lacking <= {"GpuNvlinkErrors", "GpuPcieReplays"}
    assert all(alert.full_series for alert in ALERTS if alert.name in lacking | {"DurationSloBurn"})


def test_recordings_stand_before_the_alerts_that_read_them():
    for group in FOUND:
        own = {recording.name for recording in group.recordings()}
        seen = set()
        for rule in group.rules:
            if isinstance(rule, Recording):
                seen.add(rule.name)
            else:
                assert rule.expr.sources & own <= seen, rule.name


def test_what_pages_is_a_symptom_and_every_cause_is_a_ticket():
    critical = {alert.name for alert in ALERTS if alert.severity is Severity.CRITICAL}
    assert {"GpuLost", "EngineDown", "EngineFrozen", "EngineNoTokens", "AvailabilitySloBurn"} <= critical
    assert not [name for name in critical if name.startswith(("GpuXid", "GpuEcc", "GpuHot", "GpuMemory", "Group"))]
    assert {alert.name for alert in ALERTS if alert.severity is Severity.NONE} == {"Watchdog"}


def test_every_text_is_written_in_chinese_too():
    for alert in ALERTS:
        for text in (alert.summary, alert.description):
            assert re.search(r"[\u4e00-\u9fff]", text.zh), alert.name
            assert not re.search(r"[\u4e00-\u9fff]", text.en), alert.name


def test_the_whole_published_table_is_answered():
    answered = {threshold.published for threshold in DEFAULTS.by_name().values() if threshold.published}
    for row in ("utilisation below 40", "standard deviation", "memory above 85", "P99 above 1", "hit rate below 40",
                "errors above 1", "highest minus lowest", "temperature above 85"):  # fmt: skip
        assert [text for text in answered if row in text], row
    for name, threshold in DEFAULTS.by_name().items():
        assert bool(threshold.published) == bool(threshold.corrected), name
        assert threshold.reason.endswith("."), name
        assert not list(misfits(threshold)), name


def test_the_panels_that_alerts_link_to_have_distinct_ids_and_uids():
    panels = [value for value in vars(panel_ids).values() if isinstance(value, panel_ids.PanelId)]
    assert len({(panel.dashboard, panel.number) for panel in panels}) == len(panels)
    assert all(len(board.value) <= 40 for board in panel_ids.DashboardUid)


GOOD = """
job: gpu-nodes
links: {dashboards: "https://grafana.example.org/", runbook: "https://wiki.example.org/runbook.md"}
thresholds:
  temperature_margin: {warning: 12 celsius, critical: 5 °C, for: 10m}
  error_ratio: {warning: 2%}
  replica_data_age: {warning: 2m, critical: 5m, metric: llm_data_age_seconds}
  preemption_rate: {warning: 0.5 per second}
classes:
  interactive:
    models: ["chat-.*"]
    availability: 99.9%
    first_token: {objective: 99%, metric: llm_time_to_first_token_seconds, target: {vllm: 500ms, sglang: 0.4}}
"""


def test_a_thresholds_file_changes_what_it_names_and_nothing_else():
    tuning = read(GOOD)
    limits = tuning.thresholds
    assert (limits.temperature_margin.warning, limits.temperature_margin.for_) == (12, "10m")
    assert (limits.error_ratio.warning, limits.error_ratio.critical) == (0.02, 0.05)
    assert limits.replica_data_age.warning == 120
    assert limits.gpu_memory_used == DEFAULTS.gpu_memory_used
    assert [one.name for one in tuning.classes] == ["interactive", "batch", "standard"]
    text = files(groups(tuning), tuning, Language.ENGLISH)[RULES]
    assert "gpu_temperature_margin_celsius[2m]) < 12" in text
    assert 'le="0.5",engine=~"vllm",model=~"chat-.*"' in text
    assert 'model=~".*",model!~"chat-.*"' in text  # standard keeps away from what interactive has
    assert 'up{job="gpu-nodes"}' in text
    assert "https://grafana.example.org/d/shardwatch-node?" in text
    assert "https://wiki.example.org/runbook.md#gpulost" in text
    assert "https://wiki.example.org/runbook.zh.md#gpulost" in files(groups(tuning), tuning, Language.CHINESE)[RULES]


CLASS = (
    "classes: {interactive: {models: [a], availability: 99%, first_token: {objective: 99%, metric: M, target: T}}}"
)
TTFT = "llm_time_to_first_token_seconds"


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        ("thresholds: {temperature_margin: {warning: 85%}}", "thresholds.temperature_margin.warning", "wrong unit"),
        ("thresholds: {error_ratio: {warning: 2 celsius}}", "thresholds.error_ratio.warning", "wrong unit"),
        ("thresholds: {preemption_rate: {warning: 3 s}}", "thresholds.preemption_rate.warning", "wrong unit"),
        ("thresholds: {gpu_data_age: {warning: 3 parsecs}}", "thresholds.gpu_data_age.warning", "unknown unit"),
        ("thresholds: {gpu_data_age: {warning: many}}", "thresholds.gpu_data_age.warning", "is not a number"),
        ("thresholds: {utilization_stddev: {critical: 50%}}", "thresholds.utilization_stddev.critical", "cannot exceed 0.5"),
        ("thresholds: {utilization_stddev: {critical: 0.7}}", "thresholds.utilization_stddev.critical", "cannot exceed 0.5"),
        ("thresholds: {replica_imbalance: {warning: 0.5}}", "thresholds.replica_imbalance.warning", "never be crossed"),
        ("thresholds: {idle_with_queue: {critical: 0}}", "thresholds.idle_with_queue.critical", "cannot fall below 0"),
        ("thresholds: {error_ratio: {warning: 9%}}", "thresholds.error_ratio.warning", "beyond the critical"),
        ("thresholds: {temperature_margin: {critical: 20}}", "thresholds.temperature_margin.warning", "beyond the critical"),
        ("thresholds: {temperture: {warning: 80}}", "thresholds.temperture", "did you mean temperature?"),
        ("thresholds: {temperature: {warn: 80}}", "thresholds.temperature.warn", "did you mean warning?"),
        ("thresholds: {busy_utilization: {critical: 0.8}}", "thresholds.busy_utilization.critical", "has one value"),
        ("thresholds: {temperature: {for: 10s}}", "thresholds.temperature.for", "must be between 1m"),
        ("thresholds: {temperature: {for: soon}}", "thresholds.temperature.for", "not a duration"),
        ("thresholds: {gpu_data_age: {metric: gpu_data_age}}", "thresholds.gpu_data_age.metric", "no such metric"),
        ("thresholds: {gpu_data_age: {metric: gpu_up}}", "thresholds.gpu_data_age.metric", "judges gpu_data_age_seconds"),
        ("thresholds: [1]", "thresholds", "expected a mapping"),
        ("limits: {}", "?", "expected one of: job, links"),
        ('job: "a b"', "job", "must not contain spaces"),
        ("classes: {interactive: {availability: 99%}}", "classes.interactive.models", "is missing"),
        ('classes: {interactive: {models: ["("], availability: 99%}}', "classes.interactive.models[0]", "no regular expression"),
        ("classes: {interactive: {models: [a], availability: 90%}}", "classes.interactive.availability", "could never fire"),
        ("classes: {interactive: {models: [a], availability: 100%}}", "classes.interactive.availability", "infinite budget"),
        (CLASS.replace("M", TTFT).replace("T}", "2s}"), "classes.interactive.first_token.target.vllm", "write 1s or 2.5s"),
        (CLASS.replace("M", TTFT).replace("T}", "{sglang: 500ms}}"), "classes.interactive.first_token.target.sglang", "0.4s or 0.6s"),
        (CLASS.replace("M", TTFT).replace("T}", "{tgi: 1s}}"), "classes.interactive.first_token.target.tgi", "tgi has no"),
        (CLASS.replace("M", TTFT).replace("T}", "{llama_cpp: 1s}}"), "classes.interactive.first_token.target.llama_cpp", "unknown engine"),
        (CLASS.replace("M", "llm_ttft").replace("T}", "1s}"), "classes.interactive.first_token.metric", "no such metric"),
        (CLASS.replace("M", "llm_up").replace("T}", "1s}"), "classes.interactive.first_token.metric", "not a histogram"),
        ("classes: {interactive: {models: [a], token: {objective: 99%}}}", "classes.interactive.token.target", "is missing"),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_a_bad_thresholds_file_is_refused_with_the_place_and_the_reason(text, path, why):
    with pytest.raises(SettingsError) as refused:
        read(text)
    assert [problem for problem in refused.value.problems if problem.path == path and why in problem.message], str(
        refused.value
    )


def test_every_problem_of_a_file_is_told_at_once():
    with pytest.raises(SettingsError) as refused:
        read("thresholds: {temperature: {warning: 1 s}, nope: {}, gpu_data_age: {for: 1s}}\njob: 'a b'\nx: 1")
    assert len(refused.value.problems) == 5


def test_hostile_yaml_is_refused():
    with pytest.raises(SettingsError):
        read("thresholds: !!python/object/apply:os.system [id]")
    with pytest.raises(SettingsError):
        read("- " * 60 + "a")


def test_what_is_committed_is_what_the_code_makes():
    assert main(["--check"]) == OK


def test_a_file_that_differs_or_is_missing_or_is_left_over_is_named(tmp_path, capsys):
    assert main(["--output", str(tmp_path), "--language", "en"]) == OK
    assert main(["--output", str(tmp_path), "--language", "en", "--check"]) == OK
    assert not (tmp_path / "zh").exists()
    (tmp_path / "en" / RULES).write_text("groups: []\n")
    (tmp_path / "en" / RESOURCE).unlink()
    (tmp_path / "en" / "old.yaml").write_text("")
    assert main(["--output", str(tmp_path), "--language", "en", "--check"]) == DIFFERS
    said = capsys.readouterr().err
    assert "rules.yaml differs" in said
    assert "prometheusrule.yaml is missing" in said
    assert "old.yaml is made by nothing" in said


def test_a_refused_thresholds_file_writes_nothing(tmp_path, capsys):
    bad = tmp_path / "mine.yaml"
    bad.write_text("thresholds: {nope: {warning: 1}}\n")
    assert main(["--output", str(tmp_path / "out"), "--thresholds", str(bad)]) == BAD_INPUT
    assert "thresholds.?" in capsys.readouterr().err
    assert main(["--output", str(tmp_path / "out"), "--thresholds", str(tmp_path / "none.yaml")]) == BAD_INPUT
    assert not (tmp_path / "out").exists()


def test_the_runbooks_address_can_be_given_where_rules_are_made(tmp_path, capsys):
    mine = tmp_path / "mine.yaml"
    mine.write_text('links: {runbook: "https://old.example/runbook.md"}')
    address = "https://wiki.example.org/gpu/runbook.md"
    assert main(["--output", str(tmp_path), "--thresholds", str(mine), "--runbook-url", address]) == OK
    english, chinese = ((tmp_path / language.value / RULES).read_text() for language in Language)
    assert f"runbook_url: {address}#gpulost" in english
    assert "runbook_url: https://wiki.example.org/gpu/runbook.zh.md#gpulost" in chinese
    for bad in ("alerts/runbook.md", "https://a b/", "ftp://a/b"):
        with pytest.raises(SystemExit):
            main(["--output", str(tmp_path), "--runbook-url", bad])
    assert "must be an address" in capsys.readouterr().err


def test_generating_does_not_depend_on_the_process():
    script = (
        "from alerts.__main__ import generated; from alerts.tuning import Tuning; from alerts.text import Language\n"
    )
    script += "import hashlib; print(hashlib.sha256(repr(sorted(generated(Tuning(), list(Language)).items())).encode()).hexdigest())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1


def test_the_kubernetes_resource_holds_the_same_rules():
    for language in Language:
        rules = yaml.safe_load((GENERATED / language.value / RULES).read_text())
        resource = yaml.safe_load((GENERATED / language.value / RESOURCE).read_text())
        assert resource["spec"] == rules
        assert (resource["apiVersion"], resource["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")


def test_nothing_newer_than_the_oldest_prometheus_is_used():
    for rule in EVERY:
        for word in (
            "info(",
            "limit_ratio",
            "limitk",
            "histogram_fraction",
            "double_exponential",
            "fill_",
            "sort_by_label",
        ):
            assert word not in str(rule.expr), rule.name


@needs_promtool
def test_annotations_read_as_written(tmp_path):
    (tmp_path / RULES).write_text(
        files([group for group in FOUND if group.name == "shardwatch-gpu-health"], Tuning(), Language.ENGLISH)[RULES]
    )
    labels = {**alert_cases.MACROS["CARD"], "xid": "79", "severity": "warning", "component": "gpu"}
    case = {
        "interval": "30s",
        "input_series": [
            {"series": alert_cases.expanded('gpu_xid_last_timestamp_seconds{CARD,xid="79",source="nvml+kernel_log"}'), "values": "0x20"}
        ],
        "alert_rule_test": [
            {
                "eval_time": "3m",
                "alertname": "GpuXidResetNode",
                "exp_alerts": [
                    {
                        "exp_labels": labels,
                        "exp_annotations": {
                            "summary": "XID 79 on card 3 of n1:9853: the node must be restarted",
                            "description": "XID 79 was seen 3m 0s ago on card 3 (GPU-3). Drain the node and restart it; cold if it comes back.",
                            "runbook_url": "alerts/runbook.md#gpuxidresetnode",
                            "dashboard_url": "http://localhost:3000/d/shardwatch-card-health?from=now-3h&to=now&viewPanel=601&var-job=shardwatch&var-instance=n1%3A9853&var-gpu=3",
                        },
                    }
                ],
            }
        ],
    }  # fmt: skip
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": [RULES], "evaluation_interval": "30s", "tests": [case]})
    )
    promtool("test", "rules", str(tmp_path / "tests.yaml"))


def judged(folder, wanted, series, queries, minutes=3, language=Language.ENGLISH):
    """Evaluate the group of an alert over series, and ask promtool whether queries give what is said."""
    (folder / RULES).write_text(files([group for group in FOUND if wanted in group.name], Tuning(), language)[RULES])
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        **queries(f"{minutes}m"),
    }
    (folder / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": [RULES], "evaluation_interval": "1m", "tests": [case]})
    )
    promtool("test", "rules", str(folder / "tests.yaml"))


def counted(*expected):
    return lambda at: {
        "promql_expr_test": [
            {"expr": f"count({query})", "eval_time": at, "exp_samples": [{"labels": "{}", "value": number}]}
            for query, number in expected
        ]
    }


@needs_promtool
@pytest.mark.parametrize("owned", [True, False], ids=["with a replica", "without"])
@pytest.mark.parametrize("language", list(Language))
def test_a_lost_cards_text_names_its_replica_where_it_has_one(owned, language, tmp_path):
    alert = next(alert for alert in ALERTS if alert.name == "GpuLost")
    labels = {**alert_cases.MACROS["CARD"], "severity": "critical", "component": "gpu"}
    series = {alert_cases.expanded("gpu_up{CARD}"): "0x20"}
    text = alert.description.in_(language).replace("{{ $labels.gpu }}", "3").replace("{{ $labels.uuid }}", "GPU-3")
    part = re.search(r"\{\{ with \$labels\.replica \}\}(.*)\{\{ end \}\}", text)
    if owned:
        series[alert_cases.expanded('gpu_replica_info{OWNS,rank="0"}')] = "1x20"
        labels |= alert_cases.MACROS["OWNS"]
    text = text.replace(part[0], part[1].replace("{{ . }}", "chat-a") if owned else "")
    assert ("chat-a" in text, "{{" in text) == (owned, False)
    annotations = {
        "summary": alert.summary.in_(language).replace("{{ $labels.gpu }}", "3").replace("{{ $labels.instance }}", "n1:9853"),
        "description": text,
        "runbook_url": runbook_url(alert, Tuning(), language),
        "dashboard_url": "http://localhost:3000/d/shardwatch-fleet?from=now-3h&to=now&viewPanel=101&var-job=shardwatch&var-instance=n1%3A9853&var-gpu=3",
    }  # fmt: skip
    told = [{"exp_labels": labels, "exp_annotations": annotations}]
    judged(
        tmp_path, "gpu-health", series, language=language,
        queries=lambda at: {"alert_rule_test": [{"eval_time": at, "alertname": "GpuLost", "exp_alerts": told}]},
    )  # fmt: skip


@needs_promtool
def test_two_clusters_whose_nodes_have_the_same_names_are_not_mixed_up(tmp_path):
    series = {}
    for cluster, driver in (("east", "580.95.05"), ("west", "570.172.08")):
        node = f'job="shardwatch",instance="n1:9853",cluster="{cluster}"'
        series[f'llm_engine_info{{{node},replica="a",engine="vllm",model="llama",version="0.32.0"}}'] = "1x60"
        series[f'gpu_driver_info{{{node},driver_version="{driver}",nvml_version="13",cuda_version="13.0"}}'] = "1x60"
        replica = f'{node},replica="a",engine="vllm",model="llama"'
        series[f"llm_time_to_first_token_seconds_count{{{replica}}}"] = "0+60x60"
        series[f'llm_time_to_first_token_seconds_bucket{{{replica},le="2.5"}}'] = "0+60x60"
    judged(
        tmp_path, "fleet", series, counted(('ALERTS{alertname="DriverVersionsDiffer",alertstate="firing"}', 1)), 45
    )
    seen = 'job_model_class_objective:llm_slo_events:rate5m{objective="first_token"} == 2'
    judged(tmp_path, "slo", series, counted((seen, 1)), 45)


@needs_promtool
def test_alerts_keep_the_labels_that_the_operators_targets_carry(tmp_path):
    card = 'job="shardwatch",instance="n1:9853",team="search",gpu="3",uuid="GPU-3"'
    series = {
        f'gpu_xid_last_timestamp_seconds{{{card},xid="79",source="nvml+kernel_log"}}': "0x20",
        f'gpu_xid_last_timestamp_seconds{{{card},xid="999",source="nvml"}}': "0x20",
        f"gpu_up{{{card}}}": "0x20",
        f'gpu_replica_info{{{card},replica="a",engine="vllm",model="llama",rank="0"}}': "1x20",
    }
    names = ("GpuXidResetNode", "GpuXidInspect", "GpuLost")
    judged(
        tmp_path,
        "gpu-health",
        series,
        counted(*((f'ALERTS{{alertname="{name}",team="search"}}', 1) for name in names)),
    )


def test_default_classes_promise_only_what_can_be_counted():
    assert [one.name for one in CLASSES if one.models] == ["standard"]
    assert vector(1).labels == frozenset()
    names = {metric.name for metric in CATALOG}
    assert all(latency.metric.name in names for one in CLASSES for latency in one.latencies.values())


def test_load_says_which_file(tmp_path):
    place = tmp_path / "mine.yaml"
    place.write_text(GOOD)
    assert load(str(place)).job == "gpu-nodes"
    place.write_text("x: 1")
    with pytest.raises(SettingsError, match="mine.yaml"):
        load(str(place))


def test_increase_is_not_trusted_with_first_samples():
    """Events whose series begin with their first event are judged by level or time: increase() never sees a first sample."""
    for alert in ALERTS:
        if alert.name.startswith(("GpuXid", "GpuNvswitch")) or alert.name == "GpuEccUncorrectable":
            assert "increase(" not in str(alert.expr)
    assert "increase(" in str(increase(select(m.LLM_PREEMPTIONS_TOTAL), "5m"))
