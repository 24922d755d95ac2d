"""Remote write and OTLP say what the endpoint says, series for series, and end what has gone."""

from __future__ import annotations

import gzip
import struct

import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from exporter.catalog.spec import GPU, SeriesSet
from exporter.model import EMPTY
from exporter.model.push import PushAnswer, PushVerdict
from exporter.render import remote_write
from exporter.render.editions import EditionReader
from exporter.render.exposition import MAX_SERIES, ExpositionRenderer
from exporter.render.otlp import OtlpFormat
from exporter.render.push import push_format
from exporter.render.remote_write import RemoteWriteFormat
from exporter.sources import process_metrics
from tests.support import builders
from tests.support.pushed_node import LABELS, series_of
from tests.support.virtual_node import VirtualNode

AT = 1_700_000_000_123
STALE_BITS = 0x7FF0000000000002


def answered(status, headers=EMPTY, body=b""):
    return PushAnswer(status=status, headers=headers, body=body)


@pytest.fixture(scope="module")
def snapshot():
    """A node with traffic, in the full set of series: gauges, counters, histograms and quantiles."""
    return VirtualNode("healthy").live_until(75)


def bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def samples(request):
    """Return {sorted labels: (value, time)} of a request of 2.0."""
    texts = list(request.symbols)
    found = {}
    for series in request.timeseries:
        words = [texts[ref] for ref in series.labels_refs]
        labels = tuple(zip(words[::2], words[1::2], strict=True))
        assert labels == tuple(sorted(labels)), "the specification's order"
        (sample,) = series.samples
        assert labels not in found
        found[labels] = (sample.value, sample.timestamp)
    return found


@pytest.mark.parametrize("series", ["common", "full"])
def test_remote_write_has_every_series_of_the_endpoint(snapshot, series):
    body, count = push_format("remote_write", LABELS, series, process_metrics.families).read(snapshot, AT)
    request = remote_write.decode(body, 2)
    found = samples(request)
    own = process_metrics.exposition(False) + "up 1.0\nshardwatch_pushed_info 1.0\n"
    page = ExpositionRenderer(openmetrics=False, series=SeriesSet(series)).render(snapshot, own).body.decode()
    expected = series_of(page)
    assert found.keys() == expected.keys()
    ours = {labels for labels in expected if dict(labels)["__name__"].startswith(("process_", "python_"))}
    assert {labels: value for labels, (value, _) in found.items() if labels not in ours} == {
        labels: value for labels, value in expected.items() if labels not in ours
    }
    assert {time for _, time in found.values()} == {AT}
    assert count == len(found)
    assert request.symbols[0] == ""
    assert len(set(request.symbols)) == len(request.symbols), "each text once"


def test_metadata_says_type_help_and_unit(snapshot):
    body, _ = push_format("remote_write", LABELS, "common", tuple).read(snapshot, AT)
    request = remote_write.decode(body, 2)
    texts = list(request.symbols)
    metadata = {}
    for series in request.timeseries:
        words = [texts[ref] for ref in series.labels_refs]
        metadata[words[words.index("__name__") + 1]] = series.metadata
    power, energy = metadata["gpu_power_watts"], metadata["gpu_energy_joules_total"]
    assert (power.type, texts[power.unit_ref], texts[power.help_ref][:5]) == (2, "watts", "Power")
    assert (energy.type, texts[energy.unit_ref]) == (1, "joules")
    assert {metadata[name].type for name in metadata if name.endswith("_bucket")} == {3}


def test_1_0_says_the_same_without_metadata(snapshot):
    form = push_format("remote_write", LABELS, "common", tuple)
    body, count = form.read(snapshot, AT)
    assert form.wire(body) == body
    assert form.judge(answered(415), count) == (PushVerdict.OTHER_VERSION, 0)
    old = remote_write.decode(form.wire(body), 1)
    found = {
        tuple((label.name, label.value) for label in series.labels): (series.samples[0].value, AT)
        for series in old.timeseries
    }
    assert found == samples(remote_write.decode(body, 2))
    assert form.headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"


def test_what_has_gone_is_marked_once(snapshot):
    form = push_format("remote_write", LABELS, "common", tuple)
    form.read(snapshot, AT)
    without = replace(snapshot, cards=snapshot.cards[1:])
    found = samples(remote_write.decode(form.read(without, AT + 1)[0], 2))
    ended = {labels for labels, (value, _) in found.items() if bits(value) == STALE_BITS}
    gone = snapshot.cards[0].facts.uuid
    assert ended
    assert {dict(labels).get("uuid") for labels in ended} == {gone}
    again = samples(remote_write.decode(form.read(without, AT + 2)[0], 2))
    assert all(bits(value) != STALE_BITS for value, _ in again.values())
    assert again.keys() == found.keys() - ended


def test_the_marks_survive_1_0_and_the_end_marks_everything(snapshot):
    form = push_format("remote_write", LABELS, "common", tuple)
    before = samples(remote_write.decode(form.read(snapshot, AT)[0], 2))
    form.judge(answered(204), len(before))  # an older receiver's
    body, count = form.read(None, AT + 1)
    old = remote_write.decode(form.wire(body), 1)
    assert {bits(series.samples[0].value) for series in old.timeseries} == {STALE_BITS}
    assert len(old.timeseries) == len(before) == count
    assert form.read(None, AT + 2)[1] == 0, "nothing is left to end"


def test_a_label_of_the_series_gives_way_to_one_of_the_receiver():
    taken = GPU.gauge("taken", lambda _: [(("0", "GPU-0", "slurm-7"), 1.0)], "A test.", "job")
    reader = EditionReader(catalog=[taken])
    body, _ = RemoteWriteFormat(reader, {"job": "shardwatch"}).read(builders.snapshot(), AT)
    labels = next(
        dict(labels) for labels in samples(remote_write.decode(body, 2)) if ("__name__", "gpu_taken") in labels
    )
    assert (labels["job"], labels["exported_job"]) == ("shardwatch", "slurm-7")


def test_odd_values_and_too_many_series_are_left_out_as_on_the_endpoint():
    rows = [(("a", "x"), float("nan")), (("b", "x"), float("inf")), (("c", "x"), 1.0), (("c", "x"), 2.0)]
    rows += [((str(number), "y\ud800"), 1.0) for number in range(MAX_SERIES)]
    many = GPU.gauge("many", lambda _: rows, "A test.")
    edition = EditionReader(catalog=[many]).read(builders.snapshot(), AT)
    page = ExpositionRenderer(openmetrics=False, catalog=[many]).render(builders.snapshot())
    assert len(edition.points) - 1 == page.series == MAX_SERIES  # and up
    body = remote_write.RemoteWriteEncoder({}).encode(edition)
    assert (("__name__", "gpu_many"), ("gpu", "c"), ("uuid", "x")) in samples(remote_write.decode(body, 2))


WRITTEN = "x-prometheus-remote-write-samples-written"
WROTE = {WRITTEN: "10"}


@pytest.mark.parametrize(
    ("answers", "verdicts", "version"),
    [
        ([answered(204, WROTE)], [PushVerdict.ACCEPTED], "2.0.0"),
        ([answered(204), answered(204)], [PushVerdict.OTHER_VERSION, PushVerdict.ACCEPTED], "0.1.0"),
        ([answered(415), answered(415)], [PushVerdict.OTHER_VERSION, PushVerdict.REFUSED], "0.1.0"),
        ([answered(400), answered(400)], [PushVerdict.OTHER_VERSION, PushVerdict.REFUSED], "0.1.0"),
        ([answered(204, WROTE), answered(400)], [PushVerdict.ACCEPTED, PushVerdict.REFUSED], "2.0.0"),
        ([answered(400, {WRITTEN: "0"})], [PushVerdict.REFUSED], "2.0.0"),
        ([answered(400, {WRITTEN: "many"})], [PushVerdict.REFUSED], "2.0.0"),
        ([answered(503, {WRITTEN: "4"})], [PushVerdict.RETRY], "2.0.0"),
        ([answered(503), answered(429)], [PushVerdict.RETRY, PushVerdict.RETRY], "2.0.0"),
        ([answered(204, WROTE), answered(415)], [PushVerdict.ACCEPTED, PushVerdict.OTHER_VERSION], "0.1.0"),
    ],
)
def test_the_version_follows_what_the_receiver_answers(answers, verdicts, version):
    form = push_format("remote_write", LABELS, "common", tuple)
    assert [form.judge(answer, 10)[0] for answer in answers] == verdicts
    assert form.headers["X-Prometheus-Remote-Write-Version"] == version


@pytest.mark.parametrize(("written", "refused"), [("4", 6), ("9", 1), ("10", 0), ("9999999999", 0)])
def test_what_was_written_in_part_is_accepted_and_the_rest_refused(written, refused):
    form = push_format("remote_write", LABELS, "common", tuple)
    assert form.judge(answered(400, {WRITTEN: written}), 10) == (PushVerdict.ACCEPTED, refused)


# ---------------------------------------------------------------------- OTLP


def otlp(body):
    request = ExportMetricsServiceRequest()
    request.ParseFromString(gzip.decompress(body))
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return resource.resource, {metric.name: metric for metric in scope.metrics}


def points(metric):
    return getattr(metric, metric.WhichOneof("data")).data_points


def attributes(point):
    return {pair.key: pair.value.string_value for pair in point.attributes}


def test_otlp_has_every_point_in_its_own_kind(snapshot):
    body, count = push_format("otlp", LABELS, "full", process_metrics.families).read(snapshot, AT)
    resource, metrics = otlp(body)
    assert attributes(resource) == {
        "service.name": LABELS["job"], "service.instance.id": LABELS["instance"], "cluster": "east",
    }  # fmt: skip
    page = ExpositionRenderer(openmetrics=False, series=SeriesSet.FULL).render(snapshot).body.decode()
    found = {}
    for metric in metrics.values():
        for point in points(metric):
            assert point.time_unix_nano == AT * 1_000_000
            for name, value, extra in flat(metric, point):
                labels = {**attributes(point), **LABELS, **extra, "__name__": name}
                found[tuple(sorted(labels.items()))] = value
    expected = series_of(page)
    assert {labels: found.get(labels) for labels in expected} == expected
    assert count >= len(expected)
    energy, power = metrics["gpu_energy_joules_total"], metrics["gpu_power_watts"]
    assert (energy.sum.is_monotonic, energy.sum.aggregation_temporality, energy.unit) == (True, 2, "J")
    assert (power.WhichOneof("data"), power.unit, power.description[:5]) == ("gauge", "W", "Power")


def flat(metric, point):
    """Yield (name, value, labels) of the series that a point becomes in Prometheus."""
    if metric.WhichOneof("data") != "histogram":
        yield metric.name, point.as_double, {}
        return
    total = 0
    for edge, count in zip([*map(repr, point.explicit_bounds), "+Inf"], point.bucket_counts, strict=True):
        total += count
        yield f"{metric.name}_bucket", float(total), {"le": edge}
    yield f"{metric.name}_count", float(point.count), {}
    yield f"{metric.name}_sum", point.sum, {}


def test_otlp_ends_what_has_gone(snapshot):
    form = push_format("otlp", LABELS, "common", tuple)
    _, before = form.read(snapshot, AT)
    _, metrics = otlp(form.read(None, AT + 1)[0])
    ended = [point for metric in metrics.values() for point in points(metric)]
    assert ended
    assert {point.flags for point in ended} == {1}
    assert before > 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (answered(200), (PushVerdict.ACCEPTED, 0)),
        (answered(200, body=b"{}"), (PushVerdict.ACCEPTED, 0)),
        (answered(400), (PushVerdict.REFUSED, 0)),
        (answered(500), (PushVerdict.REFUSED, 0)),
        (answered(429), (PushVerdict.RETRY, 0)),
        (answered(502), (PushVerdict.RETRY, 0)),
        (answered(503), (PushVerdict.RETRY, 0)),
        (answered(307), (PushVerdict.RETRY, 0)),
    ],
)
def test_otlp_statuses(answer, expected):
    assert OtlpFormat.judge(answer, 10) == expected


def test_otlp_counts_what_was_accepted_in_part():
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = 7
    assert OtlpFormat.judge(answered(200, body=response.SerializeToString()), 10) == (PushVerdict.ACCEPTED, 7)
