"""The web page of a simulated node through a real server, in this process: what is shown moves only when a test says."""

from __future__ import annotations

import contextlib
import functools

from exporter.config.settings import CostSettings
from exporter.http.server.api import Api
from exporter.http.server.listener import HttpServer
from exporter.http.server.routes import routes
from exporter.http.server.web_page import WebPage
from exporter.model import EngineReading, GpuAssignment, GpuLabels, Outcome, Quantity, Signal, Topology
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind, Verdict, Verdicts, VerdictState
from exporter.model.text import Language, Text
from exporter.render.api_documents import node as node_document
from exporter.web.history import POINTS, STEP, NodeHistory
from tests.support.builders import card, replica, snapshot
from tests.support.records import replace
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


@functools.cache
def served(scenario, language=Language.ENGLISH):
    """Return what /api/v1/node answers at the end of a scenario."""
    return node_document(_last_snapshot(scenario), language, NODE)


@functools.cache
def _last_snapshot(scenario):
    return lived(scenario)[0]


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
        self._server = HttpServer("127.0.0.1", port, self.handler())
        self._server.start()
        self.port = self._server.address[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        return self.url

    def handler(self):
        """Return what answers the requests."""
        self._page = WebPage(lambda: self.snapshot, self.history, node=lambda: NODE, clock=self._now)
        api = Api(lambda: self.snapshot, self._now, lambda: NODE)
        return routes(_NoPages(), _Healthy(), reload=None, api=api, web=self._page)

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


def malicious_snapshot(name):
    """Return a snapshot in which everything that has a name has this one."""
    finding = Finding(
        id=name, severity=Severity.CRITICAL, subject=Subject(SubjectKind.REPLICA, name, name),
        summary=Text(name, name), actions=(Text(name, name),), evidence=(Evidence(name, name),),
    )  # fmt: skip
    gpu = card(0, utilization=0.5)
    gpu = replace(gpu, facts=replace(gpu.facts, name=name, pci_bus_id=name, serial=name),
                  reading=replace(gpu.reading, clock_events={name: True}))  # fmt: skip
    reading = EngineReading(
        at=1.0, engine=name, model=name, version=name, ranks={name: {}, "1": {Quantity.REQUESTS_RUNNING: 1.0}}
    )
    return replace(
        snapshot(cards=(gpu, card(1, up=False)), replicas=(replica(name, model=name, reading=reading),)),
        assignments=(GpuAssignment(uuid=gpu.facts.uuid, replica=name, rank=name),),
        findings=(replace(finding, causes=(finding,)),),
        verdicts=Verdicts(replicas={name: Verdict(VerdictState.EJECT, name, Text(name, name))}),
        sources=(replace(gpu.status, source=f"engine:{name}", up=False, reason=name),),
    )


def big_node(gpus=64, replicas=32, points=POINTS):
    """Return a snapshot of many GPUs and replicas, with ten minutes of curves."""
    shown, _ = lived("healthy", 30)
    per_replica = gpus // replicas
    history = NodeHistory()
    for point in range(points):
        cards = tuple(_copy_of_gpu(shown.cards[index % 8], index, point) for index in range(gpus))
        copies = tuple(
            replace(found, name=f"chat-{index}", labels=found.labels._replace(replica=f"chat-{index}"))
            for index in range(replicas)
            for found in [shown.replicas[index % 2]]
        )
        big = replace(
            shown, at=shown.at + point * STEP, unix_time=shown.unix_time + point * STEP, cards=cards, replicas=copies,
            assignments=tuple(
                GpuAssignment(uuid=gpu.facts.uuid, replica=f"chat-{index // per_replica}")
                for index, gpu in enumerate(cards)
            ),
            topology=Topology(), gateways=(), sources=tuple(found.status for found in (*cards, *copies)),
        )  # fmt: skip
        history.update(big)
    return big, history


def _copy_of_gpu(gpu, index, point):
    uuid = f"GPU-{index:08d}-cfbc-02ea-b909-c04309e78266"
    signals = {**gpu.reading.signals, Signal.UTILIZATION: 0.5 + (index * 7 + point * 3) % 50 / 100}
    signals[Signal.POWER] = 300.0 + (index * 11 + point * 5) % 200
    return replace(
        gpu, facts=replace(gpu.facts, index=index, uuid=uuid), labels=GpuLabels(str(index), uuid),
        reading=replace(gpu.reading, signals=signals), status=replace(gpu.status, source=f"gpu:{uuid}"),
    )  # fmt: skip
