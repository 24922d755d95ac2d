"""The node as a whole: assignments, imbalance, costs, and the snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from exporter.model.card import CardFacts, CardState, DriverFacts, Signal
from exporter.model.engine import ParallelSizes, ReplicaState
from exporter.model.finding import Finding, Verdicts
from exporter.model.gateway import GatewayState
from exporter.model.nic import NicEventCount, NicState
from exporter.model.owner import GpuOwner
from exporter.model.push import PushState
from exporter.model.software import NodeSoftware
from exporter.model.source import EMPTY, SourceStatus
from exporter.model.store import StoreState
from exporter.model.straggler import Stragglers
from exporter.model.sxid import SxidCount
from exporter.model.topology import Topology
from exporter.model.xid import XidCount


class GpuAssignment(Struct, frozen=True, kw_only=True):
    """Which replica uses a GPU; at most one row per (GPU, replica, rank)."""

    uuid: str
    replica: str
    rank: str = ""


class MultiNodeGpu(Struct, frozen=True, kw_only=True):
    """A GPU of a replica that spans nodes, and its place in it.

    ``key`` is the same on all nodes.  ``replica``: the name of the replica here; where it has no metrics endpoint on
    this node, its key.  ``head``: this node is the first.  Numbers are None, ranks "", where not known.
    """

    uuid: str
    replica: str
    key: str
    engine: str
    head: bool
    node_rank: int | None = None
    nodes: int | None = None
    pipeline_rank: str = ""
    tensor_rank: str = ""

    @property
    def role(self) -> str:
        """Its word in labels and documents."""
        return "head" if self.head else "worker"

    @property
    def is_remote(self) -> bool:
        """Whether the replica's metrics endpoint is on another node."""
        return self.replica == self.key


class DisputedPlace(Struct, frozen=True, kw_only=True):
    """A place in a replica that spans nodes which processes of several owners claim, so that none has it.

    ``claims``: a process of each owner, and whose it is.
    """

    key: str
    node_rank: int | None
    claims: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        """Return it as logs and findings name it."""
        rank = "" if self.node_rank is None else f" node {self.node_rank}"
        return f"{self.key}{rank}: " + ", ".join(f"pid {pid} ({whose})" for pid, whose in self.claims)


class Spread(Struct, frozen=True, kw_only=True):
    """The spread of one signal within one group of GPUs."""

    stddev: float  # population standard deviation
    spread: float  # maximum − minimum
    coefficient_of_variation: float | None  # None when the mean is 0
    max_to_mean: float | None


class GroupImbalance(Struct, frozen=True, kw_only=True):
    """The imbalance within one group: a replica's GPUs (scope "replica"), or the node's (scope "node", group "")."""

    scope: str
    group: str
    spreads: Mapping[Signal, Spread]
    deviations: Mapping[Signal, Mapping[str, float]]  # signal → uuid → (value − median) ÷ median


class VarianceBreakdown(Struct, frozen=True, kw_only=True):
    """At which layer the variance of one signal of one model arises; no shares without variance."""

    model: str
    signal: str
    coefficient_of_variation: float | None  # over all GPUs, or over all ranks; None when the mean is 0
    shares: Mapping[str, float]  # layer "replica", "rank", "card" → ratio of the sum of squares; sum 1


class ReplicaWindow(NamedTuple):
    """A replica, and a window's label."""

    replica: str
    window: str


class Economics(Struct, frozen=True, kw_only=True):
    """What work and idle time cost.  Prices are in ``currency``, "" without prices."""

    currency: str = ""
    prices: Mapping[str, float] = EMPTY  # uuid → price of one hour
    joules_per_token: Mapping[ReplicaWindow, float] = EMPTY
    tokens_per_joule: Mapping[ReplicaWindow, float] = EMPTY
    cost_per_million: Mapping[ReplicaWindow, float] = EMPTY  # generated tokens
    cost_per_million_prompt: Mapping[ReplicaWindow, float] = EMPTY
    cost_per_million_processed: Mapping[ReplicaWindow, float] = EMPTY  # prompt and generated tokens
    revenue_per_hour: Mapping[ReplicaWindow, float] = EMPTY
    revenue_to_cost: Mapping[ReplicaWindow, float] = EMPTY
    idle_seconds: Mapping[str, float] = EMPTY  # uuid → counter
    idle_cost: Mapping[str, float] = EMPTY  # uuid → counter


class SourceReason(NamedTuple):
    """A source, and why something of it was skipped."""

    source: str
    reason: str


class AccessState(Struct, frozen=True, kw_only=True):
    """The web configuration in use, and who was not admitted; None and empty where it does not say."""

    last_load_successful: bool = True
    certificate_expires: float | None = None  # Unix time
    accept_failures: int = 0  # for want of descriptors or memory
    handshake_failures: int | None = None
    authentication_failures: Mapping[str, int] = EMPTY  # reason → count


class DaemonState(Struct, frozen=True, kw_only=True):
    """The daemon's own state."""

    config_reload_successful: bool = True  # and the web configuration's
    config_reload_unix_time: float | None = None
    loop_restarts: Mapping[str, int] = EMPTY  # loop → count
    dropped_series: int = 0  # beyond the hard cap, or not finite
    dropped_log_lines: int = 0  # because standard error was not read in time
    parse_warnings: Mapping[SourceReason, int] = EMPTY  # skipped lines
    discovery_limits: frozenset[str] = frozenset()  # reached: targets, processes, descriptors, sockets
    unassigned: Mapping[str, str] = EMPTY  # replica → why no GPU was found
    access: AccessState = field(default_factory=AccessState)


class ModelSignal(NamedTuple):
    """A model, and a signal of its replicas."""

    model: str
    signal: str


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything known at one instant.  Immutable and complete: rendering it reads and computes nothing more."""

    at: float
    unix_time: float
    driver: DriverFacts | None = None
    cards: tuple[CardState, ...] = ()
    removed: tuple[CardFacts, ...] = ()  # GPUs that were removed on purpose
    replicas: tuple[ReplicaState, ...] = ()
    gateways: tuple[GatewayState, ...] = ()
    stores: tuple[StoreState, ...] = ()
    assignments: tuple[GpuAssignment, ...] = ()
    multi_node: tuple[MultiNodeGpu, ...] = ()
    disputed: tuple[DisputedPlace, ...] = ()
    parallel_sizes: Mapping[str, ParallelSizes] = EMPTY  # replica → as its processes tell
    owners: tuple[GpuOwner, ...] = ()
    imbalance: tuple[GroupImbalance, ...] = ()
    replica_imbalance: Mapping[ModelSignal, float] = EMPTY  # maximum ÷ mean
    variance_breakdowns: tuple[VarianceBreakdown, ...] = ()
    economics: Economics = field(default_factory=Economics)
    stragglers: Stragglers = field(default_factory=Stragglers)
    topology: Topology = field(default_factory=Topology)
    xids: tuple[XidCount, ...] = ()
    sxids: tuple[SxidCount, ...] = ()
    nics: tuple[NicState, ...] = ()
    nic_events: tuple[NicEventCount, ...] = ()
    software: NodeSoftware = field(default_factory=NodeSoftware)
    pushes: tuple[PushState, ...] = ()
    is_pushed: bool = False  # this copy goes to a receiver instead of to whoever scrapes
    sources: tuple[SourceStatus, ...] = ()
    daemon: DaemonState = field(default_factory=DaemonState)
    findings: tuple[Finding, ...] = ()
    verdicts: Verdicts = field(default_factory=Verdicts)
