"""Tables of cases for alerts (tests/support/rules/alerts/*.yaml) become promtool unit tests.

A case is a sentence, the series that Prometheus would have scraped, and how many alerts of the name must be firing
at which time.  ``GPU``, ``REPLICA`` and so on stand for the labels that every series of the kind carries.  What a
table may name is checked against the catalogue, so that a misspelt series cannot make an alert silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from alerts.registry import groups
from alerts.render import RULES, files
from alerts.rule import Alert, Group, Recording
from alerts.tuning import Tuning
from exporter.catalog import CATALOG
from exporter.catalog.spec import Metric, MetricKind
from exporter.model.text import Language

TABLES = Path(__file__).parent / "rules" / "alerts"
TARGET = {"job": "shardwatch", "instance": "n1:9853"}
_PLACE = {
    "replica_key": "vllm://10.0.0.1:29501",
    "engine": "vllm",
    "nodes": "2",
    "pipeline_rank": "",
    "tensor_rank": "",
}
_HEAD = {**_PLACE, "replica": "chat-a", "role": "head", "node_rank": "0"}
_WORKER = {**_PLACE, "replica": "vllm://10.0.0.1:29501", "role": "worker", "node_rank": "1"}
_N2 = {"job": "shardwatch", "instance": "n2:9853"}
_N3 = {"job": "shardwatch", "instance": "n3:9853"}
MACROS = {
    "TARGET": TARGET,
    "GPU": {**TARGET, "gpu": "3", "uuid": "GPU-3"},
    "CARD4": {**TARGET, "gpu": "4", "uuid": "GPU-4"},
    "REPLICA": {**TARGET, "replica": "chat-a", "engine": "vllm", "model": "llama"},
    "REPLICA_B": {**TARGET, "replica": "chat-b", "engine": "vllm", "model": "llama"},
    "REPLICA_N2": {
        "job": "shardwatch",
        "instance": "n2:9853",
        "replica": "chat-c",
        "engine": "vllm",
        "model": "llama",
    },
    "OWNS": {**TARGET, "gpu": "3", "uuid": "GPU-3", "replica": "chat-a", "engine": "vllm", "model": "llama"},
    "OWNS4": {**TARGET, "gpu": "4", "uuid": "GPU-4", "replica": "chat-a", "engine": "vllm", "model": "llama"},
    "GROUP": {**TARGET, "scope": "replica", "group": "chat-a"},
    "POOL": {**TARGET, "gateway": "edge", "kind": "haproxy", "pool": "llama"},
    "PORT": {**TARGET, "device": "mlx5_5", "port": "1"},
    "N2": _N2,
    "GPU_N2": {**_N2, "gpu": "3", "uuid": "GPU-b3"},
    "HEAD_PART": {**TARGET, "gpu": "3", "uuid": "GPU-3", **_HEAD},
    "WORKER_PART": {**_N2, "gpu": "3", "uuid": "GPU-b3", **_WORKER},
    "FORGED_PART": {**_N3, "gpu": "0", "uuid": "GPU-c0", **_HEAD},
    "MOVED_PART": {**_N3, "gpu": "3", "uuid": "GPU-c3", **_WORKER},
    "PROMETHEUS": {"job": "prometheus", "instance": "p:9090"},
}
FOREIGN = {
    "up": set(),
    "ALERTS": {"alertname", "alertstate", "severity", "component", "replica", "replica_key"},
    "process_start_time_seconds": set(),
    "scrape_samples_scraped": set(),
    "prometheus_rule_evaluation_failures_total": {"rule_group"},
    "prometheus_rule_group_last_duration_seconds": {"rule_group"},
    "prometheus_rule_group_interval_seconds": {"rule_group"},
    "prometheus_notifications_errors_total": {"alertmanager"},
    "prometheus_notifications_alertmanagers_discovered": set(),
    "prometheus_config_last_reload_successful": set(),
    "alertmanager_notifications_failed_total": {"integration"},
    "alertmanager_config_last_reload_successful": set(),
}
_SERIES = re.compile(r"([A-Za-z_]+)\{(.*)\}\Z")
_PAIR = re.compile(r'([a-z_]+)="([^"]*)"')


@dataclass(frozen=True)
class Case:
    """One row: ``expect`` maps a time to the number of firing alerts (of ``severity``, where the name has several)."""

    alert: str
    sentence: str
    series: Mapping[str, str]
    expect: Mapping[str, int]
    severity: str = ""
    labels: Mapping[str, str] = ()
    interval: str = "30s"

    @property
    def fires(self) -> bool:
        return any(self.expect.values())


def tables() -> list[Path]:
    return sorted(TABLES.glob("*.yaml"))


def cases(table: Path) -> Iterator[Case]:
    # Everything stays text: to YAML's own resolver 0x20, twenty-one zeros, is the number 32.
    for alert, rows in yaml.load(table.read_text(), Loader=yaml.BaseLoader).items():
        for row in rows:
            expect = {time: int(number) for time, number in row.pop("expect").items()}
            yield Case(alert=alert, sentence=row.pop("case"), expect=expect, **row)


def expanded(series: str) -> str:
    """Replace the macros in a selector by the labels that they stand for, and refuse what nobody exposes."""
    match = _SERIES.match(series)
    assert match, f"{series}: write NAME{{LABELS}}"
    name, inside = match.groups()
    labels: dict[str, str] = {}
    for part in re.split(r",\s*(?=[A-Za-z_0-9]+(?:=|,|\Z))", inside) if inside else []:
        if part in MACROS:
            labels |= MACROS[part]
        else:
            pair = _PAIR.fullmatch(part)
            assert pair, f'{series}: {part!r} is neither a macro nor label="value"'
            labels[pair[1]] = pair[2]
    wanted = declared(name)
    fits = set(labels) <= wanted if name == "ALERTS" else set(labels) == wanted  # each alert has labels of its own
    assert fits, f"{series}: has {sorted(labels)}, the page has {sorted(wanted)}"
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}"


def declared(name: str) -> set[str]:
    """Return the labels that the series has in Prometheus."""
    if name in FOREIGN:
        return FOREIGN[name] | set(TARGET)
    by_name: dict[str, Metric] = {metric.name: metric for metric in CATALOG}
    base = re.sub(r"_(bucket|count|sum)\Z", "", name)
    if name not in by_name and base in by_name and by_name[base].kind is MetricKind.HISTOGRAM:
        return {*by_name[base].all_labels, *TARGET, *(("le",) if name.endswith("_bucket") else ())}
    assert name in by_name, f"{name}: no such metric"
    return {*by_name[name].all_labels, *TARGET}


def promtool_files(table: Path, tuning: Tuning) -> Iterator[tuple[str, str]]:
    """Yield the files (name, content) that promtool needs: per alert its rules, per interval of its cases a test file.

    Only the rules that the alert depends on are evaluated, which costs promtool a fraction of the whole group.
    """
    every = groups(tuning)
    by_alert: dict[str, list[Case]] = {}
    for case in cases(table):
        by_alert.setdefault(case.alert, []).append(case)
    for alert, rows in by_alert.items():
        rules = f"{alert}.rules.yaml"
        yield rules, files(rules_of(alert, every), tuning, Language.ENGLISH)[RULES]
        for interval in sorted({case.interval for case in rows}):
            chosen = [case for case in rows if case.interval == interval]
            yield f"{alert}.{interval}.test.yaml", _promtool_file(chosen, interval, rules)


def rules_of(alert: str, every: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return the groups reduced to the alerts of this name and the recordings that they and their texts read."""
    records: dict[str, list[Recording]] = {}
    for group in every:
        for recording in group.recordings():
            records.setdefault(recording.name, []).append(recording)
    kept: list[Alert | Recording] = [item for group in every for item in group.alerts() if item.name == alert]
    for rule in kept:  # grows while it is walked
        said = str(rule.description) if isinstance(rule, Alert) else ""
        read = {*rule.expr.sources, *(name for name in records if name in said)}
        kept += [item for source in sorted(read) for item in records.get(source, ()) if item not in kept]
    reduced = (replace(group, rules=tuple(rule for rule in group.rules if rule in kept)) for group in every)
    return tuple(group for group in reduced if group.rules)


def _promtool_file(rows: list[Case], interval: str, rules: str) -> str:
    tests = []
    for case in rows:
        matchers = {"alertname": case.alert, "alertstate": "firing", **dict(case.labels)}
        if case.severity:
            matchers["severity"] = case.severity
        selector = ",".join(f'{key}="{value}"' for key, value in matchers.items())
        tests.append(
            {
                "name": f"{case.alert}: {case.sentence}",
                "interval": case.interval,
                "input_series": [
                    {"series": expanded(name), "values": values} for name, values in case.series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": f"count(ALERTS{{{selector}}}) or vector(0)",
                        "eval_time": time,
                        "exp_samples": [{"labels": "{}", "value": number}],
                    }
                    for time, number in case.expect.items()
                ],
            }
        )
    return yaml.safe_dump({"rule_files": [rules], "evaluation_interval": interval, "tests": tests}, sort_keys=False)


def every_alert() -> list[Alert]:
    return [alert for group in groups(Tuning()) for alert in group.alerts()]
