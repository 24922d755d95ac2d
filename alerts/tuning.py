"""The thresholds file that a user edits: thresholds, model classes, links; refused whole, with every problem.

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

    rules:
      GpuPcieReplays: {enabled: false, reason: riser of rack 7 is known, replaced in May}
      GpuHot: {max_severity: info, for: 30m, reason: water cooling reacts slowly}

What is not named keeps its default; a class that is named has only the objectives that are written.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from alerts import slo
from alerts.slo import CLASSES, KINDS, Latency, ModelClass, engines_with_bound
from alerts.thresholds import DEFAULTS, Threshold, Thresholds
from alerts.units import named, quantity, span
from exporter.catalog import CATALOG
from exporter.catalog.spec import Metric, MetricKind, Unit
from exporter.config import fields, loader
from exporter.config.parsers import Invalid
from exporter.config.reader import INVALID, Item, Json, ListOf, Report, Scalar, Table
from exporter.config.section import Key, Section, SectionResult
from exporter.model.finding import Severity

PROJECT_URL = "https://github.com/shardwatch/shardwatch"  # pyproject.toml has the same, which a test compares
MAX_CLASSES = 20
MAX_RULES = 200
TUNABLE = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTuning:
    """How one alert differs from the shipped one, and why; the generated rules keep the reason as a comment.

    ``max_severity``: tiers above it are lowered to it, or dropped where it has a tier already.
    """

    reason: str
    enabled: bool = True
    max_severity: Severity | None = None
    for_: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Everything about the rules that users can change.  ``runbook`` and ``dashboards`` are the prefixes of links."""

    thresholds: Thresholds = DEFAULTS
    classes: tuple[ModelClass, ...] = CLASSES
    rules: Mapping[str, RuleTuning] = field(default_factory=dict)
    job: str = "shardwatch"
    dashboards: str = "http://localhost:3000"
    runbook: str = f"{PROJECT_URL}/blob/main/alerts/runbook.md"


def load(path: str) -> Tuning:
    """Read a file; raises SettingsError with every problem."""
    found: Tuning = loader.load(SECTION, path)
    return found


def read(text: str, origin: str = "thresholds") -> Tuning:
    """Read the YAML text; raises SettingsError with every problem."""
    found: Tuning = loader.parse(SECTION, text, origin)
    return found


def _bare(text: str) -> str:
    """Return text that is used inside expressions and links as it is."""
    if not text.strip() or not text.isprintable():
        raise Invalid("expected printable text")
    if "{{" in text or any(character in text for character in " \"'"):
        raise Invalid("must not contain spaces, quotes or templates")
    return text


_BARE = fields.written_as("text", _bare)


def address(text: str) -> str:
    """Return the URL of a link; raises Invalid for what leads nowhere or breaks a template."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(item in text for item in " \"'{#"):
        raise Invalid("must be a URL such as https://grafana.example.org")
    return text


_LINK = fields.written_as("text", address)


# ------------------------------------------------------------------ thresholds


def _metric(text: str) -> Metric:
    found = next((metric for metric in CATALOG if metric.name == text), None)
    if found is None:
        raise Invalid("no such metric; exporter/METRICS.md lists them")
    return found


def _quantity(unit: Unit, *, per_second: bool = False) -> Scalar:
    what = named(unit, per_second=per_second)
    parse = functools.partial(quantity, unit=unit, per_second=per_second)
    return fields.written_as(what, parse, what, {"type": ["number", "string"]})


def _threshold(default: Threshold) -> Section:
    value = _quantity(default.unit, per_second=default.per_second)
    gate = fields.unsupported("this threshold is a gate and has one value; write warning")

    def same_metric(text: str) -> Metric:
        if (metric := _metric(text)) is not default.metric:
            judged = default.metric.name if default.metric is not None else "no metric of the catalogue"
            raise Invalid(f"this threshold judges {judged}")
        return metric

    def finish(found: SectionResult) -> None:
        for tier, why in misfits(build(found.values)):
            found.refuse(tier, why)

    def build(values: dict[str, Any]) -> Threshold:
        given = {"for_" if name == "for" else name: value for name, value in values.items()}
        return replace(default, **given)

    keys = {
        "warning": Key(reader=value),
        "critical": Key(reader=gate if default.critical is None else value, hidden=default.critical is None),
        "for": Key(reader=fields.written_as("a duration", span)),
        "metric": Key(reader=fields.written_as("the name of a metric", same_metric)),
    }
    return Section(keys=keys, build=build, finish=finish)


_THRESHOLDS = Section(
    keys={name: Key(reader=_threshold(default)) for name, default in DEFAULTS.by_name().items()},
    build=lambda values: replace(DEFAULTS, **values),
)


# ------------------------------------------------------------------ classes of models


def _histogram(text: str) -> Metric:
    metric = _metric(text)
    if metric.kind is not MetricKind.HISTOGRAM:
        raise Invalid(f"{metric.name} is not a histogram: an SLO counts requests in buckets")
    return metric


def _pattern(text: str) -> str:
    if not text:
        raise Invalid("expected a pattern over model names, such as chat-.*")
    return text


def _word(what: str) -> Callable[[str], None]:
    def check(name: str) -> None:
        if not name.isidentifier():
            raise Invalid(f"expected {what}")

    return check


class _Targets:
    """Seconds by engine; one value stands for all engines that have it as a bound."""

    type = "duration, or durations by engine"
    _one = _quantity(Unit.SECONDS)
    _by_engine = Table(
        name=_word("the name of an engine"),
        value=_one,
        what="a mapping of engines to durations",
        harmless="[a-z_]{1,20}",
    )

    def read(self, item: Item, report: Report) -> Any:
        if isinstance(item.node.value, Mapping):
            return self._by_engine.read(item, report)
        return self._one.read(item, report)

    def schema(self) -> Json:
        return {"anyOf": [self._one.schema(), self._by_engine.schema()]}


def _latency(values: dict[str, Any]) -> Any:
    if INVALID in values.values():
        return INVALID
    metric, targets = values["metric"], values["target"]
    if not isinstance(targets, Mapping):
        targets = dict.fromkeys(engines_with_bound(metric, targets), targets)
    return Latency(metric=metric, objective=values["objective"], targets=targets)


_LATENCY = Section(
    keys={
        "objective": Key(reader=_quantity(Unit.RATIO), required=True),
        "metric": Key(reader=fields.written_as("the name of a metric", _histogram), required=True),
        "target": Key(reader=_Targets(), required=True),
    },
    build=_latency,
)
_CLASS = Section(
    keys={
        "models": Key(
            reader=ListOf(
                item=fields.written_as("a pattern", _pattern), what="patterns over model names, such as chat-.*"
            ),
            required=True,
        ),
        "availability": Key(reader=_quantity(Unit.RATIO)),
        **{kind: Key(reader=_LATENCY) for kind in KINDS},
    },
    build=lambda values: INVALID if INVALID in values.values() else values,
)
_CLASSES = Table(
    name=_word("a word as the name of a class"),
    value=_CLASS,
    what="a mapping of class names to classes",
    harmless="[A-Za-z_]{1,30}",
    max_items=MAX_CLASSES,
)


def _merged(classes: Mapping[str, dict[str, Any]]) -> tuple[ModelClass, ...]:
    """Return the user's classes in the order of the file, then the default classes that it does not name."""
    named = tuple(
        ModelClass(
            name=name,
            models=values["models"],
            availability=values.get("availability"),
            latencies={kind: values[kind] for kind in KINDS if kind in values},
        )
        for name, values in classes.items()
    )
    return (*named, *(default for default in CLASSES if default.name not in classes))


# ------------------------------------------------------------------ single rules


def _reason(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise Invalid("expected one line that says why")
    return text.strip()


def _alert_name(name: str) -> None:
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]{2,60}", name):
        raise Invalid("expected the name of an alert, such as GpuHot")


def _rule_tuning(values: dict[str, Any]) -> Any:
    if INVALID in values.values():
        return INVALID
    severity = values.get("max_severity")
    return RuleTuning(
        reason=values["reason"],
        enabled=values.get("enabled", True),
        max_severity=None if severity is None else Severity(severity),
        for_=values.get("for", ""),
    )


_RULE = Section(
    keys={
        "reason": Key(reader=fields.written_as("text", _reason), required=True),
        "enabled": Key(reader=fields.boolean()),
        "max_severity": Key(reader=fields.choice(*(severity.value for severity in TUNABLE))),
        "for": Key(reader=fields.written_as("a duration", span)),
    },
    build=_rule_tuning,
)
_RULES = Table(
    name=_alert_name,
    value=_RULE,
    what="a mapping of alert names to changes",
    harmless="[A-Za-z]{1,60}",
    max_items=MAX_RULES,
)


# ------------------------------------------------------------------ the file


def _finish(found: SectionResult) -> None:
    for path, why in slo.problems(_merged(found.known("classes", {}) or {})):
        found.refuse(path, why)


def _tuning(values: dict[str, Any]) -> Tuning:
    default = Tuning()
    links = values.get("links", {})
    return Tuning(
        thresholds=values.get("thresholds", default.thresholds),
        classes=_merged(values.get("classes", {})),
        rules=values.get("rules", default.rules),
        job=values.get("job", default.job),
        dashboards=links.get("dashboards", default.dashboards).rstrip("/"),
        runbook=links.get("runbook", default.runbook),
    )


SECTION = Section(
    keys={
        "job": Key(reader=_BARE),
        "links": Key(
            reader=Section(keys={"dashboards": Key(reader=_LINK), "runbook": Key(reader=_LINK)}, build=dict)
        ),
        "thresholds": Key(reader=_THRESHOLDS),
        "classes": Key(reader=_CLASSES),
        "rules": Key(reader=_RULES),
    },
    build=_tuning,
    finish=_finish,
)


def misfits(threshold: Threshold) -> Iterator[tuple[str, str]]:
    """Yield the tiers that could never be crossed, or are in the wrong order, and why."""
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
