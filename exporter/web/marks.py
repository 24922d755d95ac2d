"""How severities, verdicts, ratios of errors and reasons are marked and named, for the page and the terminal."""

from __future__ import annotations

from exporter.diagnosis import thresholds as limit
from exporter.model.finding import Severity, Verdict, VerdictState
from exporter.model.text import Language
from exporter.web.model import Level, PageCell
from exporter.web.texts import REASONS, words
from exporter.web.values import clean

VERDICT_LEVELS = {
    VerdictState.SERVE: Level.GOOD,
    VerdictState.DRAIN: Level.WARNING,
    VerdictState.EJECT: Level.CRITICAL,
    VerdictState.UNKNOWN: Level.UNKNOWN,
}
_LEVELS = {Severity.CRITICAL: Level.CRITICAL, Severity.WARNING: Level.WARNING, Severity.INFO: Level.INFO}


def severity_level(severity: Severity) -> Level:
    """Return the mark of a severity."""
    return _LEVELS.get(severity, Level.NONE)


def error_level(ratio: float | None) -> Level:
    """Return the mark of a ratio of failed requests."""
    if ratio is None or ratio < limit.ERROR_RATIO_WARNING:
        return Level.NONE
    return Level.CRITICAL if ratio >= limit.ERROR_RATIO_CRITICAL else Level.WARNING


def reason_words(reason: str, language: Language) -> str:
    """Return why something is down or judged, for people."""
    if language is Language.CHINESE and reason in REASONS:
        return REASONS[reason]
    return clean(reason.replace("_", " "))


def verdict_cell(verdict: Verdict | None, language: Language) -> PageCell:
    """Return a verdict with its reason."""
    say = words(language)
    if verdict is None:
        return PageCell(say("unknown"), level=Level.UNKNOWN)
    return PageCell(
        say(verdict.state.value),
        "" if verdict.state is VerdictState.SERVE else reason_words(verdict.reason, language),
        VERDICT_LEVELS[verdict.state],
        title=clean(verdict.detail.in_(language), 200),
    )
