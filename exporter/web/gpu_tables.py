"""The tables of GPUs and of the paths between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.model import CardState, Signal
from exporter.model.finding import VerdictState
from exporter.web import values
from exporter.web.gpu_problems import gpu_problem
from exporter.web.history import memory_ratio
from exporter.web.marks import reason_words, verdict_cell
from exporter.web.model import Curve, Level, PageCell, PageColumn, PageRow, PageTable
from exporter.web.node_tables import NodeTables
from exporter.web.values import ABSENT, clean

MAX_MATRIX = 16  # GPUs; of more, the pairs are counted by path
MAX_PATHS = 4  # of replicas, beside the heading
MAX_XIDS = 3  # of one GPU; how many others there are is said
MAX_HOLDERS = 2  # processes of one GPU, too
_MILD = frozenset({"applications_clocks_setting", "sync_boost", "display_clock_setting", "sw_power_cap"})


def gpus(node: NodeTables) -> PageTable:
    """Return one row for each GPU."""
    names = ("work", "memory", "temperature", "power", "clock")
    return PageTable(
        id="gpus",
        heading=node.say("gpus"),
        columns=node.columns("gpu", "state", *names, "links", "xid", numeric=frozenset(names)),
        rows=tuple(_gpu(node, card) for card in node.snapshot.cards),
    )


def _gpu(node: NodeTables, card: CardState) -> PageRow:
    uuid = card.facts.uuid
    cells = (
        _gpu_name(node, card),
        _gpu_state(node, card),
        _work(node, card),
        _memory(node, card),
        _temperature(node, card),
        _power(node, card),
        _clock(node, card),
        _links(node, card),
        _xid(node, uuid),
    )
    level = node.marks.get(uuid, Level.NONE)
    if level is Level.NONE and cells[1].level is Level.WARNING:  # of its replica
        level = Level.WARNING
    return PageRow(key=f"gpu-{uuid}", cells=cells, level=level)


def _gpu_name(node: NodeTables, card: CardState) -> PageCell:
    text = ", ".join(
        found.replica + (f" {node.say('rank_number').format(rank=found.rank)}" if found.rank else "")
        for found in node.assigned[card.facts.uuid]
    )
    facts = card.facts
    title = " · ".join(filter(None, (facts.name, facts.uuid, facts.pci_bus_id, facts.serial)))
    return PageCell(clean(card.labels.gpu), clean(text), title=clean(title, 300))


def _gpu_state(node: NodeTables, card: CardState) -> PageCell:
    uuid = card.facts.uuid
    verdict = node.snapshot.verdicts.gpus.get(uuid)
    if card.reading is None:
        cell = verdict_cell(verdict, node.language)
        reason = reason_words(card.status.reason, node.language) or node.say("not_known")
        return PageCell(reason, cell.text, Level.CRITICAL if cell.level is Level.CRITICAL else Level.UNKNOWN)
    straggler = node.view.stragglers.get(uuid)
    if straggler is not None:
        cause = CAUSE_NAMES[straggler.cause].in_(node.language)
        slower = f" {straggler.slowdown:.2f}×" if straggler.slowdown is not None else ""
        return PageCell(node.say("straggler"), f"{cause}{slower}", Level.WARNING)
    if verdict is not None and verdict.state in (VerdictState.EJECT, VerdictState.DRAIN):
        return verdict_cell(verdict, node.language)
    mark = node.marks.get(uuid, Level.NONE)
    if mark is not Level.NONE:
        return PageCell(node.say(mark.value), gpu_problem(node.marked_by[uuid], node.language), mark)
    return _waiting_state(node, uuid) or PageCell(node.say("ok"), level=Level.GOOD)


def _waiting_state(node: NodeTables, uuid: str) -> PageCell | None:
    """Return what a healthy GPU waits for: another GPU, or what stops its replica; None where it works."""
    waits = _waits_for(node, uuid)
    if waits:
        return PageCell(node.say("waits"), node.say("waits_for").format(gpu=waits), Level.INFO)
    stopped = [found.replica for found in node.assigned[uuid] if found.replica in node.standstills]
    if not stopped:
        return None
    return PageCell(reason_words("no_progress", node.language), clean(node.standstills[stopped[0]]), Level.WARNING)


def _waits_for(node: NodeTables, uuid: str) -> str:
    """Return the number of the GPU of the same replica that cannot work, or is a straggler; "" without one."""
    for replica in node.view.replicas_of.get(uuid, ()):
        for card in node.view.gpus_of(replica):
            other = card.facts.uuid
            verdict = node.snapshot.verdicts.gpus.get(other)
            is_out = verdict is not None and verdict.state is VerdictState.EJECT
            if other != uuid and (is_out or other in node.view.stragglers):
                return card.labels.gpu
    return ""


def _signals(card: CardState) -> Mapping[Signal, float]:
    return card.reading.signals if card.reading is not None else {}


def _curve(card: CardState, *series: str, top: float | None = None) -> Curve:
    return Curve(kind="gpu", name=card.facts.uuid, series=series, top=top)


def _work(node: NodeTables, card: CardState) -> PageCell:
    signals = _signals(card)
    sm, tensor = signals.get(Signal.SM_ACTIVE), signals.get(Signal.TENSOR_ACTIVE)
    parts = []
    if sm is not None:
        parts.append(node.say("sm").format(sm=values.percent(sm)))
    if tensor is not None:
        parts.append(node.say("tensor").format(tensor=values.percent(tensor)))
    curve = _curve(card, "sm_active", "utilization", top=1.0)
    return PageCell(values.percent(signals.get(Signal.UTILIZATION)), " ".join(parts), curve=curve)


def _memory(node: NodeTables, card: CardState) -> PageCell:
    signals = _signals(card)
    ratio = memory_ratio(signals)
    processes = card.reading.processes if card.reading is not None else None
    holders = [
        node.say("pid").format(pid=process.pid, bytes=values.gibibytes(process.memory))
        + (f" {clean(node.owners[process.pid])}" if node.owners.get(process.pid) else "")
        for process in sorted(processes or (), key=lambda process: -(process.memory or 0.0))
    ]
    used = values.gibibytes(signals[Signal.MEMORY_USED]) if Signal.MEMORY_USED in signals else ""
    return PageCell(
        values.percent(ratio),
        # The one process of a replica is named beside the GPU's number.
        " · ".join(filter(None, [used, *values.first(holders, MAX_HOLDERS, node.say)]))
        if len(holders) > 1 or not node.assigned[card.facts.uuid]
        else used,
        Level.WARNING if ratio is not None and ratio >= limit.GPU_MEMORY_USED else Level.NONE,
        _curve(card, "memory", top=1.0),
        title=node.say("processes").format(processes=", ".join(values.first(holders, 8, node.say)))
        if holders
        else "",
    )


def _temperature(node: NodeTables, card: CardState) -> PageCell:
    signals = _signals(card)
    margin = signals.get(Signal.TEMPERATURE_MARGIN)
    hot = margin is not None and margin <= limit.TEMPERATURE_MARGIN_CELSIUS
    return PageCell(
        values.unit(signals.get(Signal.TEMPERATURE_GPU), "°C"),
        "" if margin is None else node.say("margin").format(degrees=f"{margin:.0f}"),
        Level.WARNING if hot else Level.NONE,
        _curve(card, "temperature", top=100.0),
    )


def _power(node: NodeTables, card: CardState) -> PageCell:
    signals = _signals(card)
    power_limit = signals.get(Signal.POWER_LIMIT)
    return PageCell(
        values.unit(signals.get(Signal.POWER), "W"),
        "" if power_limit is None else node.say("limit").format(total=values.unit(power_limit, "W")),
        curve=_curve(card, "power", top=power_limit),
    )


def _clock(node: NodeTables, card: CardState) -> PageCell:
    signals = _signals(card)
    top = signals.get(Signal.CLOCK_MAX_SM)
    events = card.reading.clock_events if card.reading is not None else {}
    reasons = [reason for reason, active in events.items() if active and reason != "gpu_idle"]
    said = ", ".join(dict.fromkeys(_reason(node, reason) for reason in reasons))
    level = Level.NONE if not reasons else Level.INFO if _MILD.issuperset(reasons) else Level.WARNING
    full = "" if top is None else node.say("limit").format(total=f"{top / 1e6:.0f}")
    text = values.unit(signals.get(Signal.CLOCK_SM), "MHz", 1e-6)
    return PageCell(text, said or full, level, _curve(card, "clock", top=top))


def _reason(node: NodeTables, reason: str) -> str:
    try:
        return node.say(reason)
    except KeyError:
        return clean(reason.replace("_", " "))


def _links(node: NodeTables, card: CardState) -> PageCell:
    signals = _signals(card)
    states = card.reading.nvlink_up if card.reading is not None else {}
    health = node.snapshot.topology.links.get(card.facts.uuid)
    down = health.nvlinks_down if health is not None else None
    total = max(len(states), sum(states.values()) + (down or 0))
    generation, width = signals.get(Signal.PCIE_LINK_GENERATION), signals.get(Signal.PCIE_LINK_WIDTH)
    pcie = "" if generation is None or width is None else f"PCIe {generation:.0f} ×{width:.0f}"
    nvlink = f"NVLink {sum(states.values())}/{total}" if total else ""
    degraded = health is not None and (health.pcie_degraded or bool(health.fabric_problems))
    problems = ", ".join(health.fabric_problems) if health is not None else ""
    return PageCell(
        nvlink or pcie or ABSENT,
        pcie if nvlink else "",
        Level.WARNING if down or degraded else Level.NONE,
        title=clean(problems.replace("_", " "), 200),
    )


def _xid(node: NodeTables, uuid: str) -> PageCell:
    """Return the newest XID and how often it came, and when; beside it those before it."""
    now = node.snapshot.unix_time
    known = sorted(node.view.xids.get(uuid, ()), key=lambda count: -(count.last_unix_time or 0.0))
    if not known:
        return PageCell("")
    names = [f"{count.xid}" + (f" ×{count.count}" if count.count > 1 else "") for count in known]
    times = [values.clock(count.last_unix_time or 0.0, now) for count in known]
    others = [f"{name} {at}" for name, at in zip(names[1:], times[1:], strict=True)]
    recent = now - (known[0].last_unix_time or 0.0) <= limit.XID_RECENT_SECONDS
    return PageCell(
        names[0],
        " · ".join([times[0], *values.first(others, MAX_XIDS - 1, node.say)]),
        Level.WARNING if recent else Level.NONE,
        title=" · ".join([f"{names[0]} {times[0]}", *values.first(others, 16, node.say)]),
    )


def topology(node: NodeTables) -> PageTable:
    """Return the path between any two GPUs; of many GPUs, how many pairs each path joins."""
    topology, say = node.snapshot.topology, node.say
    slowest = [f"{clean(group.replica)} {clean(group.worst)}" for group in topology.groups if group.worst]
    paths_shown = " · ".join(values.first(slowest, MAX_PATHS, say))
    note = say("slowest_paths").format(paths=paths_shown) if slowest else ""
    members = [card.facts.uuid for card in node.snapshot.cards if card.facts.instance is None]
    if len(members) > MAX_MATRIX:
        found = Counter(path.path for path in topology.paths)
        return PageTable(
            id="topology",
            heading=say("topology"),
            note=note,
            columns=node.columns("path", "pairs", numeric=frozenset({"pairs"})),
            rows=tuple(
                PageRow(key=f"path-{path}", cells=(PageCell(clean(path)), PageCell(values.count(pairs / 2))))
                for path, pairs in found.most_common(16)
            ),
        )
    paths = {(path.uuid, path.peer): path.path for path in topology.paths}
    rows = tuple(
        PageRow(
            key=f"path-{uuid}",
            cells=(
                PageCell(clean(node.labels[uuid])),
                *(PageCell("×" if uuid == peer else clean(paths.get((uuid, peer), ABSENT))) for peer in members),
            ),
        )
        for uuid in members
    )
    return PageTable(
        id="topology",
        heading=say("topology"),
        note=note,
        matrix=True,
        columns=(
            PageColumn(heading=say("gpu")),
            *(PageColumn(heading=clean(node.labels[uuid])) for uuid in members),
        ),
        rows=rows if paths else (),
    )
