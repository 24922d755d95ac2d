"""What the users of a finding's replica feel, from the document of a node."""

from __future__ import annotations

from exporter.model import Quantity
from exporter.model.text import Language
from exporter.render import api
from exporter.web.impact import QUANTILES, Impact, Sent, Served


def impact(finding: api.FindingDocument, node: api.NodeDocument, language: Language) -> str:
    """Return what users of the finding's replica feel; no evidence again, "" where nothing is known."""
    gateways = (
        Sent(
            gateway=gateway.gateway,
            backends=tuple((backend.replica, backend.share, backend.active) for backend in gateway.backends),
        )
        for gateway in node.gateways
    )
    return Impact(map(_served, node.replicas), gateways, node.findings).of(finding, language)


def total(replica: api.ReplicaDocument, quantity: Quantity) -> float | None:
    """Return the sum over a replica's ranks; None if none reports it."""
    numbers = [rank[quantity.value] for rank in replica.ranks.values() if quantity.value in rank]
    return sum(numbers) if numbers else None


def _served(replica: api.ReplicaDocument) -> Served:
    window = next(iter(replica.windows.values()), None)
    summaries = window.latency if window is not None else {}
    return Served(
        name=replica.replica,
        model=replica.model,
        is_stopped=replica.progress is False or not replica.up,
        latency={
            (stage, quantile): seconds
            for stage, quantile in QUANTILES
            if (seconds := summaries.get(stage.value, {}).get(f"{quantile:g}")) is not None
        },
        running=total(replica, Quantity.REQUESTS_RUNNING),
        waiting=total(replica, Quantity.REQUESTS_WAITING),
    )
