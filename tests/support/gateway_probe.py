"""What the tests of gateways share: recorded pages, a poller with a clock that tests move, and views of a state."""

from __future__ import annotations

import pathlib
import re

from exporter.derive.assignment import Endpoint
from exporter.gateways.interpreter import GatewayInterpreter
from exporter.gateways.tables import by_kind
from exporter.model import DaemonState, Snapshot, Window
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.gateway import GatewayConfig, gateway_poller
from exporter.sources.replay import Replay
from tests.support.builders import Clock

VALUE = re.compile(r"^([^#].*) (\S+)$", re.MULTILINE)
CAPTURES = pathlib.Path(__file__).parents[1] / "captures" / "gateways"
RECORDINGS = {
    "haproxy-2.6.12": ("haproxy-2.6.12-lab-t1.prom", "haproxy-2.6.12-lab-t2.prom"),
    "nginx-1.22.1-stub_status": ("nginx-1.22.1-stub_status-lab-t1.txt", "nginx-1.22.1-stub_status-lab-t2.txt"),
    "nginx-1.22.1-vts-0.2.7": ("nginx-1.22.1-vts-0.2.7-lab-t1.prom", "nginx-1.22.1-vts-0.2.7-lab-t2.prom"),
    "envoy-1.40.0": ("envoy-1.40.0-lab-t1.prom", "envoy-1.40.0-lab-t2.prom"),
    "envoy-1.40.0-clusters": ("envoy-1.40.0-lab-clusters.txt",),
    "envoy-higress": ("envoy-higress-documented.prom",),
    "production_stack": ("production_stack-handmade.prom",),
    "vllm_router": ("vllm_router-handmade.prom",),
    "sglang_router": ("sglang_router-handmade.prom",),
    "litellm": ("litellm-handmade.prom",),
    "inference_extension": ("inference_extension-handmade.prom",),
    "inference_extension-pod_name": ("inference_extension-pod_name-documented.prom",),
}
PLACES = (
    Endpoint(replica="chat-a", host="localhost", port=18101, gpus=None),
    Endpoint(replica="vllm-b", host="127.0.0.1", port=18102, gpus=None),
)


def capture(name: str) -> bytes:
    return (CAPTURES / name).read_bytes()


def make_poller(pages, clock=None, **changes):
    values = {
        "name": "edge",
        "kind": "auto",
        "interval": 5.0,
        "windows": (Window("1m", 60.0), Window("5m", 300.0)),
        **changes,
    }
    fetcher = Replay(pages) if isinstance(pages, list) else pages
    return gateway_poller(
        GatewayConfig(**values), fetcher, endpoints=lambda: PLACES, clock=clock or Clock(), unix_now=lambda: 1.7e9
    )


def polled(poller, clock, times, step=5.0):
    for _ in range(times):
        poller.poll()
        clock.tick(step)
    return poller.state


def played(*names, step=30.0):
    clock = Clock()
    return polled(make_poller([capture(name) for name in names], clock), clock, len(names), step)


def by_backend(state, field):
    return {name: getattr(load, field) for (_, name), load in state.reading.backends.items()}


def shares(state, window="1m"):
    return {name: share for (_, name), share in state.windows[window].shares.items()}


def read(kind: str, page: str):
    return GatewayInterpreter(by_kind(kind)).read(page.encode(), 1.0)


def rendered(*states, parse_warnings=None):
    snapshot = Snapshot(
        at=1070.0,
        unix_time=1.7e9,
        gateways=states,
        sources=tuple(state.status for state in states),
        daemon=DaemonState(parse_warnings=parse_warnings or {}),
    )
    page = ExpositionRenderer(openmetrics=False).render(snapshot)
    assert page.dropped == 0
    lines = page.body.decode().splitlines(keepends=True)
    mine = "".join(line for line in lines if line.startswith(("gateway_", "# HELP gateway_", "# TYPE gateway_")))
    return VALUE.sub(lambda match: f"{match[1]} {float(match[2]):.12g}", mine)


def haproxy(*, start=None, pool="p", **sent):
    head = f"haproxy_process_start_time_seconds {start}\n" if start is not None else ""
    return (
        head
        + "".join(
            f'haproxy_server_sessions_total{{proxy="{pool}",server="{name}"}} {count}\n'
            for name, count in sent.items()
        )
    ).encode()
