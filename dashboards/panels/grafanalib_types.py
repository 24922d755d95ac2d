"""grafanalib's panels, and replacements for those that are outdated or missing in it.

Outdated in grafanalib 0.7.1: table (Angular cell styles), bar gauge and gauge (options where Grafana no longer reads
them), heatmap (Angular). Missing: status history, alert list. Each replacement writes what Grafana 13 reads.
"""

from __future__ import annotations

from typing import Any

import attr
from grafanalib import core

Json = dict[str, Any]


@attr.s
class Modern(core.Panel):  # type: ignore[misc]
    """A panel of any type with explicit options and field configuration."""

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


class TablePanel(Modern):
    """A table whose columns have cell options."""


class BarGauge(Modern):
    """A bar gauge."""


class Gauge(Modern):
    """A gauge."""


class Heatmap(Modern):
    """A heatmap over a classic histogram's buckets."""


class StatusHistory(Modern):
    """A status history."""


class AlertList(Modern):
    """An alert list."""


class Variable(core.Template):  # type: ignore[misc]
    """A variable with a ``current`` value as Grafana 13 reads it: All, or the first data source or node."""

    def to_json_data(self) -> Json:
        """Return Grafana's JSON, without the keys of old versions."""
        old: Json = super().to_json_data()
        kept = ("name", "label", "type", "query", "datasource", "refresh", "sort", "regex", "hide")
        given = {key: old[key] for key in kept if old[key] not in (None, "")}
        if self.type != "query":
            return given | {"includeAll": False, "multi": False, "options": []}
        given |= {"includeAll": bool(self.includeAll), "multi": True, "options": []}
        if not self.includeAll:
            return given  # without a current value Grafana selects the first
        return given | {
            "allValue": self.allValue,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }
