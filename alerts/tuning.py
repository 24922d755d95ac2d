"""The one YAML that a user edits: thresholds, classes of models, links; refused whole, with every reason.

    job: shardwatch                      # the name of the scrape job
    links: {dashboards: https://grafana.example.org, runbook: https://wiki.example.org/runbook.md}
    thresholds:
      temperature_margin: {warning: 12 celsius, critical: 5 celsius, for: 10m}
      error_ratio: {warning: 2%}
    classes:
      interactive:
        models: ["chat-.*"]
        availability: 99.5%
        first_token: {objective: 99%, metric: llm_time_to_first_token_seconds, target: {vllm: 1s, sglang: 1s}}

What is not named keeps its default; of a class that is named, only what is written is promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from alerts import slo
from alerts.slo import CLASSES, KINDS, LIKE_VLLM, Latency, ModelClass
from alerts.thresholds import DEFAULTS, Threshold, Thresholds
from alerts.units import Mistake, quantity, span
from alerts.yaml_reader import Reading, read_whole
from exporter.catalog import CATALOG
from exporter.catalog.spec import Metric, MetricKind, Unit
from exporter.config.document import Node

MAX_CLASSES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Everything about the rules that users may change.  ``runbook`` and ``dashboards`` are what links begin with."""

    thresholds: Thresholds = DEFAULTS
    classes: tuple[ModelClass, ...] = CLASSES
    job: str = "shardwatch"
    dashboards: str = "http://localhost:3000"
    runbook: str = "alerts/runbook.md"


def load(path: str) -> Tuning:
    """Read a file; raises SettingsError with every problem, OSError when it cannot be read."""
    with open(path, encoding="utf-8") as file:
        return read(file.read(), path)


def read(text: str, origin: str = "thresholds") -> Tuning:
    """Read the YAML text; raises SettingsError with every problem at once."""
    return read_whole(text, origin, _tuning)


def _tuning(reading: Reading, root: Node) -> Tuning:
    top = reading.keys(root, "", ("job", "links", "thresholds", "classes"))
    links = reading.keys(top.get("links"), "links", ("dashboards", "runbook"))
    default = Tuning()
    return Tuning(
        thresholds=_thresholds(reading, top.get("thresholds")),
        classes=_classes(reading, top.get("classes")),
        job=_bare(reading, "job", top.get("job"), default.job),
        dashboards=_bare(reading, "links.dashboards", links.get("dashboards"), default.dashboards).rstrip("/"),
        runbook=_bare(reading, "links.runbook", links.get("runbook"), default.runbook),
    )


def _bare(reading: Reading, path: str, node: Node | None, default: str) -> str:
    """Read text that stands inside of expressions and links as it is."""
    if node is None:
        return default
    if not isinstance(node.value, str) or not node.value.strip() or not node.value.isprintable():
        reading.wrong(path, "must be text", node)
        return default
    if "{{" in node.value or any(character in node.value for character in " \"'"):
        reading.wrong(path, "must hold no spaces, quotes or templates", node)
    return node.value


# ------------------------------------------------------------------ thresholds


def _thresholds(reading: Reading, node: Node | None) -> Thresholds:
    known = DEFAULTS.by_name()
    entries = reading.keys(node, "thresholds", tuple(known))
    changed = {name: _threshold(reading, f"thresholds.{name}", child, known[name]) for name, child in entries.items()}
    return replace(DEFAULTS, **changed)


def _threshold(reading: Reading, path: str, node: Node, default: Threshold) -> Threshold:
    entries = reading.keys(node, path, ("warning", "critical", "for", "metric"))
    if "metric" in entries:
        _same_metric(reading, f"{path}.metric", entries["metric"], default)
    if "critical" in entries and default.critical is None:
        reading.wrong(f"{path}.critical", "is a gate and has one value; write warning", entries["critical"])
    given = {
        tier: _quantity(reading, f"{path}.{tier}", entries[tier], default.unit, per_second=default.per_second)
        for tier in ("warning", "critical")
        if tier in entries
    }
    found = {tier: value for tier, value in given.items() if value is not None}
    for_ = _span(reading, f"{path}.for", entries["for"]) if "for" in entries else None
    result = replace(default, for_=for_ or default.for_, **found)  # type: ignore[arg-type]
    for tier, why in misfits(result):
        reading.wrong(f"{path}.{tier}", why, entries.get(tier, node))
    return result


def _same_metric(reading: Reading, path: str, node: Node, default: Threshold) -> None:
    metric = _metric(reading, path, node)
    if metric is not None and metric is not default.metric:
        judged = default.metric.name if default.metric is not None else "nothing of the catalogue"
        reading.wrong(path, f"this threshold judges {judged}", node)


def _metric(reading: Reading, path: str, node: Node) -> Metric | None:
    found = next((metric for metric in CATALOG if metric.name == node.text), None)
    if found is None:
        reading.wrong(path, "no such metric; exporter/METRICS.md lists them", node)
    return found


def _quantity(reading: Reading, path: str, node: Node, unit: Unit, *, per_second: bool = False) -> float | None:
    try:
        return quantity(node.text, unit, per_second=per_second)
    except Mistake as mistake:
        reading.wrong(path, str(mistake), node)
        return None


def _span(reading: Reading, path: str, node: Node) -> str | None:
    try:
        return span(node.text)
    except Mistake as mistake:
        reading.wrong(path, str(mistake), node)
        return None


# ------------------------------------------------------------------ classes of models


def _classes(reading: Reading, node: Node | None) -> tuple[ModelClass, ...]:
    if node is None:
        return CLASSES
    if not isinstance(node.value, Mapping) or len(node.value) > MAX_CLASSES:
        reading.wrong("classes", f"must be a mapping of at most {MAX_CLASSES} classes by name", node)
        return CLASSES
    named = {name: _model_class(reading, name, child) for name, child in node.value.items()}
    # The user's classes come first, in the order of the file; default classes that are not named stay behind.
    merged = (*named.values(), *(one for one in CLASSES if one.name not in named))
    for path, why in slo.problems(merged):
        reading.wrong(path, why)
    return merged


def _model_class(reading: Reading, name: str, node: Node) -> ModelClass:
    path = f"classes.{name}"
    if not name.isidentifier():
        reading.wrong(path, "a class is named by a word", node)
    entries = reading.keys(node, path, ("models", "availability", *KINDS))
    share = entries.get("availability")
    latencies = {
        kind: latency
        for kind in KINDS
        if kind in entries and (latency := _latency(reading, f"{path}.{kind}", entries[kind])) is not None
    }
    return ModelClass(
        name=name,
        models=_models(reading, f"{path}.models", entries.get("models")),
        availability=_quantity(reading, f"{path}.availability", share, Unit.RATIO) if share is not None else None,
        latencies=latencies,
    )


def _models(reading: Reading, path: str, node: Node | None) -> tuple[str, ...]:
    found = node.value if node is not None else None
    if not isinstance(found, tuple) or not all(isinstance(one.value, str) and one.value for one in found):
        reading.wrong(path, 'must be a list of patterns over model names, such as ["chat-.*"]', node)
        return ()
    return tuple(one.text for one in found)


def _latency(reading: Reading, path: str, node: Node) -> Latency | None:
    entries = reading.keys(node, path, ("objective", "metric", "target"))
    for key in ("objective", "metric", "target"):
        if key not in entries:
            reading.wrong(f"{path}.{key}", "is missing", node)
    if len(entries) < 3:
        return None
    metric = _metric(reading, f"{path}.metric", entries["metric"])
    if metric is not None and metric.kind is not MetricKind.HISTOGRAM:
        reading.wrong(f"{path}.metric", f"{metric.name} is no histogram: shares need buckets", entries["metric"])
        metric = None
    objective = _quantity(reading, f"{path}.objective", entries["objective"], Unit.RATIO)
    targets = dict(_targets(reading, f"{path}.target", entries["target"]))
    if metric is None or objective is None:
        return None
    return Latency(metric=metric, objective=objective, targets=targets)


def _targets(reading: Reading, path: str, node: Node) -> Iterator[tuple[str, float]]:
    """Yield seconds by engine; one value stands for vllm and those with the same bounds."""
    by_engine: Mapping[str, Node] = node.value if isinstance(node.value, Mapping) else dict.fromkeys(LIKE_VLLM, node)
    for engine, child in by_engine.items():
        value = _quantity(reading, f"{path}.{engine}", child, Unit.SECONDS)
        if value is not None:
            yield engine, value


def misfits(threshold: Threshold) -> Iterator[tuple[str, str]]:
    """Give the tiers that could never be crossed, or stand in the wrong order, and why."""
    low, high = threshold.value_range
    for tier, value in threshold.tiers():
        reachable = low <= value < high if threshold.above else low < value <= high
        if not reachable:
            side = "exceed" if threshold.above else "fall below"
            end = high if threshold.above else low
            yield tier, f"{value:g} could never be crossed: the figure cannot {side} {end:g}"
    if threshold.critical is not None:
        beyond = threshold.warning > threshold.critical if threshold.above else threshold.warning < threshold.critical
        if beyond:
            yield "warning", f"{threshold.warning:g} lies beyond the critical value {threshold.critical:g}"
