"""Editions as OTLP metrics over HTTP, by OpenTelemetry's own messages.

Loaded only where a receiver of this protocol is configured.  Names stay those of the endpoint: whoever translates
OTLP to Prometheus adds a unit or ``_total`` only where the name lacks it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags, Metric, ScopeMetrics

from exporter import __version__
from exporter.catalog.spec import MetricKind
from exporter.model import Histogram, Snapshot
from exporter.model.push import PushAnswer, PushVerdict
from exporter.render.editions import Edition, EditionReader, Point, PushedFamily

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_RETRIED = frozenset({429, 502, 503, 504})  # and no other status, says the specification
_RESOURCE = {"job": "service.name", "instance": "service.instance.id"}
_UNITS = {  # of UCUM; a unit of our own stands in braces
    "ratio": "1", "bytes": "By", "celsius": "Cel", "watts": "W", "joules": "J", "hertz": "Hz", "seconds": "s",
    "tokens": "{token}",
}  # fmt: skip


def encode(edition: Edition, labels: Mapping[str, str]) -> bytes:
    """Return the request of an edition, packed with gzip; ``labels`` become attributes of the resource."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    _fill(resource.resource.attributes, ((_RESOURCE.get(name, name), text) for name, text in labels.items()))
    scope = resource.scope_metrics.add()
    scope.scope.name, scope.scope.version = "shardwatch", __version__
    metrics: dict[PushedFamily, Metric] = {}
    for point, value in edition.points.items():
        _add(_metric(scope, metrics, point.family), point, value, edition.at)
    for point in edition.gone:
        _add(_metric(scope, metrics, point.family), point, None, edition.at)
    return gzip.compress(request.SerializeToString(), compresslevel=1, mtime=0)


def _metric(scope: ScopeMetrics, metrics: dict[PushedFamily, Metric], family: PushedFamily) -> Metric:
    metric = metrics.get(family)
    if metric is None:
        unit = _UNITS.get(family.unit, "")
        metric = metrics[family] = scope.metrics.add(name=family.name, description=family.help, unit=unit)
        if family.kind is MetricKind.COUNTER:
            metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, _CUMULATIVE
        elif family.kind is MetricKind.HISTOGRAM:
            metric.histogram.aggregation_temporality = _CUMULATIVE
    return metric


def _add(metric: Metric, point: Point, value: float | Histogram | None, at: int) -> None:
    """Add a data point; None ends the series.  Quantiles are gauges: OTLP's summaries need a count and a sum."""
    data: Any = getattr(metric, metric.WhichOneof("data") or "gauge").data_points.add(time_unix_nano=at * 1_000_000)
    _fill(data.attributes, zip(point.family.labels, point.labels, strict=True))
    if value is None:
        data.flags = _NO_VALUE
    elif isinstance(value, Histogram):
        counts = [round(count) for count in value.counts]
        data.explicit_bounds.extend(value.bounds)
        data.bucket_counts.extend(upper - lower for lower, upper in zip([0, *counts], counts, strict=False))
        data.count = counts[-1]
        if value.sum is not None:
            data.sum = value.sum
    else:
        data.as_double = value


def _fill(attributes: Any, pairs: Iterable[tuple[str, str]]) -> None:
    for name, text in pairs:
        if text:
            attributes.add(key=name).value.string_value = text.encode("utf-8", "replace").decode("utf-8")


class OtlpFormat:
    """One receiver's side of OTLP over HTTP."""

    headers: Mapping[str, str] = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}

    def __init__(self, reader: EditionReader, labels: Mapping[str, str]) -> None:
        self._reader, self._labels = reader, labels

    def read(self, snapshot: Snapshot | None, at: int) -> tuple[bytes, int]:
        """Return the body of the next edition and its samples; of None, that every series has ended."""
        edition = self._reader.read(snapshot, at)
        return encode(edition, self._labels), edition.samples

    @staticmethod
    def wire(body: bytes) -> bytes:
        """Return the body: there is one version."""
        return body

    @staticmethod
    def judge(answer: PushAnswer, _samples: int) -> tuple[PushVerdict, int]:
        """Return what an answer means, and how many points of an accepted body were refused all the same."""
        if 200 <= answer.status < 300:
            return PushVerdict.ACCEPTED, _refused_points(answer.body)
        is_final = answer.status >= 400 and answer.status not in _RETRIED
        return PushVerdict.REFUSED if is_final else PushVerdict.RETRY, 0


def _refused_points(body: bytes) -> int:
    response = ExportMetricsServiceResponse()
    try:
        response.ParseFromString(body)
    except DecodeError:  # JSON, say
        return 0
    return max(0, response.partial_success.rejected_data_points)
