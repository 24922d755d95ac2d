"""A replica as the metrics page of a vLLM 0.32 server with one API server process: families, labels, buckets, order.

Several ranks share the page and differ in ``engine``.  Gauges are what the engine wrote after its last step, so a
frozen engine shows what was true then.  Help texts are our own; nothing reads them.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import add, attrgetter

from exporter.simulate.rank_metrics import REASONS, HistogramState, RankMetrics
from exporter.simulate.scheduler import Rank
from exporter.simulate.world import SimulatedReplica

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
HANDLER = "/v1/chat/completions"
LOADING_SECONDS = 20.0  # a server loads its weights before it counts
REFUSAL_SECONDS = 0.004
REQUEST_BYTES, RESPONSE_BYTES = 4.2, 3.9  # per token, with what JSON adds


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStats:
    """What a server's process says about itself; bytes, seconds, counts."""

    virtual_memory: int
    resident_memory: int
    cpu_seconds: float
    open_files: int
    max_files: int


def number(value: float) -> str:
    """Write a number as Prometheus clients do: 12.0, 1.5e+06, +Inf."""
    text = repr(float(value))
    whole, _, rest = text.partition(".")
    if text in {"inf", "-inf", "nan"}:
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}[text]
    if value < 1e6 or "e" in text:
        return text
    digits = (whole + rest).rstrip("0")
    return f"{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e+{len(whole) - 1:02d}"


class _Page:
    """The lines of a page so far; ``created`` is the Unix time at which its counters were made."""

    def __init__(self, created: float) -> None:
        self.lines: list[str] = []
        self._created = number(created)

    def family(self, name: str, kind: str, meaning: str) -> None:
        self.lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, labels: str = "") -> None:
        self.lines.append(f"{name}{{{labels}}} {number(value)}" if labels else f"{name} {number(value)}")

    def gauge(self, name: str, meaning: str, rows: Iterable[tuple[str, float]]) -> None:
        self.family(name, "gauge", meaning)
        for labels, value in rows:
            self.sample(name, value, labels)

    def counter(self, name: str, meaning: str, rows: Iterable[tuple[str, float]]) -> None:
        """Write a counter and the times at which its series were made."""
        rows = list(rows)
        self.family(f"{name}_total", "counter", meaning)
        for labels, value in rows:
            self.sample(f"{name}_total", value, labels)
        self._creation(name, meaning, [labels for labels, _ in rows])

    def summary(self, name: str, meaning: str, labels: str, count: int, total: float) -> None:
        self.family(name, "summary", meaning)
        if count:
            self.sample(f"{name}_count", count, labels)
            self.sample(f"{name}_sum", total, labels)
        self._creation(name, meaning, [labels] if count else [])

    def histogram(self, name: str, meaning: str, rows: Iterable[tuple[Mapping[str, str], HistogramState]]) -> None:
        """Write cumulative buckets, count and sum; labels stand in alphabetical order, ``le`` among them."""
        rows = list(rows)
        self.family(name, "histogram", meaning)
        for labels, buckets in rows:
            fixed = _labels(labels)
            before = _labels({key: value for key, value in labels.items() if key < "le"})
            after = _labels({key: value for key, value in labels.items() if key > "le"})
            head = f'{name}_bucket{{{before}{"," if before else ""}le="'
            tail = f'"{"," if after else ""}{after}}} '
            seen = 0
            for bound, count in zip((*buckets.bounds, float("inf")), buckets.counts, strict=True):
                seen += count
                self.lines.append(f"{head}{number(bound)}{tail}{number(seen)}")
            self.sample(f"{name}_count", buckets.count, fixed)
            self.sample(f"{name}_sum", buckets.sum, fixed)
        self._creation(name, meaning, [_labels(labels) for labels, _ in rows])

    def _creation(self, name: str, meaning: str, labels: Iterable[str]) -> None:
        self.family(f"{name}_created", "gauge", meaning)
        self.lines += [
            f"{name}_created{{{each}}} {self._created}" if each else f"{name}_created {self._created}"
            for each in labels
        ]


def _labels(pairs: Mapping[str, str]) -> str:
    return ",".join(f'{key}="{value}"' for key, value in sorted(pairs.items()))


# (family, meaning, attribute of Tally), in the order of the page.
_REQUEST_HISTOGRAMS = (
    ("request_prompt_tokens", "Tokens of a finished request's prompt.", "prompt_length"),
    ("request_generation_tokens", "Tokens of a finished request's answer.", "generation_length"),
    ("iteration_tokens_total", "Tokens that one engine step computed.", "step_tokens"),
    ("request_max_num_generation_tokens", "Longest answer of a finished request.", "longest_generation"),
    ("request_params_n", "Answers asked for at once.", "choices"),
    ("request_params_max_tokens", "Most tokens a client wanted.", "max_tokens"),
    ("time_to_first_token_seconds", "From arrival to the first token.", "time_to_first_token"),
    ("inter_token_latency_seconds", "Between two tokens of a request.", "inter_token"),
    ("request_time_per_output_token_seconds", "A finished request's mean per token.", "time_per_token"),
    ("e2e_request_latency_seconds", "From arrival to the last token.", "request"),
    ("request_queue_time_seconds", "From arrival to the first scheduling.", "queue"),
    ("request_inference_time_seconds", "From the first scheduling to the last token.", "inference"),
    ("request_prefill_time_seconds", "From the first scheduling to the first token.", "prefill"),
    ("request_decode_time_seconds", "From the first to the last token.", "decode"),
    ("request_num_preemptions", "How often a finished request was preempted.", "request_preemptions"),
    ("request_prefill_kv_computed_tokens", "Prompt tokens not found in the cache.", "computed_length"),
)
_CACHE_SETTINGS = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


def render(replica: SimulatedReplica, process: ProcessStats, started_unix: float) -> str:
    """Write the page; ``unix_start`` is the Unix time of the node's start."""
    started = started_unix + replica.created
    page = _Page(started)
    _process(page, process, started - LOADING_SECONDS)
    _gauges(page, replica)
    _counters(page, replica)
    ranks = [(_identity(replica, number), rank.metrics) for number, rank in enumerate(replica.ranks)]
    for name, meaning, attribute in _REQUEST_HISTOGRAMS:
        read: Callable[[RankMetrics], HistogramState] = attrgetter(attribute)
        page.histogram(f"vllm:{name}", meaning, [(labels, read(metrics)) for labels, metrics in ranks])
    _cache_config(page, replica)
    _http(page, replica)
    return "\n".join(page.lines) + "\n"


def _identity(replica: SimulatedReplica, rank: int) -> dict[str, str]:
    return {"engine": str(rank), "model_name": replica.spec.model.name}


def _rows(replica: SimulatedReplica, read: Callable[[Rank], float], **more: str) -> list[tuple[str, float]]:
    return [(_labels(_identity(replica, n) | more), read(rank)) for n, rank in enumerate(replica.ranks)]


def _constant(value: float) -> Callable[[Rank], float]:
    return lambda _: value


def _finished(reason: str) -> Callable[[Rank], float]:
    return lambda rank: rank.metrics.finished[reason]


def _process(page: _Page, facts: ProcessStats, started: float) -> None:
    generations = gc.get_stats()
    for word, key in (
        ("objects_collected", "collected"),
        ("objects_uncollectable", "uncollectable"),
        ("collections", "collections"),
    ):
        name = f"python_gc_{word}_total"
        page.family(name, "counter", f"Garbage collector: {key}.")
        for generation, row in enumerate(generations):
            page.sample(name, row[key], f'generation="{generation}"')
    major, minor, patch = platform.python_version_tuple()
    version = {
        "implementation": "CPython",
        "major": major,
        "minor": minor,
        "patchlevel": patch,
        "version": platform.python_version(),
    }
    page.gauge("python_info", "The interpreter.", [(_labels(version), 1)])
    page.gauge("process_virtual_memory_bytes", "Virtual memory.", [("", facts.virtual_memory)])
    page.gauge("process_resident_memory_bytes", "Resident memory.", [("", facts.resident_memory)])
    page.gauge("process_start_time_seconds", "Start, Unix time.", [("", started)])
    page.family("process_cpu_seconds_total", "counter", "Processor time.")
    page.sample("process_cpu_seconds_total", facts.cpu_seconds)
    page.gauge("process_open_fds", "Open files.", [("", facts.open_files)])
    page.gauge("process_max_fds", "Most open files.", [("", facts.max_files)])


def _gauges(page: _Page, replica: SimulatedReplica) -> None:
    for what in ("estimated_flops", "estimated_read_bytes", "estimated_write_bytes"):
        # these move only with an option that is off by default
        page.counter(f"vllm:{what}_per_gpu", "Estimate, off by default.", _rows(replica, _constant(0)))
    page.gauge(
        "vllm:num_requests_running", "Requests in the batch.", _rows(replica, lambda rank: rank.report.running)
    )
    waiting: Callable[[Rank], float] = lambda rank: rank.report.waiting  # noqa: E731 - two families share it
    page.gauge("vllm:num_requests_waiting", "Requests in the queue.", _rows(replica, waiting))
    by_reason = [*_rows(replica, waiting, reason="capacity"), *_rows(replica, _constant(0), reason="deferred")]
    page.gauge("vllm:num_requests_waiting_by_reason", "Requests in the queue, by what they wait for.", by_reason)
    states = [
        row
        for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0))
        for row in _rows(replica, _constant(value), sleep_state=state)
    ]
    page.gauge("vllm:engine_sleep_state", "One series for each state, 1 for the present one.", states)
    page.gauge(
        "vllm:kv_cache_usage_perc",
        "Share of the KV cache in use, 0 to 1.",
        _rows(replica, lambda rank: rank.report.kv_usage),
    )


def _counters(page: _Page, replica: SimulatedReplica) -> None:
    def rows(attribute: str, **more: str) -> list[tuple[str, float]]:
        read = attrgetter(attribute)
        return _rows(replica, lambda rank: read(rank.metrics), **more)

    def zeros(**more: str) -> list[tuple[str, float]]:
        return _rows(replica, _constant(0), **more)

    def computed(rank: Rank) -> float:
        return rank.metrics.prompt_tokens - rank.metrics.cached_tokens

    page.counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", rows("prefix_queries"))
    page.counter("vllm:prefix_cache_hits", "Prompt tokens found.", rows("prefix_hits"))
    for name in ("external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits"):
        page.counter(f"vllm:{name}", "Not in use here.", zeros())
    page.counter("vllm:num_preemptions", "Requests put back for want of blocks.", rows("preemptions"))
    page.counter("vllm:prompt_tokens", "Prompt tokens processed.", rows("prompt_tokens"))
    sources = [
        *_rows(replica, computed, source="local_compute"),
        *rows("cached_tokens", source="local_cache_hit"),
        *zeros(source="external_kv_transfer"),
    ]
    page.counter("vllm:prompt_tokens_by_source", "Prompt tokens, by where they came from.", sources)
    page.counter("vllm:prompt_tokens_cached", "Prompt tokens that came from a cache.", rows("cached_tokens"))
    tiers = [*rows("prefix_hits", source="device")]
    for tier in ("host", "p2p", "disk", "external_unspecified"):
        tiers += zeros(source=tier)
    page.counter("vllm:prompt_tokens_cached_by_source", "Prompt tokens found, by cache tier.", tiers)
    page.counter("vllm:generation_tokens", "Tokens generated.", rows("generation_tokens"))
    finished = [row for reason in REASONS for row in _rows(replica, _finished(reason), finished_reason=reason)]
    page.counter("vllm:request_success", "Requests that ended by themselves, by reason.", finished)
    model = replica.spec.model.name
    limits = [
        (_labels({"model_name": model, "reason": f"max_num_queued_{what}"}), 0.0) for what in ("reqs", "tokens")
    ]
    page.counter("vllm:admission_rejections", "Requests refused by a queue limit.", limits)


def _cache_config(page: _Page, replica: SimulatedReplica) -> None:
    spec = replica.spec
    rows = []
    for rank, state in enumerate(replica.ranks):
        tokens = state.blocks * spec.block
        settings = _CACHE_SETTINGS | {
            "block_size": str(spec.block),
            "effective_attention_block_size": str(spec.block),
            "engine": str(rank),
            "gpu_memory_utilization": str(spec.memory_fraction),
            "kv_cache_max_concurrency": str(round(tokens / spec.model.max_model_len, 2)),
            "kv_cache_size_tokens": str(tokens),
            # the real server adds the blocks of all ranks up and says the sum for each
            "num_gpu_blocks": str(state.blocks * len(replica.ranks)),
        }
        rows.append((_labels(settings), 1.0))
    page.gauge("vllm:cache_config_info", "Settings of the KV cache.", rows)


def _http(page: _Page, replica: SimulatedReplica) -> None:
    ranks = [rank.metrics for rank in replica.ranks]
    refused = replica.refused
    statuses = {
        "2xx": sum(metrics.http_answered for metrics in ranks),
        "4xx": refused,
        "5xx": sum(metrics.finished["error"] for metrics in ranks),
    }
    labels = {"handler": HANDLER, "method": "POST"}
    rows = [(_labels(labels | {"status": status}), float(count)) for status, count in statuses.items() if count]
    page.counter("http_requests", "Requests by method, status and handler.", rows)
    count = sum(statuses.values())
    asked = sum(metrics.prompt_length.sum for metrics in ranks) * REQUEST_BYTES
    given = sum(metrics.generation_length.sum for metrics in ranks) * RESPONSE_BYTES
    handler = _labels({"handler": HANDLER})
    page.summary("http_request_size_bytes", "Length of requests.", handler, count, asked)
    page.summary("http_response_size_bytes", "Length of answers.", handler, count, given)
    fine, coarse = (
        _merged([t.http_fine for t in ranks], refused),
        _merged([t.http_coarse for t in ranks], refused),
    )
    page.histogram("http_request_duration_highr_seconds", "Duration, many buckets.", [({}, fine)])
    rest = [(labels, coarse)] if count else []
    page.histogram("http_request_duration_seconds", "Duration by handler.", rest)


def _merged(parts: list[HistogramState], refused: int) -> HistogramState:
    """Add the ranks up: HTTP is served in front of all of them, refusals included."""
    whole = HistogramState(parts[0].bounds)
    for part in parts:
        whole.counts = list(map(add, whole.counts, part.counts))
        whole.sum += part.sum
        whole.count += part.count
    whole.observe(REFUSAL_SECONDS, refused)
    return whole
