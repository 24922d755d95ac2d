"""Reading a page as an engine's, for the tests of the engines' tables."""

from __future__ import annotations

import pathlib

from exporter.engines.detect import recognise
from exporter.engines.interpreter import EngineInterpreter
from exporter.engines.parse.text import PageReader
from exporter.model import Window
from exporter.runtime.replica import ReplicaConfig, replica_poller
from exporter.sources.replay import Replay

CAPTURES = pathlib.Path(__file__).parents[1] / "captures"


def page(name: str) -> bytes:
    return (CAPTURES / f"{name}.prom").read_bytes()


def interpret(body: bytes, engine=None):
    interpreter = EngineInterpreter(engine or recognise(body))
    return interpreter.read(PageReader(interpreter.wanted).read(body), at=1.0)


def make_poller(pages, clock, **changes):
    values = {"name": "a", "kind": "auto", "interval": 5.0, "windows": (Window("1m", 60.0),), "quantiles": (0.5,)}
    fetcher = Replay(pages) if isinstance(pages, list) else pages
    return replica_poller(ReplicaConfig(**{**values, **changes}), fetcher, clock=clock, unix_now=lambda: 1.7e9)


def poll(poller):
    """Poll once, and let what the engine is asked beside its metrics be answered before the next poll."""
    poller.poll()
    poller.handler.engine_info.wait(10.0)


def polled(poller, clock, times=1, step=10.0):
    for _ in range(times):
        poll(poller)
        clock.tick(step)
    return poller.state


def histogram(name: str, labels: str = "", *buckets: tuple[str, float]) -> str:
    """Write buckets, sum and count of one histogram."""
    comma = f"{labels}," if labels else ""
    lines = [f'{name}_bucket{{{comma}le="{le}"}} {count}' for le, count in buckets]
    braces = f"{{{labels}}}" if labels else ""
    return "\n".join([*lines, f"{name}_sum{braces} {buckets[-1][1]}", f"{name}_count{braces} {buckets[-1][1]}", ""])
