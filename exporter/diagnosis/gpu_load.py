"""Findings about GPUs that work but slow their replica: stragglers, reduced clocks, memory that runs out."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis import gpu_actions as action
from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.diagnosis.history import BRAKE, POWER_CAP, THERMAL, Past
from exporter.diagnosis.memory_holders import MemoryOwner, holders
from exporter.diagnosis.view import View, less_load, location, measured, signal
from exporter.model import CardState, Cause, Signal, Straggler
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind
from exporter.model.median import median
from exporter.model.text import Text

GIB = 2**30
_MHZ = 1e6
_Figures = tuple[tuple[str, Signal, str], ...]
_HEAT_AND_CLOCKS: _Figures = (
    ("temperature", Signal.TEMPERATURE_GPU, "celsius"),
    ("temperature_margin", Signal.TEMPERATURE_MARGIN, "celsius"),
    ("sm_clock", Signal.CLOCK_SM, "hertz"),
    ("power", Signal.POWER, "watts"),
)
_WORK = (
    ("memory_used", Signal.MEMORY_USED, "bytes"),
    ("sm_active", Signal.SM_ACTIVE, "ratio"),
    ("dram_active", Signal.DRAM_ACTIVE, "ratio"),
)
_SOLUTIONS = {
    Cause.THERMAL: (action.COOLING,),
    Cause.POWER_CAP: (
        Text(
            "Compare the power limits of the group (nvidia-smi -q -d POWER) and set them equal (nvidia-smi -pl).",
            "对比同组 GPU 的功耗上限（nvidia-smi -q -d POWER）并设为一致（nvidia-smi -pl）。",
        ),
    ),
    Cause.POWER_BRAKE: (action.POWER,),
    Cause.CLOCK_LOCK: (
        Text("Reset locked clocks: nvidia-smi --reset-gpu-clocks.", "解除锁频：nvidia-smi --reset-gpu-clocks。"),
    ),
    Cause.OTHER_TENANT: (action.OTHER_PROCESS,),
    Cause.PCIE: (action.RESEAT,),
    Cause.NVLINK: (action.DRAIN, action.RESET),
    Cause.MEMORY_PRESSURE: (action.OTHER_PROCESS,),
    Cause.UNKNOWN: (
        Text(
            "Compare clocks, power and processes with those of its peers: nvidia-smi -q -i {gpu}.",
            "与同组 GPU 对比时钟、功耗与进程：nvidia-smi -q -i {gpu}。",
        ),
    ),
}

_LEAK = Text(
    "A worker leaks: restart the replica with a lower --gpu-memory-utilization.",
    "某个 worker 泄漏：调低 --gpu-memory-utilization 并重启副本。",
)
_MEMORY_ACTIONS = {
    MemoryOwner.UNKNOWN: (
        action.OTHER_PROCESS,
        Text(
            "If there is none, a worker leaks: restart the replica with a lower --gpu-memory-utilization.",
            "若没有，则是某个 worker 泄漏：调低 --gpu-memory-utilization 并重启副本。",
        ),
    ),
    MemoryOwner.REPLICA: (_LEAK,),
}


def findings(view: View, past: Past) -> Iterator[Finding]:
    """Yield what slows each GPU of the snapshot, and which GPU of a group holds too much memory."""
    yield from _power_capped(view, past)
    for card in view.snapshot.cards:
        if card.reading is not None:
            for found in (
                _straggler(view, card),
                _clocks(view, past, card),
                _memory(view, past, card, view.owner(card)),
            ):
                yield from (action.with_index(finding, str(card.facts.index)) for finding in found)


def _power_capped(view: View, past: Past) -> Iterator[Finding]:
    """Yield a node whose busy GPUs are all held at a lowered power limit, so that none is slower than the others."""
    busy = [
        card for card in view.cards.values() if (signal(card, Signal.UTILIZATION) or 0.0) > limit.BUSY_UTILIZATION
    ]
    limits = [
        (enforced, default)
        for card in busy
        if (enforced := signal(card, Signal.POWER_LIMIT)) is not None
        and (default := signal(card, Signal.POWER_LIMIT_DEFAULT))
        and past.throttled.get((card.facts.uuid, POWER_CAP), 0.0) > limit.THROTTLED_SHARE
    ]
    if len(busy) < 2 or len(limits) < len(busy):
        return
    watts, default = max(limits, key=lambda pair: pair[0] / pair[1])
    if watts / default >= limit.POWER_LIMIT_SHARE:
        return
    clocks = [clock for card in busy if (clock := signal(card, Signal.CLOCK_SM)) is not None]
    yield Finding(
        id="NodePowerCapped",
        severity=Severity.WARNING,
        subject=Subject(SubjectKind.NODE, "power limit", "node"),
        summary=Text(
            f"All {len(busy)} busy GPUs are held at {watts:.0f} W, {watts / default:.0%} of the default power limit",
            f"{len(busy)} 张工作中的 GPU 全部受限于 {watts:.0f} W 的功率上限，为默认值的 {watts / default:.0%}",
        ),
        evidence=(
            Evidence("power_limit", watts, "watts"),
            Evidence("power_limit_default", default, "watts"),
            *measured("sm_clock", median(clocks) if clocks else None, "hertz"),
        ),
        actions=(
            Text(
                "Find out who lowered the limits; restore them with nvidia-smi -pl unless that is intended.",
                "查明谁调低了上限；若非有意，用 nvidia-smi -pl 恢复。",
            ),
        ),
    )


def _straggler(view: View, card: CardState) -> Iterator[Finding]:
    straggler = view.stragglers.get(card.facts.uuid)
    if straggler is None:
        return
    gpu = view.gpu(card)
    cause = CAUSE_NAMES[straggler.cause]
    tenant = _other_owners(view, card, straggler.replica) if straggler.cause is Cause.OTHER_TENANT else ""
    held = holders(view, card, straggler.replica)
    steps = (held.step() if step is action.OTHER_PROCESS else step for step in _SOLUTIONS[straggler.cause])
    named = Text(f" ({tenant})", f"（{tenant}）") if tenant else Text("", "")
    slower = _slower(straggler)
    yield Finding(
        id="GpuStraggler",
        severity=Severity.WARNING,
        subject=gpu,
        summary=Text(
            f"{straggler.replica} waits for {gpu.label}: {cause.en}{named.en}{slower.en}",
            f"{straggler.replica} 在等待 {gpu.text.zh}：{cause.zh}{named.zh}{slower.zh}",
        ),
        evidence=(
            *measured("slowdown", straggler.slowdown, "ratio"),
            *_conditions(view, card, straggler),
            *location(card),
        ),
        cause=cause,
        actions=tuple(steps),
        relief=less_load(straggler.replica),
        replica=straggler.replica,
    )


def _slower(straggler: Straggler) -> Text:
    ratio = straggler.slowdown
    if ratio is None:
        return Text("", "")
    if straggler.cause in {Cause.PCIE, Cause.NVLINK}:  # what all GPUs wait for alike is not measured
        return Text(f", a step takes an estimated {ratio:.2f} times as long", f"，估算每步耗时为 {ratio:.2f} 倍")
    return Text(f", {ratio:.2f}x slower than its group", f"，比同组慢 {ratio:.2f} 倍")


def _conditions(view: View, card: CardState, straggler: Straggler) -> Iterator[Evidence]:
    """Yield what proves the cause: the processes and the work of another tenant, else heat, clocks and power."""
    figures = _HEAT_AND_CLOCKS
    if straggler.cause is Cause.OTHER_TENANT:
        yield from holders(view, card, straggler.replica).evidence()
        yield from _tenants(view, card, straggler.replica)
        figures = _WORK
    peers = [peer for peer in view.gpus_of(straggler.replica) if peer is not card]
    for name, source, unit in figures:
        yield from measured(name, signal(card, source), unit)
        others = [value for peer in peers if (value := signal(peer, source)) is not None]
        if others:
            yield Evidence(f"{name}_of_peers", median(others), unit)


def _clocks(view: View, past: Past, card: CardState) -> Iterator[Finding]:
    gpu, owner, uuid = view.gpu(card), view.owner(card), card.facts.uuid
    clock, best = signal(card, Signal.CLOCK_SM), signal(card, Signal.CLOCK_MAX_SM)
    heat, brake = (max(past.throttled.get((uuid, reason), 0.0) for reason in reasons) for reasons in (THERMAL, BRAKE))
    evidence = (
        *measured("temperature", signal(card, Signal.TEMPERATURE_GPU), "celsius"),
        *measured("temperature_margin", signal(card, Signal.TEMPERATURE_MARGIN), "celsius"),
        *measured("sm_clock", clock, "hertz"),
        *measured("sm_clock_max", best, "hertz"),
        *location(card),
    )
    held = (
        Text(f" ({clock / _MHZ:.0f} of {best / _MHZ:.0f} MHz)", f"（{clock / _MHZ:.0f}，最高 {best / _MHZ:.0f} MHz）")
        if clock is not None and best
        else Text("", "")
    )
    busy = (signal(card, Signal.UTILIZATION) or 0.0) > limit.BUSY_UTILIZATION
    if brake > limit.POWER_BRAKE_SHARE:
        yield Finding(
            id="GpuPowerBrake",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(f"{gpu.label} is under power brake{held.en}", f"{gpu.text.zh}处于功率制动状态{held.zh}"),
            evidence=(Evidence("throttled", brake, "ratio"), *evidence),
            actions=(action.POWER,),
            replica=owner,
        )
    if heat > limit.THROTTLED_SHARE and busy:
        yield Finding(
            id="GpuThermalThrottling",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(f"{gpu.label} is thermally throttled{held.en}", f"{gpu.text.zh}因过热降频{held.zh}"),
            evidence=(Evidence("throttled", heat, "ratio"), *evidence),
            actions=(action.COOLING,),
            replica=owner,
        )
    else:
        yield from _hot(view, card, evidence)


def _hot(view: View, card: CardState, evidence: tuple[Evidence, ...]) -> Iterator[Finding]:
    gpu, margin = view.gpu(card), signal(card, Signal.TEMPERATURE_MARGIN)
    temperature = signal(card, Signal.TEMPERATURE_GPU)
    if margin is not None and margin < limit.TEMPERATURE_MARGIN_CELSIUS:
        name = "GpuHot"
        summary = Text(
            f"{gpu.label} is {margin:.0f} °C below its slowdown temperature",
            f"{gpu.text.zh}距降频温度仅 {margin:.0f} °C",
        )
    elif margin is None and temperature is not None and temperature > limit.TEMPERATURE_CELSIUS:
        name = "GpuHotWithoutLimit"
        summary = Text(
            f"{gpu.label} is at {temperature:.0f} °C and reports no temperature limit",
            f"{gpu.text.zh}温度为 {temperature:.0f} °C，且未报告降频温度",
        )
    else:
        return
    yield Finding(
        id=name,
        severity=Severity.WARNING,
        subject=gpu,
        summary=summary,
        evidence=evidence,
        actions=(action.COOLING,),
        replica=view.owner(card),
    )


def _used(card: CardState) -> float | None:
    return signal(card, Signal.MEMORY_USED)


def _memory(view: View, past: Past, card: CardState, replica: str) -> Iterator[Finding]:
    """Evaluate memory inside one group: shards are equal, so more on one GPU is another process or a leak."""
    total, used = signal(card, Signal.MEMORY_TOTAL), _used(card)
    if used is None:
        return
    peers = [value for peer in view.gpus_of(replica) if peer is not card and (value := _used(peer)) is not None]
    ratio = used * (len(peers) + 1) / (used + sum(peers)) if peers and used else None
    share = used / total if total else None
    full = share is not None and share > limit.GPU_MEMORY_USED and (ratio is None or ratio > limit.MEMORY_EVEN)
    uneven = ratio is not None and ratio > limit.MEMORY_SKEW and past.of(replica).served_ago <= limit.SERVED_SECONDS
    if not full and not uneven:
        return
    gpu = view.gpu(card)
    held = holders(view, card, replica)
    percent = f": {share:.0%} used" if share is not None else ""
    percent_zh = f"：已用 {share:.0%}" if share is not None else ""
    if peers:
        more = (used - median(peers)) / GIB
        summary = (
            Text(
                f"{gpu.label} holds {more:.1f} GiB more than its peers in {replica}{percent}",
                f"{gpu.text.zh}比 {replica} 的同组 GPU 多占 {more:.1f} GiB{percent_zh}",
            )
            + held.clause()
        )
    else:
        summary = Text(f"The memory of {gpu.label} is full{percent}", f"{gpu.text.zh}显存已满{percent_zh}")
    yield Finding(
        id="GpuMemoryFull" if full else "GroupMemoryUneven",
        severity=Severity.WARNING,
        subject=gpu,
        summary=summary,
        evidence=(
            Evidence("memory_used", used, "bytes"),
            *measured("memory_used_of_peers", median(peers) if peers else None, "bytes"),
            *held.evidence(),
            *_tenants(view, card, replica),
            *location(card),
        ),
        actions=(held.step(),) if held.owner is MemoryOwner.OTHER else _MEMORY_ACTIONS[held.owner],
        replica=replica,
    )


def _tenants(view: View, card: CardState, replica: str) -> Iterator[Evidence]:
    if tenants := _other_owners(view, card, replica):
        yield Evidence("other_owner", tenants)


def _other_owners(view: View, card: CardState, replica: str) -> str:
    """Return who holds this GPU and no other of the replica, the most memory first; "" without peers to compare."""
    peers = [peer for peer in view.gpus_of(replica) if peer is not card]
    usual = {held.owner.name for peer in peers for held in view.owners_of.get(peer.facts.uuid, ())}
    names = [held.owner.name for held in view.owners_of.get(card.facts.uuid, ())]
    return ", ".join(name for name in names if name and name not in usual) if usual else ""
