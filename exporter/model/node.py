"""The node as a whole: who owns what, what is uneven, what it costs, and the snapshot that one page shows."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from exporter.model.card import CardState, DriverFacts, Signal
from exporter.model.engine import ReplicaState
from exporter.model.finding import Finding, Verdicts
from exporter.model.gateway import GatewayState
from exporter.model.source import EMPTY, SourceStatus
from exporter.model.straggler import Stragglers
from exporter.model.sxid import SxidCount
from exporter.model.topology import Topology
from exporter.model.xid import XidCount


class GpuAssignment(Struct, frozen=True, kw_only=True):
    """Which replica uses a card; at most one row per (card, replica, rank)."""

    uuid: str
    replica: str
    rank: str = ""


class Spread(Struct, frozen=True, kw_only=True):
    """How uneven one signal is within one group of cards."""

    stddev: float  # population standard deviation
    spread: float  # max − min
    coefficient_of_variation: float | None  # None when the mean is 0
    max_to_mean: float | None


class GroupImbalance(Struct, frozen=True, kw_only=True):
    """Unevenness inside one group.  scope "replica": group is the replica; scope "node": group is ""."""

    scope: str
    group: str
    spreads: Mapping[Signal, Spread]
    deviations: Mapping[Signal, Mapping[str, float]]  # signal → uuid → (value − median) ÷ median


class VarianceBreakdown(Struct, frozen=True, kw_only=True):
    """At which layer the unevenness of one signal of one model arises; no shares when nothing is uneven."""

    model: str
    signal: str
    coefficient_of_variation: float | None  # over all cards, or over all ranks; None when the mean is 0
    shares: Mapping[str, float]  # layer "replica", "rank", "card" → share of the sum of squares; they add up to 1


class Economics(Struct, frozen=True, kw_only=True):
    """What work and idleness cost.  Prices are in ``currency``, which is "" when nothing is priced."""

    currency: str = ""
    prices: Mapping[str, float] = EMPTY  # uuid → price of one hour
    joules_per_token: Mapping[tuple[str, str], float] = EMPTY  # (replica, window)
    tokens_per_joule: Mapping[tuple[str, str], float] = EMPTY
    cost_per_million: Mapping[tuple[str, str], float] = EMPTY
    idle_seconds: Mapping[str, float] = EMPTY  # uuid → counter
    idle_cost: Mapping[str, float] = EMPTY  # uuid → counter


class DaemonState(Struct, frozen=True, kw_only=True):
    """The daemon about itself."""

    config_reload_successful: bool = True
    config_reload_unix_time: float | None = None
    loop_restarts: Mapping[str, int] = EMPTY  # loop → count
    dropped_series: int = 0  # beyond the hard cap, or not finite
    parse_warnings: Mapping[tuple[str, str], int] = EMPTY  # (source, reason) → lines
    unassigned: Mapping[str, str] = EMPTY  # replica → why no card was found


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything that one page shows, immutable once made; the publisher holds the newest."""

    at: float
    unix_time: float
    driver: DriverFacts | None = None
    cards: tuple[CardState, ...] = ()
    replicas: tuple[ReplicaState, ...] = ()
    gateways: tuple[GatewayState, ...] = ()
    assignments: tuple[GpuAssignment, ...] = ()
    imbalance: tuple[GroupImbalance, ...] = ()
    replica_imbalance: Mapping[tuple[str, str], float] = EMPTY  # (model, signal)
    variance_breakdowns: tuple[VarianceBreakdown, ...] = ()
    economics: Economics = field(default_factory=Economics)
    stragglers: Stragglers = field(default_factory=Stragglers)
    topology: Topology = field(default_factory=Topology)
    xids: tuple[XidCount, ...] = ()
    sxids: tuple[SxidCount, ...] = ()
    sources: tuple[SourceStatus, ...] = ()
    daemon: DaemonState = field(default_factory=DaemonState)
    findings: tuple[Finding, ...] = ()
    verdicts: Verdicts = field(default_factory=Verdicts)
