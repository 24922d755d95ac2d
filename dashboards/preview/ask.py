"""Query Prometheus for a plan; the results are passed on unchanged."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dashboards.preview.plan import PanelQuery, Picture

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client of a Prometheus on loopback."""

    url: str

    def ask(self, request: PanelQuery) -> Json:
        """Return {"result": [...]} or {"error": "..."}."""
        if request.step is None:
            return self._get("query", query=request.expr, time=request.end)
        start = request.start - request.start % request.step  # Grafana aligns ranges to the step, too
        return self._get("query_range", query=request.expr, start=start, end=request.end, step=request.step)

    def _get(self, path: str, **parameters: object) -> Json:
        body = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", data=body, timeout=60) as answer:  # noqa: S310
                return {"result": json.load(answer)["data"]["result"]}
        except urllib.error.HTTPError as error:
            with error:
                return {"error": str(json.loads(error.read()).get("error"))}


def answers(client: Client, plan: Picture) -> Json:
    """Return everything that is drawn: series by panel and query, annotations, alerts at the end of the window."""
    with ThreadPoolExecutor(4) as pool:
        given = list(pool.map(client.ask, plan.requests))
        notes = list(pool.map(client.ask, (request for _, request in plan.annotations)))
    panels: dict[str, Json] = {}
    for request, answer in zip(plan.requests, given, strict=True):
        panels.setdefault(str(request.panel), {})[request.ref] = answer
    marked = [
        {
            "name": annotation["name"],
            "color": annotation["iconColor"],
            "timed": annotation["useValueForTime"],
            **answer,
        }
        for (annotation, _), answer in zip(plan.annotations, notes, strict=True)
    ]
    alerts = client.ask(plan.alerts)
    return {"data": panels, "annotations": marked, "alerts": alerts}


def problems(plan: Picture, given: Json) -> list[str]:
    """Return the queries that Prometheus refused."""
    titles = {str(panel["id"]): panel["title"] for panel in plan.panels}
    return [
        f"{plan.dashboard['uid']}, {titles[panel]} {ref}: {answer['error']}"
        for panel, refs in given["data"].items() for ref, answer in refs.items() if "error" in answer
    ]  # fmt: skip
