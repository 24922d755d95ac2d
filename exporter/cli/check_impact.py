"""What the users of a finding's replica feel, beside its siblings of the same model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exporter.cli.terminal import printable
from exporter.model import Quantity, Stage
from exporter.model.text import Language, Text
from exporter.render import api
from exporter.web import values

MAX_GATEWAYS = 4
_LATENCIES = (
    ("ITL p50", Stage.INTER_TOKEN, "0.5", "itl_mean"),
    ("TTFT p99", Stage.TIME_TO_FIRST_TOKEN, "0.99", "ttft_mean"),
)


def impact(finding: api.FindingDocument, node: api.NodeDocument, language: Language) -> str:
    """Return what users of the finding's replica feel; no evidence again, "" where nothing is known."""
    replica = next((known for known in node.replicas if known.replica == finding.replica), None)
    if not finding.replica or replica is None:
        return ""
    siblings = [known for known in node.replicas if known.model == replica.model and known is not replica]
    shown = {item.name for item in finding.evidence}
    is_stopped = replica.progress is False or not replica.up  # its latencies are of before
    if is_stopped:
        felt = [_stalled(replica, language)]
    else:
        felt = [
            # Another quantile than that of the evidence would seem to contradict it.
            *(
                _latency(label, replica, siblings, stage, quantile)
                for label, stage, quantile, mean in _LATENCIES
                if mean not in shown
            ),
            "" if Quantity.REQUESTS_RUNNING.value in shown else _requests(replica, language),
        ]
    parts = (*felt, *_at_gateways(node, replica.replica, language, is_stopped=is_stopped))
    return "  ".join(part for part in parts if part)


def total(replica: api.ReplicaDocument, quantity: Quantity) -> float | None:
    """Return the sum over a replica's ranks; None if none reports it."""
    numbers = [rank[quantity.value] for rank in replica.ranks.values() if quantity.value in rank]
    return sum(numbers) if numbers else None


def _latency(
    label: str, replica: api.ReplicaDocument, siblings: Sequence[api.ReplicaDocument], stage: Stage, quantile: str
) -> str:
    def seconds(of: api.ReplicaDocument) -> float | None:
        window = next(iter(of.windows.values()), None)
        return None if window is None else window.latency.get(stage.value, {}).get(quantile)

    own = seconds(replica)
    if own is None:
        return ""
    best = min(
        ((value, sibling.replica) for sibling in siblings if (value := seconds(sibling)) is not None), default=None
    )
    beside = "" if best is None else f" ({printable(best[1])} {values.seconds(best[0])})"
    return f"{label} {values.seconds(own)}{beside}"


def _stalled(replica: api.ReplicaDocument, language: Language) -> str:
    """Return how many requests a replica without progress holds; "" where it does not answer."""
    running, waiting = total(replica, Quantity.REQUESTS_RUNNING), total(replica, Quantity.REQUESTS_WAITING)
    if running is None and waiting is None:
        return ""
    held = (running or 0.0) + (waiting or 0.0)
    return Text(f"{held:g} request{'' if held == 1 else 's'} stalled", f"{held:g} 个请求停滞").in_(language)


def _requests(replica: api.ReplicaDocument, language: Language) -> str:
    running, waiting = total(replica, Quantity.REQUESTS_RUNNING), total(replica, Quantity.REQUESTS_WAITING)
    if running is None or waiting is None:
        return ""
    return Text(f"{running:g} running, {waiting:g} waiting", f"{running:g} 个请求运行，{waiting:g} 个排队").in_(
        language
    )


def _at_gateways(node: api.NodeDocument, name: str, language: Language, *, is_stopped: bool) -> Iterator[str]:
    """Yield what each gateway sends to a replica, and how many of its requests are open there."""
    for gateway in node.gateways[:MAX_GATEWAYS]:
        backends = [backend for backend in gateway.backends if backend.replica == name]
        share = next((backend.share for backend in backends if backend.share), None)
        open_ = [backend.active for backend in backends if backend.active is not None]
        said = [
            *([] if share is None else [_sent(gateway.gateway, name, share, is_stopped=is_stopped)]),
            *([_open(sum(open_))] if open_ else []),
        ]
        if said and share is None:
            said[0] = Text(f"gateway {gateway.gateway}: ", f"网关 {gateway.gateway}：") + said[0]
        yield printable(Text("; ", "；").in_(language).join(part.in_(language) for part in said))


def _sent(gateway: str, name: str, share: float, *, is_stopped: bool) -> Text:
    still, still_zh = ("still ", "仍") if is_stopped else ("", "")
    shown = values.percent(share)
    return Text(f"gateway {gateway} {still}sends {name} {shown}", f"网关 {gateway} {still_zh}向 {name} 发送 {shown}")


def _open(count: float) -> Text:
    return Text(f"{count:g} request{'' if count == 1 else 's'} open", f"{count:g} 个请求未完成")
