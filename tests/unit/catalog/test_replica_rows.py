"""What rows of replicas read from a snapshot."""

from __future__ import annotations

import pytest

from exporter.catalog import metrics as m
from exporter.model import EngineReading, Quantity
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
