"""The tables of gateways, of KV-cache stores and of sources."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis import thresholds as limit
from exporter.model import Backend, BackendLoad, GatewayFigures, GatewayState, SourceStatus
from exporter.model.finding import VerdictState
from exporter.model.store import StoreQuantity, StoreState
from exporter.model.text import Language, Text
from exporter.web import values
from exporter.web.marks import error_level, reason_words
from exporter.web.model import Level, PageCell, PageRow, PageTable
from exporter.web.node_tables import NodeTables
from exporter.web.values import ABSENT, clean

_TIERS = {"memory": Text("memory", "内存"), "disk": Text("disk", "磁盘")}  # others have a name of their own
_NO_FIGURES = GatewayFigures(seconds=0.0)


def gateways(node: NodeTables) -> PageTable:
    """Return one row for each backend of each gateway."""
    names = ("share", "errors", "active", "queued")
    known = next((gateway.windows for gateway in node.snapshot.gateways if gateway.windows), {})
    return PageTable(
        id="gateways",
        heading=node.say("gateways"),
        note=values.windows_note(known, "last_shares", node.say),
        columns=node.columns("gateway", "backend", "state", *names, numeric=frozenset(names)),
        rows=tuple(row for gateway in node.snapshot.gateways for row in _gateway(node, gateway)),
    )


def _gateway(node: NodeTables, gateway: GatewayState) -> Iterator[PageRow]:
    name = PageCell(clean(gateway.name), clean(gateway.labels.kind))
    if gateway.reading is None:
        state = PageCell(node.say("down"), reason_words(gateway.status.reason, node.language), Level.UNKNOWN)
        cells = (name, PageCell(ABSENT), state, *[PageCell(ABSENT)] * 4)
        yield PageRow(key=f"gateway-{gateway.name}", cells=cells, level=Level.UNKNOWN)
        return
    for backend, load in gateway.reading.backends.items():
        yield _backend(node, gateway, name, backend, load)


def _backend(node: NodeTables, gateway: GatewayState, name: PageCell, backend: Backend, load: BackendLoad) -> PageRow:
    replica = gateway.replicas.get(backend, "")
    verdict = node.snapshot.verdicts.replicas.get(replica)
    share = next(iter(gateway.windows.values()), _NO_FIGURES).shares.get(backend)
    errors = values.judged(gateway.windows, _NO_FIGURES).error_ratios.get(backend)
    is_ejected = verdict is not None and verdict.state is VerdictState.EJECT
    still_sends = is_ejected and share is not None and share > limit.GATEWAY_SHARE
    state = PageCell(ABSENT) if load.up is None else _state(node, "", is_up=load.up)
    if still_sends:
        state = PageCell(state.text, node.say("sends_to_ejected"), Level.CRITICAL)
    return PageRow(
        key=f"backend-{(gateway.name, backend.pool, backend.name)}",
        level=Level.CRITICAL if still_sends else Level.NONE,
        cells=(
            name,
            PageCell(clean(replica or backend.name), clean(backend.pool)),
            state,
            PageCell(values.percent(share), bar=share),
            PageCell(values.percent(errors), level=error_level(errors)),
            PageCell(values.count(load.active)),
            PageCell(values.count(load.queued)),
        ),
    )


def _state(node: NodeTables, reason: str, *, is_up: bool) -> PageCell:
    if is_up:
        return PageCell(node.say("up"), level=Level.GOOD)
    return PageCell(node.say("down"), reason_words(reason, node.language), Level.WARNING)


def stores(node: NodeTables) -> PageTable:
    """Return one row for each KV-cache store."""
    known = next((store.hit_ratio for store in node.snapshot.stores if store.hit_ratio), {})
    names = ("hits", "used")
    return PageTable(
        id="stores",
        heading=node.say("stores"),
        note=values.windows_note(known, "last_hits", node.say),
        columns=node.columns("store", "state", *names, numeric=frozenset(names)),
        rows=tuple(_store(node, store) for store in node.snapshot.stores),
    )


def _store(node: NodeTables, store: StoreState) -> PageRow:
    hits = next(iter(store.hit_ratio.values()), None)
    return PageRow(
        key=f"store-{store.name}",
        level=Level.NONE if store.status.up else Level.WARNING,
        cells=(
            PageCell(clean(store.name), clean(store.labels.kind)),
            _state(node, store.status.reason, is_up=store.status.up),
            PageCell(values.percent(hits), bar=hits),
            PageCell(clean(", ".join(_used(store, node.language))) or ABSENT),
        ),
    )


def _used(store: StoreState, language: Language) -> Iterator[str]:
    """Yield how full each tier is, or how much it holds where the store tells no capacity."""
    held = store.reading.quantities.get(StoreQuantity.USED, {}) if store.reading is not None else {}
    for tier in {**held, **store.usage}:
        ratio = store.usage.get(tier)
        amount = values.gibibytes(held[tier]) if ratio is None else values.percent(ratio)
        yield f"{_TIERS[tier].in_(language) if tier in _TIERS else tier} {amount}".strip()


def sources(node: NodeTables) -> PageTable:
    """Return one row for each source; the GPUs that answer share one."""
    gpus = [status for status in node.snapshot.sources if status.source.startswith("gpu:")]
    good = [status for status in gpus if status.up]
    rows = [_source(node, status) for status in node.snapshot.sources if status not in good]
    if gpus:
        ages = [found for status in good if (found := _age(node, status)) is not None]
        text = node.say("gpus_count").format(up=len(good), count=len(gpus))
        level = Level.GOOD if len(good) == len(gpus) else Level.WARNING
        oldest = PageCell(values.age(max(ages, default=None), node.say))
        cells = (PageCell(node.say("gpus")), PageCell(text, level=level), oldest, PageCell(ABSENT))
        rows.insert(0, PageRow(key="source-gpus", cells=cells))
    names = ("age", "duration")
    return PageTable(
        id="sources",
        heading=node.say("sources"),
        columns=node.columns("source", "state", *names, numeric=frozenset(names)),
        rows=tuple(rows),
    )


def _source(node: NodeTables, status: SourceStatus) -> PageRow:
    kind, _, name = status.source.partition(":")
    return PageRow(
        key=f"source-{status.source}",
        cells=(
            PageCell(clean(f"GPU {node.labels.get(name, name)}" if kind == "gpu" else status.source)),
            _state(node, status.reason, is_up=status.up),
            PageCell(values.age(_age(node, status), node.say)),
            PageCell(values.seconds(status.duration)),
        ),
        level=Level.NONE if status.up else Level.WARNING,
    )


def _age(node: NodeTables, status: SourceStatus) -> float | None:
    return None if status.last_success is None else max(0.0, node.snapshot.at - status.last_success)
