"""The numbers that findings judge by.  The alerts' defaults are these, so that both say the same."""

from __future__ import annotations

ERROR_RATIO_WARNING = 0.01
ERROR_RATIO_CRITICAL = 0.05
ERROR_REQUESTS = 50.0  # finished requests below which a ratio of errors is chance
KV_CACHE_USE = 0.90
TTFT_SLOW_SECONDS = 1.0
RANK_IMBALANCE = 1.35
REPLICA_IMBALANCE = 1.5
BALANCE_REQUESTS = 8.0  # running requests below which unevenness is chance
MEMORY_SKEW = 1.07
GPU_MEMORY_USED = 0.97
BUSY_UTILIZATION = 0.30  # an idle GPU lowers clocks and link speed on purpose
TEMPERATURE_MARGIN_CELSIUS = 8.0
SIBLING_SLOWDOWN = 1.2  # ITL p50 over that of the model's fastest sibling
SIBLING_TOKENS = 500.0  # observations below which a median is chance
GATEWAY_SHARE = 0.02  # of a pool's requests; less is a probe
XID_RECENT_SECONDS = 3600.0
CERTIFICATE_DRAIN_SECONDS = 3600.0
