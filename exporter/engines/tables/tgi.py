"""Text Generation Inference 1.4 to 3.3: the router's figures, and the batch figures of its v2 and v3 backends.

There is no model label (``GET /info`` names it), no time to first token, no cache figure although 3.x caches
prefixes, and counters have no ``_total``.  The latencies hold good requests only.  What TGI measures per batch
instead of per request stands under names of its own.  Backends without batches (TensorRT-LLM, llama.cpp) show the
router's part alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.engines.engine import Engine, EngineField, Family, ServerInfo
from exporter.model import Quantity, Stage
from exporter.model.outcome import OutcomeWords, RequestOutcome
from exporter.model.server import EndpointDefaults, ServerProcess

_SPAN = tuple(0.00015 * 1.5**step for step in range(35))
_FAILURES = OutcomeWords(
    otherwise=RequestOutcome.ERROR,
    words={
        "overloaded": RequestOutcome.REJECTED,
        "validation": RequestOutcome.INVALID,
        "template": RequestOutcome.INVALID,
        "dropped": RequestOutcome.CANCELLED,  # nobody waits for the answer any more
        "generation": RequestOutcome.ERROR,
        "incomplete": RequestOutcome.ERROR,
    },
)


def _prefill(labels: Mapping[str, str]) -> bool:
    return "prefill" in labels.get("method", "")  # a fork once wrote {'method': 'prefill'} as the value


def _decode(labels: Mapping[str, str]) -> bool:
    return "decode" in labels.get("method", "")


TGI = Engine(
    kind="tgi",
    title="TGI",
    versions="1.4 to 3.3, the last; archived upstream",
    distribution="text_generation_server",
    servers=(
        ServerProcess(
            # Not text-generation-server: that is a shard, which the launcher starts and the router talks to.
            programs=("text-generation-launcher", "text-generation-router*"),
            endpoint=EndpointDefaults(ports=(3000,)),
        ),
    ),
    info=ServerInfo(path="/info", model_keys=("model_id",)),
    buckets=dict.fromkeys((Stage.TIME_PER_OUTPUT_TOKEN, Stage.REQUEST, Stage.QUEUE), _SPAN),
    not_judged="its bounds, powers of 1.5, lie at no round figure; name a target in the thresholds",
    prefixes=("tgi_",),
    model_labels=(),
    live=("tgi_request_skipped_tokens_count",),
    reasons={"inter_token": "only_per_batch", "prefill": "only_per_batch", "decode": "only_per_batch"},
    fields=(
        EngineField(Quantity.REQUESTS_RUNNING, ("tgi_batch_current_size",)),
        EngineField(Quantity.REQUESTS_WAITING, ("tgi_queue_size",)),
        EngineField(Quantity.KV_CACHE_CAPACITY, ("tgi_batch_max_total_tokens",)),
        EngineField(Quantity.PROMPT_TOKENS, ("tgi_request_input_length_sum",)),
        # Live: one observation per step and request, of how many tokens the step yielded beyond the first.  Where
        # the backend has no batches: at the end of each request.
        EngineField(
            Quantity.GENERATION_TOKENS,
            ("tgi_request_skipped_tokens_count", "tgi_request_generated_tokens_sum"),
            plus={"tgi_request_skipped_tokens_count": "tgi_request_skipped_tokens_sum"},
        ),
        EngineField(Family.FINISHED, ("tgi_request_success",)),
        EngineField(Family.FINISHED, ("tgi_request_failure",), labels=("err",), outcomes=_FAILURES),
        EngineField(Stage.TIME_PER_OUTPUT_TOKEN, ("tgi_request_mean_time_per_token_duration",)),
        EngineField(Stage.REQUEST, ("tgi_request_duration",)),
        EngineField(Stage.QUEUE, ("tgi_request_queue_duration",)),
        EngineField(Stage.INFERENCE, ("tgi_request_inference_duration",)),
        EngineField(Stage.BATCH_PREFILL, ("tgi_batch_inference_duration",), where=_prefill),
        EngineField(Stage.BATCH_DECODE, ("tgi_batch_inference_duration",), where=_decode),
        EngineField(Stage.PROMPT_LENGTH, ("tgi_request_input_length",)),
        EngineField(Stage.GENERATION_LENGTH, ("tgi_request_generated_tokens",)),
    ),
)
