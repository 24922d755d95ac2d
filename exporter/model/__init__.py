"""Frozen records that travel between the stages; what was not read is absent, never zero and never stale.

Units are base units everywhere (seconds, bytes, ratios 0 to 1, hertz, watts, joules, degrees Celsius): whoever
reads a source converts once, and nobody downstream scales.  Times called ``at`` are ``time.monotonic()`` seconds,
which all processes of one machine share; only times called ``…unix_time`` are Unix time, and only people read those.
"""

from __future__ import annotations

from exporter.model.card import (
    CardFacts,
    CardProcess,
    CardReading,
    CardState,
    DriverFacts,
    MigInstance,
    Missing,
    Signal,
)
from exporter.model.engine import (
    COMMON_STAGES,
    COUNTERS,
    EngineReading,
    Histogram,
    KvCacheHeadroom,
    KvTokens,
    LatencySummary,
    Quantity,
    ReplicaState,
    Stage,
    WindowFigures,
)
from exporter.model.gateway import (
    Backend,
    BackendLoad,
    GatewayFigures,
    GatewayReading,
    GatewayState,
)
from exporter.model.node import (
    DaemonState,
    Economics,
    GpuAssignment,
    GroupImbalance,
    Snapshot,
    Spread,
    VarianceBreakdown,
)
from exporter.model.source import (
    EMPTY,
    Outcome,
    SourceStatus,
)
from exporter.model.straggler import (
    Cause,
    Straggler,
    Stragglers,
)
from exporter.model.sxid import (
    CORRECTABLE,
    FATAL_SEVERITY,
    NON_FATAL,
    UNRATED,
    SxidCount,
    SxidReport,
)
from exporter.model.topology import (
    CardTopology,
    GroupPaths,
    LinkEnd,
    LinkHealth,
    Peer,
    PeerPath,
    Topology,
)
from exporter.model.xid import (
    BUS,
    KERNEL_LOG,
    NVML,
    WHOLE_GPU,
    InstanceId,
    XidCount,
    XidReport,
    canonical_pci,
)

__all__ = [
    "BUS",
    "COMMON_STAGES",
    "CORRECTABLE",
    "COUNTERS",
    "EMPTY",
    "FATAL_SEVERITY",
    "KERNEL_LOG",
    "NON_FATAL",
    "NVML",
    "UNRATED",
    "WHOLE_GPU",
    "Backend",
    "BackendLoad",
    "CardFacts",
    "CardProcess",
    "CardReading",
    "CardState",
    "CardTopology",
    "Cause",
    "DaemonState",
    "DriverFacts",
    "Economics",
    "EngineReading",
    "GatewayFigures",
    "GatewayReading",
    "GatewayState",
    "GpuAssignment",
    "GroupImbalance",
    "GroupPaths",
    "Histogram",
    "InstanceId",
    "KvCacheHeadroom",
    "KvTokens",
    "LatencySummary",
    "LinkEnd",
    "LinkHealth",
    "MigInstance",
    "Missing",
    "Outcome",
    "Peer",
    "PeerPath",
    "Quantity",
    "ReplicaState",
    "Signal",
    "Snapshot",
    "SourceStatus",
    "Spread",
    "Stage",
    "Straggler",
    "Stragglers",
    "SxidCount",
    "SxidReport",
    "Topology",
    "VarianceBreakdown",
    "WindowFigures",
    "XidCount",
    "XidReport",
    "canonical_pci",
]
