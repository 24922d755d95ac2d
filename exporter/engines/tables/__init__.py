"""Engines: a new one is one file here, and one word in ``ENGINES``; everything that lists engines follows."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.engines.engine import Engine
from exporter.engines.tables.aphrodite import APHRODITE
from exporter.engines.tables.dynamo import DYNAMO
from exporter.engines.tables.llamacpp import LLAMACPP
from exporter.engines.tables.lmdeploy import LMDEPLOY
from exporter.engines.tables.mindie import MINDIE
from exporter.engines.tables.nim import NIM
from exporter.engines.tables.ray_serve import RAY_SERVE
from exporter.engines.tables.sglang import SGLANG
from exporter.engines.tables.tei import TEI
from exporter.engines.tables.tensorrt_llm import TENSORRT_LLM
from exporter.engines.tables.tgi import TGI
from exporter.engines.tables.triton import TRITON
from exporter.engines.tables.vllm import VLLM
from exporter.model.server import ServerProcess

# Where a page shows several, the first of these is meant: wrappers, which show others' series beside their own, last.
ENGINES: tuple[Engine, ...] = (
    VLLM, SGLANG, NIM, MINDIE, TENSORRT_LLM, LLAMACPP, LMDEPLOY, APHRODITE, TGI, TEI, TRITON, DYNAMO, RAY_SERVE,
)  # fmt: skip

SERVERS: Mapping[str, tuple[ServerProcess, ...]] = {engine.kind: engine.servers for engine in ENGINES}

# The engine of an installed distribution, by the name that its metadata's folder begins with.
DISTRIBUTIONS: Mapping[str, str] = {engine.distribution: engine.kind for engine in ENGINES if engine.distribution}

METRICS_PATHS = tuple(  # the longest first: one may end with another
    sorted({server.endpoint.path for servers in SERVERS.values() for server in servers}, key=len, reverse=True)
)
METRICS_FLAGS = ", ".join(f"{engine.title} needs {engine.metrics_flag}" for engine in ENGINES if engine.metrics_flag)


def by_kind(kind: str) -> Engine | None:
    """Return the engine of that kind, None when there is none."""
    return next((engine for engine in ENGINES if engine.kind == kind), None)
