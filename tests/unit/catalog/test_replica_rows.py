"""What rows of replicas read from a snapshot."""

from __future__ import annotations

import pytest

from exporter.catalog import metrics as m
from exporter.model import EngineReading, LatencySummary, Quantity, Stage, WindowFigures
from tests.support.builders import replica, snapshot

RANKS = {
    "0": {Quantity.REQUESTS_RUNNING: 3.0, Quantity.REQUESTS_WAITING: 2.0},
    "1": {Quantity.REQUESTS_RUNNING: 1.0, Quantity.REQUESTS_WAITING: 7.0},
}


@pytest.mark.parametrize(("frozen", "values"), [(True, [13.0]), (False, [0.0]), (None, [])])
def test_stalled_requests_are_all_of_a_replica_without_progress(frozen, values):
    reading = EngineReading(at=1000.0, engine="vllm", model="m", ranks=RANKS)
    samples = m.LLM_STALLED_REQUESTS.read(snapshot(replicas=(replica("a", reading=reading, frozen=frozen),)))
    assert [value for _, value in samples] == values


def test_a_replica_that_cannot_be_read_has_no_stalled_requests():
    assert list(m.LLM_STALLED_REQUESTS.read(snapshot(replicas=(replica("a", up=False),)))) == []


def test_in_the_full_set_further_stages_show_that_they_exceed_the_buckets_only_when_they_do():
    latency = {
        Stage.REQUEST: LatencySummary(quantiles={}, observations=7.0, overflow_ratio=0.0),
        Stage.QUEUE: LatencySummary(quantiles={}, observations=7.0, overflow_ratio=0.0),
        Stage.DECODE: LatencySummary(quantiles={}, observations=7.0, overflow_ratio=0.5),
    }
    judged = replica("a", windows={"5m": WindowFigures(seconds=300.0, latency=latency)})
    read = m.LLM_LATENCY_ABOVE_TOP_BUCKET_RATIO.read_full
    assert read is not None
    found = {labels[3]: value for labels, value in read(snapshot(replicas=(judged,)))}
    assert found == {"request": 0.0, "decode": 0.5}
