"""KV-cache stores: a new one is one file here, and one word in ``STORES``; everything that lists stores follows."""

from __future__ import annotations

from exporter.stores.store import Store
from exporter.stores.tables.lmcache import LMCACHE, LMCACHE_SERVER
from exporter.stores.tables.mooncake import MOONCAKE

STORES: tuple[Store, ...] = (LMCACHE, LMCACHE_SERVER, MOONCAKE)


def by_kind(kind: str) -> Store | None:
    """Return the store of that kind, None when there is none."""
    return next((store for store in STORES if store.kind == kind), None)


def recognise(body: bytes) -> Store | None:
    """Return the store whose page this is, None when no known kind matches."""
    return next((store for store in STORES if store.matches(body)), None)
