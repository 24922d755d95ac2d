"""GPU exporters: a new one is one file here, and one word in ``GPU_EXPORTERS``; all that lists them follows."""

from __future__ import annotations

from exporter.gpu_pages.gpu_exporter import GpuExporter
from exporter.gpu_pages.tables.amd import AMD
from exporter.gpu_pages.tables.ascend import ASCEND
from exporter.gpu_pages.tables.dcgm import DCGM
from exporter.gpu_pages.tables.intel import INTEL

GPU_EXPORTERS: tuple[GpuExporter, ...] = (DCGM, AMD, ASCEND, INTEL)


def by_kind(kind: str) -> GpuExporter | None:
    """Return the GPU exporter of that kind, None when there is none."""
    return next((exporter for exporter in GPU_EXPORTERS if exporter.kind == kind), None)


def recognise(body: bytes) -> GpuExporter | None:
    """Return the GPU exporter whose page this is, None when no known kind matches."""
    return next((exporter for exporter in GPU_EXPORTERS if exporter.matches(body)), None)
