# ruff: noqa: N802, N816 - the names are the binding's
"""GPU performance monitoring (GPM): samples of a GPU's unit counters, and the metrics between two of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import nan
from types import SimpleNamespace

from exporter.simulate.driver import NVML_ERROR_NOT_SUPPORTED
from exporter.simulate.gpu import SimulatedGpu
from exporter.simulate.unit_counters import NEVER_USED, NVLINK_RECEIVED, NVLINK_SENT, PCIE_RECEIVED, PCIE_SENT, UNITS


@dataclass(slots=True)
class GpmSample:
    """A buffer for the state of a GPU's counters at one instant; ``at`` in seconds since the start."""

    at: float = nan
    rates: tuple[float, ...] = ()
    totals: tuple[float, ...] = ()
    bytes: dict[int, float] = field(default_factory=dict)

    def record(self, gpu: SimulatedGpu, now: float) -> None:
        """Fill the buffer from the GPU."""
        self.at, self.rates, self.totals = now, gpu.units.rates, gpu.units.totals
        self.bytes = {PCIE_SENT: gpu.pcie_sent, PCIE_RECEIVED: gpu.pcie_received}
        if gpu.product.nvlinks:
            self.bytes |= {NVLINK_RECEIVED: gpu.nvlink_received, NVLINK_SENT: gpu.nvlink_sent}


def metric_between(first: GpmSample, second: GpmSample, metric: int) -> float | None:
    """Return a metric over the time between two samples, percent or MiB/s; None where the GPU does not have it."""
    seconds = second.at - first.at
    if metric in NEVER_USED:
        return 0.0
    if metric in UNITS:
        unit = UNITS.index(metric)
        if seconds <= 0.0:  # the world moves in steps, and none lay between
            return second.rates[unit]
        return (second.totals[unit] - first.totals[unit]) / seconds
    if metric in second.bytes and metric in first.bytes:
        return max(0.0, second.bytes[metric] - first.bytes[metric]) / 2**20 / seconds if seconds > 0.0 else 0.0
    return None


nvmlGpmSampleAlloc = GpmSample


def nvmlGpmSampleFree(sample: GpmSample) -> None:
    """Free a buffer."""
    del sample


class c_nvmlGpmMetricsGet_t:  # noqa: N801
    """Two samples and the metrics wanted of the time between them; entries are made when first looked at."""

    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1 = self.sample2 = GpmSample()
        self.metrics: defaultdict[int, SimpleNamespace] = defaultdict(
            lambda: SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)
        )


def nvmlGpmMetricsGet(query: c_nvmlGpmMetricsGet_t) -> c_nvmlGpmMetricsGet_t:
    """Return the query with return code and value of each metric filled in."""
    for index in range(query.numMetrics):
        metric = query.metrics[index]
        value = metric_between(query.sample1, query.sample2, metric.metricId)
        metric.nvmlReturn = NVML_ERROR_NOT_SUPPORTED if value is None else 0
        metric.value = value or 0.0
    return query
