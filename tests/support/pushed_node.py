"""A virtual node that pushes: minutes in which a GPU is lost and the receiver is away, and what the endpoint showed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from msgspec.structs import replace

from exporter.config.push import PushSettings
from exporter.errors import EndpointError
from exporter.http.client.post import PostClient
from exporter.http.client.target import Target
from exporter.render.exposition import ExpositionRenderer
from exporter.render.push import push_format
from exporter.runtime.push.target import PushTarget
from tests.support.virtual_node import VirtualNode

INSTANCE = "virtual-node:9853"
LABELS = {"job": "shardwatch", "instance": INSTANCE, "cluster": "east"}
INTERVAL = 15.0
AWAY = (240.0, 420.0)  # seconds of the virtual clock at which the receiver is not there
LOST, END = 100.0, 600.0
_SAMPLE = re.compile(r"([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? (\S+)\Z", re.IGNORECASE)
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


def series_of(page):
    """Return {sorted labels with the name: value} of a page of the text format, with the labels of a target."""
    found = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, labels, value = _SAMPLE.match(line).groups()
            pairs = {key: text.encode().decode("unicode_escape").encode("latin-1").decode() if "\\" in text else text
                     for key, text in _LABEL.findall(labels or "")}  # fmt: skip
            shown = {key: text for key, text in {**pairs, **LABELS, "__name__": name}.items() if text}
            found[tuple(sorted(shown.items()))] = float(value)
    return found


class Receiver:
    """A way to a real receiver that can be away; ``answers`` are the statuses in order."""

    def __init__(self, url, clock):
        self._client = PostClient(Target(url=url, timeout=20.0, accept="*/*"), headers={}, header_files={})
        self._clock, self.answers, self.versions = clock, [], []

    def post(self, body, headers):
        if AWAY[0] <= self._clock() < AWAY[1]:
            raise EndpointError("refused", "nobody listens")
        answer = self._client.post(body, headers)
        self.answers.append(answer.status)
        self.versions.append(headers.get("X-Prometheus-Remote-Write-Version"))
        return answer

    def close(self):
        self._client.close()


@dataclass
class Lived:
    """What one receiver was sent: pages by the Unix time of the push; ``states`` by the virtual clock."""

    target: PushTarget
    receiver: Receiver
    pages: dict[float, str] = field(default_factory=dict)
    states: dict[float, object] = field(default_factory=dict)
    statuses: dict[float, object] = field(default_factory=dict)


class _Noted:
    """A format that notes what the endpoint shows at each push."""

    def __init__(self, form, pages):
        self._form, self._pages = form, pages
        self._renderer = ExpositionRenderer(openmetrics=False)

    def __getattr__(self, name):
        return getattr(self._form, name)

    def read(self, snapshot, at):
        if snapshot is not None:
            self._pages[at / 1000] = self._renderer.render(
                replace(snapshot, is_pushed=True), "up 1.0\n"
            ).body.decode()
        return self._form.read(snapshot, at)


def live(receivers):
    """Live the minutes, pushing to each receiver, {name: (protocol, URL)}, and return {name: Lived}."""
    node = VirtualNode("hang", fault_at=LOST)
    lived, due = {}, {}
    for name, (protocol, url) in receivers.items():
        pages = {}
        settings = PushSettings(url=url, name=name, protocol=protocol, interval=INTERVAL, labels=LABELS)
        form = _Noted(push_format(protocol, LABELS, "common", tuple), pages)
        receiver = Receiver(url, node.clock)
        target = PushTarget(
            settings, form, receiver, snapshot=lambda: node.publisher.snapshot, clock=node.clock,
            unix_now=node.unix_now, jitter=lambda: 1.0,
        )  # fmt: skip
        lived[name], due[name] = Lived(target, receiver, pages), 0.0
    for now in node.live(END, every=5):
        for name, one in lived.items():
            while node.clock.now >= due[name]:
                due[name] = node.clock.now + one.target.turn()
            one.states[now], one.statuses[now] = one.target.state(), one.target.status()
    node.clock.tick(1.0)
    for one in lived.values():
        one.target.end()
        one.receiver.close()
    return lived
