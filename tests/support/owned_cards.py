"""Cards with processes on them, replicas at ports, and the two joined over an invented /proc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exporter.derive.assignment import Assignment, Endpoint, assign_gpus
from exporter.model import CardFacts, CardProcess, CardReading, CardState, GpuLabels, Missing, Signal, SourceStatus
from tests.support.fake_proc import FakeProc
from tests.support.processes import read_processes


def card(index: int, *pids: int, known: bool = True, read: bool = True, missing: Missing | None = None) -> CardState:
    uuid = f"GPU-{index}"
    reading = CardReading(
        at=1.0,
        signals={},
        missing={Signal.PROCESSES: missing} if missing else {},
        processes=tuple(CardProcess(pid=pid) for pid in pids) if known else None,
    )
    return CardState(
        facts=CardFacts(index=index, uuid=uuid),
        status=SourceStatus(source=f"gpu:{uuid}", up=read),
        reading=reading if read else None,
        last_read_at=1.0 if read else None,
        labels=GpuLabels(str(index), uuid),
    )


def endpoint(replica: str, port: int, host: str = "127.0.0.1", gpus: tuple[int | str, ...] | None = None) -> Endpoint:
    return Endpoint(replica=replica, host=host, port=port, gpus=gpus)


def rows(result: Assignment) -> list[tuple[str, str, str]]:
    return [(gpu.uuid, gpu.replica, gpu.rank) for gpu in result.gpus]


def assign(node: FakeProc, cards: Sequence[CardState], *endpoints: Endpoint) -> Assignment:
    pids = [process.pid for state in cards if state.reading for process in state.reading.processes or ()]
    table = read_processes(pids, [endpoint.port for endpoint in endpoints], root=str(node.root))
    return assign_gpus(cards, endpoints, table)


def vllm(node: FakeProc, first: int, parent: int, port: int, workers: int = 2, **where: Any) -> list[int]:
    """Start a server at pid ``first``, its engine core and workers; gives the workers' pids."""
    node.add(
        first,
        parent,
        ["python3", "/usr/bin/vllm", "serve", "m", "--port", str(port)],
        title="vllm",
        listens=[("0.0.0.0", port)],
        **where,
    )
    node.add(first + 1, first, ["VLLM::EngineCore"], **where)
    pids = list(range(first + 2, first + 2 + workers))
    for number, pid in enumerate(pids):
        node.add(pid, first + 1, [f"VLLM::Worker_TP{number}"], **where)
    return pids
