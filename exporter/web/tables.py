"""The tables of a page: replicas, ranks, GPUs, their topology, gateways, sources."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.diagnosis.view import View, requests
from exporter.model import CardState, GpuAssignment, Quantity, ReplicaState, Signal, Snapshot, Stage
from exporter.model.finding import Severity, Verdict, VerdictState
from exporter.model.node import ReplicaWindow
from exporter.model.text import Language
from exporter.web import values
from exporter.web.history import P50, P99, flatten, gpu_label, kv_usage, latency, memory_ratio, shortest_window
from exporter.web.model import Curve, Level, PageCell, PageColumn, PageRow, PageTable
from exporter.web.texts import words
from exporter.web.values import ABSENT, clean

MAX_MATRIX = 16  # GPUs; of more, the pairs are counted by path
_LEVELS = {Severity.CRITICAL: Level.CRITICAL, Severity.WARNING: Level.WARNING, Severity.INFO: Level.INFO}
_VERDICTS = {
    VerdictState.SERVE: Level.GOOD,
    VerdictState.DRAIN: Level.WARNING,
    VerdictState.EJECT: Level.CRITICAL,
    VerdictState.UNKNOWN: Level.UNKNOWN,
}
_ORDER = tuple(Level)
_MILD = frozenset({"applications_clocks_setting", "sync_boost", "display_clock_setting", "sw_power_cap"})


def severity_level(severity: Severity) -> Level:
    """Return the mark of a severity."""
    return _LEVELS.get(severity, Level.NONE)


def verdict_cell(verdict: Verdict | None, language: Language) -> PageCell:
    """Return a verdict with its reason."""
    say = words(language)
    if verdict is None:
        return PageCell(say("unknown"), level=Level.UNKNOWN)
    detail = "" if verdict.state is VerdictState.SERVE else verdict.reason.replace("_", " ")
    return PageCell(
        say(verdict.state.value),
        clean(detail),
        _VERDICTS[verdict.state],
        title=clean(verdict.detail.in_(language), 200),
    )


class Tables:
    """Builds the tables of one snapshot in one language."""

    def __init__(self, snapshot: Snapshot, language: Language) -> None:
        self._snapshot, self._language = snapshot, language
        self._say = words(language)
        self._view = View(snapshot)
        self._labels = {card.facts.uuid: card.labels.gpu for card in snapshot.cards}
        self._owners: dict[str, list[GpuAssignment]] = defaultdict(list)  # uuid →
        for assignment in snapshot.assignments:
            self._owners[assignment.uuid].append(assignment)
        self._paths = {group.replica: group.worst for group in snapshot.topology.groups}
        self._marks: dict[str, Level] = {}  # subject → the gravest finding about it
        self._marked_by: dict[str, str] = {}  # subject → the name of that finding
        for finding in flatten(snapshot.findings).values():
            level = severity_level(finding.severity)
            if _ORDER.index(level) > _ORDER.index(self._marks.get(finding.subject.name, Level.NONE)):
                self._marks[finding.subject.name] = level
                self._marked_by[finding.subject.name] = finding.id

    def all(self) -> tuple[PageTable, ...]:
        """Return those that have a row, in the order of the page."""
        found = (self.replicas(), self.ranks(), self.gpus(), self.topology(), self.gateways(), self.sources())
        return tuple(table for table in found if table.rows)

    def _columns(self, *names: str, numeric: frozenset[str] = frozenset()) -> tuple[PageColumn, ...]:
        return tuple(
            PageColumn(heading=self._say(name), title=self._title(name), numeric=name in numeric) for name in names
        )

    def _title(self, name: str) -> str:
        try:
            return self._say(f"{name}_title")
        except KeyError:
            return ""

    # ------------------------------------------------------------------ replicas

    def replicas(self) -> PageTable:
        """Return one row for each replica."""
        names = ("running", "waiting", "ttft", "itl", "hit_ratio", "kv", "errors", "tokens", "cost")
        windows = [label for replica in self._snapshot.replicas for label in list(replica.windows)[:1]]
        return PageTable(
            id="replicas",
            heading=self._say("replicas"),
            note=self._say("last").format(window=windows[0]) if windows else "",
            columns=self._columns("replica", "verdict", *names, "gpus", numeric=frozenset(names)),
            rows=tuple(self._replica(replica) for replica in self._snapshot.replicas),
        )

    def _replica(self, replica: ReplicaState) -> PageRow:
        figures = shortest_window(replica) if replica.reading is not None else None
        version = replica.reading.version if replica.reading is not None else ""
        engine = " ".join(filter(None, (replica.labels.engine, version, "·", replica.labels.model)))
        ttft, itl = Stage.TIME_TO_FIRST_TOKEN, Stage.INTER_TOKEN
        error_ratio = figures.error_ratio if figures is not None else None
        tokens = figures.generation_token_rate if figures is not None else None
        hits = figures.hit_ratio if figures is not None else None

        def curve(*series: str, top: float | None = None) -> Curve:
            return Curve(kind="replica", name=replica.name, series=series, top=top)

        cells = (
            PageCell(clean(replica.name), clean(engine), title=clean(f"{replica.name} · {engine}", 300)),
            self._replica_verdict(replica),
            PageCell(values.count(requests(replica, Quantity.REQUESTS_RUNNING)), curve=curve("running")),
            PageCell(values.count(requests(replica, Quantity.REQUESTS_WAITING)), curve=curve("waiting")),
            PageCell(
                values.seconds(latency(figures, ttft, P99)),
                f"p50 {values.seconds(latency(figures, ttft, P50))}",
                curve=curve("ttft"),
            ),
            PageCell(
                values.seconds(latency(figures, itl, P50)),
                f"p99 {values.seconds(latency(figures, itl, P99))}",
                curve=curve("itl"),
            ),
            PageCell(values.percent(hits), curve=curve("hit_ratio", top=1.0)),
            PageCell(values.percent(kv_usage(replica)), curve=curve("kv", top=1.0)),
            PageCell(values.percent(error_ratio), level=error_level(error_ratio)),
            PageCell(values.count(tokens), curve=curve("tokens")),
            self._cost(replica),
            self._replica_gpus(replica),
        )
        return PageRow(key=f"replica-{replica.name}", cells=cells, level=self._marks.get(replica.name, Level.NONE))

    def _replica_verdict(self, replica: ReplicaState) -> PageCell:
        cell = verdict_cell(self._snapshot.verdicts.replicas.get(replica.name), self._language)
        if replica.status.up or cell.detail:
            return cell
        return PageCell(cell.text, clean(replica.status.reason.replace("_", " ")), cell.level, title=cell.title)

    def _cost(self, replica: ReplicaState) -> PageCell:
        economics = self._snapshot.economics
        window = ReplicaWindow(replica.name, next(iter(replica.windows), ""))
        price, joules = economics.cost_per_million.get(window), economics.joules_per_token.get(window)
        energy = ABSENT if joules is None else f"{joules:.2f} J"
        if price is None:
            return PageCell(energy)
        return PageCell(f"{price:.2f} {clean(economics.currency)}", energy)

    def _replica_gpus(self, replica: ReplicaState) -> PageCell:
        uuids = self._view.uuids_of.get(replica.name, ())
        labels = [self._labels[uuid] for uuid in uuids if uuid in self._labels]
        path = self._paths.get(replica.name, "")
        why = self._snapshot.daemon.unassigned.get(replica.name, "")
        return PageCell(values.ranges(labels) or ABSENT, clean(path or why.replace("_", " ")))

    def ranks(self) -> PageTable:
        """Return one row for each rank of the replicas that have several."""
        several = [
            replica
            for replica in self._snapshot.replicas
            if replica.reading is not None and len(replica.reading.ranks) > 1
        ]
        names = ("running", "waiting", "kv", "tokens")
        return PageTable(
            id="ranks",
            heading=self._say("ranks"),
            columns=self._columns("rank", "gpus", *names, numeric=frozenset(names)),
            rows=tuple(row for replica in several for row in self._ranks(replica)),
        )

    def _ranks(self, replica: ReplicaState) -> Iterator[PageRow]:
        assert replica.reading is not None
        ranks = replica.reading.ranks
        figures = shortest_window(replica)
        rates = figures.rank_token_rates if figures is not None else {}
        top = max((rank.get(Quantity.REQUESTS_RUNNING, 0.0) for rank in ranks.values()), default=0.0)
        for name in sorted(ranks, key=lambda name: (len(name), name)):
            numbers = ranks[name]
            running = numbers.get(Quantity.REQUESTS_RUNNING)
            uuids = [found.uuid for found in self._snapshot.assignments
                     if found.replica == replica.name and found.rank == name]  # fmt: skip
            yield PageRow(
                key=f"rank-{(replica.name, name)}",
                cells=(
                    PageCell(clean(name), clean(replica.name)),
                    PageCell(values.ranges([self._labels[uuid] for uuid in uuids if uuid in self._labels]) or ABSENT),
                    PageCell(values.count(running), bar=running / top if running is not None and top else None),
                    PageCell(values.count(numbers.get(Quantity.REQUESTS_WAITING))),
                    PageCell(values.percent(numbers.get(Quantity.KV_CACHE_USAGE))),
                    PageCell(values.count(rates.get(name))),
                ),
            )

    # ------------------------------------------------------------------ GPUs

    def gpus(self) -> PageTable:
        """Return one row for each GPU."""
        names = ("work", "memory", "temperature", "power", "clock")
        return PageTable(
            id="gpus",
            heading=self._say("gpus"),
            columns=self._columns("gpu", "state", *names, "links", "xid", numeric=frozenset(names)),
            rows=tuple(self._gpu(card) for card in self._snapshot.cards),
        )

    def _gpu(self, card: CardState) -> PageRow:
        uuid = card.facts.uuid
        cells = (
            self._gpu_name(card),
            self._gpu_state(card),
            self._work(card),
            self._memory(card),
            self._temperature(card),
            self._power(card),
            self._clock(card),
            self._links(card),
            self._xid(uuid),
        )
        return PageRow(key=f"gpu-{uuid}", cells=cells, level=self._marks.get(uuid, Level.NONE))

    def _gpu_name(self, card: CardState) -> PageCell:
        text = ", ".join(
            found.replica + (f" {self._say('rank_number').format(rank=found.rank)}" if found.rank else "")
            for found in self._owners[card.facts.uuid]
        )
        facts = card.facts
        title = " · ".join(filter(None, (facts.name, facts.uuid, facts.pci_bus_id, facts.serial)))
        return PageCell(clean(card.labels.gpu), clean(text), title=clean(title, 300))

    def _gpu_state(self, card: CardState) -> PageCell:
        uuid = card.facts.uuid
        verdict = self._snapshot.verdicts.gpus.get(uuid)
        if card.reading is None:
            cell = verdict_cell(verdict, self._language)
            reason = card.status.reason.replace("_", " ") or self._say("not_known")
            return PageCell(
                clean(reason), cell.text, Level.CRITICAL if cell.level is Level.CRITICAL else Level.UNKNOWN
            )
        straggler = self._view.stragglers.get(uuid)
        if straggler is not None:
            cause = CAUSE_NAMES[straggler.cause].in_(self._language)
            slower = f" {straggler.slowdown:.2f}×" if straggler.slowdown is not None else ""
            return PageCell(self._say("straggler"), f"{cause}{slower}", Level.WARNING)
        if verdict is not None and verdict.state in (VerdictState.EJECT, VerdictState.DRAIN):
            return verdict_cell(verdict, self._language)
        mark = self._marks.get(uuid, Level.NONE)
        if mark is not Level.NONE:
            return PageCell(self._say(mark.value), clean(self._marked_by[uuid]), mark)
        waits = self._waits_for(uuid)
        if waits:
            return PageCell(self._say("waits"), self._say("waits_for").format(gpu=waits), Level.INFO)
        return PageCell(self._say("ok"), level=Level.GOOD)

    def _waits_for(self, uuid: str) -> str:
        """Return the GPU of the same replica that cannot work, or is a straggler; "" without one."""
        for replica in self._view.replicas_of.get(uuid, ()):
            for card in self._view.gpus_of(replica):
                other = card.facts.uuid
                verdict = self._snapshot.verdicts.gpus.get(other)
                is_out = verdict is not None and verdict.state is VerdictState.EJECT
                if other != uuid and (is_out or other in self._view.stragglers):
                    return gpu_label(card)
        return ""

    def _signals(self, card: CardState) -> Mapping[Signal, float]:
        return card.reading.signals if card.reading is not None else {}

    def _curve(self, card: CardState, *series: str, top: float | None = None) -> Curve:
        return Curve(kind="gpu", name=card.facts.uuid, series=series, top=top)

    def _work(self, card: CardState) -> PageCell:
        signals = self._signals(card)
        sm, tensor = signals.get(Signal.SM_ACTIVE), signals.get(Signal.TENSOR_ACTIVE)
        parts = []
        if sm is not None:
            parts.append(self._say("sm").format(sm=values.percent(sm)))
        if tensor is not None:
            parts.append(self._say("tensor").format(tensor=values.percent(tensor)))
        curve = self._curve(card, "sm_active", "utilization", top=1.0)
        return PageCell(values.percent(signals.get(Signal.UTILIZATION)), " ".join(parts), curve=curve)

    def _memory(self, card: CardState) -> PageCell:
        signals = self._signals(card)
        ratio = memory_ratio(signals)
        processes = card.reading.processes if card.reading is not None else None
        owners = ", ".join(
            self._say("pid").format(pid=process.pid, bytes=values.gibibytes(process.memory))
            for process in (processes or ())[:8]
        )
        return PageCell(
            values.percent(ratio),
            values.gibibytes(signals.get(Signal.MEMORY_USED)),
            Level.WARNING if ratio is not None and ratio >= limit.GPU_MEMORY_USED else Level.NONE,
            self._curve(card, "memory", top=1.0),
            title=self._say("processes").format(processes=owners) if owners else "",
        )

    def _temperature(self, card: CardState) -> PageCell:
        signals = self._signals(card)
        margin = signals.get(Signal.TEMPERATURE_MARGIN)
        hot = margin is not None and margin <= limit.TEMPERATURE_MARGIN_CELSIUS
        return PageCell(
            values.unit(signals.get(Signal.TEMPERATURE_GPU), "°C"),
            "" if margin is None else self._say("margin").format(degrees=f"{margin:.0f}"),
            Level.WARNING if hot else Level.NONE,
            self._curve(card, "temperature", top=100.0),
        )

    def _power(self, card: CardState) -> PageCell:
        signals = self._signals(card)
        power_limit = signals.get(Signal.POWER_LIMIT)
        return PageCell(
            values.unit(signals.get(Signal.POWER), "W"),
            "" if power_limit is None else self._say("limit").format(total=values.unit(power_limit, "W")),
            curve=self._curve(card, "power", top=power_limit),
        )

    def _clock(self, card: CardState) -> PageCell:
        signals = self._signals(card)
        top = signals.get(Signal.CLOCK_MAX_SM)
        events = card.reading.clock_events if card.reading is not None else {}
        reasons = [reason for reason, active in events.items() if active and reason != "gpu_idle"]
        said = ", ".join(dict.fromkeys(self._reason(reason) for reason in reasons))
        level = Level.NONE if not reasons else Level.INFO if _MILD.issuperset(reasons) else Level.WARNING
        full = "" if top is None else self._say("limit").format(total=f"{top / 1e6:.0f}")
        text = values.unit(signals.get(Signal.CLOCK_SM), "MHz", 1e-6)
        return PageCell(text, said or full, level, self._curve(card, "clock", top=top))

    def _reason(self, reason: str) -> str:
        try:
            return self._say(reason)
        except KeyError:
            return clean(reason.replace("_", " "))

    def _links(self, card: CardState) -> PageCell:
        signals = self._signals(card)
        states = card.reading.nvlink_up if card.reading is not None else {}
        health = self._snapshot.topology.links.get(card.facts.uuid)
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

    def _xid(self, uuid: str) -> PageCell:
        now = self._snapshot.unix_time
        last = max(self._view.xids.get(uuid, ()), key=lambda count: count.last_unix_time or 0.0, default=None)
        if last is None or last.last_unix_time is None:
            return PageCell("")
        recent = now - last.last_unix_time <= limit.XID_RECENT_SECONDS
        return PageCell(
            f"{last.xid}", values.clock(last.last_unix_time, now), Level.WARNING if recent else Level.NONE
        )

    # ------------------------------------------------------------------ topology, gateways, sources

    def topology(self) -> PageTable:
        """Return the path between any two GPUs; of many GPUs, how many pairs each path joins."""
        topology, say = self._snapshot.topology, self._say
        slowest = [
            say("slowest_path").format(replica=clean(group.replica), path=group.worst)
            for group in topology.groups[:8]
            if group.worst
        ]
        note = " · ".join(slowest)
        members = [card.facts.uuid for card in self._snapshot.cards if card.facts.instance is None]
        if len(members) > MAX_MATRIX:
            found = Counter(path.path for path in topology.paths)
            return PageTable(
                id="topology",
                heading=say("topology"),
                note=note,
                columns=self._columns("path", "pairs", numeric=frozenset({"pairs"})),
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
                    PageCell(clean(self._labels[uuid])),
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
                *(PageColumn(heading=clean(self._labels[uuid])) for uuid in members),
            ),
            rows=rows if paths else (),
        )

    def gateways(self) -> PageTable:
        """Return one row for each backend of each gateway."""
        numeric = frozenset({"share", "active", "queued"})
        return PageTable(
            id="gateways",
            heading=self._say("gateways"),
            columns=self._columns("gateway", "backend", "state", "share", "active", "queued", numeric=numeric),
            rows=tuple(self._backends()),
        )

    def _backends(self) -> Iterator[PageRow]:
        say = self._say
        for gateway in self._snapshot.gateways:
            kind = clean(gateway.labels.kind)
            name = PageCell(clean(gateway.name), kind)
            if gateway.reading is None:
                reason = clean(gateway.status.reason.replace("_", " "))
                state = PageCell(say("down"), reason, Level.UNKNOWN)
                cells = (name, PageCell(ABSENT), state, PageCell(ABSENT), PageCell(ABSENT), PageCell(ABSENT))
                yield PageRow(key=f"gateway-{gateway.name}", cells=cells, level=Level.UNKNOWN)
                continue
            figures = next(iter(gateway.windows.values()), None)
            for backend, load in gateway.reading.backends.items():
                replica = gateway.replicas.get(backend, "")
                verdict = self._snapshot.verdicts.replicas.get(replica)
                share = figures.shares.get(backend) if figures is not None else None
                ejected = verdict is not None and verdict.state is VerdictState.EJECT
                sent = ejected and share is not None and share > limit.GATEWAY_SHARE
                state = PageCell(ABSENT) if load.up is None else PageCell(say("up"), level=Level.GOOD)
                if load.up is False:
                    state = PageCell(say("down"), level=Level.WARNING)
                if sent:
                    state = PageCell(state.text, say("sends_to_ejected"), Level.CRITICAL)
                yield PageRow(
                    key=f"backend-{(gateway.name, backend.pool, backend.name)}",
                    level=Level.CRITICAL if sent else Level.NONE,
                    cells=(
                        name,
                        PageCell(clean(replica or backend.name), clean(backend.pool)),
                        state,
                        PageCell(values.percent(share), bar=share),
                        PageCell(values.count(load.active)),
                        PageCell(values.count(load.queued)),
                    ),
                )

    def sources(self) -> PageTable:
        """Return one row for each source; the GPUs that answer share one."""
        say, sources = self._say, self._snapshot.sources
        gpus = [status for status in sources if status.source.startswith("gpu:")]
        good = [status for status in gpus if status.up]
        rows = []
        if gpus:
            ages = [self._snapshot.at - found.last_success for found in good if found.last_success is not None]
            text = say("gpus_count").format(up=len(good), count=len(gpus))
            level = Level.GOOD if len(good) == len(gpus) else Level.WARNING
            cells = (
                PageCell(say("gpus")),
                PageCell(text, level=level),
                PageCell(values.age(max(ages, default=None), say)),
            )
            rows.append(PageRow(key="source-gpus", cells=(*cells, PageCell(ABSENT))))
        for status in sources:
            if status in good:
                continue
            reason = clean(status.reason.replace("_", " "))
            age = None if status.last_success is None else max(0.0, self._snapshot.at - status.last_success)
            kind, _, name = status.source.partition(":")
            source = f"GPU {self._labels.get(name, name)}" if kind == "gpu" else status.source
            state = (
                PageCell(say("up"), level=Level.GOOD) if status.up else PageCell(say("down"), reason, Level.WARNING)
            )
            rows.append(
                PageRow(
                    key=f"source-{status.source}",
                    cells=(
                        PageCell(clean(source)),
                        state,
                        PageCell(values.age(age, say)),
                        PageCell(values.seconds(status.duration)),
                    ),
                    level=Level.NONE if status.up else Level.WARNING,
                )
            )
        return PageTable(
            id="sources",
            heading=say("sources"),
            columns=self._columns("source", "state", "age", "duration", numeric=frozenset({"age", "duration"})),
            rows=tuple(rows),
        )


def error_level(ratio: float | None) -> Level:
    """Return the mark of a ratio of failed requests."""
    if ratio is None or ratio < limit.ERROR_RATIO_WARNING:
        return Level.NONE
    return Level.CRITICAL if ratio >= limit.ERROR_RATIO_CRITICAL else Level.WARNING
