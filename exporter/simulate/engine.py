"""One simulated engine server: a process that answers /metrics, /version and /health on loopback as the real one.

``python -m exporter.simulate.engine --kind vllm --replica NAME --options JSON`` prints one line of JSON with its port
and the processes of its ranks, then serves until its standard input ends or its parent is gone.  Each rank has a
process of its own below this one, as in the real server, for the driver to name as the user of a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from exporter.simulate import other_pages, vllm_page
from exporter.simulate.node_spec import CATCH_UP_BUDGET, NodeSpec
from exporter.simulate.world import SimulatedReplica

# One writer for each engine kind: (replica, process facts, Unix time of the node's start) → page.
PAGE_WRITERS: dict[str, tuple[str, Callable[[SimulatedReplica, vllm_page.ProcessStats, float], str]]] = {
    "vllm": (vllm_page.CONTENT_TYPE, vllm_page.render),
    "sglang": (other_pages.MULTIPROCESS, other_pages.sglang),
    "tgi": (other_pages.TEXT, other_pages.tgi),
    "ray_serve": (other_pages.TEXT, other_pages.ray_serve),
}
INFO_PATHS = {"sglang": "/get_server_info", "tgi": "/info"}  # where other engines than vLLM report their version
TICK = 1.0  # the world advances in small pieces even between requests, so that no response has to catch up
CLIENT_SECONDS = 30.0
RANK_PROGRAM = "/bin/cat"  # waits for its input to end and does nothing else


def read_process_stats() -> vllm_page.ProcessStats:
    """Read this process's own figures from the kernel."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = [int(word) for word in file.read().split()[:2]]
    size = os.sysconf("SC_PAGE_SIZE")
    return vllm_page.ProcessStats(
        virtual_memory=pages[0] * size,
        resident_memory=pages[1] * size,
        cpu_seconds=time.process_time(),
        open_files=len(os.listdir("/proc/self/fd")),
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


class Responder(Protocol):
    """Something simulated that answers over HTTP."""

    def advance(self) -> None: ...  # noqa: D102

    def respond(self, path: str) -> tuple[str, bytes] | None: ...  # noqa: D102


class EngineServer:
    """The replica of one server, for the threads that answer its clients."""

    def __init__(
        self, kind: str, replica: str, node_spec: NodeSpec, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.content_type, self._render = PAGE_WRITERS[kind]
        self._info_path = INFO_PATHS.get(kind, "")
        self._node_spec = node_spec
        self._world = node_spec.world()
        self._replica = self._world.replica(replica)
        self._lock = threading.Lock()

    def advance(self) -> None:
        """Advance the world to now."""
        with self._lock:
            self._world.advance_to(self._node_spec.elapsed(self._clock()), budget=CATCH_UP_BUDGET)

    def page(self) -> bytes:
        """Write the metrics page of this moment."""
        with self._lock:
            self._world.advance_to(self._node_spec.elapsed(self._clock()), budget=CATCH_UP_BUDGET)
            return self._render(self._replica, read_process_stats(), self._node_spec.started_unix).encode()

    def respond(self, path: str) -> tuple[str, bytes] | None:
        """Return (content type, body) for a path, None for one that does not exist."""
        if path == "/metrics" or path.startswith("/metrics/"):
            return self.content_type, self.page()
        if path == self._info_path:
            facts = {"version": self._world.software.engine, "model_id": self._replica.spec.model.name}
            return "application/json", json.dumps(facts).encode()
        if path == "/version" and not self._info_path:
            return "application/json", json.dumps({"version": self._world.software.engine}).encode()
        if path == "/v1/models":
            models = [{"id": self._replica.spec.model.name, "object": "model"}]
            return "application/json", json.dumps({"object": "list", "data": models}).encode()
        return ("text/plain", b"") if path in {"/health", "/ping"} else None


def _handler(responder: Responder) -> type[BaseHTTPRequestHandler]:
    class SimulatorHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = CLIENT_SECONDS

        def do_GET(self) -> None:
            found = responder.respond(self.path.partition("?")[0])
            kind, body = found or ("application/json", b'{"detail":"Not Found"}')
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the parent's argument
            """Log nothing."""

    return SimulatorHandler


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up."""


def start_ranks(count: int) -> list[subprocess.Popen[bytes]]:
    """Start one process for each rank; each ends when this one does, because its input ends."""
    titles = ["VLLM::EngineCore"] if count == 1 else [f"VLLM::EngineCore_DP{rank}" for rank in range(count)]
    return [
        subprocess.Popen([title], executable=RANK_PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for title in titles
    ]


def serve(kind: str, replica: str, node_spec: NodeSpec) -> None:
    """Serve until standard input ends; KeyError for a replica or scenario that does not exist."""
    engine = EngineServer(kind, replica, node_spec)
    serve_until_eof(engine, start_ranks(len(node_spec.world().replica(replica).ranks)))


def serve_until_eof(responder: Responder, ranks: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    """Serve until standard input ends or the parent is gone, then end the ranks."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends our input
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = _PageServer(("127.0.0.1", 0), _handler(responder))
    thread = threading.Thread(target=server.serve_forever, daemon=True, name="http")
    try:
        thread.start()
        hello = {"port": server.server_address[1], "pid": os.getpid(), "ranks": [rank.pid for rank in ranks]}
        print(json.dumps(hello), flush=True)
        while os.getppid() == parent:
            ready, _, _ = select.select([sys.stdin], [], [], TICK)
            if ready and not os.read(sys.stdin.fileno(), 4096):
                break
            responder.advance()
    finally:
        server.shutdown()
        server.server_close()
        for rank in ranks:
            rank.kill()
            rank.wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="exporter.simulate.engine", description="a simulated engine server")
    parser.add_argument("--kind", choices=sorted(PAGE_WRITERS), default="vllm")
    parser.add_argument("--replica", required=True)
    parser.add_argument("--options", required=True, help="the specification of the node, JSON")
    given = parser.parse_args(argv)
    serve(given.kind, given.replica, NodeSpec.loads(given.options))


if __name__ == "__main__":
    main()
