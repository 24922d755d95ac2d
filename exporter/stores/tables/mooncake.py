"""Mooncake: the master of a store, which knows every segment of it.

A lookup of an object that is not there counts as a failed GetReplicaList: that is a miss and no error.
"""

from __future__ import annotations

from exporter.model.store import StoreQuantity
from exporter.stores.store import Store, StoreField

MOONCAKE = Store(
    kind="mooncake",
    title="Mooncake",
    marks=("master_total_capacity_bytes", "master_key_count", "master_put_start_requests_total"),
    counts="objects",
    hint="Point url at the master's metrics port (9003 unless set).",
    fields=(
        StoreField(StoreQuantity.QUERIES, ("total_get_nums_",)),
        StoreField(StoreQuantity.HITS, ("valid_get_nums_",)),
        StoreField(StoreQuantity.TIER_HITS, ("mem_cache_hit_nums_",), word="memory"),
        StoreField(StoreQuantity.TIER_HITS, ("file_cache_hit_nums_",), word="disk"),
        StoreField(StoreQuantity.EVICTIONS, ("master_evicted_key_count",)),
        StoreField(StoreQuantity.USED, ("master_allocated_bytes",), word="memory"),
        StoreField(StoreQuantity.CAPACITY, ("master_total_capacity_bytes",), word="memory"),
        StoreField(StoreQuantity.USED, ("master_nof_allocated_bytes",), word="nvmeof"),
        StoreField(StoreQuantity.CAPACITY, ("master_total_nof_capacity_bytes",), word="nvmeof"),
        StoreField(StoreQuantity.USED, ("master_allocated_file_size_bytes",), word="disk"),
        StoreField(StoreQuantity.CAPACITY, ("master_total_file_capacity_bytes",), word="disk"),
        StoreField(StoreQuantity.ERRORS, ("master_put_start_alloc_failures_total",), word="allocation"),
        StoreField(StoreQuantity.ERRORS, ("master_put_end_failures_total",), word="put"),
        StoreField(StoreQuantity.ERRORS, ("master_mount_segment_failures_total",), word="mount"),
        StoreField(StoreQuantity.ERRORS, ("master_ping_failures_total",), word="ping"),
    ),
)
