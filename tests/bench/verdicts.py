"""What fifty probes of a verdict each second cost a daemon at W8, over HTTP and by agent-check.

    python -m tests.bench.verdicts [--seconds 10] [--rounds 3]

The same daemon in turn without probes, with fifty HTTP clients that keep their connections, with fifty that connect for
each request as load balancers do, with fifty agent-checks, and with these beside a hundred clients that connect and stay
mute.  Prints the medians over the rounds: CPU of the daemon in percent of a core and as a ratio to the daemon without
probes, CPU per request, latency, and requests without an answer.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from tests.bench.load import REPLICAS, W8, Scraper, engines, free_port, get, running
from tests.bench.machine import cpu_seconds, percentile, tree
from tests.bench.node import LAUNCH, configuration, driver_options, has_data

CLIENTS = 50  # each asks once a second
MUTE = 100
PATH = "/api/v1/verdicts/replica/r0"
START_SECONDS = 60.0

Ask = Callable[[int], bool]


@contextlib.contextmanager
def kept(port: int) -> Iterator[Ask]:
    """Send requests over connections that stay open."""
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=5) for _ in range(CLIENTS)]

    def ask(client: int) -> bool:
        connections[client].request("GET", PATH)
        response = connections[client].getresponse()
        response.read()
        return response.status == 200

    yield ask
    for connection in connections:
        connection.close()


@contextlib.contextmanager
def fresh(port: int) -> Iterator[Ask]:
    """Request a verdict over a new connection each time."""

    def ask(_: int) -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", PATH, headers={"Connection": "close"})
            response = connection.getresponse()
            response.read()
            return response.status == 200

    yield ask


@contextlib.contextmanager
def agent(port: int, mute: int = 0) -> Iterator[Ask]:
    """Read verdicts as HAProxy's agent-check does, beside clients that say nothing and come again when they are closed."""
    silent = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(mute)]

    def ask(client: int) -> bool:
        for number in range(client, mute, CLIENTS):
            with contextlib.suppress(OSError):
                silent[number].close()
            silent[number] = socket.create_connection(("127.0.0.1", port), timeout=5)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"r0\n")
            return connection.recv(64).startswith(b"up")

    yield ask
    for connection in silent:
        connection.close()


def phase(ask: Ask | None, pid: int, seconds: float) -> tuple[float, list[float], int]:
    """Return CPU seconds of the process, the latencies, and the requests without an answer."""
    latencies: list[float] = []
    failures, before, begun = 0, cpu_seconds(tree(pid)), time.perf_counter()
    for number in range(round(seconds * CLIENTS)):
        time.sleep(max(0.0, begun + number / CLIENTS - time.perf_counter()))
        if ask is not None:
            asked = time.perf_counter()
            try:
                failures += not ask(number % CLIENTS)
            except OSError:
                failures += 1
            latencies.append(time.perf_counter() - asked)
    elapsed = time.perf_counter() - begun
    return (cpu_seconds(tree(pid)) - before) / elapsed, latencies, failures


def measure(port: int, agent_port: int, pid: int, seconds: float, rounds: int) -> None:
    """Print a row for each kind of client."""
    kinds: dict[str, Callable[[], contextlib.AbstractContextManager[Ask | None]]] = {
        "no probes": contextlib.nullcontext,
        "HTTP, kept connections": lambda: kept(port),
        "HTTP, new connections": lambda: fresh(port),
        "agent-check": lambda: agent(agent_port),
        f"agent-check, {MUTE} mute clients": lambda: agent(agent_port, MUTE),
    }
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
    latencies: dict[str, list[float]] = {kind: [] for kind in kinds}
    failures = dict.fromkeys(kinds, 0)
    for _ in range(rounds):
        for kind, opened in kinds.items():
            with opened() as ask:
                spent, took, failed = phase(ask, pid, seconds)
            cpu[kind].append(spent)
            latencies[kind] += took
            failures[kind] += failed
    base = statistics.median(cpu["no probes"])
    print(
        f"{'50 clients, each once a second':32} {'CPU %':>7} {'ratio':>6} {'µs each':>8} {'p50 ms':>7} {'p99 ms':>7} failed"
    )
    for kind, took in latencies.items():
        spent = statistics.median(cpu[kind])
        row = f"{kind:32} {100 * spent:7.2f} {spent / base:6.2f}"
        if took:
            each = 1e6 * statistics.median(seconds - base for seconds in cpu[kind]) / CLIENTS
            row += f" {each:8.0f} {1e3 * percentile(took, 0.5):7.2f} {1e3 * percentile(took, 0.99):7.2f}"
            row += f" {failures[kind]} of {len(took)}"
        print(row)


def main() -> None:
    """Start a daemon at W8 and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    port, agent_port = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        engine_port = stack.enter_context(engines())
        file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".yaml"))
        text = configuration(port, engine_port, "common", REPLICAS, f"{W8.engines:g}s")
        file.write(f"agent_check: 127.0.0.1:{agent_port}\n{text}")
        file.flush()
        nowhere = stack.enter_context(open("/dev/null", "wb"))
        command = [sys.executable, "-c", LAUNCH, file.name, driver_options()]
        daemon = stack.enter_context(running(command, stderr=nowhere))
        deadline = time.monotonic() + START_SECONDS
        while not _serves(port):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the daemon does not serve")
            time.sleep(0.2)
        scrapers = [
            Scraper(port, packed=bool(number), phase=0.3 + 0.4 * number, every=W8.scrape) for number in (0, 1)
        ]
        for scraper in scrapers:
            scraper.start()
        measure(port, agent_port, daemon.pid, given.seconds, given.rounds)
        for scraper in scrapers:
            scraper.end()


def _serves(port: int) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return has_data(port) and b'"serve"' in get(port, PATH)[2]
    return False


if __name__ == "__main__":
    main()
