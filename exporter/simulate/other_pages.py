"""A replica as the page of an SGLang 0.5, a TGI 3 or a Ray 2.60 server: their families, labels and habits.

The bucket bounds are those of the simulated tallies, vLLM's, whatever the engine: readers take the bounds that they
find.  SGLang shows a series only after its first event, TGI puts a blank line after each family and writes integers
without a fraction, Ray counts in milliseconds and shows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from operator import attrgetter

from exporter.simulate.rank_metrics import HistogramState
from exporter.simulate.vllm_page import HANDLER, ProcessStats, number
from exporter.simulate.world import SimulatedReplica

TEXT = "text/plain; version=0.0.4; charset=utf-8"
MULTIPROCESS = "text/plain; version=1.0.0; charset=utf-8"
RAY_VERSION = "2.60.0"
NO_SPECULATION = 0


def _labels(**pairs: str) -> str:
    return ",".join(f'{key}="{value}"' for key, value in pairs.items())


def _sample(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {number(value)}" if labels else f"{name} {number(value)}"


def _histogram(name: str, labels: str, buckets: HistogramState, scale: float = 1.0) -> list[str]:
    comma = f"{labels}," if labels else ""
    lines = [
        f'{name}_bucket{{{comma}le="{number(bound * scale)}"}} {number(seen)}'
        for bound, seen in zip((*buckets.bounds, float("inf")), accumulate(buckets.counts), strict=True)
    ]
    return [
        *lines,
        _sample(f"{name}_sum", labels, buckets.sum * scale),
        _sample(f"{name}_count", labels, buckets.count),
    ]


def _family(name: str, kind: str, rows: list[str]) -> list[str]:
    return [f"# HELP {name} Simulated.", f"# TYPE {name} {kind}", *rows]


def _whole(replica: SimulatedReplica, attribute: str) -> HistogramState:
    """Add one histogram up over the ranks."""
    read: Callable[[object], HistogramState] = attrgetter(attribute)
    parts = [read(rank.metrics) for rank in replica.ranks]
    whole = HistogramState(parts[0].bounds)
    whole.counts = [sum(column) for column in zip(*[part.counts for part in parts], strict=True)]
    whole.sum, whole.count = sum(part.sum for part in parts), sum(part.count for part in parts)
    return whole


def _total(replica: SimulatedReplica, attribute: str) -> int:
    return sum(attrgetter(attribute)(rank.metrics) for rank in replica.ranks)


# ---------------------------------------------------------------------------------------- SGLang

_SGLANG_WHOLE = (
    ("time_to_first_token_seconds", "time_to_first_token"),
    ("e2e_request_latency_seconds", "request"),
    ("inter_token_latency_seconds", "inter_token"),
    ("request_time_per_output_token_seconds", "time_per_token"),
)


def sglang(replica: SimulatedReplica, process: ProcessStats, started_unix: float) -> str:
    """Write the page of an SGLang server; a multiprocess page says nothing of the process."""
    del process, started_unix
    model = replica.spec.model.name
    server = _labels(engine_type="unified", is_streaming="true", model_name=model)
    lines: list[str] = []
    for number_, rank in enumerate(replica.ranks):
        dp = {"dp_rank": str(number_)} if len(replica.ranks) > 1 else {}
        place = {"engine_type": "unified", "model_name": model, "pp_rank": "0", "tp_rank": str(number_), **dp}
        labels, metrics = _labels(**place), rank.metrics
        for name, value in (
            ("num_running_reqs", rank.report.running),
            ("num_queue_reqs", rank.report.waiting),
            ("token_usage", rank.report.kv_usage),
            ("max_total_num_tokens", rank.blocks * replica.spec.block),
            ("cache_hit_rate", 0.0),
        ):
            lines += _family(f"sglang:{name}", "gauge", [_sample(f"sglang:{name}", labels, value)])
        if metrics.queue.count:
            modes = {
                "prefill_compute": metrics.prompt_tokens - metrics.cached_tokens,
                "prefill_cache": metrics.cached_tokens,
                # The first token of an answer comes from its prefill.
                "decode": metrics.generation_tokens - metrics.time_to_first_token.count,
            }
            rows = [_sample("sglang:realtime_tokens_total", _labels(mode=m, **place), n) for m, n in modes.items()]
            lines += _family("sglang:realtime_tokens_total", "counter", rows)
            lines += _family("sglang:queue_time_seconds", "histogram", _histogram(
                "sglang:queue_time_seconds", labels, metrics.queue))  # fmt: skip
    if _total(replica, "time_to_first_token.count"):
        for name, attribute in _SGLANG_WHOLE:
            rows = _histogram(f"sglang:{name}", server, _whole(replica, attribute))
            lines += _family(f"sglang:{name}", "histogram", rows)
        lines += _sglang_counters(replica, server)
    return "\n".join(lines) + "\n"


def _sglang_counters(replica: SimulatedReplica, server: str) -> list[str]:
    aborted = _total(replica, "aborted")
    ended = _total(replica, "total_finished") + aborted
    lines = []
    for name, value in (
        ("prompt_tokens_total", _whole(replica, "prompt_length").sum),
        ("generation_tokens_total", _whole(replica, "generation_length").sum),
        ("num_requests_total", ended),
        ("num_aborted_requests_total", aborted),
    ):
        lines += _family(f"sglang:{name}", "counter", [_sample(f"sglang:{name}", server, value)])
    statuses = {"200": _total(replica, "http_answered"), "400": replica.refused}
    statuses["500"] = sum(rank.metrics.finished["error"] for rank in replica.ranks)
    rows = [
        _sample("sglang:http_responses_total", _labels(endpoint=HANDLER, method="POST", status_code=status), count)
        for status, count in statuses.items()
        if count
    ]
    return lines + _family("sglang:http_responses_total", "counter", rows)


# ---------------------------------------------------------------------------------------- TGI

_TGI_HISTOGRAMS = (
    ("request_duration", "request"),
    ("request_queue_duration", "queue"),
    ("request_inference_duration", "inference"),
    ("request_mean_time_per_token_duration", "time_per_token"),
    ("request_input_length", "prompt_length"),
    ("request_generated_tokens", "generation_length"),
)


def tgi(replica: SimulatedReplica, process: ProcessStats, started_unix: float) -> str:
    """Write the page of a TGI router with its v3 backend; all ranks are one batch to it."""
    del process, started_unix
    errors = sum(rank.metrics.finished["error"] for rank in replica.ranks)
    good = _total(replica, "total_finished") - errors
    lines: list[str] = []

    def family(name: str, kind: str, rows: list[str]) -> None:
        whole = [row.removesuffix(".0") for row in rows]  # as the Rust exporter writes integers
        lines.extend([f"# TYPE tgi_{name} {kind}", *whole, ""])

    def single(name: str, kind: str, value: float) -> None:
        family(name, kind, [_sample(f"tgi_{name}", "", value)])

    single("request_count", "counter", good + errors + replica.refused)
    single("request_success", "counter", good)
    failed = {"validation": replica.refused, "generation": errors}
    rows = [_sample("tgi_request_failure", _labels(err=err), count) for err, count in failed.items() if count]
    family("request_failure", "counter", rows)
    single("queue_size", "gauge", sum(rank.report.waiting for rank in replica.ranks))
    single("batch_current_size", "gauge", sum(rank.report.running for rank in replica.ranks))
    single("batch_max_total_tokens", "gauge", sum(rank.blocks for rank in replica.ranks) * replica.spec.block)
    for name, attribute in _TGI_HISTOGRAMS:
        family(name, "histogram", _histogram(f"tgi_{name}", "", _whole(replica, attribute)))
    steps = [_sample("tgi_request_skipped_tokens_sum", "", NO_SPECULATION)]
    steps.append(_sample("tgi_request_skipped_tokens_count", "", _total(replica, "generation_tokens")))
    family("request_skipped_tokens", "summary", steps)
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------- Ray Serve


def ray_serve(replica: SimulatedReplica, process: ProcessStats, started_unix: float) -> str:
    """Write what a Ray node's metrics agent says of one Serve app with one deployment and a proxy."""
    del process, started_unix
    name = replica.spec.name
    common = {"Component": "core_worker", "NodeAddress": "127.0.0.1", "Version": RAY_VERSION, "WorkerId": "f00d"}
    running = sum(rank.report.running for rank in replica.ranks)
    waiting = sum(rank.report.waiting for rank in replica.ranks)
    failed = sum(rank.metrics.finished["error"] for rank in replica.ranks)
    asked = _labels(**common, application=name, method="POST", route="/v1")
    deployment = _labels(**common, application=name, deployment="LLMServer")
    lines = _family(
        "ray_serve_deployment_queued_queries",
        "gauge",
        [_sample("ray_serve_deployment_queued_queries", f'{deployment},handle="h"', waiting)],
    )
    replicas = [
        _sample("ray_serve_replica_processing_queries", f'{deployment},replica="r{n}"', rank.report.running)
        for n, rank in enumerate(replica.ranks)
    ]
    lines += _family("ray_serve_replica_processing_queries", "gauge", replicas)
    if running + waiting:  # absent while it is 0
        node = _labels(**common, node_id="n0", node_ip_address="127.0.0.1")
        rows = [_sample("ray_serve_num_ongoing_http_requests", node, running + waiting)]
        lines += _family("ray_serve_num_ongoing_http_requests", "gauge", rows)
    statuses = {"200": _total(replica, "http_answered"), "400": replica.refused, "500": failed}
    rows = [
        _sample("ray_serve_num_http_requests_total", f'{asked},status_code="{status}"', count)
        for status, count in statuses.items()
        if count
    ]
    lines += _family("ray_serve_num_http_requests_total", "counter", rows)
    latency = _histogram(
        "ray_serve_http_request_latency_ms", f'{asked},status_code="200"', _whole(replica, "request"), scale=1000.0
    )
    lines += _family("ray_serve_http_request_latency_ms", "histogram", latency)
    return "\n".join(lines) + "\n"
