"""The web page of a simulated node through a real server, in this process: what is shown moves only when a test says."""

from __future__ import annotations

import contextlib

from exporter.config.settings import CostSettings
from exporter.http.server.api import Api
from exporter.http.server.listener import HttpServer
from exporter.http.server.routes import routes
from exporter.http.server.web_page import WebPage
from exporter.model import Outcome
from exporter.web.history import NodeHistory
from tests.support.virtual_node import VirtualNode

COSTS = CostSettings(currency="USD", gpu_hour={"NVIDIA H100 80GB HBM3": 2.5})
NODE = "gpu-node-7"


def lived(scenario, seconds=240, **options):
    """Return the last snapshot of a scenario and the history of all before it."""
    history = NodeHistory()
    node = VirtualNode(scenario, costs=COSTS, **options)
    for _ in node.live(seconds):
        history.update(node.publisher.snapshot)
    return node.publisher.snapshot, history


class _NoPages:
    def page(self, *, openmetrics, gzip):
        return None


class _Healthy:
    def healthy(self):
        return Outcome(True, "")

    ready = healthy


class WebNode:
    """A server whose snapshot, history and age of both may be set at any time."""

    def __init__(self):
        self.snapshot, self.history, self.age = None, NodeHistory(), 0.5
        self._server = None

    def show(self, snapshot, history=None, age=0.5):
        """Serve this snapshot from now on."""
        if history is not None:
            self.history = history
            self._page._history = history
            self._page._writer = None
        self.snapshot, self.age = snapshot, age

    def _now(self):
        return self.age + (self.snapshot.at if self.snapshot is not None else 0.0)

    def start(self, port=0):
        """Serve, and return the address as a URL."""
        self._page = WebPage(lambda: self.snapshot, self.history, node=lambda: NODE, clock=self._now)
        handler = routes(
            _NoPages(), _Healthy(), reload=None, api=Api(lambda: self.snapshot, self._now), web=self._page
        )
        self._server = HttpServer("127.0.0.1", port, handler)
        self._server.start()
        self.port = self._server.address[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        return self.url

    def stop(self):
        """Close the port."""
        if self._server is not None:
            self._server.stop()
            self._server = None


@contextlib.contextmanager
def web_node():
    """Serve a node without data until something is shown."""
    node = WebNode()
    node.start()
    try:
        yield node
    finally:
        node.stop()
