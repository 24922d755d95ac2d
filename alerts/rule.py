"""Alerting rules, recording rules and groups; a rule that could not work is refused when it is built.

Annotations may only use labels of the result, the level in a recording's name must equal its labels, and only symptoms
may page.  ``RuleError`` names the rule and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from alerts.panel_ids import PanelId
from alerts.templates import labels_used, with_longest_words
from exporter.errors import ShardwatchError
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import Expr, ExternalMetric


class RuleError(ShardwatchError):
    """A rule contradicts itself; raised when it is built."""


class Component(str, Enum):
    """The affected component; routes select teams by it."""

    GPU = "gpu"
    ENGINE = "engine"
    REQUEST = "request"
    GATEWAY = "gateway"
    EXPORTER = "exporter"
    MONITORING = "monitoring"


_NAME = re.compile(r"[A-Z][A-Za-z0-9]+\Z")
_DURATION = re.compile(r"(\d+)([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MIN_FOR_SECONDS = 60  # seconds: twice the slowest scrape interval that the rules are meant for
RESERVED = frozenset({"severity", "component", "alertname"})


def seconds(duration: str) -> int:
    """Parse ``90s``, ``5m``, ``1h`` or ``3d`` to seconds; raises RuleError."""
    match = _DURATION.match(duration)
    if match is None:
        raise RuleError(f"{duration!r} is no duration; write 90s, 5m, 1h or 3d")
    return int(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alerting rule.

    ``for_`` and ``keep_firing_for`` are Prometheus' fields; ``labels`` are static ones beside severity and component.
    ``action`` says what to do first and is sent with every notification.  ``panel`` shows the judged figure; None where
    no dashboard does.  ``optional_labels`` exist on some alerts of the rule only; texts name them as
    ``{{ with $labels.x }}… {{ . }} …{{ end }}``.  ``symptom``: users are affected, so it may page.  ``full_series`` says
    what covers this rule where the daemon exposes the common set of series; given exactly when the expression needs the
    full set.  ``held``: what in the expression holds the condition, so that one failed scrape or one wrong answer cannot
    fire the rule; a rule with a shorter ``for_`` than a minute needs it.
    """

    name: str
    severity: Severity
    component: Component
    expr: Expr
    for_: str
    summary: Text
    description: Text
    action: Text
    panel: PanelId | None
    keep_firing_for: str = ""
    symptom: bool = False
    full_series: str = ""
    held: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    optional_labels: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Reject a rule that could not work."""
        for why in self._faults():
            raise RuleError(f"{self.name}: {why}")
        for where in ("summary", "description", "action"):
            self._check_text(where, getattr(self, where))

    def _check_text(self, where: str, text: Text) -> None:
        try:
            missing = labels_used(text, self.optional_labels) - self.result_labels
        except ValueError as error:
            raise RuleError(f"{self.name}: the {where} {error}") from error
        if missing:
            has = ", ".join(sorted(self.result_labels))
            raise RuleError(f"{self.name}: the {where} names {', '.join(sorted(missing))}; the alert has {has}")

    def _faults(self) -> Iterator[str]:
        if not _NAME.match(self.name):
            yield "alert names are CamelCase"
        if self.expr.counter:
            yield "compares a raw counter; take its rate or its increase"
        if self.expr.scalar:
            yield "is a scalar; compare series"
        if self.severity is Severity.CRITICAL and not self.symptom:
            yield "only symptoms may be critical"
        if self.severity is not Severity.NONE and min(self._holding_times()) < MIN_FOR_SECONDS:
            yield f"for and keep_firing_for must be at least {MIN_FOR_SECONDS} s, or one failed scrape fires it"
        if RESERVED & set(self.labels):
            yield f"{', '.join(sorted(RESERVED & set(self.labels)))} cannot be set"
        yield from self._text_faults()

    def _holding_times(self) -> tuple[int, ...]:
        """Return for and keep_firing_for in seconds, those of them that must hold the condition."""
        for_ = seconds(self.for_)
        held = MIN_FOR_SECONDS if self.held else for_
        return (held, seconds(self.keep_firing_for)) if self.keep_firing_for else (held,)

    def _text_faults(self) -> Iterator[str]:
        for line in (self.summary.en, self.summary.zh):
            if "\n" in line or len(with_longest_words(line)) > 160:
                yield "the summary must be one line of at most 160 characters"
            if "$value" in line or "query" in line:
                yield "a value belongs in the description: the summary must not change while the alert fires"
        for line in (self.action.en, self.action.zh):
            if "\n" in line or len(with_longest_words(line)) > 400:
                yield "the action must be one line of at most 400 characters"

    @property
    def result_labels(self) -> frozenset[str]:
        """Return the labels of the firing alert, without alertname."""
        return self.expr.labels | set(self.labels) | {"severity", "component"}

    @property
    def anchor(self) -> str:
        """Return the anchor of the alert's heading in the runbook, as GitHub builds it."""
        return self.name.lower()

    @property
    def identity(self) -> tuple[str, ...]:
        """Return what must be unique: the severities of one alert share its name."""
        return (self.name, self.severity.value, *(f"{k}={v}" for k, v in sorted(self.labels.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recording rule, named ``level:noun:operations``; ``labels`` are static ones, part of the level."""

    level: tuple[str, ...]
    noun: str
    operations: str
    expr: Expr
    labels: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()  # labels beside the level: le, quantile

    def __post_init__(self) -> None:
        """Reject a name that contradicts the expression."""
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
        """Return the recorded family's name."""
        return f"{'_'.join(self.level)}:{self.noun}:{self.operations}"

    @property
    def known(self) -> ExternalMetric:
        """Return the recorded family, for queries that read it."""
        labels = self.expr.labels | set(self.labels)
        return ExternalMetric(name=self.name, labels=labels, unit=self.expr.unit, per_second=self.expr.per_second)


Rule = Alert | Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rules that are evaluated together and in order.

    ``limit`` bounds the series of one rule; above it the rule fails, so it must be larger than the replicas of a fleet.
    """

    name: str
    rules: tuple[Rule, ...]
    interval: str = "30s"
    limit: int = 50_000

    def __post_init__(self) -> None:
        """Reject an interval above Prometheus' lookback of 5 min, under which alerts would flap."""
        if not 15 <= seconds(self.interval) <= 300:
            raise RuleError(f"{self.name}: the interval must lie between 15 s and 5 min")

    def alerts(self) -> tuple[Alert, ...]:
        """Return the alerting rules."""
        return tuple(rule for rule in self.rules if isinstance(rule, Alert))

    def recordings(self) -> tuple[Recording, ...]:
        """Return the recording rules."""
        return tuple(rule for rule in self.rules if isinstance(rule, Recording))
