"""All tables of a page, in its order."""

from __future__ import annotations

from exporter.model import Snapshot
from exporter.model.text import Language
from exporter.web.gpu_tables import gpus, topology
from exporter.web.model import PageTable
from exporter.web.nic_tables import adapters
from exporter.web.node_tables import NodeTables
from exporter.web.replica_tables import parts, ranks, replicas
from exporter.web.source_tables import gateways, sources, stores

_TABLES = (replicas, ranks, parts, gpus, topology, adapters, gateways, stores, sources)


def tables(snapshot: Snapshot, language: Language) -> tuple[PageTable, ...]:
    """Return those that have a row."""
    node = NodeTables(snapshot, language)
    return tuple(found for found in (table(node) for table in _TABLES) if found.rows)
