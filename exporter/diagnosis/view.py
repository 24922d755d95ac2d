"""A snapshot, indexed for questions that join GPUs, replicas and gateways."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from msgspec import Struct

from exporter.diagnosis import thresholds as limit
from exporter.model import (
    CardState,
    GpuOwner,
    MultiNodeGpu,
    ReplicaState,
    Signal,
    Snapshot,
    SourceStatus,
    Straggler,
    XidCount,
)
from exporter.model.engine import Quantity, WindowFigures
from exporter.model.finding import Evidence, Subject, SubjectKind
from exporter.model.text import Text

PRIMARY_WINDOW = "1m"


class GatewayShare(Struct, frozen=True, kw_only=True):
    """The share of its pool's recent requests that a gateway sends to one replica; ratio."""

    gateway: str
    share: float


class ReplicaPart(NamedTuple):
    """The GPUs that this node, or one pod of it, contributes to a replica that spans nodes."""

    place: MultiNodeGpu  # of the first
    uuids: tuple[str, ...]


def replica_parts(snapshot: Snapshot) -> tuple[ReplicaPart, ...]:
    """Return the parts of replicas that span nodes, by key and node rank."""
    places: dict[tuple[str, int], list[MultiNodeGpu]] = defaultdict(list)
    for gpu in snapshot.multi_node:
        places[gpu.key, -1 if gpu.node_rank is None else gpu.node_rank].append(gpu)
    return tuple(ReplicaPart(found[0], tuple(gpu.uuid for gpu in found)) for _, found in sorted(places.items()))


class View:
    """One snapshot and its indexes, built once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.cards = {card.facts.uuid: card for card in snapshot.cards}
        self.replicas = {replica.name: replica for replica in snapshot.replicas}
        self.replicas_of: dict[str, list[str]] = defaultdict(list)  # uuid → replicas
        self.uuids_of: dict[str, list[str]] = defaultdict(list)  # replica → uuids, in the order of assignments
        for assignment in snapshot.assignments:
            if assignment.replica not in self.replicas_of[assignment.uuid]:
                self.replicas_of[assignment.uuid].append(assignment.replica)
                self.uuids_of[assignment.replica].append(assignment.uuid)
        self.remote = frozenset(gpu.key for gpu in snapshot.multi_node if gpu.is_remote)
        self.owners_of: dict[str, list[GpuOwner]] = defaultdict(
            list
        )  # uuid → owners of processes, the most memory first
        for held in snapshot.owners:
            if held.pids:
                self.owners_of[held.uuid].append(held)
        self.stragglers: dict[str, Straggler] = {found.uuid: found for found in snapshot.stragglers.found}
        self.xids: dict[str, list[XidCount]] = defaultdict(list)
        for count in snapshot.xids:
            if count.xid is not None and count.last_unix_time is not None:
                self.xids[count.labels.uuid].append(count)

    def gpus_of(self, replica: str) -> list[CardState]:
        """Return the GPUs that are assigned to a replica and known."""
        return [self.cards[uuid] for uuid in self.uuids_of.get(replica, ()) if uuid in self.cards]

    def gpu(self, card: CardState) -> Subject:
        """Return a GPU as a subject."""
        return Subject(SubjectKind.GPU, card.facts.uuid, f"GPU {card.labels.gpu}")

    def owner(self, card: CardState) -> str:
        """Return the replica that a GPU is assigned to, the first of several, "" for none."""
        return next(iter(self.replicas_of.get(card.facts.uuid, ())), "")

    def siblings_of(self, replica: ReplicaState) -> list[ReplicaState]:
        """Return the other replicas of the same model that answer."""
        model = replica.labels.model
        return [
            other
            for other in self.snapshot.replicas
            if other.labels.model == model and other.status.up and other.name != replica.name
        ]

    def gateway_shares(self, replica: str) -> list[GatewayShare]:
        """Return what the gateways send to a replica; without shares that are probes or chance."""
        found = []
        for gateway in self.snapshot.gateways:
            if gateway.reading is None:
                continue
            window = gateway.windows.get(PRIMARY_WINDOW) or next(iter(gateway.windows.values()), None)
            for backend, name in gateway.replicas.items():
                share = window.shares.get(backend) if window is not None else None
                if name == replica and share is not None and share > limit.GATEWAY_SHARE:
                    found.append(GatewayShare(gateway=gateway.name, share=share))
        return found

    def relief(self, replica: str) -> Text | None:
        """Return the step that keeps requests away from a replica, None without a replica."""
        if not replica:
            return None
        if replica in self.remote:
            return Text(
                f"Take the replica whose nodes meet at {replica} out of the load balancer.",
                f"将各节点在 {replica} 会合的副本从负载均衡中摘除。",
            )
        for sent in self.gateway_shares(replica):
            return Text(
                f"Take {replica} out of gateway {sent.gateway}.", f"将 {replica} 从网关 {sent.gateway} 摘除。"
            )
        return Text(f"Take {replica} out of the load balancer.", f"将 {replica} 从负载均衡中摘除。")

    def recent_xids(self, uuid: str, within: float) -> list[XidCount]:
        """Return the XIDs of a GPU during the last ``within`` seconds, the newest first."""
        now = self.snapshot.unix_time
        recent = [count for count in self.xids.get(uuid, ()) if now - (count.last_unix_time or 0.0) <= within]
        return sorted(recent, key=lambda count: count.last_unix_time or 0.0, reverse=True)


def less_load(replica: str) -> Text:
    """Return the step that protects the users of a replica that serves, but badly."""
    return Text(f"Move load off {replica}.", f"减少发往 {replica} 的流量。")


def longest_window(replica: ReplicaState) -> WindowFigures | None:
    """Return the figures of the longest window, None without any."""
    figures = [found for label, found in replica.windows.items() if label != "lifetime"]
    return max(figures, key=lambda found: found.seconds, default=None)


def signal(card: CardState, name: Signal) -> float | None:
    """Return a fresh value of a GPU, None when there is none."""
    return card.reading.signals.get(name) if card.reading is not None else None


def location(card: CardState) -> tuple[Evidence, ...]:
    """Return the PCI address of a GPU as evidence, nothing where it is not known."""
    return (Evidence("pci_bus_id", card.facts.pci_bus_id),) if card.facts.pci_bus_id else ()


def requests(replica: ReplicaState, quantity: Quantity) -> float | None:
    """Return a number summed over the ranks, None when no rank reports it."""
    if replica.reading is None:
        return None
    values = [numbers[quantity] for numbers in replica.reading.ranks.values() if quantity in numbers]
    return sum(values) if values else None


def kv_cache_usage(replica: ReplicaState) -> float | None:
    """Return the usage of the KV cache of the fullest rank, a ratio; None when no rank reports it."""
    ranks = replica.reading.ranks.values() if replica.reading is not None else ()
    return max(
        (numbers[Quantity.KV_CACHE_USAGE] for numbers in ranks if Quantity.KV_CACHE_USAGE in numbers), default=None
    )


def accepted_ratio(replica: ReplicaState) -> float | None:
    """Return accepted over drafted tokens during the longest window, None where the engine counts no drafts."""
    figures = longest_window(replica)
    return figures.spec_acceptance_ratio if figures is not None else None


def accepted_length(replica: ReplicaState) -> float | None:
    """Return the accepted tokens of a step, the step's own left out, of an engine that reports nothing else."""
    ranks = replica.reading.ranks.values() if replica.reading is not None else ()
    tokens = [number for numbers in ranks if (number := numbers.get(Quantity.SPEC_ACCEPTED_LENGTH_NOW, 0.0)) > 0]
    return sum(tokens) / len(tokens) - 1 if tokens else None


def measured(name: str, value: float | None, unit: str = "") -> tuple[Evidence, ...]:
    """Return one piece of evidence, or none where the value is not known."""
    return () if value is None else (Evidence(name, value, unit),)


def replica_subject(replica: ReplicaState) -> Subject:
    """Return a replica as a subject."""
    return Subject(SubjectKind.REPLICA, replica.name, replica.name)


# A page that answers and is not understood: the address is wrong, and waiting mends nothing.
_MISREAD = frozenset(
    ("not_metrics", "unknown_engine", "no_engine_metrics", "unknown_gateway", "no_gateway_metrics", "unknown_store",
     "no_store_metrics")
)  # fmt: skip


def is_misread(status: SourceStatus) -> bool:
    """Return whether a target answers with something else than its metrics."""
    return status.reason in _MISREAD


def why_down(status: SourceStatus) -> tuple[Evidence, ...]:
    """Return why a target cannot be read as evidence; what a page was taken for in a sentence."""
    return (Evidence("reason", status.reason), *([Evidence("error", status.error)] if is_misread(status) else []))


def queues(replica: ReplicaState) -> bool:
    """Return whether requests wait at a replica."""
    return bool(requests(replica, Quantity.REQUESTS_WAITING))


def window(replica: ReplicaState) -> WindowFigures | None:
    """Return the figures of the window that findings and alerts read, else of the longest; None without any."""
    return replica.windows.get(limit.WINDOW) or longest_window(replica)
