"""Every metric that the daemon exposes, one row each, in the order of exposition."""

from __future__ import annotations

from collections import Counter

from exporter.catalog.capacity import CAPACITY
from exporter.catalog.economics import ECONOMICS
from exporter.catalog.engine_depth import ENGINE_DEPTH
from exporter.catalog.engine_figures import ENGINE_FIGURES
from exporter.catalog.engine_specifics import ENGINE_SPECIFICS
from exporter.catalog.engines import ENGINE_METRICS
from exporter.catalog.gateways import GATEWAY_METRICS
from exporter.catalog.gpus import GPUS, HEALTH
from exporter.catalog.groups import IMBALANCE
from exporter.catalog.images import IMAGES
from exporter.catalog.links import LINKS
from exporter.catalog.mig import MIG
from exporter.catalog.multi_node import MULTI_NODE
from exporter.catalog.nics import NICS
from exporter.catalog.own_health import OWN_HEALTH
from exporter.catalog.owners import OWNERS
from exporter.catalog.software import SOFTWARE
from exporter.catalog.spec import Metric
from exporter.catalog.stores import STORE_METRICS
from exporter.catalog.straggler import STRAGGLER
from exporter.catalog.sxids import SXIDS
from exporter.catalog.topology import TOPOLOGY
from exporter.catalog.variance import VARIANCE
from exporter.catalog.verdicts import VERDICTS
from exporter.catalog.work import WORK
from exporter.catalog.xids import XIDS
from exporter.errors import CatalogError

CATALOG: tuple[Metric, ...] = (
    *GPUS, *MIG, *OWNERS, *MULTI_NODE, *WORK, *LINKS, *TOPOLOGY, *HEALTH, *XIDS, *SXIDS, *NICS, *SOFTWARE,
    *IMBALANCE, *STRAGGLER,
    *ENGINE_METRICS, *ENGINE_FIGURES, *IMAGES, *ENGINE_SPECIFICS, *ENGINE_DEPTH, *CAPACITY, *VARIANCE, *ECONOMICS,
    *GATEWAY_METRICS, *STORE_METRICS, *VERDICTS, *OWN_HEALTH
)  # fmt: skip

_twice = [name for name, count in Counter(metric.family for metric in CATALOG).items() if count > 1]
if _twice:
    raise CatalogError(f"declared twice: {', '.join(_twice)}")
