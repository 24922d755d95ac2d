"""One simulated gateway: a process that answers /metrics on loopback as HAProxy does, before the node's engines.

``python -m exporter.simulate.gateway --options JSON`` lives its own copy of the node's world, so what it counts is
what the engines count, without talking to them.  Each served model is a pool, each replica a server of its own name.
HAProxy does not restart when an engine does: its counters go on.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from exporter.simulate.engine import serve_until_eof
from exporter.simulate.node_spec import CATCH_UP_BUDGET, NodeSpec
from exporter.simulate.world import SimulatedReplica, World

CONTENT_TYPE = "text/plain; version=0.0.4"
STATES = ("DOWN", "UP", "MAINT", "DRAIN", "NOLB")
CODES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
KEPT_ALIVE = 0.6  # share of requests that follow on a connection, for which no server is chosen


class _Row(NamedTuple):
    """A server or a whole pool: its labels as written, its totals, its sessions now, and what health checks say."""

    labels: str
    totals: Mapping[str, float]
    active: float
    state: str = "UP"


def server_totals(replica: SimulatedReplica) -> dict[str, float]:
    """Return what one life of an engine was sent and answered: sessions and responses by class."""
    ranks = [rank.metrics for rank in replica.ranks]
    return {
        "sessions": float(sum(metrics.arrived for metrics in ranks) + replica.refused),
        "2xx": float(sum(metrics.http_answered for metrics in ranks)),
        "4xx": float(replica.refused),
        "5xx": float(sum(metrics.finished["error"] for metrics in ranks)),
    }


class MonotonicTotals:
    """Counters of one server; they continue when the engine behind it restarts."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def add(self, now: Mapping[str, float]) -> dict[str, float]:
        """Return the gateway's totals for the engine's counters ``now``, which start at zero when the engine does."""
        if any(number < self._last.get(name, 0.0) for name, number in now.items()):
            self._before = {name: self._before.get(name, 0.0) + number for name, number in self._last.items()}
        self._last = dict(now)
        return {name: self._before.get(name, 0.0) + number for name, number in now.items()}


class SimulatedGateway:
    """The gateway of one node, for the threads that answer its clients."""

    def __init__(
        self, node_spec: NodeSpec, clock: Callable[[], float] = time.monotonic, world: World | None = None
    ) -> None:
        self._clock = clock
        self._node_spec = node_spec
        self._world = world or node_spec.world()
        self._totals = {replica.spec.name: MonotonicTotals() for replica in self._world.replicas}
        self._lock = threading.Lock()

    def advance(self) -> None:
        """Advance the world to now."""
        self.page()

    def page(self) -> bytes:
        """Write the metrics page of this moment."""
        with self._lock:
            self._world.advance_to(self._node_spec.elapsed(self._clock()), budget=CATCH_UP_BUDGET)
            pools: dict[str, list[_Row]] = {}
            for replica in self._world.replicas:
                proxy = f'proxy="{replica.spec.model.name}"'
                totals = self._totals[replica.spec.name].add(server_totals(replica))
                active = float(sum(rank.running + len(rank.waiting) for rank in replica.ranks))
                state = "DOWN" if replica.stopped else "DRAIN" if replica.drained else "UP"
                server = _Row(f'{proxy},server="{replica.spec.name}"', totals, active, state)
                pools.setdefault(proxy, []).append(server)
            return "".join(_lines(pools, self._node_spec.started_unix, self._world.now)).encode()

    def respond(self, path: str) -> tuple[str, bytes] | None:
        """Return (content type, body) for a path, None for one that does not exist."""
        return (CONTENT_TYPE, self.page()) if path == "/metrics" else None


def _lines(pools: Mapping[str, Sequence[_Row]], started_unix: float, now: float) -> Iterable[str]:
    yield from _family("process_start_time_seconds", "gauge", [("", started_unix)])
    yield from _family("process_uptime_seconds", "gauge", [("", now)])
    servers = [server for members in pools.values() for server in members]
    whole = [
        _Row(
            proxy,
            {name: sum(server.totals[name] for server in members) for name in members[0].totals},
            sum(server.active for server in members),
        )
        for proxy, members in pools.items()
    ]
    for scope, rows in (("backend", whole), ("server", servers)):
        sessions = [(row.labels, row.totals["sessions"]) for row in rows]
        yield from _family(f"{scope}_current_queue", "gauge", [(row.labels, 0.0) for row in rows])
        yield from _family(f"{scope}_current_sessions", "gauge", [(row.labels, row.active) for row in rows])
        yield from _family(f"{scope}_sessions_total", "counter", sessions)
        chosen = [(labels, float(int(count * (1 - KEPT_ALIVE)))) for labels, count in sessions]
        yield from _family(f"{scope}_loadbalanced_total", "counter", chosen)
        for errors in ("connection_errors_total", "response_errors_total"):
            yield from _family(f"{scope}_{errors}", "counter", [(row.labels, 0.0) for row in rows])
        answers = [(f'{row.labels},code="{code}"', row.totals.get(code, 0.0)) for row in rows for code in CODES]
        yield from _family(f"{scope}_http_responses_total", "counter", answers)
    states = [
        (f'{server.labels},state="{state}"', float(state == server.state)) for server in servers for state in STATES
    ]
    yield from _family("server_status", "gauge", states)


def _family(name: str, kind: str, samples: Iterable[tuple[str, float]]) -> Iterable[str]:
    yield f"# HELP haproxy_{name} Simulated.\n# TYPE haproxy_{name} {kind}\n"
    for labels, value in samples:
        yield f"haproxy_{name}{{{labels}}} {value:.0f}\n" if labels else f"haproxy_{name} {value:.3f}\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="exporter.simulate.gateway", description="a simulated gateway")
    parser.add_argument("--options", required=True, help="the specification of the node, JSON")
    serve_until_eof(SimulatedGateway(NodeSpec.loads(parser.parse_args(argv).options)))


if __name__ == "__main__":
    main()
