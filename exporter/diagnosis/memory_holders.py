"""Whose bytes a GPU holds beyond its peers: of the replica's own process, or of one that the peers do not run.

One process may drive every GPU of a group, or each its own.  So the processes that run on one GPU alone are counted:
more of them than is usual in the group are not the replica's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from exporter.diagnosis.gpu_actions import OTHER_PROCESS
from exporter.diagnosis.view import View, measured
from exporter.model import EMPTY, CardProcess, CardState
from exporter.model.finding import Evidence
from exporter.model.median import median
from exporter.model.text import Text

MAX_PROCESSES = 4  # that are named as evidence
NOTABLE = 256 * 2**20  # bytes by which processes of one kind hardly differ
_GIB = 2**30
_Held = tuple[CardProcess, ...]


class MemoryOwner(Enum):
    """To whom the bytes belong that a GPU holds beyond its peers."""

    UNKNOWN = "unknown"
    REPLICA = "replica"
    OTHER = "other"


class Holders(Struct, frozen=True, kw_only=True):
    """The processes of a GPU, ``named`` those that matter; ``holder``: whose bytes the peers lack, where known."""

    count: int = 0
    named: _Held = ()
    owners: Mapping[int, str] = EMPTY  # pid → pod, job, service or user, where known
    owner: MemoryOwner = MemoryOwner.UNKNOWN
    holder: CardProcess | None = None
    more: float | None = None  # bytes that the holder has beyond the peers' processes

    def evidence(self) -> Iterator[Evidence]:
        """Yield the number of processes and the memory of each that matters."""
        yield from measured("processes", float(self.count) or None)
        for process in self.named[:MAX_PROCESSES]:
            name = f"process_{process.pid}"
            if process.memory is None:
                yield Evidence(name, Text("memory not known", "显存未知"))
            else:
                yield Evidence(name, process.memory, "bytes")
            if owner := self.owners.get(process.pid):
                yield Evidence(f"owner_of_{process.pid}", owner)

    def step(self) -> Text:
        """Return what to do about a process that is not of the replica, by its number where that is known."""
        if self.holder is None or self.owner is not MemoryOwner.OTHER:
            return OTHER_PROCESS
        pid = self.holder.pid
        owner = self.owners.get(pid, "")
        return Text(
            f"End or move process {pid}{f' ({owner})' if owner else ''}.",
            f"结束或迁走进程 {pid}{f'（{owner}）' if owner else ''}。",
        )

    def clause(self) -> Text:
        """Return whose bytes they are, as the end of a sentence; empty where that is not known."""
        if self.holder is None or self.owner is MemoryOwner.UNKNOWN:
            return Text("", "")
        pid, more = self.holder.pid, "" if self.more is None else f" {self.more / _GIB:.1f} GiB"
        if self.owner is MemoryOwner.OTHER:
            return Text(
                f"; process {pid}, which its peers do not run, holds{more or ' some of it'}",
                f"；同组 GPU 上没有的进程 {pid} 占用{more or '其中一部分'}",
            )
        return Text(f"; the replica's own process {pid} holds{more} more", f"；副本自身的进程 {pid} 多占{more}")


def holders(view: View, card: CardState, replica: str) -> Holders:
    """Compare the processes of a GPU with those of the other GPUs of its replica."""
    held = (card.reading.processes if card.reading is not None else None) or ()
    peers = [
        peer.reading.processes
        for peer in view.gpus_of(replica)
        if peer is not card and peer.reading is not None and peer.reading.processes
    ]
    alone = _only_in(held, peers)
    named = tuple(sorted(alone or held, key=lambda process: -(process.memory or 0.0)))
    owners = {
        pid: of.owner.name for of in view.owners_of.get(card.facts.uuid, ()) for pid in of.pids if of.owner.name
    }
    known = Holders(count=len(held), named=named, owners=owners)
    if not held or not peers:
        return known
    of_peers = [_only_in(peer, [other for other in (held, *peers) if other is not peer]) for peer in peers]
    usual = round(median([float(len(processes)) for processes in of_peers]))
    workers = [process.memory for processes in of_peers for process in processes if process.memory is not None]
    if len(alone) > usual:
        return _other(known, alone, len(alone) - usual, workers)
    return _own(known, held, peers, workers)


def _only_in(held: _Held, others: Sequence[_Held]) -> _Held:
    elsewhere = {process.pid for other in others for process in other}
    return tuple(process for process in held if process.pid not in elsewhere)


def _other(known: Holders, alone: _Held, count: int, workers: Sequence[float]) -> Holders:
    """Return the process of another tenant: of ``alone``, the ``count`` that are least like the peers' workers."""
    sizes = [(process.memory, process) for process in alone if process.memory is not None]
    if len(sizes) < len(alone):
        return replace(known, owner=MemoryOwner.OTHER, holder=alone[0] if len(alone) == count == 1 else None)
    usual = median(workers) if workers else 0.0
    strangers = sorted(sizes, key=lambda pair: -abs(pair[0] - usual))[:count]
    more, holder = max(strangers, key=lambda pair: pair[0])
    return replace(known, owner=MemoryOwner.OTHER, holder=holder, more=more)


def _own(known: Holders, held: _Held, peers: Sequence[_Held], workers: Sequence[float]) -> Holders:
    """Return the process of the replica that holds most beyond what its like holds on the peers."""
    found = []
    for process in held:
        same = [other.memory for peer in peers for other in peer if other.pid == process.pid and other.memory]
        usual = same or workers
        if process.memory is not None and usual:
            found.append((process.memory - median(usual), process))
    more, holder = max(found, key=lambda pair: pair[0], default=(0.0, None))
    return replace(known, owner=MemoryOwner.REPLICA, holder=holder, more=more) if more >= NOTABLE else known
