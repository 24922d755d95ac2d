"""Findings about who holds a GPU: processes that are left over from an engine that has exited."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis.view import View, location, measured
from exporter.model import CardState, GpuOwner
from exporter.model.finding import Evidence, Finding, Severity
from exporter.model.text import Text

_MAX_PROCESSES = 4  # that are named as evidence
_GIB = 2**30


def findings(view: View) -> Iterator[Finding]:
    """Yield the GPUs that leftover processes hold."""
    for card in view.snapshot.cards:
        left = [held for held in view.owners_of.get(card.facts.uuid, ()) if held.orphans]
        if left:
            yield _orphans(view, card, left)


def _orphans(view: View, card: CardState, left: list[GpuOwner]) -> Finding:
    gpu = view.gpu(card)
    pids = [pid for one in left for pid in one.orphans]
    reading = card.reading
    bytes_by_pid = {process.pid: process.memory for process in (reading.processes if reading else None) or ()}
    known = [memory for pid in pids if (memory := bytes_by_pid.get(pid)) is not None]
    in_all = sum(known) if len(known) == len(pids) else None
    held = Text(f"{in_all / _GIB:.1f} GiB of ", f" {in_all / _GIB:.1f} GiB 显存") if in_all else Text("", "")
    names = ", ".join(sorted({one.owner.name for one in left} - {""}))
    of_owner = Text(f" of {names}", f"（{names}）") if names else Text("", "")
    listed = " ".join(str(pid) for pid in pids[:_MAX_PROCESSES])
    return Finding(
        id="GpuOrphanProcesses",
        severity=Severity.WARNING,
        subject=gpu,
        summary=Text(
            f"Leftover processes{of_owner.en} hold {held.en}{gpu.label}",
            f"残留进程{of_owner.zh}占用 {gpu.text.zh}{held.zh}",
        ),
        evidence=(
            Evidence("processes", float(len(pids))),
            *measured("memory_used", in_all, "bytes"),
            *(Evidence(f"process_{pid}", bytes_by_pid.get(pid) or 0.0, "bytes") for pid in pids[:_MAX_PROCESSES]),
            *((Evidence("owner", names),) if names else ()),
            *location(card),
        ),
        cause=Text(
            "the engine server that started them has exited, or they have exited themselves",
            "启动它们的引擎服务进程已退出，或它们自身已退出",
        ),
        actions=(
            Text(
                f"End them: kill {listed}; after a minute kill -9 {listed}.",
                f"结束它们：kill {listed}；一分钟后仍在则 kill -9 {listed}。",
            ),
            Text(
                f"If their memory stays, drain GPU {card.facts.index} and reset it: nvidia-smi --gpu-reset -i "
                f"{card.facts.index}.",
                f"若显存仍未释放，排空 {card.facts.index} 号卡并复位：nvidia-smi --gpu-reset -i {card.facts.index}。",
            ),
        ),
        replica=view.owner(card),
    )
