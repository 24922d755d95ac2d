"""Annotations: marks over all curves of a board that say what happened then; from the same Prometheus."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from alerts.text import Language, Text
from dashboards.errors import DashboardError
from dashboards.panels.panel import Colour
from dashboards.variables import DATA_SOURCE
from exporter.catalog.spec import Unit
from exporter.promql import Expr

Json = dict[str, Any]

STEP = "60s"  # the finest that Grafana asks annotations with, and within which it takes marks for one
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
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
                raise DashboardError(f"{self.name.en}: names {label!r}, which {self.expr} does not carry")
        if self.expr.counter or (self.timed and self.expr.unit is not Unit.SECONDS):
            raise DashboardError(f"{self.name.en}: {self.expr} is no moment")


def annotation_json(annotation: Annotation, language: Language) -> Json:
    """Return Grafana's JSON."""
    return {
        "name": annotation.name.in_(language),
        "datasource": DATA_SOURCE,
        "enable": annotation.on,
        "hide": False,
        "iconColor": annotation.colour.value,
        "target": {"expr": str(annotation.expr), "interval": STEP, "refId": "Anno"},
        "titleFormat": annotation.title.in_(language),
        "textFormat": annotation.text,
        "tagKeys": "severity,component,gpu",
        "useValueForTime": annotation.timed,
    }
