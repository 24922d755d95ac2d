"""LMCache: inside the engine's processes, or as a server of its own (multi-process mode).

Inside the engine, every worker of a tensor-parallel group keeps its share of each KV cache, so bytes add up, and the
scheduler alone looks tokens up.  Older versions count no lookups: their hits are those of retrievals, which each
worker counts, so that the ratio is right and the volume is that of all workers.
"""

from __future__ import annotations

from exporter.model.store import StoreQuantity
from exporter.stores.store import Store, StoreField

LMCACHE = Store(
    kind="lmcache",
    title="LMCache in the engine",
    marks=("lmcache:",),
    counts="tokens",
    hint="Point url at the engine's metrics, which include LMCache's, or at the port of its internal API server.",
    absent="capacity",
    fields=(
        StoreField(StoreQuantity.QUERIES, ("lmcache:num_lookup_tokens_total", "lmcache:num_requested_tokens_total")),
        StoreField(StoreQuantity.HITS, ("lmcache:num_lookup_hits_total", "lmcache:num_hit_tokens_total")),
        StoreField(StoreQuantity.EVICTIONS, ("lmcache:local_cpu_evict_keys_count_total",)),
        StoreField(StoreQuantity.USED, ("lmcache:local_cache_usage",), word="memory"),
        StoreField(StoreQuantity.USED, ("lmcache:local_storage_usage",), word="disk"),
        StoreField(StoreQuantity.USED, ("lmcache:remote_cache_usage",), word="remote"),
        StoreField(StoreQuantity.ERRORS, ("lmcache:remote_ping_errors_total",), word="ping"),
        # Gauges upstream; they only grow.
        StoreField(StoreQuantity.ERRORS, ("lmcache:get_blocking_failed_count",), word="get"),
        StoreField(StoreQuantity.ERRORS, ("lmcache:put_failed_count",), word="put"),
    ),
)

LMCACHE_SERVER = Store(
    kind="lmcache_server",
    title="LMCache server",
    marks=("lmcache_mp_",),
    counts="tokens",
    hint="Point url at the server's /metrics (port 9090 unless set).",
    absent="capacity, but the usage ratio of its memory",
    fields=(
        StoreField(StoreQuantity.QUERIES, ("lmcache_mp_lookup_requested_tokens_total",)),
        StoreField(StoreQuantity.HITS, ("lmcache_mp_lookup_hit_tokens_total",)),
        StoreField(StoreQuantity.TIER_HITS, ("lmcache_mp_lookup_hit_l1_tokens_total",), word="memory"),
        StoreField(StoreQuantity.TIER_HITS, ("lmcache_mp_lookup_hit_l2_tokens_total",), word="remote"),
        StoreField(StoreQuantity.EVICTIONS, ("lmcache_mp_l1_evicted_chunks_total",)),
        StoreField(StoreQuantity.USED, ("lmcache_mp_l1_memory_usage_bytes",), word="memory"),
        StoreField(StoreQuantity.USED, ("lmcache_mp_l2_usage_bytes",), label="l2_name", word="remote"),
        StoreField(StoreQuantity.USAGE, ("lmcache_mp_l1_usage_ratio",), word="memory"),
        StoreField(StoreQuantity.ERRORS, ("lmcache_mp_l1_allocation_failure_chunks_total",), word="allocation"),
        StoreField(StoreQuantity.ERRORS, ("lmcache_mp_l1_read_failure_chunks_total",), word="get"),
        StoreField(StoreQuantity.ERRORS, ("lmcache_mp_l2_prefetch_failure_chunks_total",), word="prefetch"),
    ),
)
