"""The tables of replicas and of their ranks."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis.view import ReplicaPart, replica_parts, requests
from exporter.model import Quantity, ReplicaState, Stage
from exporter.model.node import ReplicaWindow
from exporter.web import values
from exporter.web.history import P50, P99, kv_usage, latency, shortest_window
from exporter.web.marks import error_level, reason_words, verdict_cell
from exporter.web.model import Curve, Level, PageCell, PageRow, PageTable
from exporter.web.node_tables import NodeTables
from exporter.web.values import ABSENT, clean


def replicas(node: NodeTables) -> PageTable:
    """Return one row for each replica."""
    names = ("running", "waiting", "ttft", "itl", "hit_ratio", "kv", "errors", "tokens", "cost")
    known = next((replica.windows for replica in node.snapshot.replicas if replica.windows), {})
    return PageTable(
        id="replicas",
        heading=node.say("replicas"),
        note=values.windows_note(known, "last", node.say),
        columns=node.columns("replica", "verdict", *names, "gpus", numeric=frozenset(names)),
        rows=tuple(_replica(node, replica) for replica in node.snapshot.replicas),
    )


def _replica(node: NodeTables, replica: ReplicaState) -> PageRow:
    figures = shortest_window(replica) if replica.reading is not None else None
    version = replica.reading.version if replica.reading is not None else ""
    engine = " ".join(filter(None, (replica.labels.engine, version, "·", replica.labels.model)))
    ttft, itl = Stage.TIME_TO_FIRST_TOKEN, Stage.INTER_TOKEN
    judged = values.judged(replica.windows, None) if replica.reading is not None else None
    error_ratio = judged.error_ratio if judged is not None else None
    stalled = _stalled(node, replica)
    if stalled:  # the figures are of before
        figures = None
    tokens = figures.generation_token_rate if figures is not None else None
    hits = figures.hit_ratio if figures is not None else None

    def curve(*series: str, top: float | None = None) -> Curve:
        return Curve(kind="replica", name=replica.name, series=series, top=top)

    cells = (
        PageCell(clean(replica.name), clean(engine), title=clean(f"{replica.name} · {engine}", 300)),
        _replica_verdict(node, replica),
        PageCell(values.count(requests(replica, Quantity.REQUESTS_RUNNING)), curve=curve("running")),
        PageCell(values.count(requests(replica, Quantity.REQUESTS_WAITING)), curve=curve("waiting")),
        PageCell(
            values.seconds(latency(figures, ttft, P99)),
            values.named("p50", latency(figures, ttft, P50)),
            curve=curve("ttft"),
        ),
        PageCell(
            values.seconds(latency(figures, itl, P50)),
            values.named("p99", latency(figures, itl, P99)),
            curve=curve("itl"),
        ),
        PageCell(values.percent(hits), curve=curve("hit_ratio", top=1.0)),
        PageCell(values.percent(kv_usage(replica)), curve=curve("kv", top=1.0)),
        PageCell(stalled, level=Level.CRITICAL)
        if stalled
        else PageCell(values.percent(error_ratio), level=error_level(error_ratio)),
        PageCell(values.count(tokens), curve=curve("tokens")),
        _cost(node, replica),
        _replica_gpus(node, replica),
    )
    return PageRow(key=f"replica-{replica.name}", cells=cells, level=node.marks.get(replica.name, Level.NONE))


def _stalled(node: NodeTables, replica: ReplicaState) -> str:
    """Return how many requests a replica without progress holds; availability counts them as failed."""
    known = [requests(replica, quantity) for quantity in (Quantity.REQUESTS_RUNNING, Quantity.REQUESTS_WAITING)]
    held = [count for count in known if count is not None]
    return node.say("stalled").format(count=values.count(sum(held))) if replica.frozen and held else ""


def _replica_verdict(node: NodeTables, replica: ReplicaState) -> PageCell:
    cell = verdict_cell(node.snapshot.verdicts.replicas.get(replica.name), node.language)
    if replica.status.up or cell.detail:
        return cell
    return PageCell(cell.text, reason_words(replica.status.reason, node.language), cell.level, title=cell.title)


def _cost(node: NodeTables, replica: ReplicaState) -> PageCell:
    economics = node.snapshot.economics
    window = ReplicaWindow(replica.name, next(iter(replica.windows), ""))
    price, joules = economics.cost_per_million.get(window), economics.joules_per_token.get(window)
    energy = ABSENT if joules is None else f"{joules:.2f} J"
    if price is None:
        return PageCell(energy)
    return PageCell(f"{price:.2f} {clean(economics.currency)}", energy)


def _replica_gpus(node: NodeTables, replica: ReplicaState) -> PageCell:
    uuids = node.view.uuids_of.get(replica.name, ())
    labels = [node.labels[uuid] for uuid in uuids if uuid in node.labels]
    path = next((group.worst for group in node.snapshot.topology.groups if group.replica == replica.name), "")
    why = node.snapshot.daemon.unassigned.get(replica.name, "")
    return PageCell(values.ranges(labels) or ABSENT, clean(path) or reason_words(why, node.language))


def ranks(node: NodeTables) -> PageTable:
    """Return one row for each rank of the replicas that have several."""
    several = [
        replica
        for replica in node.snapshot.replicas
        if replica.reading is not None and len(replica.reading.ranks) > 1
    ]
    names = ("running", "waiting", "kv", "tokens")
    return PageTable(
        id="ranks",
        heading=node.say("ranks"),
        columns=node.columns("rank", "gpus", *names, numeric=frozenset(names)),
        rows=tuple(row for replica in several for row in _ranks(node, replica)),
    )


def _ranks(node: NodeTables, replica: ReplicaState) -> Iterator[PageRow]:
    assert replica.reading is not None
    ranks = replica.reading.ranks
    figures = shortest_window(replica)
    rates = figures.rank_token_rates if figures is not None else {}
    top = max((rank.get(Quantity.REQUESTS_RUNNING, 0.0) for rank in ranks.values()), default=0.0)
    for name in sorted(ranks, key=lambda name: (len(name), name)):
        numbers = ranks[name]
        running = numbers.get(Quantity.REQUESTS_RUNNING)
        uuids = [found.uuid for found in node.snapshot.assignments
                 if found.replica == replica.name and found.rank == name]  # fmt: skip
        yield PageRow(
            key=f"rank-{(replica.name, name)}",
            cells=(
                PageCell(clean(name), clean(replica.name)),
                PageCell(values.ranges([node.labels[uuid] for uuid in uuids if uuid in node.labels]) or ABSENT),
                PageCell(values.count(running), bar=running / top if running is not None and top else None),
                PageCell(values.count(numbers.get(Quantity.REQUESTS_WAITING))),
                PageCell(values.percent(numbers.get(Quantity.KV_CACHE_USAGE))),
                PageCell(values.count(rates.get(name))),
            ),
        )


def parts(node: NodeTables) -> PageTable:
    """Return one row for each replica that spans nodes and has GPUs here."""
    return PageTable(
        id="parts",
        heading=node.say("parts"),
        columns=node.columns("replica_key", "replica", "role", "gpus"),
        rows=tuple(_part(node, part) for part in replica_parts(node.snapshot)),
    )


def _part(node: NodeTables, part: ReplicaPart) -> PageRow:
    place = part.place
    rank, nodes = (ABSENT if count is None else str(count) for count in (place.node_rank, place.nodes))
    known = place.node_rank is not None or place.nodes is not None
    lost = [gpu for gpu in node.snapshot.cards if gpu.facts.uuid in part.uuids and not gpu.status.up]
    return PageRow(
        key=f"part-{place.key}-{rank}",
        cells=(
            PageCell(clean(place.key), clean(place.engine)),
            PageCell(ABSENT, node.say("elsewhere")) if place.is_remote else PageCell(clean(place.replica)),
            PageCell(
                node.say(place.role),
                node.say("node_of").format(rank=rank, nodes=nodes) if known else "",
            ),
            PageCell(
                values.ranges([node.labels[uuid] for uuid in part.uuids if uuid in node.labels]) or ABSENT,
                level=Level.CRITICAL if lost else Level.NONE,
            ),
        ),
    )
