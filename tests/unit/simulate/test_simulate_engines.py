"""The simulated pages of engines beside vLLM say to their readers what the simulated replica did."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.engines.detect import recognise
from exporter.model import Quantity, Stage
from exporter.simulate.engine import PAGE_WRITERS, EngineServer, read_process_stats
from exporter.simulate.node_spec import NodeSpec
from exporter.simulate.scenarios import find
from exporter.simulate.world import World
from exporter.sources.replay import ReplayedPage
from tests.support.builders import Clock
from tests.support.engine_pages import interpret, make_poller, polled

SCENARIO = find("engines")


def page(world, replica):
    return PAGE_WRITERS[replica.spec.engine][1](replica, read_process_stats(), 1.7e9).encode()


@pytest.fixture(scope="module")
def world():
    return World(SCENARIO).advance_to(90.0)


@pytest.mark.parametrize("spec", SCENARIO.replicas, ids=lambda spec: spec.engine)
def test_a_simulated_page_is_recognised_and_reads_without_warnings(spec, world):
    body = page(world, world.replica(spec.name))
    assert recognise(body).kind == spec.engine
    reading = interpret(body)
    assert reading.parse_warnings == {}
    assert Stage.REQUEST in reading.histograms
    assert sum(values.get(Quantity.REQUESTS_RUNNING, 0.0) for values in reading.ranks.values()) > 0
    assert list(text_string_to_metric_families(body.decode()))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
def test_tokens_on_the_page_are_those_that_the_replica_generated(engine, world):
    spec = next(spec for spec in SCENARIO.replicas if spec.engine == engine)
    replica = world.replica(spec.name)
    shown = sum(v[Quantity.GENERATION_TOKENS] for v in interpret(page(world, replica)).ranks.values())
    real = sum(rank.metrics.generation_tokens for rank in replica.ranks)
    assert real - spec.max_sequences <= shown <= real  # SGLang knows of first tokens once requests have ended


def test_counters_of_every_page_only_rise():
    world = World(SCENARIO)
    before = {}
    for second in range(5, 60, 5):
        world.advance_to(float(second))
        for replica in world.replicas:
            ranks = interpret(page(world, replica)).ranks
            for rank, values in ranks.items():
                tokens = values.get(Quantity.GENERATION_TOKENS)
                if tokens is not None:
                    assert tokens >= before.get((replica.spec.name, rank), 0.0)
                    before[replica.spec.name, rank] = tokens
    assert len(before) == 3


@pytest.mark.parametrize(("engine", "path"), [("tgi", "/info"), ("sglang", "/get_server_info")])
def test_a_simulated_server_reports_its_version_where_the_real_one_does(engine, path):
    spec = next(spec for spec in SCENARIO.replicas if spec.engine == engine)
    site = EngineServer(engine, spec.name, NodeSpec(scenario="engines", speed=0.0))
    assert json.loads(site.respond(path)[1])["version"]
    assert site.respond("/version") is None

    class Fetcher:
        def fetch(self, path=None):
            return ReplayedPage(body=site.respond(path or "/metrics")[1])

        def close(self):
            """Nothing is open."""

    clock = Clock()
    one = make_poller(Fetcher(), clock)
    polled(one, clock)
    state = polled(one, clock)
    assert state.labels == ("a", engine, spec.model.name)
    assert state.reading.version == SCENARIO.software[0].engine
