"""The numbers by which findings and alerts judge alike, declared once: the defaults of ``alerts.thresholds``."""

from __future__ import annotations

BALANCE_REQUESTS = 8  # running requests below which unevenness is chance
BUSY_UTILIZATION = 0.30  # an idle GPU lowers clocks and link speed on purpose
CERTIFICATE_REMAINING = 14 * 86_400  # seconds
ENGINE_RESTARTS = 1  # in RESTART_SECONDS; more are a crash loop
ERROR_RATIO_CRITICAL = 0.05
ERROR_RATIO_WARNING = 0.01
ERROR_REQUESTS = 50  # finished requests below which a ratio of errors is chance
GPU_MEMORY_USED = 0.97
HIT_RATIO_OF_PAST = 0.5  # of the replica's own past
HIT_RATIO_PAST = 0.10  # a cache that never served more has little to lose
KV_CACHE_USE = 0.90
MEMORY_SKEW = 1.07
RANK_IMBALANCE = 1.35
REPLICA_IMBALANCE = 1.5
TEMPERATURE_MARGIN_CELSIUS = 8
TTFT_SLOW_SECONDS = 1.0

# Findings alone: no alert judges these.
CERTIFICATE_DRAIN_SECONDS = 3600.0
GATEWAY_SHARE = 0.02  # of a pool's requests; less is a probe
RESTART_SECONDS = 1800.0
SIBLING_SLOWDOWN = 1.2  # ITL p50 over that of the model's fastest sibling
SIBLING_TOKENS = 500.0  # observations below which a median is chance
XID_RECENT_SECONDS = 3600.0
