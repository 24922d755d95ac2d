"""grafanalib's panels where they still serve, and subclasses where they are stale or missing.

Stale in grafanalib 0.7.1: table (Angular cell styles), bar gauge and gauge (options where Grafana no longer looks),
heat map (Angular).  Missing: status history, alert list.  Each subclass writes what Grafana 13 reads.
"""

from __future__ import annotations

from typing import Any

import attr
from grafanalib import core

Json = dict[str, Any]


@attr.s
class Modern(core.Panel):  # type: ignore[misc]
    """A panel of any type, with its options and field configuration said outright."""

    kind: str = attr.ib(default="")
    options: Json = attr.ib(factory=dict)
    defaults: Json = attr.ib(factory=dict)
    overrides: list[Json] = attr.ib(factory=list)

    def to_json_data(self) -> Json:
        """Return Grafana's JSON."""
        given: Json = self.panel_json(
            {
                "type": self.kind,
                "options": self.options,
                "fieldConfig": {"defaults": self.defaults, "overrides": self.overrides},
            }
        )
        return given


class Table(Modern):
    """A table with cell options of its columns."""


class BarGauge(Modern):
    """Bars side by side."""


class Gauge(Modern):
    """A dial."""


class Heatmap(Modern):
    """A heat map over a classic histogram's buckets."""


class StatusHistory(Modern):
    """Coloured cells over time."""


class AlertList(Modern):
    """The alerts that fire."""


class Variable(core.Template):  # type: ignore[misc]
    """A variable whose ``current`` Grafana 13 reads: everything, or the first data source or node."""

    def to_json_data(self) -> Json:
        """Return Grafana's JSON, without the keys of old versions."""
        old: Json = super().to_json_data()
        kept = ("name", "label", "type", "query", "datasource", "refresh", "sort", "regex", "hide")
        given = {key: old[key] for key in kept if old[key] not in (None, "")}
        if self.type != "query":
            return given | {"includeAll": False, "multi": False, "options": []}
        given |= {"includeAll": bool(self.includeAll), "multi": True, "options": []}
        if not self.includeAll:
            return given  # without a current value Grafana takes the first
        return given | {
            "allValue": self.allValue,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }
