"""Findings about GPUs that work but slow their replica: stragglers, reduced clocks, memory that runs out."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis import gpu_actions as action
from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.diagnosis.view import View, location, measured, signal
from exporter.model import CardState, Cause, Signal, Straggler
from exporter.model.finding import Evidence, Finding, Severity
from exporter.model.median import median
from exporter.model.text import Text

GIB = 2**30
_MHZ = 1e6
_SOLUTIONS = {
    Cause.THERMAL: (action.FAN,),
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
            "Compare clocks, power and processes with those of its peers: nvidia-smi -q -i GPU.",
            "与同组 GPU 对比时钟、功耗与进程：nvidia-smi -q -i GPU。",
        ),
    ),
}


def findings(view: View) -> Iterator[Finding]:
    """Yield what slows each GPU of the snapshot, and which GPU of a group holds too much memory."""
    for card in view.snapshot.cards:
        if card.reading is not None:
            yield from _straggler(view, card)
            yield from _clocks(view, card)
    for replica in view.replicas:
        yield from _memory(view, replica)


def _straggler(view: View, card: CardState) -> Iterator[Finding]:
    straggler = view.stragglers.get(card.facts.uuid)
    if straggler is None or (straggler.cause is Cause.MEMORY_PRESSURE and straggler.slowdown is None):
        return  # a full GPU is a finding of its own; it slows the group only where that is measured
    gpu = view.gpu(card)
    cause = CAUSE_NAMES[straggler.cause]
    slower = f", {straggler.slowdown:.2f}x slower than its group" if straggler.slowdown is not None else ""
    slower_zh = f"，比同组慢 {straggler.slowdown:.2f} 倍" if straggler.slowdown is not None else ""
    yield Finding(
        id="GpuStraggler",
        severity=Severity.WARNING,
        subject=gpu,
        summary=Text(
            f"{straggler.replica} waits for {gpu.label}: {cause.en}{slower}",
            f"{straggler.replica} 在等待 {gpu.label}：{cause.zh}{slower_zh}",
        ),
        evidence=(
            *measured("slowdown", straggler.slowdown, "ratio"),
            *_conditions(view, card, straggler),
            *location(card),
        ),
        cause=cause,
        actions=_SOLUTIONS[straggler.cause],
        relief=Text(f"Move load off {straggler.replica}.", f"减少发往 {straggler.replica} 的流量。"),
        replica=straggler.replica,
    )


def _conditions(view: View, card: CardState, straggler: Straggler) -> Iterator[Evidence]:
    peers = [peer for peer in view.gpus_of(straggler.replica) if peer is not card]
    for name, source, unit in (
        ("temperature", Signal.TEMPERATURE_GPU, "celsius"),
        ("temperature_margin", Signal.TEMPERATURE_MARGIN, "celsius"),
        ("sm_clock", Signal.CLOCK_SM, "hertz"),
        ("power", Signal.POWER, "watts"),
    ):
        yield from measured(name, signal(card, source), unit)
        others = [value for peer in peers if (value := signal(peer, source)) is not None]
        if others:
            yield Evidence(f"{name}_of_peers", median(others), unit)


def _clocks(view: View, card: CardState) -> Iterator[Finding]:
    assert card.reading is not None
    busy = (signal(card, Signal.UTILIZATION) or 0.0) >= limit.BUSY_UTILIZATION
    if not busy:
        return
    events, gpu, owner = card.reading.clock_events, view.gpu(card), view.owner(card)
    clock, best = signal(card, Signal.CLOCK_SM), signal(card, Signal.CLOCK_MAX_SM)
    evidence = (
        *measured("temperature", signal(card, Signal.TEMPERATURE_GPU), "celsius"),
        *measured("temperature_margin", margin := signal(card, Signal.TEMPERATURE_MARGIN), "celsius"),
        *measured("sm_clock", clock, "hertz"),
        *measured("sm_clock_max", best, "hertz"),
        *location(card),
    )
    held = f" ({clock / _MHZ:.0f} of {best / _MHZ:.0f} MHz)" if clock is not None and best else ""
    if events.get("hw_power_brake_slowdown"):
        yield Finding(
            id="GpuPowerBrake",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(f"{gpu.label} is under power brake{held}", f"{gpu.label} 处于供电制动状态{held}"),
            evidence=evidence,
            actions=(action.POWER,),
            replica=owner,
        )
    if events.get("sw_thermal_slowdown") or events.get("hw_thermal_slowdown"):
        yield Finding(
            id="GpuThermalThrottling",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(f"{gpu.label} is thermally throttled{held}", f"{gpu.label} 因过热降频{held}"),
            evidence=evidence,
            actions=(action.FAN,),
            replica=owner,
        )
    elif margin is not None and margin < limit.TEMPERATURE_MARGIN_CELSIUS:
        yield Finding(
            id="GpuHot",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label} is {margin:.0f} °C below its slowdown temperature",
                f"{gpu.label} 距降频温度仅 {margin:.0f} °C",
            ),
            evidence=evidence,
            actions=(action.FAN,),
            replica=owner,
        )


def _used(card: CardState) -> float | None:
    return signal(card, Signal.MEMORY_USED)


def _memory(view: View, replica: str) -> Iterator[Finding]:
    """Evaluate memory inside one group: shards are equal, so more on one GPU is another process or a leak."""
    gpus = [card for card in view.gpus_of(replica) if _used(card) is not None]
    for card in gpus:
        total, used = signal(card, Signal.MEMORY_TOTAL), _used(card)
        assert used is not None
        peers = [value for peer in gpus if peer is not card and (value := _used(peer)) is not None]
        share = used / total if total else None
        usual = median(peers) if peers else None
        gpu = view.gpu(card)
        uneven = usual is not None and used > limit.MEMORY_SKEW * (used + usual * len(peers)) / (len(peers) + 1)
        full = share is not None and share > limit.GPU_MEMORY_USED
        if not uneven and not (full and usual is not None and used > 1.03 * usual):
            continue
        assert usual is not None
        held = {process.pid: process.memory for process in (card.reading.processes or ())} if card.reading else {}
        largest = max((memory or 0.0 for memory in held.values()), default=0.0)
        percent = f": {share:.0%} used" if share is not None else ""
        percent_zh = f"：已用 {share:.0%}" if share is not None else ""
        yield Finding(
            id="GpuMemoryFull" if full else "GroupMemoryUneven",
            severity=Severity.WARNING,
            subject=gpu,
            summary=Text(
                f"{gpu.label} holds {(used - usual) / GIB:.1f} GiB more than its peers in {replica}{percent}",
                f"{gpu.label} 比 {replica} 的同组 GPU 多占 {(used - usual) / GIB:.1f} GiB{percent_zh}",
            ),
            evidence=(
                Evidence("memory_used", used, "bytes"),
                Evidence("memory_used_of_peers", usual, "bytes"),
                *measured("largest_process", largest or None, "bytes"),
                *measured("processes", float(len(held)) or None),
                *location(card),
            ),
            actions=(
                action.OTHER_PROCESS,
                Text(
                    "If there is none, a worker leaks: restart the replica with a lower --gpu-memory-utilization.",
                    "若没有，则是某个 worker 泄漏：调低 --gpu-memory-utilization 并重启副本。",
                ),
            ),
            replica=replica,
        )
