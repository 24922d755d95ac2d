"""Text Embeddings Inference: a server of embeddings and rankings, which generates no token.

It counts ends, not starts, and shows no request at work: a queue is all that is known of load.  Durations have
powers of 1.5 as bounds, like TGI's; counters have no ``_total``.
"""

from __future__ import annotations

from exporter.engines.engine import Engine, EngineField, Family, ServerInfo
from exporter.model import Quantity, Stage
from exporter.model.outcome import OutcomeWords, RequestOutcome
from exporter.model.server import EndpointDefaults, ServerProcess

_SPAN = tuple(0.00001 * 1.5**step for step in range(1, 36))
_NO_TOKENS = "no_generation"
_FAILURES = OutcomeWords(
    otherwise=RequestOutcome.ERROR,
    words={
        "overloaded": RequestOutcome.REJECTED,
        **dict.fromkeys(("validation", "batch_size", "tokenization", "model_type"), RequestOutcome.INVALID),
        "inference": RequestOutcome.ERROR,
        "unhealthy": RequestOutcome.ERROR,
    },
)

TEI = Engine(
    kind="tei",
    title="TEI",
    versions="1.x",
    servers=(
        ServerProcess(
            programs=("text-embeddings-router*",),
            endpoint=EndpointDefaults(port_flags=("--prometheus-port",), ports=(9000,), probe=True),
        ),
    ),
    info=ServerInfo(path="/info", model_keys=("model_id",)),
    buckets=dict.fromkeys((Stage.REQUEST, Stage.QUEUE), _SPAN),
    not_judged="its bounds, powers of 1.5, lie at no round figure; name a target in the thresholds",
    prefixes=("te_",),
    model_labels=(),
    frozen_after=None,
    reasons=dict.fromkeys(
        (
            "generation_tokens", "time_to_first_token", "inter_token", "time_per_output_token", "kv_cache_usage",
            "kv_cache_capacity", "kv_cache_hit", "preemptions", "prefill", "decode",
        ),
        _NO_TOKENS,
    ),
    fields=(
        EngineField(Quantity.REQUESTS_WAITING, ("te_queue_size",)),
        EngineField(Quantity.PROMPT_TOKENS, ("te_request_input_length_sum",)),
        EngineField(Family.FINISHED, ("te_request_success",)),
        EngineField(Family.FINISHED, ("te_request_failure",), labels=("err",), outcomes=_FAILURES),
        EngineField(Stage.REQUEST, ("te_request_duration",)),
        EngineField(Stage.QUEUE, ("te_request_queue_duration",)),
        EngineField(Stage.INFERENCE, ("te_request_inference_duration",)),
        EngineField(Stage.PROMPT_LENGTH, ("te_request_input_length",)),
    ),
)  # fmt: skip
