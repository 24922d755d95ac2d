"""Annotations of a dashboard: queries whose results are drawn as events over every graph."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dashboards.errors import DashboardError
from dashboards.panels.panel import Colour
from dashboards.variables import DATA_SOURCE
from exporter.catalog.spec import Unit
from exporter.model.text import Language, Text
from exporter.promql import Expr

Json = dict[str, Any]

STEP = "60s"  # Grafana's smallest step of annotation queries, within which it merges events
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One annotation query.

    ``expr`` is above 0 while the event lasts; with ``timed`` its value is the time of the event, in milliseconds since
    1970, and the annotation stands there rather than at the next step. ``on``: shown by default.
    """

    name: Text
    expr: Expr
    colour: Colour
    title: Text
    text: str
    timed: bool = False
    on: bool = True

    def __post_init__(self) -> None:
        """Raise DashboardError for a text that uses labels which the query does not have."""
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
