"""The numbers by which findings and alerts judge alike, declared once: the defaults of ``alerts.thresholds``."""

from __future__ import annotations

ACCEPTANCE_OF_PAST = 0.5  # of the replica's own past
ACCEPTANCE_PAST = 0.2  # speculation that never had more of its tokens accepted has little to lose
ACCEPTANCE_TOKENS = 10  # generated tokens per second
ACCEPTED_LENGTH_PAST = 0.4  # tokens of a draft, as ACCEPTANCE_PAST
BALANCE_REQUESTS = 8  # running requests of a replica below which unevenness is chance
BUSY_UTILIZATION = 0.30  # an idle GPU lowers clocks and link speed on purpose
CANARY_SHARE = 0.25  # of the mean load of a model's replicas
CERTIFICATE_REMAINING = 14 * 86_400  # seconds
ENGINE_RESTARTS = 1  # in RESTART_SECONDS; more are a crash loop
ERROR_RATIO_CRITICAL = 0.05
ERROR_RATIO_WARNING = 0.01
ERROR_REQUESTS = 50  # finished requests in WINDOW below which a ratio of errors is chance
GATEWAY_IMBALANCE = 1.5
GATEWAY_REQUESTS = 0.2  # of a pool, per second
GPU_MEMORY_USED = 0.97
HIT_LOOKUPS = 50  # tokens per second
HIT_RATIO_OF_PAST = 0.5  # of the replica's own past
HIT_RATIO_PAST = 0.10  # a cache that never served more has little to lose
IDLE_WITH_QUEUE_CRITICAL = 0.20
IDLE_WITH_QUEUE_WARNING = 0.40
KV_CACHE_USE = 0.90
LORA_SLOTS = 1.0  # of the slots for adapters
MEMORY_EVEN = 1.03  # maximum over mean: the group is full by its configuration, not by a leak
MEMORY_SKEW = 1.07
NIC_ERRORS = 100  # of one type, in WINDOW
NIC_LINK_DOWNS = 2  # in WINDOW: one may be maintenance
PICKER_POLL_ERRORS = 0.1  # per second; pickers poll many times a second
POWER_BRAKE_SHARE = 0.01  # of WINDOW
POWER_LIMIT_SHARE = 0.90  # of the default power limit
PREEMPTIONS = 0.2  # per second
QUEUE_GROWTH = 0.1  # of the running requests, in QUEUE_STEP_SECONDS
RANK_IMBALANCE = 1.35
REPLICA_IMBALANCE = 1.5
SIBLING_SLOWDOWN = 1.2  # mean ITL over that of the model's fastest replica on the node
SIBLING_TOKENS = 500  # observations in WINDOW below which a mean is chance
STALE_ENDPOINTS = 0  # of an endpoint picker
STORE_ERRORS = 30  # of one operation, in WINDOW
TEMPERATURE_CELSIUS = 85  # of GPUs that report no limit
TEMPERATURE_MARGIN_CELSIUS = 8
THROTTLED_SHARE = 0.10  # of WINDOW
TRANSFERS_FAILED = 5  # in the window; a few expire whenever clients leave
TRANSFER_FAILURES = 0.01  # of the requests that finished
TTFT_SLOW_SECONDS = 1.0  # mean in WINDOW
UTILIZATION_SPREAD = 0.40

WINDOW, WINDOW_SECONDS = "5m", 300.0  # over which ratios and rates are evaluated
QUEUE_STEP_SECONDS = 600.0  # between means of WINDOW of a queue
RESTART_SECONDS = 1800.0
XID_RECENT_SECONDS = 3600.0
SERVED_SECONDS = 900.0  # within which a group must have served for its memory to be compared
LOADING_SECONDS = 600.0  # that a large model takes to load
UNANSWERED_SECONDS = 60.0  # after which a GPU whose driver call does not return counts as lost

# Findings alone: no alert judges these.
CERTIFICATE_DRAIN_SECONDS = 3600.0
COMPUTING_MEMORY = 0.02  # of the cycles; a collective that waits uses less than 0.01, a decoding GPU more than 0.3
COMPUTING_TENSOR = 0.005
COUNTERS_STILL_SECONDS = 4.5  # between two polls at the default interval, of which the second may come early
GATEWAY_SHARE = 0.02  # of a pool's requests; less is a probe
