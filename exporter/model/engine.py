"""Engine replicas: what their pages report, and what is derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from exporter.model.source import EMPTY, SourceStatus


class Quantity(str, Enum):
    """One number per rank that an engine reports.  Gauges unless listed in ``COUNTERS``."""

    REQUESTS_RUNNING = "requests_running"
    REQUESTS_WAITING = "requests_waiting"
    REQUESTS_SWAPPED = "requests_swapped"
    KV_CACHE_USAGE = "kv_cache_usage"  # ratio
    KV_CACHE_CAPACITY = "kv_cache_capacity"  # tokens
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    PREEMPTIONS = "preemptions"
    REQUESTS_ABORTED = "requests_aborted"  # cancelled before their end; also among the finished ones
    PREFIX_CACHE_QUERIES = "prefix_cache_queries"  # tokens, or blocks where the engine counts blocks
    PREFIX_CACHE_HITS = "prefix_cache_hits"
    PROXIES_HEALTHY = "proxies_healthy"  # of a server with its own proxies in front of its replicas
    PROXIES_UNHEALTHY = "proxies_unhealthy"
    SPEC_DRAFTS = "spec_drafts"
    SPEC_DRAFT_TOKENS = "spec_draft_tokens"
    SPEC_ACCEPTED_TOKENS = "spec_accepted_tokens"
    SPEC_ACCEPTED_LENGTH_NOW = "spec_accepted_length_now"  # as the engine averages it; 0 while it speculates nothing
    SPEC_ACCEPTANCE_NOW = "spec_acceptance_now"  # ratio, the same
    EXTERNAL_CACHE_QUERIES = "external_cache_queries"  # tokens looked up in a KV cache outside of the engine
    EXTERNAL_CACHE_HITS = "external_cache_hits"
    HOST_CACHE_USED = "host_cache_used"  # tokens of the KV cache's tier in host memory
    HOST_CACHE_CAPACITY = "host_cache_capacity"
    KV_TRANSFERS = "kv_transfers"  # of KV caches between prefill and decode, that arrived
    KV_TRANSFER_BYTES = "kv_transfer_bytes"
    KV_TRANSFER_SECONDS = "kv_transfer_seconds"  # added up over transfers, some of which overlap
    EXPERT_BALANCE = "expert_balance"  # balancedness added up over passes; 1 is even, 1 ÷ GPUs all on one
    EXPERT_PASSES = "expert_passes"
    LIFETIME_HIT_RATIO = "lifetime_hit_ratio"  # old engines: an average since start, no counters


COUNTERS = frozenset(
    {
        Quantity.PROMPT_TOKENS,
        Quantity.GENERATION_TOKENS,
        Quantity.PREEMPTIONS,
        Quantity.REQUESTS_ABORTED,
        Quantity.PREFIX_CACHE_QUERIES,
        Quantity.PREFIX_CACHE_HITS,
        Quantity.SPEC_DRAFTS,
        Quantity.SPEC_DRAFT_TOKENS,
        Quantity.SPEC_ACCEPTED_TOKENS,
        Quantity.EXTERNAL_CACHE_QUERIES,
        Quantity.EXTERNAL_CACHE_HITS,
        Quantity.KV_TRANSFERS,
        Quantity.KV_TRANSFER_BYTES,
        Quantity.KV_TRANSFER_SECONDS,
        Quantity.EXPERT_BALANCE,
        Quantity.EXPERT_PASSES,
    }
)


AWAKE = "awake"  # of SLEEP_STATES, that of every engine that is not asleep


class Detail(str, Enum):
    """Figures of a rank by a word of the engine's, for the full set of series."""

    SPEC_POSITIONS = "spec_positions"  # position → accepted tokens
    PROMPT_SOURCES = "prompt_sources"  # where a prompt's tokens came from → tokens
    CACHED_SOURCES = "cached_sources"  # tier of the KV cache → tokens found in it
    WAITING_REASONS = "waiting_reasons"  # → requests
    SCHEDULER_QUEUES = "scheduler_queues"  # those of disaggregation and of grammars → requests
    SCHEDULER_STAGES = "scheduler_stages"  # what the scheduler's loop does → seconds
    TRANSFER_FAILURES = "transfer_failures"  # kind → failed, unconfirmed and expired transfers of KV caches
    OFFLOAD_BYTES = "offload_bytes"  # direction → bytes
    OFFLOAD_SECONDS = "offload_seconds"  # direction → seconds
    LORA_SLOTS = "lora_slots"  # used, total → slots for adapters; requested → adapters that requests ask for
    STARTUP_PHASES = "startup_phases"  # → seconds that each took at the newest start
    SLEEP_STATES = "sleep_states"  # → 1 in this state, else 0


class Stage(str, Enum):
    """A histogram that engines keep, one observation per request or per step.

    Of latencies, which are in seconds, the value is the ``stage`` label; lengths are in tokens.
    """

    TIME_TO_FIRST_TOKEN = "time_to_first_token"  # noqa: S105 - a latency, no secret
    INTER_TOKEN = "inter_token"  # noqa: S105
    TIME_PER_OUTPUT_TOKEN = "time_per_output_token"  # noqa: S105
    REQUEST = "request"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    INFERENCE = "inference"  # prefill and decode together, where the engine does not separate them
    BATCH_PREFILL = "batch_prefill"  # one observation per batch, not per request
    BATCH_DECODE = "batch_decode"
    PROMPT_LENGTH = "prompt_length"
    GENERATION_LENGTH = "generation_length"
    STEP_TOKENS = "step_tokens"  # of all requests in one step of the engine, prompt and generated ones


LENGTHS = (Stage.PROMPT_LENGTH, Stage.GENERATION_LENGTH, Stage.STEP_TOKENS)  # read for the full set of series only
LATENCIES = tuple(stage for stage in Stage if stage not in LENGTHS)

# The stages of the common set of series.  Only exposed stages are followed over the windows, which keep 65 states of
# each stage.
COMMON_STAGES = (Stage.TIME_TO_FIRST_TOKEN, Stage.INTER_TOKEN, Stage.REQUEST)


class Histogram(Struct, frozen=True, kw_only=True):
    """Cumulative bucket counts as an engine keeps them.

    ``bounds``: n finite upper bounds, ascending.  ``counts``: n + 1 cumulative counts that never decrease, the last
    one for +Inf.  ``sum`` may be missing, and is not exact in engines that observe bucket midpoints again.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float | None = None


class ParallelSizes(Struct, frozen=True, kw_only=True):
    """How many GPUs share each layer of a replica, and into how many stages its layers are divided.

    With data-parallel attention the ranks of one tensor-parallel group are data-parallel ranks as well.
    """

    tensor: int
    pipeline: int


class EngineReading(Struct, frozen=True, kw_only=True):
    """One parsed engine page, free of upstream names.  A rank is a data-parallel engine; "" without ranks."""

    at: float
    engine: str  # the kind: vllm, tgi, sglang, …
    model: str = ""
    version: str = ""
    ranks: Mapping[str, Mapping[Quantity, float]]
    finished: Mapping[str, Mapping[str, float]] = EMPTY  # rank → RequestOutcome's value → counter
    finish_reasons: Mapping[str, Mapping[str, float]] = EMPTY  # the same by the engine's own words
    responses: Mapping[str, float] = EMPTY  # HTTP status class → counter
    details: Mapping[Detail, Mapping[str, Mapping[str, float]]] = EMPTY  # → rank → word → …
    activity: Mapping[str, tuple[float, ...]] = EMPTY  # rank → other figures that change with every step
    histograms: Mapping[Stage, Mapping[str, Histogram]] = EMPTY  # stage → rank → …
    process_start: float | None = None  # Unix time; a change is a restart
    created: Mapping[str, float] = EMPTY  # rank → Unix time; a change is a restart
    complete: bool = True  # False: truncated; may be exposed, but is no base of a window
    parse_warnings: Mapping[str, int] = EMPTY  # skipped lines by reason
    several_models: bool = False  # the page sums over several; ``model`` is "" then
    relayed: bool = False  # the page comes from a program that collects several servers' series
    role: str = ""  # of a disaggregated server: prefill, decode
    parallel_sizes: ParallelSizes | None = None  # as the server tells beside its metrics
    name_style: str = ""  # the names' prefix as written: "vllm:", "ray_vllm_", "sglang_"
    missing: Mapping[str, str] = EMPTY  # signal that this kind of engine never reports → reason
    stale_ranks: frozenset[str] = frozenset()  # whose figures do not change while others' do
    hits_from_first: bool = False  # queries without PREFIX_CACHE_HITS mean no hit yet
    frozen_after: float | None = 20.0  # seconds without progress at work that are a fault; None: never one
    stalled_after: float | None = None  # the same while requests wait and none runs
    idle_after: float | None = None  # the same as frozen_after while no GPU of the replica computes

    @property
    def is_asleep(self) -> bool:
        """Whether all ranks of the engine were put to sleep: it runs nothing until it is woken."""
        states = self.details.get(Detail.SLEEP_STATES, EMPTY).values()
        return bool(states) and all(any(flag > 0 and word != AWAKE for word, flag in rank.items()) for rank in states)


class LatencySummary(Struct, frozen=True, kw_only=True):
    """One latency over one window: quantiles, observations, and how many of them exceed the buckets."""

    quantiles: Mapping[float, float]  # q → seconds; empty without observations
    observations: float
    overflow_ratio: float | None  # ratio of observations beyond the last finite bound


class WindowFigures(Struct, frozen=True, kw_only=True):
    """What one replica did during one window.  None and empty: not known, or nothing to divide by."""

    seconds: float  # time covered; less than the window after a start
    hit_ratio: float | None = None
    latency: Mapping[Stage, LatencySummary] = EMPTY
    error_ratio: float | None = None
    request_rate: float | None = None  # finished requests per second, without those that were rejected
    rejected_rate: float | None = None  # requests per second that the engine refused on purpose
    prompt_token_rate: float | None = None
    generation_token_rate: float | None = None
    rank_token_rates: Mapping[str, float] = EMPTY
    rank_prompt_token_rates: Mapping[str, float] = EMPTY
    request_tokens: float | None = None  # mean length of finished requests: prompt and answer
    spec_acceptance_ratio: float | None = None  # accepted over drafted tokens
    spec_accepted_length: float | None = None  # tokens accepted of a draft
    external_hit_ratio: float | None = None  # of a KV cache outside of the engine
    expert_balance: float | None = None  # mean over maximum of the tokens that GPUs' experts were given


class KvTokens(Struct, frozen=True, kw_only=True):
    """Tokens of a KV cache, and how many sequences of the recent mean length fit into the free ones."""

    used: float
    free: float
    sequences: float | None  # None: the mean length is not known


class KvCacheHeadroom(Struct, frozen=True, kw_only=True):
    """What is left of a replica's KV cache.  Ranks whose usage or capacity is not reported are left out."""

    ranks: Mapping[str, KvTokens]
    total: KvTokens | None  # over the ranks; None without any
    seconds_to_full: float | None  # until the first rank is full; None: not growing, or not known


class ReplicaLabels(NamedTuple):
    """The labels of every series about a replica.  ``engine`` is the kind, ``model`` is "" while not known."""

    replica: str
    engine: str
    model: str


class TokenCount(NamedTuple):
    """Tokens that a replica generated up to an instant since its first reading, across restarts."""

    at: float
    tokens: float


class ReplicaState(Struct, frozen=True, kw_only=True):
    """A replica in a snapshot.  ``windows`` is keyed by the window's label ("1m", or "lifetime")."""

    name: str
    kind: str  # the configured kind, maybe "auto"
    labels: ReplicaLabels
    status: SourceStatus
    reading: EngineReading | None
    last_read_at: float | None
    histograms: Mapping[Stage, Histogram] = EMPTY  # raw, summed over ranks
    windows: Mapping[str, WindowFigures] = EMPTY
    frozen: bool | None = None  # None: not known
    moved_at: float | None = None  # when a counter last increased, work began, or nothing ran; None: not known
    rank_imbalance: Mapping[str, float] = EMPTY  # signal → max ÷ mean
    restarts: int = 0
    certificate_expires: float | None = None  # Unix time; of the engine's TLS certificate
    headroom: KvCacheHeadroom | None = None
    image: str = ""  # of its container, NAME[:TAG][@DIGEST]; "" when not known
    # Sums over the ranks, departed ones included, so that they do not fall when a rank is missing.
    quantity_totals: Mapping[Quantity, float] = EMPTY  # counters and capacities
    finished_totals: Mapping[str, float] = EMPTY  # outcome → requests
    generated_tokens: TokenCount | None = None
