"""Pages of Ray nodes: any Serve app, and vLLM's figures as Ray passes them on."""

from __future__ import annotations

import time

import pytest

from exporter.engines.detect import recognise
from exporter.engines.stale_ranks import WITH_WORK
from exporter.engines.tables.ray_serve import RAY_SERVE
from exporter.engines.tables.vllm import VLLM
from exporter.model import Quantity, Stage
from tests.support.builders import Clock
from tests.support.engine_pages import histogram, interpret, make_poller, page, polled

SERVE = page("ray-2.60.0-serve-lab-underload")
LLM = page("ray-2.60.0-vllm-0.33.0-reexport-lab")


def test_an_app_on_a_ray_node_gives_its_requests_with_the_labels_of_replicas_summed_away():
    reading = interpret(SERVE)
    assert (reading.engine, reading.model, reading.version) == ("ray_serve", "llmapp", "2.60.0")
    load = {Quantity.REQUESTS_RUNNING: 14.0, Quantity.REQUESTS_WAITING: 6.0}
    assert reading.ranks == {"": {**load, Quantity.PROXIES_HEALTHY: 1.0, Quantity.PROXIES_UNHEALTHY: 0.0}}
    assert reading.finished == {"": {"success": 289.0, "invalid": 31.0, "error": 27.0 + 173.0}}
    assert reading.responses == {"2xx": 289.0, "4xx": 31.0, "5xx": 200.0}  # 404s of unknown routes are left out
    assert reading.process_start is None  # the agent's restart is not the app's
    assert reading.frozen_after is None  # nothing moves before a request has ended


def test_milliseconds_become_seconds_without_noise():
    request = interpret(SERVE).histograms[Stage.REQUEST][""]
    assert request.bounds[:9] == (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
    assert request.bounds[-1] == 600.0
    assert request.counts[-1] == 289.0  # good answers only, as with other engines
    assert request.sum == pytest.approx(109.8)
    odd = histogram("ray_serve_http_request_latency_ms", 'application="a"', ("9.0", 1), ("+Inf", 1))
    assert interpret(odd.encode()).histograms[Stage.REQUEST][""].bounds == (0.009,)  # not 0.009000000000000001


def test_what_only_the_app_could_say_is_said_to_be_missing():
    missing = interpret(SERVE).missing
    assert missing["time_to_first_token"] == "not_exposed_by_engine_but_by_app"
    assert missing["queue"] == "only_per_hop"


def test_the_gauge_twins_of_old_counters_are_not_counted():
    body = "".join(
        f'ray_serve_num_http_requests{total}{{application="a",route="/",method="POST",status_code="200"}} 5\n'
        for total in ("_total", "")
    )
    reading = interpret(body.encode())
    assert reading.finished == {"": {"success": 5.0}}
    assert reading.responses == {"2xx": 5.0}


def test_answers_of_several_proxies_are_summed_bucket_by_bucket():
    name, app = "ray_serve_http_request_latency_ms", 'application="a",route="/"'
    body = histogram(name, f'{app},WorkerId="1",status_code="200"', ("100.0", 3), ("+Inf", 4))
    body += histogram(name, f'{app},WorkerId="2",status_code="201"', ("100.0", 5), ("+Inf", 6))
    body += histogram(name, f'{app},WorkerId="2",status_code="503"', ("100.0", 50), ("+Inf", 60))
    request = interpret(body.encode()).histograms[Stage.REQUEST][""]
    assert (request.bounds, request.counts) == ((0.1,), (8.0, 10.0))


TWO_APPS = SERVE.replace(b'application="llmapp",deployment="Ingress"', b'application="second",deployment="Ingress"')


def test_a_page_with_two_apps_names_no_model():
    reading = interpret(TWO_APPS)
    assert (reading.model, reading.several_models) == ("", True)
    assert not interpret(SERVE).several_models


def test_the_first_app_gives_its_name_neither_to_a_second_nor_to_both():
    clock = Clock()
    watcher = make_poller([SERVE, TWO_APPS, TWO_APPS, SERVE], clock)
    shown = []
    for _ in range(4):
        watcher.poll()
        window = watcher.state.windows.get("1m")
        shown.append((watcher.state.labels[2], window.seconds if window else 0.0))
        clock.tick(10.0)
    assert [model for model, _ in shown] == ["llmapp", "", "", "llmapp"]
    assert shown[1][1] == 0.0, "what one app did is no past of both"
    assert shown[2][1] == 10.0


def test_proxies_are_counted_by_state_so_that_a_dead_one_shows():
    states = [2, 2, 3, 1, 4, 5, 3, 3]
    body = "".join(f'ray_serve_proxy_status{{node_id="{n}"}} {state}\n' for n, state in enumerate(states))
    numbers = interpret(body.encode()).ranks[""]
    assert numbers == {Quantity.PROXIES_HEALTHY: 2.0, Quantity.PROXIES_UNHEALTHY: 3.0}
    assert interpret(b"ray_serve_deployment_queued_queries 1\n").ranks == {"": {Quantity.REQUESTS_WAITING: 1.0}}


def test_the_engine_behind_ray_is_read_rather_than_the_app_around_it():
    reading = interpret(LLM)
    assert recognise(LLM) is VLLM
    assert (reading.engine, reading.model, reading.name_style) == ("vllm", "Qwen/Qwen3-8B", "ray_vllm_")
    assert reading.process_start is None
    assert reading.parse_warnings == {}
    assert interpret(LLM, RAY_SERVE).finished == {"": {"success": 200.0}}  # what kind: ray_serve asks for


def test_each_ray_replica_of_an_engine_is_a_rank_of_its_own():
    reading = interpret(LLM)
    running = {rank: values[Quantity.REQUESTS_RUNNING] for rank, values in reading.ranks.items()}
    assert running == {"ww3n7u0u/0": 29.0, "0onl0ugf/0": 3.0}
    assert reading.finished["ww3n7u0u/0"] == {"success": 101.0}
    assert reading.finish_reasons["ww3n7u0u/0"] == {"length": 42.0, "stop": 59.0}
    assert {
        rank: histogram.counts[-1] for rank, histogram in reading.histograms[Stage.TIME_TO_FIRST_TOKEN].items()
    } == {
        "ww3n7u0u/0": 101.0,
        "0onl0ugf/0": 99.0,
    }


def test_replicas_of_one_server_each_are_not_taken_for_ranks_that_share_its_blocks():
    body = "".join(
        f'ray_vllm_cache_config_info{{ReplicaId="{name}",engine="0",block_size="16",num_gpu_blocks="100"}} 1\n'
        for name in ("a", "b")
    )
    assert [values[Quantity.KV_CACHE_CAPACITY] for values in interpret(body.encode()).ranks.values()] == [1600.0] * 2


def ray_page(alive: int, dead: int = 0, running: int = 3) -> bytes:
    rows = ""
    for name, tokens in (("live", alive), ("gone", dead)):
        labels = f'ReplicaId="{name}",engine="0",model_name="m"'
        rows += f"ray_vllm_num_requests_running{{{labels}}} {running if name == 'gone' else 1}\n"
        rows += f"ray_vllm_kv_cache_usage_perc{{{labels}}} 0.5\n"
        rows += f"ray_vllm_generation_tokens_total{{{labels}}} {tokens}\n"
    return rows.encode()


def test_the_last_figures_of_a_deleted_ray_replica_are_withdrawn_and_said():
    clock = Clock()
    poller = make_poller([ray_page(tokens) for tokens in range(100, 200)], clock)
    before = polled(poller, clock, 10, step=10.0).reading
    assert set(before.ranks) == {"live/0", "gone/0"}
    assert before.stale_ranks == frozenset()
    after = polled(poller, clock, int(WITH_WORK / 10), step=10.0).reading
    assert after.stale_ranks == {"gone/0"}
    assert after.ranks["gone/0"] == {Quantity.GENERATION_TOKENS: 0.0}
    assert after.ranks["live/0"][Quantity.REQUESTS_RUNNING] == 1.0


def test_ray_replicas_that_all_stand_still_hang_and_are_not_withdrawn():
    clock = Clock()
    poller = make_poller([ray_page(1), ray_page(2, dead=1)], clock)
    state = polled(poller, clock, 30, step=10.0)
    assert state.reading.stale_ranks == frozenset()
    assert state.frozen is True


def test_ranks_of_a_server_that_is_asked_directly_are_never_taken_for_gone():
    clock = Clock()
    body = [ray_page(tokens).replace(b"ray_vllm_", b"vllm:") for tokens in range(100, 150)]
    state = polled(make_poller(body, clock), clock, 40, step=10.0)
    assert state.reading.stale_ranks == frozenset()
    assert len(state.reading.ranks) == 2


def test_an_engine_that_appears_later_on_a_ray_page_is_read_from_then_on():
    clock = Clock()
    poller = make_poller([SERVE, LLM, LLM, SERVE], clock)
    kinds = [polled(poller, clock).labels[1] for _ in range(4)]
    assert kinds == ["ray_serve", "vllm", "vllm", "ray_serve"]


def test_a_replica_that_ray_starts_anew_brings_its_tokens_and_no_restart():
    clock = Clock()
    fresh = ray_page(150).replace(b'ReplicaId="gone"', b'ReplicaId="new"')
    poller = make_poller([ray_page(100, dead=70), fresh], clock)
    state = polled(poller, clock, 2)
    assert state.restarts == 0
    assert state.windows["1m"].generation_token_rate == pytest.approx(50 / 10)


def test_a_page_of_a_ray_node_is_read_in_far_less_than_its_interval():
    interpret(LLM)
    started = time.process_time()
    interpret(LLM)
    assert time.process_time() - started < 2.0


def test_the_counters_that_dead_proxies_leave_behind_are_all_added_up():
    """Seen on a real node: hundreds of series of one counter, of which only the sum by outcome becomes ours."""
    rows = "".join(
        f'ray_serve_num_http_requests_total{{application="a",route="/{route}",status_code="{code}",WorkerId="{worker}"}} 10\n'
        for worker in range(15)
        for route in range(20)
        for code in ("200", "500", "499")
    )
    reading = interpret(rows.encode(), RAY_SERVE)
    assert reading.finished == {"": {"success": 3_000.0, "error": 3_000.0, "cancelled": 3_000.0}}
    assert reading.parse_warnings == {}


def test_workers_of_a_ray_that_names_no_replica_are_ranks_of_their_own():
    """Ray up to 2.40 labels the worker alone, and goes on showing the one that died."""

    def body(step):
        rows = ""
        for worker, tokens in (("live", 100 + 10 * step), ("dead", 5000)):
            labels = f'{{model_name="m",WorkerId="{worker}"}}'
            rows += f"ray_vllm:num_requests_running{labels} 2\nray_vllm:generation_tokens_total{labels} {tokens}\n"
        return rows.encode()

    clock = Clock()
    poller = make_poller([body(step) for step in range(20)], clock)
    state = polled(poller, clock, 2)
    assert set(state.reading.ranks) == {"live", "dead"}
    assert state.windows["1m"].generation_token_rate == pytest.approx(1.0)
    state = polled(poller, clock, 15)
    assert state.reading.stale_ranks == {"dead"}
    assert Quantity.REQUESTS_RUNNING not in state.reading.ranks["dead"]


def test_a_replica_is_named_before_its_worker():
    row = b'ray_vllm_num_requests_running{model_name="m",ReplicaId="r",WorkerId="w",engine="1"} 2\n'
    assert set(interpret(row).ranks) == {"r/1"}
