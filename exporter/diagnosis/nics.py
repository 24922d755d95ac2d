"""Findings about ports of network adapters: down, flapping, below their rate, with errors."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.history import NicPast, Past
from exporter.diagnosis.view import View
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind, gpu_name
from exporter.model.nic import NicState
from exporter.model.text import Text

_CABLE = Text(
    "Check the cable, the transceiver and the switch port of {port}; ibstat or ethtool shows its state.",
    "检查 {port} 的线缆、光模块与交换机端口；用 ibstat 或 ethtool 查看状态。",
)
_COUNTERS = Text(
    "Compare the counters of both ends of the link (perfquery, ethtool -S): the end that receives errors names the "
    "direction.",
    "比较链路两端的计数器（perfquery、ethtool -S）：哪一端收到错误即可判断方向。",
)
_STATES = {  # as the kernel names them, in Chinese
    "armed": "待激活",
    "disabled": "已禁用",
    "down": "断开",
    "init": "初始化",
    "link_error_recovery": "链路错误恢复",
    "link_up": "链路已建立",
    "polling": "轮询中",
    "sleep": "休眠",
    "training": "训练中",
}
_MINUTES = f"{limit.WINDOW_SECONDS / 60:g}"


class _Problem(Struct, frozen=True, kw_only=True):
    """What is wrong with a port; the summary goes on where the port's name ends."""

    id: str
    summary: Text
    evidence: tuple[Evidence, ...]
    action: Text = _CABLE


def findings(view: View, past: Past) -> Iterator[Finding]:
    """Yield what is wrong with each port of the snapshot; of one that is down, nothing else."""
    for nic in view.snapshot.nics:
        known = past.nics.get(nic.port.key, NicPast())
        problems = (_down(nic, known),) if nic.is_down else (_flaps(known), _below_rate(nic), _errors(known))
        for problem in problems:
            if problem is not None:
                yield _finding(view, nic, problem)


def _finding(view: View, nic: NicState, problem: _Problem) -> Finding:
    key, action = nic.port.key, problem.action
    label = f"{key.device} port {key.port}"
    gpus = [view.cards[near.uuid] for near in nic.nearest if near.uuid in view.cards]
    owners = [owner for card in gpus if (owner := view.owner(card))]
    beside = Text(
        ", ".join(f"GPU {card.labels.gpu}" for card in gpus), "、".join(gpu_name(card.labels.gpu).zh for card in gpus)
    )
    return Finding(
        id=problem.id,
        severity=Severity.WARNING,
        subject=Subject(SubjectKind.ADAPTER, f"{key.device}/{key.port}", label),
        summary=Text(label, f"{key.device} 端口 {key.port} ") + problem.summary,
        evidence=(*problem.evidence, *_where(view, nic), *((Evidence("nearest_gpus", beside),) if gpus else ())),
        actions=(Text(action.en.replace("{port}", label), action.zh.replace("{port}", label)),),
        replica=owners[0] if owners else "",
    )


def _where(view: View, nic: NicState) -> Iterator[Evidence]:
    """Yield the adapter's address and interface, and what its driver reported lately."""
    port = nic.port
    if port.interface:
        yield Evidence("interface", port.interface)
    if port.location.address:
        yield Evidence("pci_bus_id", port.location.address)
    recent = [
        events.labels.event
        for events in view.snapshot.nic_events
        if events.labels.pci_bus_id == port.location.address
        and view.snapshot.unix_time - events.last_unix_time < limit.XID_RECENT_SECONDS
    ]
    if recent:
        yield Evidence("driver_events", ", ".join(recent))


def _down(nic: NicState, known: NicPast) -> _Problem:
    errors = _errors(known)
    state = nic.port.physical_state or nic.port.state
    return _Problem(
        id="NicPortDown",
        summary=Text(f" is down ({state})", f"已断开（{_STATES.get(state, state)}）"),
        evidence=(
            Evidence("state", Text(nic.port.state, _STATES.get(nic.port.state, nic.port.state))),
            *(errors.evidence if errors is not None else ()),
        ),
    )


def _flaps(known: NicPast) -> _Problem | None:
    downs = known.link_downs
    if downs is None or downs < limit.NIC_LINK_DOWNS:
        return None
    return _Problem(
        id="NicLinkFlaps",
        summary=Text(f" went down {downs:g} times in {_MINUTES} minutes", f"在 {_MINUTES} 分钟内断开 {downs:g} 次"),
        evidence=(Evidence("link_downs", downs),),
    )


def _below_rate(nic: NicState) -> _Problem | None:
    rate, best = nic.port.rate, nic.max_rate
    if rate is None or best is None or rate >= best:
        return None
    now, before = (f"{value * 8 / 1e9:g} Gb/s" for value in (rate, best))
    return _Problem(
        id="NicBelowRate",
        summary=Text(f" runs at {now} instead of {before}", f"速率为 {now}，曾达到 {before}"),
        evidence=(Evidence("rate", now), Evidence("best_rate", before)),
    )


def _errors(known: NicPast) -> _Problem | None:
    rising = {kind: count for kind, count in known.errors.items() if count > limit.NIC_ERRORS}
    if not rising:
        return None
    kinds = ", ".join(rising)
    return _Problem(
        id="NicErrorsRise",
        summary=Text(f" has errors: {kinds}", f"出现错误：{kinds}"),
        evidence=tuple(Evidence(f"errors_{kind}", count) for kind, count in rising.items()),
        action=_COUNTERS,
    )
