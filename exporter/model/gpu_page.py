"""GPUs that another exporter reads: what its metrics report of them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from exporter.model.card import CardFacts, CardReading, CardState, DriverFacts
from exporter.model.source import EMPTY, SourceStatus

EXPORTER_DOWN = "exporter_down"  # the reason of a GPU whose exporter does not answer: nothing is known about the GPU


class PageGpu(Struct, frozen=True, kw_only=True):
    """One GPU of one page."""

    facts: CardFacts
    reading: CardReading


class GpuPageReading(Struct, frozen=True, kw_only=True):
    """One parsed page of a GPU exporter, free of upstream names."""

    at: float
    kind: str
    gpus: tuple[PageGpu, ...]
    driver: DriverFacts | None = None
    parse_warnings: Mapping[str, int] = EMPTY


class GpuPageState(Struct, frozen=True, kw_only=True):
    """A GPU exporter in a snapshot.

    ``cards``: every GPU that it has shown, those that it shows no more without a reading.  ``kind`` is "" until a
    page was recognised.  ``xids``: the GPUs are NVIDIA's, whose errors are in the kernel log.
    """

    name: str
    kind: str
    status: SourceStatus
    reading: GpuPageReading | None
    cards: tuple[CardState, ...] = ()
    xids: bool = False
