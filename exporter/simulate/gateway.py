"""One simulated gateway: a process that answers /metrics on loopback as HAProxy does, before the node's engines.

``python -m exporter.simulate.gateway --options JSON`` lives its own copy of the node's world, so what it counts is
what the engines count, without talking to them.  Each served model is a pool, each replica a server of its own name.
HAProxy does not restart when an engine does: its counters go on.
"""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING

from exporter.simulate.engine import attend
from exporter.simulate.plan import CATCH_UP, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from exporter.simulate.world import SimulatedReplica

CONTENT_TYPE = "text/plain; version=0.0.4"
STATES = ("DOWN", "UP", "MAINT", "DRAIN", "NOLB")
CODES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
KEPT_ALIVE = 0.6  # share of requests that follow on a connection, for which no server is chosen anew

_Server = tuple[str, str]  # (proxy, server)


def counted(replica: SimulatedReplica) -> dict[str, float]:
    """Give what one life of an engine was sent and answered: sessions and responses by class."""
    tallies = [rank.tally for rank in replica.ranks]
    return {
        "sessions": float(sum(tally.arrived for tally in tallies) + replica.refused),
        "2xx": float(sum(tally.http_answered for tally in tallies)),
        "4xx": float(replica.refused),
        "5xx": float(sum(tally.finished["error"] for tally in tallies)),
    }


class Ledger:
    """Counters of one server that go on when the engine behind it starts anew."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def add(self, now: Mapping[str, float]) -> dict[str, float]:
        """Take what the engine has counted in this life; give what the gateway has counted in its own."""
        if any(number < self._last.get(name, 0.0) for name, number in now.items()):
            self._before = {name: self._before.get(name, 0.0) + number for name, number in self._last.items()}
        self._last = dict(now)
        return {name: self._before.get(name, 0.0) + number for name, number in now.items()}


class Gateway:
    """The gateway of one node, for the threads that answer its clients."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._world = plan.world()
        self._ledgers = {replica.spec.name: Ledger() for replica in self._world.replicas}
        self._lock = threading.Lock()

    def live(self) -> None:
        """Bring the world up to now."""
        self.page()

    def page(self) -> bytes:
        """Write the metrics page of this moment."""
        with self._lock:
            self._world.at(self._plan.now(), budget=CATCH_UP)
            servers = {
                (replica.spec.model.name, replica.spec.name): (
                    self._ledgers[replica.spec.name].add(counted(replica)),
                    float(sum(rank.running + len(rank.waiting) for rank in replica.ranks)),
                )
                for replica in self._world.replicas
            }
            return "".join(_lines(servers, self._plan.wall, self._world.now)).encode()

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Give (content type, body) for a path, None for one that does not exist."""
        return (CONTENT_TYPE, self.page()) if path == "/metrics" else None


def _lines(servers: Mapping[_Server, tuple[Mapping[str, float], float]], wall: float, now: float) -> Iterable[str]:
    yield from _family("process_start_time_seconds", "gauge", [("", wall)])
    yield from _family("process_uptime_seconds", "gauge", [("", now)])
    named = [(f'proxy="{proxy}",server="{name}"', *found) for (proxy, name), found in servers.items()]
    pools: dict[str, list[tuple[Mapping[str, float], float]]] = {}
    for (proxy, _), found in servers.items():
        pools.setdefault(f'proxy="{proxy}"', []).append(found)
    whole = [
        (labels, {name: sum(one[name] for one, _ in members) for name in members[0][0]}, sum(n for _, n in members))
        for labels, members in pools.items()
    ]
    for scope, rows in (("backend", whole), ("server", named)):
        yield from _family(f"{scope}_current_queue", "gauge", [(labels, 0.0) for labels, _, _ in rows])
        yield from _family(f"{scope}_current_sessions", "gauge", [(labels, active) for labels, _, active in rows])
        yield from _family(f"{scope}_sessions_total", "counter", [(labels, c["sessions"]) for labels, c, _ in rows])
        chosen = [(labels, float(int(c["sessions"] * (1 - KEPT_ALIVE)))) for labels, c, _ in rows]
        yield from _family(f"{scope}_loadbalanced_total", "counter", chosen)
        for errors in ("connection_errors_total", "response_errors_total"):
            yield from _family(f"{scope}_{errors}", "counter", [(labels, 0.0) for labels, _, _ in rows])
        answers = [(f'{labels},code="{code}"', c.get(code, 0.0)) for labels, c, _ in rows for code in CODES]
        yield from _family(f"{scope}_http_responses_total", "counter", answers)
    states = [(f'{labels},state="{state}"', float(state == "UP")) for labels, _, _ in named for state in STATES]
    yield from _family("server_status", "gauge", states)


def _family(name: str, kind: str, samples: Iterable[tuple[str, float]]) -> Iterable[str]:
    yield f"# HELP haproxy_{name} Simulated.\n# TYPE haproxy_{name} {kind}\n"
    for labels, value in samples:
        yield f"haproxy_{name}{{{labels}}} {value:.0f}\n" if labels else f"haproxy_{name} {value:.3f}\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="exporter.simulate.gateway", description="a simulated gateway")
    parser.add_argument("--options", required=True, help="the plan of the node, JSON")
    attend(Gateway(Plan.loads(parser.parse_args(argv).options)))


if __name__ == "__main__":
    main()
