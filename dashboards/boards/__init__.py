"""The boards, in the order of the list of dashboards: each file is one, its rows from symptom to cause."""

from __future__ import annotations

from dashboards.board import Board, refuse_twins
from dashboards.boards.card_health import CARD_HEALTH
from dashboards.boards.efficiency import EFFICIENCY
from dashboards.boards.fleet import FLEET
from dashboards.boards.imbalance import IMBALANCE
from dashboards.boards.node import NODE
from dashboards.boards.own import OWN
from dashboards.boards.replica import REPLICA

BOARDS: tuple[Board, ...] = (FLEET, NODE, REPLICA, IMBALANCE, EFFICIENCY, CARD_HEALTH, OWN)

refuse_twins(BOARDS)
