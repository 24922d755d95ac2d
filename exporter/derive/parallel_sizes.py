"""Sizes of tensor and pipeline parallelism by the ranks that an engine's processes name."""

from __future__ import annotations

from collections.abc import Collection

from exporter.model import ParallelSizes
from exporter.model.process import Process


def parallel_sizes(processes: Collection[Process], gpus: int) -> ParallelSizes | None:
    """Return the sizes of a replica whose GPU processes are these; None where they do not tell.

    Engines name ranks of those dimensions that have several.  Data-parallel ranks have the same tensor ranks, save
    with data-parallel attention, where each tensor rank is one of them.
    """
    if gpus == 1:
        return ParallelSizes(tensor=1, pipeline=1)
    if not all(process.rank or process.tensor_rank or process.pipeline_rank for process in processes):
        return None
    tensor = {process.tensor_rank for process in processes}
    pipeline = {process.pipeline_rank for process in processes}
    if any("" in ranks and len(ranks) > 1 for ranks in (tensor, pipeline)):
        return None
    return ParallelSizes(tensor=len(tensor), pipeline=len(pipeline))
