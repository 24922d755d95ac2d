"""One simulated engine server: a process that answers /metrics, /version and /health on loopback as the real one.

``python -m exporter.simulate.engine --kind vllm --replica NAME --options JSON`` prints one line of JSON with its port
and the processes of its ranks, then serves until its standard input ends or its parent is gone.  Each rank has a
process of its own below this one, as in the real server, for the driver to name as the user of a card.
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Protocol

from exporter.simulate import other_pages, vllm_page
from exporter.simulate.plan import CATCH_UP, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exporter.simulate.world import SimulatedReplica

# One writer for each engine kind: (replica, process facts, Unix time of the node's start) → page.
PAGES: dict[str, tuple[str, Callable[[SimulatedReplica, vllm_page.ProcessFacts, float], str]]] = {
    "vllm": (vllm_page.CONTENT_TYPE, vllm_page.render),
    "sglang": (other_pages.MULTIPROCESS, other_pages.sglang),
    "tgi": (other_pages.TEXT, other_pages.tgi),
    "ray_serve": (other_pages.TEXT, other_pages.ray_serve),
}
FACTS = {"sglang": "/get_server_info", "tgi": "/info"}  # where others than vLLM tell their version
TICK = 1.0  # the world is lived in small pieces even when nobody asks, so that no answer has to catch up
CLIENT_SECONDS = 30.0
RANK_PROGRAM = "/bin/cat"  # waits for its input to end and does nothing else


def process_facts() -> vllm_page.ProcessFacts:
    """Read this process's own figures from the kernel."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = [int(word) for word in file.read().split()[:2]]
    size = os.sysconf("SC_PAGE_SIZE")
    return vllm_page.ProcessFacts(
        virtual_memory=pages[0] * size,
        resident_memory=pages[1] * size,
        cpu_seconds=time.process_time(),
        open_files=len(os.listdir("/proc/self/fd")),
        most_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


class Site(Protocol):
    """Something simulated that clients ask over HTTP."""

    def live(self) -> None: ...  # noqa: D102

    def answer(self, path: str) -> tuple[str, bytes] | None: ...  # noqa: D102


class Engine:
    """The replica of one server, for the threads that answer its clients."""

    def __init__(self, kind: str, replica: str, plan: Plan) -> None:
        self.content_type, self._render = PAGES[kind]
        self._facts_path = FACTS.get(kind, "")
        self._plan = plan
        self._world = plan.world()
        self._replica = self._world.replica(replica)
        self._lock = threading.Lock()

    def live(self) -> None:
        """Bring the world up to now."""
        with self._lock:
            self._world.at(self._plan.now(), budget=CATCH_UP)

    def page(self) -> bytes:
        """Write the metrics page of this moment."""
        with self._lock:
            self._world.at(self._plan.now(), budget=CATCH_UP)
            return self._render(self._replica, process_facts(), self._plan.wall).encode()

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Give (content type, body) for a path, None for one that does not exist."""
        if path == "/metrics" or path.startswith("/metrics/"):
            return self.content_type, self.page()
        if path == self._facts_path:
            facts = {"version": self._world.software.engine, "model_id": self._replica.spec.model.name}
            return "application/json", json.dumps(facts).encode()
        if path == "/version" and not self._facts_path:
            return "application/json", json.dumps({"version": self._world.software.engine}).encode()
        if path == "/v1/models":
            models = [{"id": self._replica.spec.model.name, "object": "model"}]
            return "application/json", json.dumps({"object": "list", "data": models}).encode()
        return ("text/plain", b"") if path in {"/health", "/ping"} else None


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = CLIENT_SECONDS

        def do_GET(self) -> None:
            found = site.answer(self.path.partition("?")[0])
            kind, body = found or ("application/json", b'{"detail":"Not Found"}')
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the parent's argument
            """Say nothing: a scrape a second is no news."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Let a client that hangs up go without a traceback."""


def start_ranks(count: int) -> list[subprocess.Popen[bytes]]:
    """Start one process for each rank; each ends when this one does, because its input ends."""
    titles = ["VLLM::EngineCore"] if count == 1 else [f"VLLM::EngineCore_DP{rank}" for rank in range(count)]
    return [
        subprocess.Popen([title], executable=RANK_PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for title in titles
    ]


def serve(kind: str, replica: str, plan: Plan) -> None:
    """Serve until standard input ends; KeyError for a replica or scenario that does not exist."""
    engine = Engine(kind, replica, plan)
    attend(engine, start_ranks(len(plan.world().replica(replica).ranks)))


def attend(site: Site, ranks: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    """Answer for the site until standard input ends or the parent is gone, then end the ranks."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends our input
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = _Server(("127.0.0.1", 0), _handler(site))
    thread = threading.Thread(target=server.serve_forever, daemon=True, name="http")
    try:
        thread.start()
        hello = {"port": server.server_address[1], "pid": os.getpid(), "ranks": [rank.pid for rank in ranks]}
        print(json.dumps(hello), flush=True)
        while os.getppid() == parent:
            ready, _, _ = select.select([sys.stdin], [], [], TICK)
            if ready and not os.read(sys.stdin.fileno(), 4096):
                break
            site.live()
    finally:
        server.shutdown()
        server.server_close()
        for rank in ranks:
            rank.kill()
            rank.wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="exporter.simulate.engine", description="a simulated engine server")
    parser.add_argument("--kind", choices=sorted(PAGES), default="vllm")
    parser.add_argument("--replica", required=True)
    parser.add_argument("--options", required=True, help="the plan of the node, JSON")
    given = parser.parse_args(argv)
    serve(given.kind, given.replica, Plan.loads(given.options))


if __name__ == "__main__":
    main()
