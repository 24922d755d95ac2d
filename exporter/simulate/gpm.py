# ruff: noqa: N802, N816 - the names are the binding's
"""The part of profiling that needs no card: buffers for samples, and what lies between two of them."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

from exporter.simulate.playing import NVML_ERROR_NOT_SUPPORTED
from exporter.simulate.work import Sample, between

nvmlGpmSampleAlloc = Sample


def nvmlGpmSampleFree(sample: Sample) -> None:
    """Take a buffer back."""
    del sample


class c_nvmlGpmMetricsGet_t:  # noqa: N801
    """Two samples and the metrics wanted of the time between them; entries are made when first looked at."""

    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1 = self.sample2 = Sample()
        self.metrics: defaultdict[int, SimpleNamespace] = defaultdict(
            lambda: SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)
        )


def nvmlGpmMetricsGet(question: c_nvmlGpmMetricsGet_t) -> c_nvmlGpmMetricsGet_t:
    """Answer each metric with its own return code and value."""
    for place in range(question.numMetrics):
        metric = question.metrics[place]
        value = between(question.sample1, question.sample2, metric.metricId)
        metric.nvmlReturn = NVML_ERROR_NOT_SUPPORTED if value is None else 0
        metric.value = value or 0.0
    return question
