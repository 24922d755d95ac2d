"""What the tests of GPU exporters share: pages, and a poller with a clock that tests move."""

from __future__ import annotations

import pathlib

from exporter.catalog.spec import SeriesSet
from exporter.derive.gpu_pages import all_cards, driver_of
from exporter.model import Snapshot
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.gpu_page import GpuPageConfig, gpu_page_poller
from exporter.sources.replay import Replay
from tests.support.builders import Clock

CAPTURES = pathlib.Path(__file__).parents[1] / "captures" / "gpu_pages"
RECORDINGS = {path.stem: path.name for path in sorted(CAPTURES.glob("*.prom"))}


def capture(name: str) -> bytes:
    return (CAPTURES / f"{name}.prom").read_bytes()


def make_poller(pages, clock=None, **changes):
    values = {"name": "other", "kind": "auto", "interval": 5.0, **changes}
    clock = clock or Clock(1000.0)
    return gpu_page_poller(GpuPageConfig(**values), Replay(pages), clock=clock, unix_now=lambda: 1.7e9)


def played(*pages, step=5.0, **changes):
    """Return the poller after all these pages, each ``step`` seconds after the one before."""
    clock = Clock(1000.0)
    poller = make_poller(list(pages), clock, **changes)
    for _ in pages:
        poller.poll()
        clock.tick(step)
    return poller


def cards_of(page, **changes):
    """Return the GPUs of one page by label."""
    return {card.labels.gpu: card for card in played(page, **changes).state.cards}


def rendered(*states):
    """Return the lines about GPUs of the full set of series."""
    snapshot = Snapshot(
        at=1001.0,
        unix_time=1.7e9,
        cards=all_cards((), states),
        driver=driver_of(None, states),
        sources=tuple(state.status for state in states),
    )
    page = ExpositionRenderer(openmetrics=False, series=SeriesSet.FULL).render(snapshot)
    assert page.dropped == 0
    lines = page.body.decode().splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith(("gpu_", "node_")))
