"""Fixed dashboard UIDs and panel ids that alerts refer to.

An id is never reused for another figure, since old notifications and bookmarks contain it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DashboardUid(str, Enum):
    """The UID of each dashboard."""

    NOW = "shardwatch-now"
    FLEET = "shardwatch-fleet"
    NODE = "shardwatch-node"
    REPLICA = "shardwatch-replica"
    IMBALANCE = "shardwatch-imbalance"
    EFFICIENCY = "shardwatch-efficiency"
    GPU_HEALTH = "shardwatch-gpu-health"
    SELF = "shardwatch-self"


@dataclass(frozen=True, slots=True)
class PanelId:
    """One panel: ``number`` is its id in the dashboard."""

    dashboard: DashboardUid
    number: int
    description: str


FLEET_GPUS = PanelId(DashboardUid.FLEET, 101, "GPUs by node, up and lost")
FLEET_VERSIONS = PanelId(DashboardUid.FLEET, 102, "driver and CUDA versions by node")
FLEET_OBJECTIVES = PanelId(DashboardUid.FLEET, 103, "burn rate by model and objective")
FLEET_ENGINE_VERSIONS = PanelId(DashboardUid.FLEET, 104, "engine versions by replica")
NODE_UTILIZATION = PanelId(DashboardUid.NODE, 201, "utilisation by GPU")
NODE_MEMORY = PanelId(DashboardUid.NODE, 202, "memory used by GPU")
NODE_TEMPERATURE = PanelId(DashboardUid.NODE, 203, "temperature margin by GPU")
NODE_THROTTLE = PanelId(DashboardUid.NODE, 204, "throttling by GPU and reason")
NODE_POWER = PanelId(DashboardUid.NODE, 205, "power and limit by GPU")
NODE_LINKS = PanelId(DashboardUid.NODE, 206, "PCIe and NVLink by GPU")
NODE_DEGRADED = PanelId(DashboardUid.NODE, 207, "degraded PCIe links and NVLinks")
NODE_OVER_PCIE = PanelId(DashboardUid.NODE, 208, "replicas that use PCIe")
NODE_OWNERS = PanelId(DashboardUid.NODE, 209, "owners of the GPUs, and leftover processes")
REPLICA_HEALTH = PanelId(DashboardUid.REPLICA, 301, "up, frozen, age of data")
REPLICA_QUEUE = PanelId(DashboardUid.REPLICA, 302, "requests running and waiting")
REPLICA_FIRST_TOKEN = PanelId(DashboardUid.REPLICA, 303, "time to first token")
REPLICA_TOKEN = PanelId(DashboardUid.REPLICA, 304, "inter-token latency")
REPLICA_DURATION = PanelId(DashboardUid.REPLICA, 305, "request duration")
REPLICA_CACHE = PanelId(DashboardUid.REPLICA, 306, "KV-cache use")
REPLICA_HITS = PanelId(DashboardUid.REPLICA, 307, "prefix-cache hit rate")
REPLICA_PREEMPTIONS = PanelId(DashboardUid.REPLICA, 308, "preemptions")
REPLICA_ERRORS = PanelId(DashboardUid.REPLICA, 309, "failed requests")
REPLICA_STRAGGLER = PanelId(DashboardUid.REPLICA, 310, "straggler and cause")
REPLICA_TOKENS = PanelId(DashboardUid.REPLICA, 311, "prompt and generated tokens, and restarts")
REPLICA_SPECULATION = PanelId(DashboardUid.REPLICA, 312, "accepted share of speculated tokens")
REPLICA_OFFLOAD = PanelId(DashboardUid.REPLICA, 313, "KV cache moved to and from host memory")
REPLICA_TRANSFERS = PanelId(DashboardUid.REPLICA, 314, "failed transfers of KV caches")
REPLICA_LORA = PanelId(DashboardUid.REPLICA, 315, "LoRA slots")
REPLICA_STARTUP = PanelId(DashboardUid.REPLICA, 316, "duration of the engine's start by phase")
REPLICA_STORES = PanelId(DashboardUid.REPLICA, 317, "KV-cache stores, readable or not")
REPLICA_STORE_ERRORS = PanelId(DashboardUid.REPLICA, 318, "errors and evictions of KV-cache stores")
REPLICA_DISAGGREGATION = PanelId(DashboardUid.REPLICA, 319, "queues of disaggregation")
IMBALANCE_GPUS = PanelId(DashboardUid.IMBALANCE, 401, "utilisation inside the groups")
IMBALANCE_RANKS = PanelId(DashboardUid.IMBALANCE, 402, "load by rank")
IMBALANCE_REPLICAS = PanelId(DashboardUid.IMBALANCE, 403, "load by replica")
IMBALANCE_GATEWAY = PanelId(DashboardUid.IMBALANCE, 404, "share of requests by backend")
IMBALANCE_POOLS = PanelId(DashboardUid.IMBALANCE, 405, "pools of the gateways: requests and errors")
IMBALANCE_BACKENDS = PanelId(DashboardUid.IMBALANCE, 406, "backends of the gateways, up and down")
IMBALANCE_GATEWAYS = PanelId(DashboardUid.IMBALANCE, 407, "gateways, readable or not")
IMBALANCE_BUSIEST = PanelId(DashboardUid.IMBALANCE, 408, "busiest backend over the mean of its pool")
IMBALANCE_MEMORY = PanelId(DashboardUid.IMBALANCE, 409, "memory inside the groups")
IMBALANCE_PICKER = PanelId(DashboardUid.IMBALANCE, 410, "stale endpoints and poll errors of endpoint pickers")
IMBALANCE_DISAGGREGATION = PanelId(DashboardUid.IMBALANCE, 411, "decisions about disaggregation")
IMBALANCE_NODES = PanelId(DashboardUid.IMBALANCE, 412, "nodes of replicas that span nodes")
IMBALANCE_NODES_LOST = PanelId(DashboardUid.IMBALANCE, 413, "lost GPUs of replicas that span nodes")
EFFICIENCY_IDLE = PanelId(DashboardUid.EFFICIENCY, 501, "idle GPUs and the memory they hold")
EFFICIENCY_COST = PanelId(DashboardUid.EFFICIENCY, 502, "cost per million tokens")
EFFICIENCY_ENERGY = PanelId(DashboardUid.EFFICIENCY, 503, "energy per token")
GPU_XIDS = PanelId(DashboardUid.GPU_HEALTH, 601, "XIDs by GPU")
GPU_ECC = PanelId(DashboardUid.GPU_HEALTH, 602, "ECC errors by GPU")
GPU_REMAP = PanelId(DashboardUid.GPU_HEALTH, 603, "row remapping by GPU")
GPU_LINKS = PanelId(DashboardUid.GPU_HEALTH, 604, "NVLinks up")
GPU_SXIDS = PanelId(DashboardUid.GPU_HEALTH, 605, "NVSwitch errors (SXid)")
GPU_VERDICTS = PanelId(DashboardUid.GPU_HEALTH, 606, "GPUs and their problems")
GPU_RECOVERY = PanelId(DashboardUid.GPU_HEALTH, 607, "recovery actions requested by the driver")
GPU_SIGNALS = PanelId(DashboardUid.GPU_HEALTH, 608, "missing signals and reasons")
GPU_FABRIC = PanelId(DashboardUid.GPU_HEALTH, 609, "fabric problems")
GPU_LINK_ERRORS = PanelId(DashboardUid.GPU_HEALTH, 610, "NVLink errors by type")
GPU_REPLAYS = PanelId(DashboardUid.GPU_HEALTH, 611, "PCIe replays")
GPU_NIC_PORTS = PanelId(DashboardUid.GPU_HEALTH, 620, "ports of network adapters")
GPU_NIC_RATES = PanelId(DashboardUid.GPU_HEALTH, 621, "rates of network adapters")
GPU_NIC_ERRORS = PanelId(DashboardUid.GPU_HEALTH, 622, "errors and link downs of network adapters")
SELF_SOURCES = PanelId(DashboardUid.SELF, 701, "sources up, hung and their ages")
SELF_DAEMON = PanelId(DashboardUid.SELF, 702, "the daemon: up, reloads, internal errors")
SELF_GPU_AGES = PanelId(DashboardUid.SELF, 703, "age of GPU data")
SELF_HUNG = PanelId(DashboardUid.SELF, 704, "hung calls")
SELF_UNASSIGNED = PanelId(DashboardUid.SELF, 705, "replicas without GPUs, and reasons")
SELF_PARSE_ERRORS = PanelId(DashboardUid.SELF, 706, "ignored metric lines")
SELF_DOWN = PanelId(DashboardUid.SELF, 708, "sources that are down, and reasons")
SELF_CERTIFICATES = PanelId(DashboardUid.SELF, 709, "time until certificates expire")
SELF_PUSH = PanelId(DashboardUid.SELF, 710, "receivers that are pushed to")
SELF_MEMORY = PanelId(DashboardUid.SELF, 707, "memory and starts of the daemon")
