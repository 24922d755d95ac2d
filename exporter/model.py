"""Frozen records that travel between the stages; what was not read is absent, never zero and never stale.

Units are base units everywhere (seconds, bytes, ratios 0 to 1, hertz, watts, joules, degrees Celsius): whoever
reads a source converts once, and nobody downstream scales.  Times called ``at`` are ``time.monotonic()`` seconds,
which all processes of one machine share; only times called ``wall`` are Unix time, and only people read those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

EMPTY: Mapping[Any, Any] = MappingProxyType({})


class Signal(str, Enum):
    """One measured number of a card.  The value is the word that ``gpu_signal_missing_info`` shows.

    str comes first among the bases so that look-ups hash in C; this enum keys the hottest mappings.
    """

    UTILIZATION = "utilization"
    MEMORY_ACTIVITY = "memory_activity"
    ENCODER_UTILIZATION = "encoder_utilization"
    DECODER_UTILIZATION = "decoder_utilization"
    MEMORY_TOTAL = "memory_total"
    MEMORY_USED = "memory_used"
    MEMORY_FREE = "memory_free"
    MEMORY_RESERVED = "memory_reserved"
    TEMPERATURE_GPU = "temperature_gpu"
    TEMPERATURE_MEMORY = "temperature_memory"
    TEMPERATURE_LIMIT_SLOWDOWN = "temperature_limit_slowdown"
    TEMPERATURE_LIMIT_SHUTDOWN = "temperature_limit_shutdown"
    TEMPERATURE_LIMIT_GPU_MAX = "temperature_limit_gpu_max"
    TEMPERATURE_LIMIT_MEMORY_MAX = "temperature_limit_memory_max"
    TEMPERATURE_MARGIN = "temperature_margin"
    POWER = "power"
    POWER_LIMIT = "power_limit"
    ENERGY = "energy"
    CLOCK_SM = "clock_sm"
    CLOCK_MEMORY = "clock_memory"
    CLOCK_GRAPHICS = "clock_graphics"
    CLOCK_VIDEO = "clock_video"
    CLOCK_MAX_SM = "clock_max_sm"
    CLOCK_MAX_MEMORY = "clock_max_memory"
    CLOCK_MAX_GRAPHICS = "clock_max_graphics"
    CLOCK_MAX_VIDEO = "clock_max_video"
    CLOCK_EVENTS = "clock_events"
    CLOCK_EVENT_TIME = "clock_event_time"
    PCIE_LINK_GENERATION = "pcie_link_generation"
    PCIE_LINK_GENERATION_MAX = "pcie_link_generation_max"
    PCIE_LINK_WIDTH = "pcie_link_width"
    PCIE_LINK_WIDTH_MAX = "pcie_link_width_max"
    PCIE_TRANSMIT = "pcie_transmit"
    PCIE_RECEIVE = "pcie_receive"
    PCIE_REPLAYS = "pcie_replays"
    NVLINK_STATE = "nvlink_state"
    NVLINK_TRANSMIT = "nvlink_transmit"
    NVLINK_RECEIVE = "nvlink_receive"
    NVLINK_ERRORS = "nvlink_errors"
    ECC_CORRECTED_VOLATILE = "ecc_corrected_volatile"
    ECC_UNCORRECTED_VOLATILE = "ecc_uncorrected_volatile"
    ECC_CORRECTED_AGGREGATE = "ecc_corrected_aggregate"
    ECC_UNCORRECTED_AGGREGATE = "ecc_uncorrected_aggregate"
    REMAPPED_ROWS_CORRECTABLE = "remapped_rows_correctable"
    REMAPPED_ROWS_UNCORRECTABLE = "remapped_rows_uncorrectable"
    ROW_REMAP_PENDING = "row_remap_pending"
    ROW_REMAP_FAILED = "row_remap_failed"
    RETIRED_PAGES_SINGLE_BIT = "retired_pages_single_bit"
    RETIRED_PAGES_DOUBLE_BIT = "retired_pages_double_bit"
    RECOVERY_ACTION = "recovery_action"
    PERFORMANCE_STATE = "performance_state"
    FAN_SPEED = "fan_speed"
    FABRIC_STATE = "fabric_state"
    PROCESSES = "processes"


class Missing(str, Enum):
    """Why a signal of a card that answers is absent."""

    UNSUPPORTED = "unsupported"  # the card, driver or binding does not have it; asked again after the next init
    NO_PERMISSION = "no_permission"
    MIG = "mig"  # meaningless while MIG is on
    ERROR = "error"  # the call failed this time
    INVALID = "invalid"  # the driver answered, with a number that cannot be


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What stays true of a card from one driver initialisation to the next.  Keyed by ``uuid``, never by index."""

    index: int
    uuid: str
    name: str = ""
    pci_bus_id: str = ""
    serial: str = ""
    vbios_version: str = ""
    numa_node: int | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A process that holds a compute context on a card; pid in the daemon's pid namespace."""

    pid: int
    memory: float | None = None  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """One card at one instant.  ``signals`` holds what was read, ``missing`` why the rest was not."""

    at: float
    signals: Mapping[Signal, float]
    missing: Mapping[Signal, Missing] = field(default_factory=lambda: EMPTY)
    clock_events: Mapping[str, bool] = field(default_factory=lambda: EMPTY)  # reason → active now
    clock_event_seconds: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # reason → counter
    nvlink_up: Mapping[int, bool] = field(default_factory=lambda: EMPTY)  # link → state
    nvlink_errors: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # type → counter, all links
    processes: tuple[CardProcess, ...] | None = None  # None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """Versions of the node's driver stack; empty where the driver does not say."""

    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """Health of one source, beside its data.  ``reason`` is why it is down, from ``SourceError.reason``."""

    source: str  # "engine:chat-a", "gpu:GPU-…", "driver"
    up: bool
    reason: str = ""
    hung: bool = False
    duration: float | None = None  # seconds of the last finished attempt
    last_success: float | None = None  # monotonic
    last_success_wall: float | None = None
    failures: Mapping[str, int] = field(default_factory=lambda: EMPTY)  # reason → count since start
    skipped: int = 0  # polls not started because the previous one was still running


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """A card as the page shows it: facts, health, and a reading only while it is fresh."""

    facts: CardFacts
    status: SourceStatus
    reading: CardReading | None
    last_read_at: float | None  # age counts from here even after the reading is withdrawn
    labels: tuple[str, str]  # (index, uuid), made once: every row of the card shows it


class Quantity(str, Enum):
    """One number per rank that an engine says.  Gauges unless listed in ``COUNTERS``."""

    REQUESTS_RUNNING = "requests_running"
    REQUESTS_WAITING = "requests_waiting"
    REQUESTS_SWAPPED = "requests_swapped"
    KV_CACHE_USAGE = "kv_cache_usage"  # ratio
    KV_CACHE_CAPACITY = "kv_cache_capacity"  # tokens
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    PREEMPTIONS = "preemptions"
    REQUESTS_ABORTED = "requests_aborted"  # given up before their end; among the finished ones too
    PREFIX_CACHE_QUERIES = "prefix_cache_queries"  # tokens, or blocks where the engine counts blocks
    PREFIX_CACHE_HITS = "prefix_cache_hits"
    LIFETIME_HIT_RATIO = "lifetime_hit_ratio"  # old engines: an average since start, no counters


COUNTERS = frozenset(
    {
        Quantity.PROMPT_TOKENS,
        Quantity.GENERATION_TOKENS,
        Quantity.PREEMPTIONS,
        Quantity.REQUESTS_ABORTED,
        Quantity.PREFIX_CACHE_QUERIES,
        Quantity.PREFIX_CACHE_HITS,
    }
)


class Stage(str, Enum):
    """A latency that engines measure per request (or per step); the value is the ``stage`` label."""

    TIME_TO_FIRST_TOKEN = "time_to_first_token"  # noqa: S105 - a latency, no secret
    INTER_TOKEN = "inter_token"  # noqa: S105
    TIME_PER_OUTPUT_TOKEN = "time_per_output_token"  # noqa: S105
    REQUEST = "request"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    INFERENCE = "inference"  # prefill and decode together, of engines that do not tell them apart
    BATCH_PREFILL = "batch_prefill"  # one observation per batch, not per request
    BATCH_DECODE = "batch_decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Cumulative bucket counts as an engine keeps them.

    ``bounds``: finite upper bounds, ascending, n of them.  ``counts``: n + 1 cumulative counts, the last one for
    +Inf, never falling.  ``sum`` may be missing, or may be a fiction (some engines re-observe midpoints).
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """What one engine page said, upstream names gone.  A rank is a data-parallel engine; "" when there are none."""

    at: float
    engine: str  # the kind: vllm, tgi, sglang, …
    model: str = ""
    version: str = ""
    ranks: Mapping[str, Mapping[Quantity, float]]
    finished: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: EMPTY)  # rank → outcome → counter
    responses: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # HTTP status class → counter
    histograms: Mapping[Stage, Mapping[str, Histogram]] = field(default_factory=lambda: EMPTY)  # stage → rank → …
    process_start: float | None = None  # wall; a change is a restart
    created: float | None = None  # newest _created on the page; a change is a restart
    complete: bool = True  # False: cut off in the middle; fit to show, unfit to be the base of a window
    oddities: Mapping[str, int] = field(default_factory=lambda: EMPTY)  # what was skipped: reason → lines
    dialect: str = ""  # how the names' prefix is written: "vllm:", "ray_vllm_", "sglang_"
    missing: Mapping[str, str] = field(default_factory=lambda: EMPTY)  # signal this kind never gives → reason
    stale_ranks: frozenset[str] = frozenset()  # whose figures stand still while others move
    frozen_after: float | None = 20.0  # seconds without progress at work that mean a fault; None: means nothing here


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A latency over one window: quantiles by q, how many observations, and how far the buckets can be trusted."""

    quantiles: Mapping[float, float]  # q → seconds; absent when no observations
    observations: float
    above_top_bucket: float | None  # share of observations beyond the last finite bound


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFigures:
    """What changed at one replica during one window.  None and empty: not known, or nothing to divide by."""

    seconds: float  # time really covered; may be less than the window after a start
    hit_ratio: float | None = None
    latency: Mapping[Stage, Latency] = field(default_factory=lambda: EMPTY)
    error_ratio: float | None = None
    request_rate: float | None = None  # finished requests per second
    generation_token_rate: float | None = None
    rank_token_rates: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    request_tokens: float | None = None  # mean length of finished requests: prompt and answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoom:
    """What is left of a replica's KV cache, by rank as far as the engine says it."""

    used: Mapping[str, float]  # tokens
    free: Mapping[str, float]  # tokens
    sequences: Mapping[str, float]  # how many of the recent mean length fit into the free tokens
    full_in: float | None  # seconds until the first rank is full; None: not growing, or not known


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """A replica as the page shows it.  ``windows`` is keyed by the window's label ("1m", or "lifetime")."""

    name: str
    kind: str  # configured kind; "auto" until the page says
    labels: tuple[str, str, str]  # (replica, engine, model)
    status: SourceStatus
    reading: EngineReading | None
    last_read_at: float | None
    histograms: Mapping[Stage, Histogram] = field(default_factory=lambda: EMPTY)  # raw, summed over ranks
    windows: Mapping[str, WindowFigures] = field(default_factory=lambda: EMPTY)
    frozen: bool | None = None  # None: not known
    rank_imbalance: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # signal → max ÷ mean
    restarts: int = 0
    certificate_expires: float | None = None  # wall; of the engine's TLS certificate
    room: CacheRoom | None = None
    generated: tuple[float, float] | None = None  # (at, tokens since the first reading, across restarts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Which replica uses a card; at most one row per (card, replica, rank)."""

    uuid: str
    replica: str
    rank: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How uneven one signal is within one group of cards."""

    stddev: float  # population standard deviation
    spread: float  # max − min
    coefficient_of_variation: float | None  # None when the mean is 0
    max_to_mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupImbalance:
    """Unevenness inside one group.  scope "replica": group is the replica; scope "node": group is ""."""

    scope: str
    group: str
    spreads: Mapping[Signal, Spread]
    deviations: Mapping[Signal, Mapping[str, float]]  # signal → uuid → (value − median) ÷ median


@dataclass(frozen=True, slots=True, kw_only=True)
class Localisation:
    """At which layer the unevenness of one signal of one model arises; no shares when nothing is uneven."""

    model: str
    signal: str
    coefficient_of_variation: float | None  # over all cards, or over all ranks; None when the mean is 0
    shares: Mapping[str, float]  # layer "replica", "rank", "card" → share of the sum of squares; they add up to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Economics:
    """What work and idleness cost.  Prices are in ``currency``, which is "" when nothing is priced."""

    currency: str = ""
    prices: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # uuid → price of one hour
    joules_per_token: Mapping[tuple[str, str], float] = field(default_factory=lambda: EMPTY)  # (replica, window)
    tokens_per_joule: Mapping[tuple[str, str], float] = field(default_factory=lambda: EMPTY)
    cost_per_million: Mapping[tuple[str, str], float] = field(default_factory=lambda: EMPTY)
    idle_seconds: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # uuid → counter
    idle_cost: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # uuid → counter


Backend = tuple[str, str]  # (pool, backend) as the gateway names them; the pool is "" where it has no pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a gateway counts for one backend, or for a whole pool.  None: it does not say."""

    requests: float | None = None  # counter; retries count again
    errors: float | None = None  # counter
    active: float | None = None  # requests at the backend now
    queued: float | None = None  # requests that wait for it
    rate: float | None = None  # requests per second, from gateways that do not count them
    up: bool | None = None  # fit for new requests


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReading:
    """What one gateway page said, upstream names gone."""

    at: float
    gateway: str  # the kind: haproxy, nginx, envoy, …
    backends: Mapping[Backend, Load]
    pools: Mapping[str, Load] = field(default_factory=lambda: EMPTY)
    cut: frozenset[str] = frozenset()  # pools with backends beyond the cap: shares would be wrong
    started: float | None = None  # wall; a change is a restart
    uptime: float | None = None  # seconds; a fall is a restart
    complete: bool = True
    oddities: Mapping[str, int] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFigures:
    """How a gateway spread its requests during one window; empty where nothing was sent."""

    seconds: float  # time really covered
    shares: Mapping[Backend, float] = field(default_factory=lambda: EMPTY)  # of the pool's requests
    imbalance: Mapping[str, float] = field(default_factory=lambda: EMPTY)  # pool → max ÷ mean


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """A gateway as the page shows it."""

    name: str
    labels: tuple[str, str]  # (gateway, kind); the kind is "" until the page says
    status: SourceStatus
    reading: GatewayReading | None
    last_read_at: float | None
    windows: Mapping[str, GatewayFigures] = field(default_factory=lambda: EMPTY)
    replicas: Mapping[Backend, str] = field(default_factory=lambda: EMPTY)  # which replica a backend is
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """The daemon about itself."""

    config_reload_successful: bool = True
    config_reload_wall: float | None = None
    loop_restarts: Mapping[str, int] = field(default_factory=lambda: EMPTY)  # loop → count
    dropped_series: int = 0  # beyond the hard cap, or not finite
    oddities: Mapping[tuple[str, str], int] = field(default_factory=lambda: EMPTY)  # (source, reason) → lines
    unassigned: Mapping[str, str] = field(default_factory=lambda: EMPTY)  # replica → why no card was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that one page shows, immutable once made; the poller holds the newest."""

    at: float
    wall: float
    driver: DriverFacts | None = None
    cards: tuple[CardState, ...] = ()
    replicas: tuple[ReplicaState, ...] = ()
    gateways: tuple[GatewayState, ...] = ()
    owners: tuple[Ownership, ...] = ()
    imbalance: tuple[GroupImbalance, ...] = ()
    replica_imbalance: Mapping[tuple[str, str], float] = field(default_factory=lambda: EMPTY)  # (model, signal)
    localisation: tuple[Localisation, ...] = ()
    economics: Economics = field(default_factory=Economics)
    sources: tuple[SourceStatus, ...] = ()
    daemon: DaemonState = field(default_factory=DaemonState)
