"""Annotations: marks over all curves of a board that say what happened then; from the same Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from alerts.text import Language, Text
from dashboards.errors import BoardError
from dashboards.panels.record import Colour
from dashboards.variables import SOURCE
from exporter.catalog.spec import Unit
from exporter.promql import Expr

Json = dict[str, Any]

STEP = "60s"  # the finest that Grafana asks annotations with, and within which it takes marks for one
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One kind of mark.

    ``expr`` is above 0 while the mark holds; with ``timed`` it is the time itself, in milliseconds since 1970: the
    mark then stands where it belongs, not at the next step.  ``on``: drawn until somebody switches it off.
    """

    name: Text
    expr: Expr
    colour: Colour
    title: Text
    text: str
    timed: bool = False
    on: bool = True

    def __post_init__(self) -> None:
        """Refuse words about labels that the query does not carry."""
        for label in _PLACEHOLDER.findall(f"{self.title.en} {self.title.zh} {self.text}"):
            if label not in self.expr.labels:
                raise BoardError(f"{self.name.en}: names {label!r}, which {self.expr} does not carry")
        if self.expr.counter or (self.timed and self.expr.unit is not Unit.SECONDS):
            raise BoardError(f"{self.name.en}: {self.expr} is no moment")


def annotation(note: Note, language: Language) -> Json:
    """Give Grafana's JSON."""
    return {
        "name": note.name.in_(language),
        "datasource": SOURCE,
        "enable": note.on,
        "hide": False,
        "iconColor": note.colour.value,
        "target": {"expr": str(note.expr), "interval": STEP, "refId": "Anno"},
        "titleFormat": note.title.in_(language),
        "textFormat": note.text,
        "tagKeys": "severity,component,gpu",
        "useValueForTime": note.timed,
    }
