"""Aphrodite 0.6: a fork of vLLM with vLLM's V0 names under its own prefix."""

from __future__ import annotations

from exporter.engines.engine import Engine, LatencyTargets, with_prefix
from exporter.engines.tables.vllm import TLS_FLAGS, VLLM
from exporter.model import Stage
from exporter.model.server import EndpointDefaults, ServerProcess

APHRODITE = Engine(
    kind="aphrodite",
    title="Aphrodite",
    versions="0.6",
    distribution="aphrodite_engine",
    servers=(
        ServerProcess(
            modules=("aphrodite.endpoints.openai.api_server",),
            programs=("aphrodite",),
            subcommand=("run",),
            endpoint=EndpointDefaults(ports=(2242,), tls_flags=TLS_FLAGS),
        ),
    ),
    info=VLLM.info,
    buckets={
        Stage.TIME_TO_FIRST_TOKEN: VLLM.buckets[Stage.TIME_TO_FIRST_TOKEN][:16],
        Stage.INTER_TOKEN: VLLM.buckets[Stage.INTER_TOKEN][:13],
        Stage.REQUEST: (1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    },
    targets=LatencyTargets(
        interactive=VLLM.targets.interactive, standard=VLLM.targets.standard, batch={Stage.REQUEST: 60}
    ),
    prefixes=("aphrodite:",),
    hint="Was the server started with --disable-log-stats?",
    fields=with_prefix(VLLM.fields, "vllm:", "aphrodite:"),
)
