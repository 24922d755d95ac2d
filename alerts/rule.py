"""What a rule is: an alert, a recording, a group of them; each refuses while it is built what would fail at night.

An annotation may name only labels that its expression's result carries; a recording's name says its level, and the
level must be exactly its labels; what pages must be a symptom.  ``RuleError`` says which rule and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from alerts.panel_ids import PanelId
from alerts.text import Language, Text
from exporter.errors import ShardwatchError
from exporter.promql import Expr, ExternalMetric


class RuleError(ShardwatchError):
    """A rule contradicts itself; raised while it is built, so it cannot be written out."""


class Severity(str, Enum):
    """What an alert asks for: wake somebody, a ticket, a note, nothing (the watchdog)."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    NONE = "none"


class Component(str, Enum):
    """Whose fault it would be; the route to a team."""

    GPU = "gpu"
    ENGINE = "engine"
    REQUEST = "request"
    GATEWAY = "gateway"
    EXPORTER = "exporter"
    MONITORING = "monitoring"


_NAME = re.compile(r"[A-Z][A-Za-z0-9]+\Z")
_TEMPLATE = re.compile(r"\{\{(.*?)\}\}")
_LABEL = re.compile(r"\$labels\.([a-z_]+)(?: \| urlquery)?\Z")
_IF_THERE = re.compile(r"with \$labels\.([a-z_]+)\Z")
_VALUE = re.compile(r"\$value \| (?:humanize|humanize1024|humanizeDuration|humanizePercentage)\Z")
_DURATION = re.compile(r"(\d+)([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MIN_FOR_SECONDS = 60  # seconds: twice the slowest scrape interval that the rules are meant for
RESERVED = frozenset({"severity", "component", "alertname"})


def seconds(duration: str) -> int:
    """Read ``90s``, ``5m``, ``1h`` or ``3d``; RuleError for anything else."""
    match = _DURATION.match(duration)
    if match is None:
        raise RuleError(f"{duration!r} is no duration; write 90s, 5m, 1h or 3d")
    return int(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alerting rule.

    ``for_`` is ``for``, ``keep_firing_for`` is ``keep_firing_for``; ``labels`` are static ones beside severity and component.
    ``panel`` shows the figure that the alert judges; None where no board does.  ``optional_labels``: labels that only some of
    its alerts carry; texts may name them as ``{{ with $labels.x }}… {{ . }} …{{ end }}``.
    ``symptom``: users feel it, so it may page.  ``full_series`` says what a daemon with the common set of series does
    without this rule; it must be given when the expression needs the full set, and only then.
    """

    name: str
    severity: Severity
    component: Component
    expr: Expr
    for_: str
    summary: Text
    description: Text
    panel: PanelId | None
    keep_firing_for: str = ""
    symptom: bool = False
    full_series: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    optional_labels: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        for why in self._faults():
            raise RuleError(f"{self.name}: {why}")
        for where, text in (("summary", self.summary), ("description", self.description)):
            _check_text(self.name, where, text, self.result_labels, self.optional_labels)

    def _faults(self) -> Iterator[str]:
        if not _NAME.match(self.name):
            yield "alert names are CamelCase"
        if self.expr.counter:
            yield "compares a raw counter; take its rate or its increase"
        if self.expr.scalar:
            yield "a number is no alert; compare series"
        if self.severity is Severity.CRITICAL and not self.symptom:
            yield "only what users feel may be critical"
        least = MIN_FOR_SECONDS if self.severity is not Severity.NONE else 0
        if seconds(self.for_) < least or (self.keep_firing_for and seconds(self.keep_firing_for) < least):
            yield f"must last at least {least} s, or one failed scrape fires it"
        if RESERVED & set(self.labels):
            yield f"{', '.join(sorted(RESERVED & set(self.labels)))} cannot be set"
        for line in (self.summary.en, self.summary.zh):
            if "\n" in line or len(line) > 160:
                yield "the summary is one line of at most 160 characters"
            if "$value" in line:
                yield "the value belongs into the description: the summary stands still while the alert fires"

    @property
    def result_labels(self) -> frozenset[str]:
        """Every label of the firing alert but its name."""
        return self.expr.labels | set(self.labels) | {"severity", "component"}

    @property
    def anchor(self) -> str:
        """The runbook's heading as GitHub links it."""
        return self.name.lower()

    @property
    def identity(self) -> tuple[str, ...]:
        """What must be unique: several severities of one alert share its name."""
        return (self.name, self.severity.value, *(f"{k}={v}" for k, v in sorted(self.labels.items())))


def _check_text(alert: str, where: str, text: Text, labels: frozenset[str], optional_labels: frozenset[str]) -> None:
    used: list[set[str]] = []
    for language in Language:
        sentence = text.in_(language)
        if not sentence.strip():
            raise RuleError(f"{alert}: the {where} is empty in {language.value}")
        if sentence.count("{{") != sentence.count("}}"):
            raise RuleError(f"{alert}: the {where} opens or closes a template that it does not close or open")
        used.append(set(_labels_used(alert, where, sentence, optional_labels)))
        missing = used[-1] - labels
        if missing:
            has = ", ".join(sorted(labels))
            raise RuleError(f"{alert}: the {where} names {', '.join(sorted(missing))}; the alert has {has}")
    if used[0] != used[1]:
        raise RuleError(f"{alert}: the {where} names other labels in one language than in the other")


def _labels_used(alert: str, where: str, sentence: str, optional_labels: frozenset[str]) -> Iterator[str]:
    inside = ""  # the label whose part of the sentence stands only where it is there
    for template in _TEMPLATE.findall(sentence):
        inner = template.strip()
        match, optional = _LABEL.match(inner), _IF_THERE.match(inner)
        if match is not None:
            yield match[1]
        elif optional is not None and not inside and optional[1] in optional_labels:
            inside = optional[1]
        elif inside and inner in {".", "end"}:
            inside = inside if inner == "." else ""
        elif not _VALUE.match(inner):
            raise RuleError(
                f"{alert}: the {where} holds {{{{{template}}}}}; "
                "allowed are $labels.NAME, and $value with a humanize function"
            )
    if inside:
        raise RuleError(f"{alert}: the {where} begins a part about {inside} and does not end it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recording rule, named ``level:noun:operations``; ``labels`` are static ones, part of the level."""

    level: tuple[str, ...]
    noun: str
    operations: str
    expr: Expr
    labels: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()  # labels that tell parts of one figure apart (le, quantile), not in the level

    def __post_init__(self) -> None:
        """Refuse a name that would lie."""
        carried = (self.expr.labels | set(self.labels)) - self.kept
        if set(self.level) != carried:
            raise RuleError(f"{self.name}: the level names {', '.join(self.level)}, the result has {sorted(carried)}")
        if not self.kept <= self.expr.labels | set(self.labels):
            raise RuleError(f"{self.name}: keeps {sorted(self.kept)}, which the result does not have")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.noun) or not re.fullmatch(r"[a-z][a-z0-9_]*", self.operations):
            raise RuleError(f"{self.name}: noun and operations are words with underscores")
        if "rate" in self.operations and self.noun.endswith("_total"):
            raise RuleError(f"{self.name}: a rate is no counter; drop _total")
        if self.expr.counter:
            raise RuleError(f"{self.name}: records a raw counter")

    @property
    def name(self) -> str:
        """The recorded family's name."""
        return f"{'_'.join(self.level)}:{self.noun}:{self.operations}"

    @property
    def known(self) -> ExternalMetric:
        """The recorded family, for queries that read it."""
        labels = self.expr.labels | set(self.labels)
        return ExternalMetric(name=self.name, labels=labels, unit=self.expr.unit, per_second=self.expr.per_second)


Rule = Alert | Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that are evaluated together and in order.

    ``limit`` bounds what one rule may yield; beyond it the whole rule fails, so it must hold the replicas of a fleet.
    """

    name: str
    rules: tuple[Rule, ...]
    interval: str = "30s"
    limit: int = 50_000

    def __post_init__(self) -> None:
        """Refuse an interval that makes alerts flap: results must outlive it under the lookback of 5 min."""
        if not 15 <= seconds(self.interval) <= 300:
            raise RuleError(f"{self.name}: the interval must lie between 15 s and 5 min")

    def alerts(self) -> tuple[Alert, ...]:
        """Give the alerting rules."""
        return tuple(rule for rule in self.rules if isinstance(rule, Alert))

    def recordings(self) -> tuple[Recording, ...]:
        """Give the recording rules."""
        return tuple(rule for rule in self.rules if isinstance(rule, Recording))
