"""llama.cpp's server: counters and gauges without labels or histograms, one slot table for all requests.

Times are sums of seconds beside sums of tokens: of inter-token latency there is a mean and no quantile, and of the
prefill neither, since requests are not counted.  Generated tokens are counted
when a request ends.  The page is made by the loop that decodes: a wedged server does not answer.
"""

from __future__ import annotations

from exporter.engines.engine import ONLY_AS_SUM, Engine, EngineField, ServerInfo
from exporter.model import Detail, Quantity, Stage
from exporter.model.server import EndpointDefaults, ServerProcess

LLAMACPP = Engine(
    kind="llamacpp",
    title="llama.cpp",
    versions="with and without KV-cache gauges, to 0.5",
    servers=(
        ServerProcess(
            programs=("llama-server",),
            # Most are started without metrics.
            endpoint=EndpointDefaults(
                port_flags=("--port",),
                port_variable="LLAMA_ARG_PORT",
                ports=(8080,),
                tls_flags=("--ssl-cert-file",),
                probe=True,
            ),
        ),
    ),
    info=ServerInfo(path="/props", version_keys=("build_info",), model_keys=("model_alias", "model_path")),
    metrics_flag="--metrics",
    hint="Was the server started with --metrics? Without it /metrics answers 501.",
    not_judged="no histograms",
    prefixes=("llamacpp:",),
    model_labels=(),
    process_start="",
    stalled_after=30.0,
    live=("llamacpp:n_decode_total",),
    reasons={"inter_token": ONLY_AS_SUM, "prefill": ONLY_AS_SUM, "decode": ONLY_AS_SUM},
    fields=(
        EngineField(Quantity.REQUESTS_RUNNING, ("llamacpp:requests_processing",)),
        EngineField(Quantity.REQUESTS_WAITING, ("llamacpp:requests_deferred",)),
        # Gone from newer versions.
        EngineField(Quantity.KV_CACHE_USAGE, ("llamacpp:kv_cache_usage_ratio",), ratio=True),
        # Upstream counts those that were computed; newer versions tell those that came from a slot's cache beside.
        EngineField(
            Quantity.PROMPT_TOKENS,
            ("llamacpp:prompt_tokens_total",),
            plus={"llamacpp:prompt_tokens_total": "llamacpp:prompt_tokens_cached_total"},
        ),
        EngineField(
            Quantity.PREFIX_CACHE_QUERIES,
            ("llamacpp:prompt_tokens_cached_total",),
            plus={"llamacpp:prompt_tokens_cached_total": "llamacpp:prompt_tokens_total"},
        ),
        EngineField(Quantity.PREFIX_CACHE_HITS, ("llamacpp:prompt_tokens_cached_total",)),
        EngineField(Quantity.GENERATION_TOKENS, ("llamacpp:tokens_predicted_total",)),
        EngineField(
            Stage.INTER_TOKEN, ("llamacpp:tokens_predicted_seconds_total",), count="llamacpp:tokens_predicted_total"
        ),
        # n_decode_total leaves out the calls that verify drafts: these move instead.
        EngineField(Quantity.SPEC_DRAFTS, ("llamacpp:spec_decode_num_drafts_total",)),
        EngineField(Quantity.SPEC_DRAFT_TOKENS, ("llamacpp:spec_decode_num_draft_tokens_total",)),
        EngineField(Quantity.SPEC_ACCEPTED_TOKENS, ("llamacpp:spec_decode_num_accepted_tokens_total",)),
        EngineField(
            Detail.SPEC_POSITIONS, ("llamacpp:spec_decode_num_accepted_tokens_per_pos_total",), labels=("position",)
        ),
    ),
)
