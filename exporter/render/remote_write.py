"""Editions as Prometheus' remote write, 2.0 and 1.0: protobuf messages, compressed with snappy.

The messages are declared here as far as they are used: a generated module would tie the daemon to the versions of
protobuf that can load it.  Loaded only where a receiver of this protocol is configured.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from exporter.catalog.spec import MetricKind
from exporter.model import Histogram, Snapshot
from exporter.model.push import PushAnswer, PushVerdict
from exporter.render.editions import Edition, EditionReader, Point

(STALE,) = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))  # the NaN that ends a series

_WRITTEN = "x-prometheus-remote-write-samples-written"
_PACKAGE = "shardwatch.remote_write"  # of our own: another library may have registered Prometheus' messages
_TYPES: Mapping[str, Any] = {"double": 1, "int64": 3, "string": 9, "uint32": 13}  # of a descriptor
# message → field → (number, type, repeated)
_MESSAGES: Mapping[str, Mapping[str, tuple[int, str, bool]]] = {
    "Sample": {"value": (1, "double", False), "timestamp": (2, "int64", False)},
    "Metadata": {"type": (1, "uint32", False), "help_ref": (3, "uint32", False), "unit_ref": (4, "uint32", False)},
    "Series2": {
        "labels_refs": (1, "uint32", True), "samples": (2, "Sample", True), "metadata": (5, "Metadata", False),
    },
    "Request2": {"symbols": (4, "string", True), "timeseries": (5, "Series2", True)},
    "Label": {"name": (1, "string", False), "value": (2, "string", False)},
    "Series1": {"labels": (1, "Label", True), "samples": (2, "Sample", True)},
    "Request1": {"timeseries": (1, "Series1", True)},
}  # fmt: skip
_KINDS = {
    MetricKind.COUNTER: 1, MetricKind.GAUGE: 2, MetricKind.HISTOGRAM: 3, MetricKind.SUMMARY: 5, MetricKind.INFO: 2,
}  # fmt: skip


def _messages() -> dict[str, Any]:
    """Return the classes of the messages by name."""
    file = descriptor_pb2.FileDescriptorProto(name="shardwatch/remote_write.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        declared = file.message_type.add(name=message)
        for name, (number, kind, is_repeated) in fields.items():
            field = declared.field.add(name=name, number=number)
            field.label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES = _messages()


def decode(body: bytes, version: int) -> Any:
    """Return the request of a body."""
    request = _CLASSES[f"Request{version}"]()
    request.ParseFromString(bytes(cramjam.snappy.decompress_raw(body)))
    return request


def _encode(request: Any) -> bytes:
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


class RemoteWriteEncoder:
    """Encodes editions with labels that every series gets.  Owned by one thread."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._texts: dict[Point, tuple[tuple[str, ...], ...]] = {}

    def encode(self, edition: Edition) -> bytes:
        """Return the edition as a request of 2.0, in which every text stands once."""
        request = _CLASSES["Request2"]()
        symbols: dict[str, int] = {"": 0}
        add, refer = request.timeseries.add, symbols.setdefault
        for point, values in self._samples(edition):
            family = point.family
            metadata = {"type": _KINDS[family.kind], "help_ref": refer(family.help, len(symbols))}
            metadata["unit_ref"] = refer(family.unit, len(symbols))
            for texts, value in zip(self._texts_of(point), values, strict=True):
                if value is not None:
                    refs = [refer(text, len(symbols)) for text in texts]
                    series = add(labels_refs=refs, metadata=metadata)
                    series.samples.add(value=value, timestamp=edition.at)
        for point in edition.gone:
            self._texts.pop(point, None)
        request.symbols.extend(symbols)
        return _encode(request)

    @staticmethod
    def _samples(edition: Edition) -> Iterator[tuple[Point, Iterable[float | None]]]:
        """Yield the values of each point, in the order of its series; None for a sum that is not known."""
        for point, value in edition.points.items():
            if isinstance(value, Histogram):
                yield point, (*value.counts, value.counts[-1], value.sum)
            else:
                yield point, (value,)
        for point in edition.gone:
            yield point, (STALE,) * point.samples

    def _texts_of(self, point: Point) -> tuple[tuple[str, ...], ...]:
        """Return names and values of the labels of each series of a point, in the order of the names."""
        texts = self._texts.get(point)
        if texts is None:
            texts = self._texts[point] = tuple(self._series(point))
        return texts

    def _series(self, point: Point) -> Iterator[tuple[str, ...]]:
        name, labels = point.family.name, self._all_labels(point)
        if point.bounds is None:
            yield _sorted({"__name__": name, **labels})
            return
        for edge in (*[repr(float(bound)) for bound in point.bounds], "+Inf"):
            yield _sorted({"__name__": f"{name}_bucket", **labels, "le": edge})
        for part in ("count", "sum"):
            yield _sorted({"__name__": f"{name}_{part}", **labels})

    def _all_labels(self, point: Point) -> dict[str, str]:
        """Return the labels of a point and ours, which stay where both have one, as the target's do in a scrape."""
        own = zip(point.family.labels, point.labels, strict=True)
        return {
            **{f"exported_{name}" if name in self._labels else name: value for name, value in own},
            **self._labels,
        }


def _sorted(labels: Mapping[str, str]) -> tuple[str, ...]:
    # An empty label is none; a lone surrogate, which UTF-8 cannot encode, is replaced as on the endpoint.
    present = ((name, _text(value)) for name, value in sorted(labels.items()) if value)
    return tuple(text for pair in present for text in pair)


def _text(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def downgraded(body: bytes) -> bytes:
    """Return a request of 2.0 as one of 1.0, which has no metadata."""
    request, old = decode(body, 2), _CLASSES["Request1"]()
    symbols = list(request.symbols)
    for series in request.timeseries:
        texts = [symbols[ref] for ref in series.labels_refs]
        labels = [{"name": name, "value": value} for name, value in zip(texts[::2], texts[1::2], strict=True)]
        added = old.timeseries.add(labels=labels)
        for sample in series.samples:
            added.samples.add(value=sample.value, timestamp=sample.timestamp)
    return _encode(old)


class RemoteWriteFormat:
    """One receiver's side of remote write: the version it speaks, and what its answers mean."""

    def __init__(self, reader: EditionReader, labels: Mapping[str, str]) -> None:
        self._reader, self._encoder = reader, RemoteWriteEncoder(labels)
        self._version = 2
        self._is_confirmed = False  # an answer has said that it speaks 2.0

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a request."""
        if self._version == 2:
            content, version = "application/x-protobuf;proto=io.prometheus.write.v2.Request", "2.0.0"
        else:
            content, version = "application/x-protobuf", "0.1.0"
        return {
            "Content-Type": content, "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": version,
        }  # fmt: skip

    def read(self, snapshot: Snapshot | None, at: int) -> tuple[bytes, int]:
        """Return the body of the next edition and its samples; of None, that every series has ended."""
        edition = self._reader.read(snapshot, at)
        return self._encoder.encode(edition), edition.samples

    def wire(self, body: bytes) -> bytes:
        """Return a body as the receiver takes it now."""
        return body if self._version == 2 else downgraded(body)

    def judge(self, answer: PushAnswer, samples: int) -> tuple[PushVerdict, int]:
        """Return what an answer to so many samples means, and how many of an accepted body were refused all the same.

        A receiver that knows 1.0 only takes a request of 2.0 for an empty one and accepts it (older Prometheus,
        VictoriaMetrics), or calls it bad; one that knows 2.0 says how much it wrote, also where it refuses the rest.
        """
        if self._version == 2:
            wrote = _WRITTEN in answer.headers
            is_older = answer.status == 415 or (200 <= answer.status < 300 and not wrote)
            if is_older or (answer.status == 400 and not wrote and not self._is_confirmed):
                self._version = 1
                return PushVerdict.OTHER_VERSION, 0
            self._is_confirmed = self._is_confirmed or wrote
        found, written = verdict(answer.status), _written(answer)
        if found is PushVerdict.REFUSED and written:
            return PushVerdict.ACCEPTED, max(0, samples - written)
        return found, 0


def _written(answer: PushAnswer) -> int:
    """Return the samples that a receiver says it wrote, 0 where it does not say."""
    value = answer.headers.get(_WRITTEN, "")
    return int(value[:9]) if value.isascii() and value.isdigit() else 0


def verdict(status: int) -> PushVerdict:
    """Return what a status means in remote write: 5xx and 429 are sent again, and so is what was redirected."""
    if 200 <= status < 300:
        return PushVerdict.ACCEPTED
    return PushVerdict.REFUSED if 400 <= status < 500 and status != 429 else PushVerdict.RETRY
