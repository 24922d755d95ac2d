"""Whose bytes a GPU holds beyond its peers."""

from __future__ import annotations

import pytest

from exporter.diagnosis.memory_holders import MemoryOwner, holders
from exporter.diagnosis.view import View
from exporter.model import CardProcess, GpuAssignment, GpuOwner
from exporter.model.owner import Owner
from tests.support.builders import card, snapshot
from tests.support.records import replace

GIB = 2**30


def held(*processes_of_gpus):
    """Return what is known of GPU 0; each GPU is given by pid → GiB, None for memory that is not known."""
    cards = []
    for index, processes in enumerate(processes_of_gpus):
        gpu = card(index)
        known = None
        if processes is not None:
            known = tuple(
                CardProcess(pid=pid, memory=None if size is None else size * GIB) for pid, size in processes.items()
            )
        cards.append(replace(gpu, reading=replace(gpu.reading, processes=known)))
    assignments = tuple(GpuAssignment(uuid=gpu.facts.uuid, replica="chat") for gpu in cards)
    return holders(View(snapshot(cards=tuple(cards), assignments=assignments)), cards[0], "chat")


@pytest.mark.parametrize(
    ("gpus", "owner", "pid", "more"),
    [
        (({10: 79, 1: 0.5}, {11: 70, 1: 0.5}, {12: 70, 1: 0.5}), MemoryOwner.REPLICA, 10, 9),  # a worker each
        (({1: 79}, {1: 70}, {1: 70}), MemoryOwner.REPLICA, 1, 9),  # one process for all
        (({10: 79}, {11: 70}), MemoryOwner.REPLICA, 10, 9),
        (({10: 70, 99: 9}, {11: 70}, {12: 70}), MemoryOwner.OTHER, 99, 9),
        (({1: 70, 99: 9}, {1: 70}), MemoryOwner.OTHER, 99, 9),
        (({10: 70, 99: 6, 98: 3}, {11: 70}, {12: 70}), MemoryOwner.OTHER, 99, 6),
        (({1: None, 99: None}, {1: None}), MemoryOwner.OTHER, 99, None),
        (({10: None, 99: None}, {11: None}), MemoryOwner.OTHER, None, None),  # which of the two is not known
        (({10: None}, {11: None}), MemoryOwner.UNKNOWN, None, None),
        (({10: 70.1}, {11: 70}), MemoryOwner.UNKNOWN, None, None),
        (({10: 79},), MemoryOwner.UNKNOWN, None, None),
        ((None, {11: 70}), MemoryOwner.UNKNOWN, None, None),
    ],
)
def test_bytes_are_of_the_replica_or_of_a_process_that_the_peers_do_not_run(gpus, owner, pid, more):
    found = held(*gpus)
    assert (found.owner, found.holder.pid if found.holder else None) == (owner, pid)
    assert found.more == (None if more is None else pytest.approx(more * GIB))
    assert bool(found.clause().en) == bool(found.clause().zh) == (pid is not None)


def test_the_owner_of_a_process_is_evidence_where_it_is_known():
    gpu = replace(card(0), reading=replace(card(0).reading, processes=(CardProcess(pid=99, memory=1.0),)))
    owner = GpuOwner(uuid=gpu.facts.uuid, owner=Owner(name="batch/train-0/main"), pids=(99,))
    view = View(snapshot(cards=(gpu,), owners=(owner,)))
    assert ("owner_of_99", "batch/train-0/main") in {
        (item.name, item.value) for item in holders(view, gpu, "").evidence()
    }


def test_memory_that_is_not_known_is_never_shown_as_none():
    shown = {item.name: (getattr(item.value, "en", item.value), item.unit) for item in held({99: None}).evidence()}
    assert shown == {"processes": (1.0, ""), "process_99": ("memory not known", "")}
