"""What the tests of KV-cache stores share: recorded pages and a poller with a clock that tests move."""

from __future__ import annotations

import pathlib

from exporter.model import DaemonState, Snapshot, Window
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.store import StoreConfig, store_poller
from exporter.sources.replay import Replay
from tests.support.builders import Clock

CAPTURES = pathlib.Path(__file__).parents[1] / "captures" / "stores"
RECORDINGS = {
    "mooncake-0.3.13": tuple(f"mooncake-0.3.13-real-cpu-{state}.prom" for state in ("idle", "t1", "t2")),
    "lmcache-0.5.6": tuple(f"lmcache-0.5.6-generated-{state}.prom" for state in ("t1", "t2")),
    "lmcache_server-0.5.6": tuple(f"lmcache_server-0.5.6-generated-{state}.prom" for state in ("t1", "t2")),
}


def capture(name: str) -> bytes:
    return (CAPTURES / name).read_bytes()


def make_poller(pages, clock=None, **changes):
    values = {
        "name": "pool",
        "kind": "auto",
        "interval": 5.0,
        "windows": (Window("1m", 60.0), Window("5m", 300.0)),
        **changes,
    }
    return store_poller(StoreConfig(**values), Replay(pages), clock=clock or Clock(), unix_now=lambda: 1.7e9)


def played(*pages, step=30.0, **changes):
    clock = Clock(1000.0)
    poller = make_poller(list(pages), clock, **changes)
    for _ in pages:
        poller.poll()
        clock.tick(step)
    return poller


def rendered(*states):
    snapshot = Snapshot(
        at=1100.0,
        unix_time=1.7e9,
        stores=states,
        sources=tuple(state.status for state in states),
        daemon=DaemonState(),
    )
    page = ExpositionRenderer(openmetrics=False).render(snapshot)
    assert page.dropped == 0
    lines = page.body.decode().splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith(("kv_store_", "# HELP kv_store_", "# TYPE kv_store_")))
