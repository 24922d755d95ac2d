"""The distributions of lengths in the full set: fewer buckets than the engine's, with the same counts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from exporter.catalog.engine_depth import DISTRIBUTIONS
from exporter.model import Histogram, Snapshot, Stage
from tests.support.builders import replica
from tests.support.engine_pages import interpret, page
from tests.support.records import replace


def exposed(histogram):
    state = replace(
        replica("a"),
        histograms={Stage.PROMPT_LENGTH: histogram},
        reading=interpret(page("vllm-0.32.0-real-cpu-load")),
    )
    ((_, shown),) = DISTRIBUTIONS[0].read_histogram(Snapshot(at=1.0, unix_time=1.0, replicas=(state,)))
    return shown


def test_every_second_bound_stays_with_its_count_and_the_whole_too():
    shown = exposed(Histogram(bounds=(1, 2, 5, 10, 20, 50), counts=(1, 2, 3, 4, 5, 6, 7), sum=70.0))
    assert shown == Histogram(bounds=(1, 5, 20, 50), counts=(1, 3, 5, 6, 7), sum=70.0)


@pytest.mark.parametrize(
    "name", ["vllm-0.32.0-real-cpu-load", "sglang-0.5.23-real-cpu-load", "vllm-0.8.5.post2-real-cpu-load"]
)
def test_bounds_of_real_engines_lie_apart_and_none_is_invented(name):
    for histogram in interpret(page(name)).histograms.get(Stage.PROMPT_LENGTH, {}).values():
        shown = exposed(histogram)
        assert set(shown.bounds) < set(histogram.bounds)
        assert all(b >= 2.5 * a for a, b in pairwise(shown.bounds))
        assert shown.counts[-1] == histogram.counts[-1]
        assert (
            dict(zip(shown.bounds, shown.counts, strict=False)).items()
            <= dict(zip(histogram.bounds, histogram.counts, strict=False)).items()
        )
