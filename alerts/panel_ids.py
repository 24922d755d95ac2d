"""Where an alert's dashboard link leads: fixed uids of boards and fixed ids of the panels that alerts name.

The dashboards give these panels these ids; an id is never reused for another figure, since links stand in old
notifications.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Board(str, Enum):
    """The uid of each board."""

    FLEET = "shardwatch-fleet"
    NODE = "shardwatch-node"
    REPLICA = "shardwatch-replica"
    IMBALANCE = "shardwatch-imbalance"
    EFFICIENCY = "shardwatch-efficiency"
    CARD_HEALTH = "shardwatch-card-health"
    SELF = "shardwatch-self"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: ``number`` is its id inside the board."""

    board: Board
    number: int
    shows: str


FLEET_CARDS = Panel(Board.FLEET, 101, "cards by node, up and lost")
FLEET_VERSIONS = Panel(Board.FLEET, 102, "driver and CUDA versions by node")
FLEET_OBJECTIVES = Panel(Board.FLEET, 103, "error budget burnt, by model and objective")
FLEET_ENGINE_VERSIONS = Panel(Board.FLEET, 104, "engine versions by replica")
NODE_UTILIZATION = Panel(Board.NODE, 201, "utilisation by card")
NODE_MEMORY = Panel(Board.NODE, 202, "memory used by card")
NODE_TEMPERATURE = Panel(Board.NODE, 203, "margin to the slowdown temperature by card")
NODE_THROTTLE = Panel(Board.NODE, 204, "time share of clock events by card and reason")
NODE_POWER = Panel(Board.NODE, 205, "power by card against its limit")
NODE_LINKS = Panel(Board.NODE, 206, "PCIe and NVLink by card")
NODE_DEGRADED = Panel(Board.NODE, 207, "PCIe links and NVLinks that are worse than they should be")
NODE_OVER_PCIE = Panel(Board.NODE, 208, "replicas whose cards talk over PCIe")
REPLICA_HEALTH = Panel(Board.REPLICA, 301, "up, frozen, age of data")
REPLICA_QUEUE = Panel(Board.REPLICA, 302, "requests running and waiting")
REPLICA_FIRST_TOKEN = Panel(Board.REPLICA, 303, "time to first token")
REPLICA_TOKEN = Panel(Board.REPLICA, 304, "time between tokens")
REPLICA_DURATION = Panel(Board.REPLICA, 305, "request duration")
REPLICA_CACHE = Panel(Board.REPLICA, 306, "KV-cache use")
REPLICA_HITS = Panel(Board.REPLICA, 307, "prefix-cache hit rate")
REPLICA_PREEMPTIONS = Panel(Board.REPLICA, 308, "preemptions")
REPLICA_ERRORS = Panel(Board.REPLICA, 309, "failed requests")
REPLICA_STRAGGLER = Panel(Board.REPLICA, 310, "straggler and cause")
REPLICA_TOKENS = Panel(Board.REPLICA, 311, "prompt and generated tokens, and restarts")
IMBALANCE_CARDS = Panel(Board.IMBALANCE, 401, "utilisation inside the groups")
IMBALANCE_RANKS = Panel(Board.IMBALANCE, 402, "load by rank")
IMBALANCE_REPLICAS = Panel(Board.IMBALANCE, 403, "load by replica")
IMBALANCE_GATEWAY = Panel(Board.IMBALANCE, 404, "share of requests by backend")
IMBALANCE_POOLS = Panel(Board.IMBALANCE, 405, "pools of the gateways: requests and errors")
IMBALANCE_BACKENDS = Panel(Board.IMBALANCE, 406, "backends of the gateways, up and down")
IMBALANCE_GATEWAYS = Panel(Board.IMBALANCE, 407, "gateways, read or not")
IMBALANCE_BUSIEST = Panel(Board.IMBALANCE, 408, "busiest backend over the mean of its pool")
IMBALANCE_MEMORY = Panel(Board.IMBALANCE, 409, "memory inside the groups")
EFFICIENCY_IDLE = Panel(Board.EFFICIENCY, 501, "idle cards and what they hold")
EFFICIENCY_COST = Panel(Board.EFFICIENCY, 502, "cost per million tokens")
CARD_XIDS = Panel(Board.CARD_HEALTH, 601, "XIDs by card")
CARD_ECC = Panel(Board.CARD_HEALTH, 602, "ECC errors by card")
CARD_REMAP = Panel(Board.CARD_HEALTH, 603, "rows to remap, by card")
CARD_LINKS = Panel(Board.CARD_HEALTH, 604, "NVLinks up")
CARD_SXIDS = Panel(Board.CARD_HEALTH, 605, "errors of NVSwitches by number")
CARD_VERDICTS = Panel(Board.CARD_HEALTH, 606, "cards and what is wrong with them")
CARD_RECOVERY = Panel(Board.CARD_HEALTH, 607, "what the driver asks for")
CARD_SIGNALS = Panel(Board.CARD_HEALTH, 608, "signals that are absent, and why")
CARD_FABRIC = Panel(Board.CARD_HEALTH, 609, "fabric problems")
CARD_LINK_ERRORS = Panel(Board.CARD_HEALTH, 610, "NVLink errors by type")
CARD_REPLAYS = Panel(Board.CARD_HEALTH, 611, "PCIe replays")
SELF_SOURCES = Panel(Board.SELF, 701, "sources up, hung and their ages")
SELF_DAEMON = Panel(Board.SELF, 702, "the daemon: up, reloads, survived errors")
SELF_CARD_AGES = Panel(Board.SELF, 703, "age of cards' data")
SELF_HUNG = Panel(Board.SELF, 704, "calls that do not return")
SELF_UNASSIGNED = Panel(Board.SELF, 705, "replicas without cards, and why")
SELF_ODDITIES = Panel(Board.SELF, 706, "lines left out of pages")
SELF_DOWN = Panel(Board.SELF, 708, "sources that are down, and why")
SELF_MEMORY = Panel(Board.SELF, 707, "memory of the daemon, and its starts")
