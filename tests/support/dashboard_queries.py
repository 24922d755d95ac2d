"""The queries of the generated dashboards, and Grafana's macros and variables put into them."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

GENERATED = Path(__file__).parents[2] / "dashboards" / "generated"
LANGUAGES = ("en", "zh")
UIDS = tuple(sorted(path.stem for path in (GENERATED / "en").glob("*.json")))
MACROS = {
    "__rate_interval": "15s", "__rate_interval_ms": "15000", "__range": "120s", "__range_s": "120", "__interval": "5s",
    "__from": "0",
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """One query of a dashboard's file."""

    dashboard: str
    panel: str
    kind: str
    number: int
    expr: str
    legend: str
    instant: bool

    def __str__(self):
        return f"{self.dashboard}: {self.panel}: {self.expr}"


def dashboard(uid, language="en"):
    return json.loads(_text(uid, language))  # a copy each time: tests change it


@functools.cache
def _text(uid, language):
    return (GENERATED / language / f"{uid}.json").read_text(encoding="utf-8")


def panels(data):
    """Return every panel of a dashboard's file, those inside of collapsed rows included, headings not."""
    for top in data["panels"]:
        if top["type"] == "row":
            yield from top["panels"]
        else:
            yield top


def queries(uid, language="en"):
    for panel in panels(dashboard(uid, language)):
        for target in panel.get("targets", ()):
            yield Asked(
                dashboard=uid, panel=panel["title"], kind=panel["type"], number=panel["id"], expr=target["expr"],
                legend=target["legendFormat"], instant=target["instant"],
            )  # fmt: skip


def marks(uid, language="en"):
    """Return the name and the query of everything that a dashboard marks over its curves."""
    return {
        annotation["name"]: annotation["target"]["expr"]
        for annotation in dashboard(uid, language)["annotations"]["list"]
    }


def filled(expr, **variables):
    """Substitute macros and variables; a variable that is not given means everything."""
    values = {"job": ".+", "instance": ".+", "model": ".*", "replica": ".*", "gpu": ".*"} | MACROS | variables
    for name, value in sorted(values.items(), key=lambda item: -len(item[0])):
        expr = expr.replace(f"${name}", value)
    assert not re.search(r"\$(?!\d)", expr), expr  # $1 is a group of label_replace
    return expr
