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

from alerts import objectives
from alerts.objectives import CLASSES, KINDS, Latency, ModelClass
from alerts.quantities import Mistake, quantity, span
from alerts.thresholds import DEFAULTS, Threshold, Thresholds
from exporter.catalog import CATALOG
from exporter.catalog.spec import Kind, Metric, Unit
from exporter.config.document import Node, read_document
from exporter.errors import Problem, SettingsError

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
    root, problems = read_document(text)
    reader = _Reader(problems)
    tuning = reader.tuning(root)
    if reader.problems:
        raise SettingsError(reader.problems, origin)
    return tuning


class _Reader:
    """Walks the tree and collects what is wrong; its values count only when nothing was."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = list(problems)

    def wrong(self, path: str, message: str, node: Node | None = None) -> None:
        self.problems.append(Problem(path, message, node.line if node is not None else None))

    def keys(self, node: Node, path: str, known: tuple[str, ...]) -> Mapping[str, Node]:
        """Give a mapping's children; unknown keys and other kinds of nodes are wrong."""
        if not isinstance(node.value, Mapping):
            self.wrong(path, f"must be a mapping with {', '.join(known)}", node)
            return {}
        for key, child in node.value.items():
            if key not in known:
                self.wrong(f"{path}.{key}" if path else key, f"unknown; known: {', '.join(known)}", child)
        return {key: child for key, child in node.value.items() if key in known}

    def tuning(self, root: Node) -> Tuning:
        top = self.keys(root, "", ("job", "links", "thresholds", "classes"))
        links = self.keys(top["links"], "links", ("dashboards", "runbook")) if "links" in top else {}
        return Tuning(
            thresholds=self.thresholds(top.get("thresholds")),
            classes=self.classes(top.get("classes")),
            job=self.text(top.get("job"), "job", Tuning().job),
            dashboards=self.text(links.get("dashboards"), "links.dashboards", Tuning().dashboards).rstrip("/"),
            runbook=self.text(links.get("runbook"), "links.runbook", Tuning().runbook),
        )

    def text(self, node: Node | None, path: str, default: str) -> str:
        if node is None:
            return default
        if not isinstance(node.value, str) or not node.value.strip() or not node.value.isprintable():
            self.wrong(path, "must be text", node)
            return default
        if "{{" in node.value or any(character in node.value for character in " \"'"):
            self.wrong(path, "must hold no spaces, quotes or templates", node)
        return node.value

    def thresholds(self, node: Node | None) -> Thresholds:
        if node is None:
            return DEFAULTS
        known = DEFAULTS.named()
        entries = self.keys(node, "thresholds", tuple(known))
        changed = {name: self.threshold(f"thresholds.{name}", child, known[name]) for name, child in entries.items()}
        return replace(DEFAULTS, **changed)

    def threshold(self, path: str, node: Node, default: Threshold) -> Threshold:
        entries = self.keys(node, path, ("warning", "critical", "for", "metric"))
        if "metric" in entries:
            self.same_metric(f"{path}.metric", entries["metric"], default)
        if "critical" in entries and default.critical is None:
            self.wrong(f"{path}.critical", "is a gate and has one value; write warning", entries["critical"])
        given = {
            tier: self.quantity(f"{path}.{tier}", entries[tier], default.unit, per_second=default.per_second)
            for tier in ("warning", "critical")
            if tier in entries
        }
        found = {tier: value for tier, value in given.items() if value is not None}
        lasting = self.span(f"{path}.for", entries["for"]) if "for" in entries else None
        result = replace(default, lasting=lasting or default.lasting, **found)  # type: ignore[arg-type]
        for tier, why in misfits(result):
            self.wrong(f"{path}.{tier}", why, entries.get(tier, node))
        return result

    def same_metric(self, path: str, node: Node, default: Threshold) -> None:
        metric = self.metric(path, node)
        if metric is not None and metric is not default.metric:
            judged = default.metric.name if default.metric is not None else "nothing of the catalogue"
            self.wrong(path, f"this threshold judges {judged}", node)

    def metric(self, path: str, node: Node) -> Metric | None:
        found = next((metric for metric in CATALOG if metric.name == node.text), None)
        if found is None:
            self.wrong(path, "no such metric; exporter/METRICS.md lists them", node)
        return found

    def quantity(self, path: str, node: Node, unit: Unit, *, per_second: bool = False) -> float | None:
        try:
            return quantity(node.text, unit, per_second=per_second)
        except Mistake as mistake:
            self.wrong(path, str(mistake), node)
            return None

    def span(self, path: str, node: Node) -> str | None:
        try:
            return span(node.text)
        except Mistake as mistake:
            self.wrong(path, str(mistake), node)
            return None

    def classes(self, node: Node | None) -> tuple[ModelClass, ...]:
        if node is None:
            return CLASSES
        if not isinstance(node.value, Mapping) or len(node.value) > MAX_CLASSES:
            self.wrong("classes", f"must be a mapping of at most {MAX_CLASSES} classes by name", node)
            return CLASSES
        named = {name: self.model_class(name, child) for name, child in node.value.items()}
        # The user's classes come first, in the order of the file; default classes that are not named stay behind.
        merged = (*named.values(), *(one for one in CLASSES if one.name not in named))
        for path, why in objectives.problems(merged):
            self.wrong(path, why)
        return merged

    def model_class(self, name: str, node: Node) -> ModelClass:
        path = f"classes.{name}"
        if not name.isidentifier():
            self.wrong(path, "a class is named by a word", node)
        entries = self.keys(node, path, ("models", "availability", *KINDS))
        share = entries.get("availability")
        latencies = {
            kind: latency
            for kind in KINDS
            if kind in entries and (latency := self.latency(f"{path}.{kind}", entries[kind])) is not None
        }
        return ModelClass(
            name=name,
            models=self.models(f"{path}.models", entries.get("models")),
            availability=self.quantity(f"{path}.availability", share, Unit.RATIO) if share is not None else None,
            latencies=latencies,
        )

    def models(self, path: str, node: Node | None) -> tuple[str, ...]:
        found = node.value if node is not None else None
        if not isinstance(found, tuple) or not all(isinstance(one.value, str) and one.value for one in found):
            self.wrong(path, 'must be a list of patterns over model names, such as ["chat-.*"]', node)
            return ()
        return tuple(one.text for one in found)

    def latency(self, path: str, node: Node) -> Latency | None:
        entries = self.keys(node, path, ("objective", "metric", "target"))
        for key in ("objective", "metric", "target"):
            if key not in entries:
                self.wrong(f"{path}.{key}", "is missing", node)
        if len(entries) < 3:
            return None
        metric = self.metric(f"{path}.metric", entries["metric"])
        if metric is not None and metric.kind is not Kind.HISTOGRAM:
            self.wrong(f"{path}.metric", f"{metric.name} is no histogram: shares need buckets", entries["metric"])
            metric = None
        objective = self.quantity(f"{path}.objective", entries["objective"], Unit.RATIO)
        targets = dict(self.targets(f"{path}.target", entries["target"]))
        if metric is None or objective is None:
            return None
        return Latency(metric=metric, objective=objective, targets=targets)

    def targets(self, path: str, node: Node) -> Iterator[tuple[str, float]]:
        """Yield seconds by engine; one value stands for vllm and those with the same bounds."""
        by_engine: Mapping[str, Node] = (
            node.value
            if isinstance(node.value, Mapping)
            else dict.fromkeys(("vllm", "ray_serve", "tensorrt_llm"), node)
        )
        for engine, child in by_engine.items():
            value = self.quantity(f"{path}.{engine}", child, Unit.SECONDS)
            if value is not None:
                yield engine, value


def misfits(threshold: Threshold) -> Iterator[tuple[str, str]]:
    """Give the tiers that could never be crossed, or stand in the wrong order, and why."""
    low, high = threshold.reach
    for tier, value in threshold.steps():
        reachable = low <= value < high if threshold.above else low < value <= high
        if not reachable:
            side = "exceed" if threshold.above else "fall below"
            end = high if threshold.above else low
            yield tier, f"{value:g} could never be crossed: the figure cannot {side} {end:g}"
    if threshold.critical is not None:
        beyond = threshold.warning > threshold.critical if threshold.above else threshold.warning < threshold.critical
        if beyond:
            yield "warning", f"{threshold.warning:g} lies beyond the critical value {threshold.critical:g}"
