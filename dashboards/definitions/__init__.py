"""The dashboards, in the order of Grafana's list: one per module, rows ordered from symptom to cause."""

from __future__ import annotations

from dashboards.dashboard import Dashboard, reject_duplicates
from dashboards.definitions.efficiency import EFFICIENCY
from dashboards.definitions.fleet import FLEET
from dashboards.definitions.gpu_health import GPU_HEALTH
from dashboards.definitions.imbalance import IMBALANCE
from dashboards.definitions.node import NODE
from dashboards.definitions.now import NOW
from dashboards.definitions.replica import REPLICA
from dashboards.definitions.shardwatch import SHARDWATCH

DASHBOARDS: tuple[Dashboard, ...] = (NOW, FLEET, NODE, REPLICA, IMBALANCE, EFFICIENCY, GPU_HEALTH, SHARDWATCH)

reject_duplicates(DASHBOARDS)
