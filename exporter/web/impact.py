"""What the users of a finding's replica feel, beside its siblings of the same model; for page and terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from exporter.diagnosis.view import requests
from exporter.model import GatewayState, Quantity, ReplicaState, Snapshot, Stage
from exporter.model.text import Language, Text
from exporter.web import values
from exporter.web.values import MAX_SENTENCE, clean

MAX_GATEWAYS = 4
_LATENCIES = (
    ("ITL p50", Stage.INTER_TOKEN, 0.5, "itl_mean"),
    ("TTFT p99", Stage.TIME_TO_FIRST_TOKEN, 0.99, "ttft_mean"),
)
QUANTILES = {(stage, quantile) for _, stage, quantile, _ in _LATENCIES}
Latency = Mapping[tuple[Stage, float], float]  # seconds


class Served(Struct, frozen=True, kw_only=True):
    """What a replica does for its users."""

    name: str
    model: str
    is_stopped: bool
    latency: Latency
    running: float | None
    waiting: float | None


class Sent(Struct, frozen=True, kw_only=True):
    """What a gateway sends to the backends of each replica: its share and the requests open there."""

    gateway: str
    backends: tuple[tuple[str, float | None, float | None], ...]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _FindingLike(Protocol):
    """A finding of a snapshot or of a document."""

    @property
    def id(self) -> str: ...

    @property
    def replica(self) -> str: ...

    @property
    def evidence(self) -> Sequence[_Named]: ...

    @property
    def causes(self) -> Sequence[_FindingLike]: ...


class Impact:
    """The replicas and gateways of one instant, for all its findings."""

    def __init__(
        self, replicas: Iterable[Served], gateways: Iterable[Sent], findings: Iterable[_FindingLike]
    ) -> None:
        self._replicas = {replica.name: replica for replica in replicas}
        self._gateways = tuple(gateways)[:MAX_GATEWAYS]
        self._without_gpu = frozenset(_without_gpu(findings))

    def of(self, finding: _FindingLike, language: Language) -> str:
        """Return what users of the finding's replica feel; no evidence again, "" where nothing is known."""
        replica = self._replicas.get(finding.replica) if finding.replica else None
        if replica is None:
            return ""
        shown = {item.name for item in finding.evidence}
        felt = [_stalled(replica, language)] if replica.is_stopped else [*self._felt(replica, shown, language)]
        return "  ".join(part for part in (*felt, *self._at_gateways(replica, language)) if part)

    def _felt(self, replica: Served, shown: set[str], language: Language) -> Iterator[str]:
        """Yield latencies, but of a replica whose GPU is lost, which are of before; then its requests."""
        siblings = [
            other for other in self._replicas.values() if other.model == replica.model and other is not replica
        ]
        for label, stage, quantile, mean in _LATENCIES:
            # Another quantile than that of the evidence would seem to contradict it.
            if mean not in shown and replica.name not in self._without_gpu:
                yield _latency(label, replica, siblings, (stage, quantile))
        if Quantity.REQUESTS_RUNNING.value not in shown and None not in (replica.running, replica.waiting):
            running, waiting = f"{replica.running:g}", f"{replica.waiting:g}"
            yield Text(f"{running} running, {waiting} waiting", f"{running} 个请求运行，{waiting} 个排队").in_(
                language
            )

    def _at_gateways(self, replica: Served, language: Language) -> Iterator[str]:
        """Yield what each gateway sends to a replica, and how many of its requests are open there."""
        for sent in self._gateways:
            backends = [backend for backend in sent.backends if backend[0] == replica.name]
            share = next((share for _, share, _ in backends if share), None)
            open_ = [active for _, _, active in backends if active is not None]
            said = [
                *([] if share is None else [_sent(sent.gateway, replica, share)]),
                *([_open(sum(open_))] if open_ else []),
            ]
            if said and share is None:
                said[0] = Text(f"gateway {sent.gateway}: ", f"网关 {sent.gateway}：") + said[0]
            yield clean(Text("; ", "；").in_(language).join(part.in_(language) for part in said), MAX_SENTENCE)


def of_snapshot(snapshot: Snapshot) -> Impact:
    """Return what users feel of a snapshot's replicas."""
    return Impact(map(_served, snapshot.replicas), map(_of_gateway, snapshot.gateways), snapshot.findings)


def _served(replica: ReplicaState) -> Served:
    figures = next(iter(replica.windows.values()), None)
    summaries = figures.latency if figures is not None else {}
    return Served(
        name=replica.name,
        model=replica.labels.model,
        is_stopped=bool(replica.frozen) or not replica.status.up,
        latency={
            (stage, quantile): summaries[stage].quantiles[quantile]
            for stage, quantile in QUANTILES
            if stage in summaries and quantile in summaries[stage].quantiles
        },
        running=requests(replica, Quantity.REQUESTS_RUNNING),
        waiting=requests(replica, Quantity.REQUESTS_WAITING),
    )


def _of_gateway(gateway: GatewayState) -> Sent:
    figures = next(iter(gateway.windows.values()), None)
    loads = gateway.reading.backends if gateway.reading is not None else {}
    shares = figures.shares if figures is not None else {}
    return Sent(
        gateway=gateway.name,
        backends=tuple(
            (gateway.replicas.get(backend, ""), shares.get(backend), load.active) for backend, load in loads.items()
        ),
    )


def _without_gpu(findings: Iterable[_FindingLike]) -> Iterator[str]:
    """Yield the replicas that lost a GPU."""
    for finding in findings:
        if finding.id == "GpuLost":
            yield finding.replica
        yield from _without_gpu(finding.causes)


def _latency(label: str, replica: Served, siblings: Sequence[Served], key: tuple[Stage, float]) -> str:
    own = replica.latency.get(key)
    if own is None:
        return ""
    best = min(((sibling.latency[key], sibling.name) for sibling in siblings if key in sibling.latency), default=None)
    beside = "" if best is None else f" ({clean(best[1])} {values.seconds(best[0])})"
    return f"{label} {values.seconds(own)}{beside}"


def _stalled(replica: Served, language: Language) -> str:
    """Return how many requests a replica without progress holds; "" where it does not answer."""
    if replica.running is None and replica.waiting is None:
        return ""
    held = (replica.running or 0.0) + (replica.waiting or 0.0)
    return Text(f"{held:g} request{'' if held == 1 else 's'} stalled", f"{held:g} 个请求停滞").in_(language)


def _sent(gateway: str, replica: Served, share: float) -> Text:
    still, still_zh = ("still ", "仍") if replica.is_stopped else ("", "")
    name, shown = replica.name, values.percent(share)
    return Text(f"gateway {gateway} {still}sends {name} {shown}", f"网关 {gateway} {still_zh}向 {name} 发送 {shown}")


def _open(count: float) -> Text:
    return Text(f"{count:g} request{'' if count == 1 else 's'} open", f"{count:g} 个请求未完成")
