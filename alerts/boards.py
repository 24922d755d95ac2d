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
FLEET_VERSIONS = Panel(Board.FLEET, 102, "driver, CUDA and engine versions by node")
FLEET_OBJECTIVES = Panel(Board.FLEET, 103, "error budget burnt, by model and objective")
NODE_UTILIZATION = Panel(Board.NODE, 201, "utilisation by card")
NODE_MEMORY = Panel(Board.NODE, 202, "memory used by card")
NODE_TEMPERATURE = Panel(Board.NODE, 203, "margin to the slowdown temperature by card")
NODE_THROTTLE = Panel(Board.NODE, 204, "time share of clock events by card and reason")
NODE_POWER = Panel(Board.NODE, 205, "power by card against its limit")
NODE_LINKS = Panel(Board.NODE, 206, "PCIe and NVLink by card")
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
IMBALANCE_CARDS = Panel(Board.IMBALANCE, 401, "utilisation inside the groups")
IMBALANCE_RANKS = Panel(Board.IMBALANCE, 402, "load by rank")
IMBALANCE_REPLICAS = Panel(Board.IMBALANCE, 403, "load by replica")
IMBALANCE_GATEWAY = Panel(Board.IMBALANCE, 404, "share of requests by backend")
EFFICIENCY_IDLE = Panel(Board.EFFICIENCY, 501, "idle cards and what they hold")
EFFICIENCY_COST = Panel(Board.EFFICIENCY, 502, "cost per million tokens")
CARD_XIDS = Panel(Board.CARD_HEALTH, 601, "XIDs by card")
CARD_ECC = Panel(Board.CARD_HEALTH, 602, "ECC errors by card")
CARD_REMAP = Panel(Board.CARD_HEALTH, 603, "rows to remap, by card")
CARD_LINKS = Panel(Board.CARD_HEALTH, 604, "NVLinks up and their errors")
CARD_SXIDS = Panel(Board.CARD_HEALTH, 605, "errors of NVSwitches by number")
SELF_SOURCES = Panel(Board.SELF, 701, "sources up, hung and their ages")
SELF_DAEMON = Panel(Board.SELF, 702, "the daemon: up, reloads, survived errors")
