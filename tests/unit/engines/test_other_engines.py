"""Recognising engines from their pages, engines with small tables, and pages that are not what they should be."""

from __future__ import annotations

import pytest

from exporter.engines.detect import detect_all, recognise, still_matches
from exporter.engines.tables import by_kind
from exporter.engines.tables.dynamo import DYNAMO
from exporter.engines.tables.sglang import SGLANG
from exporter.engines.tables.tensorrt_llm import TENSORRT_LLM
from exporter.engines.tables.triton import TRITON
from exporter.engines.tables.vllm import VLLM
from exporter.errors import PageError
from exporter.model import Quantity, Stage
from exporter.sources.replay import Replay, ReplayedPage
from tests.support.builders import Clock
from tests.support.engine_pages import interpret, make_poller, page, polled

VLLM_PAGE = page("vllm-0.32.0-real-cpu-after")
SGLANG_PAGE = page("sglang-0.5.23-real-cpu-after")
TRITON_PAGE = page("triton-handmade")
DYNAMO_PAGE = page("dynamo-frontend-handmade")

ROUTER = b"""\
# HELP vllm:num_requests_running Number of running requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{server="http://10.0.0.1:8000"} 4.0
vllm:num_requests_waiting{server="http://10.0.0.1:8000"} 1.0
vllm:gpu_prefix_cache_hits_total{server="http://10.0.0.1:8000"} 31712.0
vllm:current_qps{server="http://10.0.0.1:8000"} 0.5
vllm:num_incoming_requests_total{model="m"} 7.0
vllm:healthy_pods_total{server="http://10.0.0.1:8000"} 1.0
"""


def test_nothing_is_missing_of_vllm():
    assert VLLM.missing() == {}


def test_a_routers_page_is_not_taken_for_the_engine_whose_names_it_uses():
    assert recognise(ROUTER) is None
    with pytest.raises(PageError, match="poll the engines behind it"):
        interpret(ROUTER, VLLM)


def test_a_routers_series_beside_an_engines_are_left_out_and_counted():
    both = interpret(VLLM_PAGE + ROUTER)
    alone = interpret(VLLM_PAGE)
    assert both.ranks == alone.ranks
    assert both.parse_warnings == {"router_series": 3}
    assert recognise(ROUTER + VLLM_PAGE) is VLLM


def test_two_engines_on_one_page_are_read_as_the_first_of_the_list_whatever_their_order():
    for body in (VLLM_PAGE + SGLANG_PAGE, SGLANG_PAGE + VLLM_PAGE):
        assert [engine.kind for engine in detect_all(body)] == ["vllm", "sglang"]
        assert recognise(body) is VLLM
        assert interpret(body).ranks == interpret(VLLM_PAGE).ranks
        assert interpret(body, SGLANG).ranks == interpret(SGLANG_PAGE).ranks


@pytest.mark.parametrize("carried", ["vllm-0.32.0-real-cpu-after", "sglang-0.5.23-real-cpu-after"])
@pytest.mark.parametrize("carrier", [TRITON_PAGE, DYNAMO_PAGE, b"dynamo_component_requests_total 5\n"])
def test_an_engine_that_another_servers_page_passes_on_is_the_one_that_is_read(carried, carrier):
    body = page(carried)
    assert recognise(carrier + body) is recognise(body)
    assert interpret(carrier + body).ranks == interpret(body).ranks


def test_llama_cpp_gives_its_gauge_pairs_and_says_why_there_are_no_latencies():
    reading = interpret(page("llamacpp-documented"))
    assert reading.engine == "llamacpp"
    assert dict(reading.ranks[""]) == {
        Quantity.REQUESTS_RUNNING: 1.0,
        Quantity.REQUESTS_WAITING: 0.0,
        Quantity.KV_CACHE_USAGE: 0.12,
        Quantity.PROMPT_TOKENS: 33_065.0,
        Quantity.GENERATION_TOKENS: 7_801.0,
    }
    mean = reading.histograms.pop(Stage.INTER_TOKEN)[""]
    assert (mean.bounds, mean.counts, mean.sum) == ((), (7_801.0,), 3544.27)
    assert reading.histograms == {}
    assert {reading.missing[stage] for stage in ("inter_token", "prefill", "decode")} == {"only_as_sum"}
    assert reading.missing["time_to_first_token"] == "not_exposed_by_engine"


def test_the_model_and_build_of_llama_cpp_come_from_its_properties():
    class Server(Replay):
        def fetch(self, path=None):
            if path == "/props":
                return ReplayedPage(
                    body=b'{"build_info": "b6432-0a1b2c3", "model_alias": "", "model_path": "/srv/models/qwen.gguf"}'
                )
            return super().fetch(path)

    clock = Clock()
    state = polled(make_poller(Server([page("llamacpp-documented")]), clock), clock)
    assert state.labels == ("a", "llamacpp", "qwen.gguf")
    assert state.reading.version == "b6432-0a1b2c3"


def test_lmdeploy_counts_good_requests_alone_and_so_has_no_share_of_errors():
    clock = Clock()
    poller = make_poller([page(f"lmdeploy-0.16.0-generated-{moment}") for moment in ("t1", "t2")], clock)
    state = polled(poller, clock, 2)
    assert state.reading.finished == {"0": {"success": 50.0}}
    assert state.windows["1m"].error_ratio is None
    assert state.windows["1m"].hit_ratio == pytest.approx((6933 - 3925) / (25307 - 15510), abs=0.2)


@pytest.mark.parametrize("colon", [b"trtllm_", b"trtllm:"])
def test_tensorrt_llm_gives_hits_from_its_blocks(colon):
    body = page("tensorrt_llm-handmade").replace(b"trtllm_", colon)
    reading = interpret(body)
    assert recognise(body) is TENSORRT_LLM
    assert reading.model == "llama"
    assert reading.ranks[""][Quantity.PREFIX_CACHE_QUERIES] == 1000.0
    assert reading.ranks[""][Quantity.PREFIX_CACHE_HITS] == 400.0
    assert reading.finished[""] == {"success": 100.0, "error": 3.0}
    assert reading.histograms[Stage.TIME_TO_FIRST_TOKEN][""].counts[-1] == 100.0


def test_the_capacity_of_tensorrt_llm_is_its_blocks_times_their_size():
    rows = 'trtllm_kv_cache_max_blocks{model_name="m"} 500\ntrtllm_kv_cache_tokens_per_block{model_name="m"} 32\n'
    reading = interpret(rows.encode())
    assert reading.ranks[""] == {Quantity.KV_CACHE_CAPACITY: 16_000.0}
    assert "kv_cache_capacity" not in reading.missing
    half = interpret(f"{rows.splitlines()[0]}\n".encode(), TENSORRT_LLM)
    assert half.ranks == {}, "blocks alone are no tokens"


def test_tensorrt_llm_that_has_reused_nothing_yet_has_a_hit_ratio_of_zero():
    clock = Clock()
    pages = [f'trtllm_kv_cache_missed_blocks_total{{model_name="m"}} {100 * step}\n'.encode() for step in (1, 2, 3)]
    state = polled(make_poller(pages, clock), clock, 3)
    assert state.windows["1m"].hit_ratio == 0.0


def test_the_model_of_tritons_vllm_backend_stands_under_another_label():
    body = VLLM_PAGE.replace(b'model_name="', b'model="').replace(b'model="', b'version="1",model="')
    assert recognise(TRITON_PAGE + body) is VLLM
    reading = interpret(TRITON_PAGE + body)
    assert (reading.engine, reading.model) == ("vllm", "tiny-llama")
    assert reading.ranks == interpret(VLLM_PAGE).ranks


def test_a_routers_series_that_name_a_model_are_not_its_engines():
    rows = b'vllm:num_requests_running{server="http://a:1",model="m"} 4\n'
    assert recognise(rows) is None


def long_request(step: int, *, iterations: bool = True, hung: bool = False) -> bytes:
    """TensorRT-LLM in one long request: what counts requests stands still until it ends."""
    moves = 0 if hung else step
    body = page("tensorrt_llm-handmade").decode() + (
        'trtllm_prompt_tokens_total{model_name="llama"} 9000\ntrtllm_generation_tokens_total{model_name="llama"} 4000\n'
    )
    if iterations:
        body += (
            f'trtllm_iteration_latency_seconds{{model_name="llama"}} {0.02 + moves * 1e-6}\n'
            f'trtllm_kv_cache_gen_alloc_blocks_total{{model_name="llama"}} {100 + moves}\n'
        )
    return body.encode()


def frozen_states(bodies):
    clock = Clock()
    poller = make_poller(bodies, clock)
    return [polled(poller, clock, step=5.0).frozen for _ in bodies]


def test_one_long_request_of_tensorrt_llm_is_not_frozen_while_its_iterations_go_on():
    states = frozen_states([long_request(step) for step in range(20)])
    assert set(states[1:]) == {False}


def test_tensorrt_llm_is_frozen_when_its_iterations_stand_still_too():
    states = frozen_states([long_request(step, hung=step > 3) for step in range(12)])
    assert states[3] is False
    assert states[-1] is True


def test_tensorrt_llm_without_iteration_figures_counts_at_the_end_of_requests_and_cannot_be_judged():
    assert set(frozen_states([long_request(step, iterations=False) for step in range(20)])) == {None}


def test_llama_cpp_is_not_frozen_while_it_decodes_one_long_answer():
    body = page("llamacpp-documented")
    pages = [body.replace(b"n_decode_total 7000", b"n_decode_total %d" % (7000 + step)) for step in range(12)]
    assert set(frozen_states(pages)[1:]) == {False}
    assert frozen_states([*pages[:3], *[pages[2]] * 9])[-1] is True


def test_only_the_servers_own_failures_are_errors_of_dynamo():
    types = {
        "": 70,
        "validation": 4,
        "not_found": 3,
        "not_implemented": 2,
        "overload": 8,
        "cancelled": 5,
        "internal": 2,
    }

    def body(times):
        return "".join(
            f'dynamo_frontend_requests_total{{model="m",status="{"error" if name else "success"}",error_type="{name}"}} '
            f"{times * count}\n"
            for name, count in {**types, "response_timeout": 1}.items()
        ).encode()

    reading = interpret(body(1))
    assert reading.finished == {
        "": {"success": 70.0, "invalid": 9.0, "rejected": 8.0, "cancelled": 5.0, "error": 3.0}
    }
    clock = Clock()
    figures = polled(make_poller([body(1), body(2)], clock), clock, 2).windows["1m"]
    assert figures.error_ratio == pytest.approx(3 / 73)


@pytest.mark.parametrize(
    ("kind", "row", "outcome"),
    [
        ("tensorrt_llm", 'trtllm_request_success_total{finished_reason="end_id"}', "success"),
        ("tensorrt_llm", 'trtllm_request_success_total{finished_reason="cancelled"}', "cancelled"),
        ("vllm", 'vllm:request_success_total{finished_reason="stop"}', "success"),
        ("vllm", 'vllm:request_success_total{finished_reason="abort"}', "cancelled"),
        ("vllm", 'vllm:admission_rejections_total{reason="max_num_queued_reqs"}', "rejected"),
        ("sglang", 'sglang:num_requests_total{model_name="m"}', "success"),
        ("sglang", 'sglang:http_responses_total{endpoint="/v1/completions",status_code="503"}', "rejected"),
        ("ray_serve", 'ray_serve_num_http_requests_total{application="a",status_code="408"}', "error"),
        ("tgi", "tgi_request_success", "success"),
        ("tgi", 'tgi_request_failure{err="dropped"}', "cancelled"),
        ("triton", 'nv_inference_request_failure{model="m",reason="CANCELED"}', "cancelled"),
        ("lmdeploy", 'lmdeploy:request_success_total{engine="0",finished_reason="ResponseType.FINISH"}', "success"),
    ],
)
def test_one_vocabulary_says_how_requests_ended_whatever_the_engine_calls_it(kind, row, outcome):
    (outcomes,) = interpret(f"{row} 7\n".encode(), by_kind(kind)).finished.values()
    assert outcomes == {outcome: 7.0}


def test_triton_counts_a_request_once_however_many_members_its_ensemble_has():
    reading = interpret(TRITON_PAGE)
    assert recognise(TRITON_PAGE) is TRITON
    assert reading.finished == {"": {"success": 200.0, "error": 2.0, "cancelled": 1.0, "rejected": 0.0}}
    assert dict(reading.ranks[""]) == {
        Quantity.REQUESTS_RUNNING: 8.0,
        Quantity.REQUESTS_WAITING: 3.0,
        Quantity.KV_CACHE_USAGE: 0.125,
        Quantity.KV_CACHE_CAPACITY: 800 * 64.0,
    }
    assert "kv_cache_capacity" not in reading.missing
    first = reading.histograms[Stage.TIME_TO_FIRST_TOKEN][""]
    assert (first.bounds, first.counts) == ((0.1, 0.5, 2.0, 5.0), (150.0, 150.0, 200.0, 200.0, 200.0))


def test_tritons_cache_is_counted_in_tokens_of_each_model_s_own_blocks():
    def block(model, kind, number):
        return f'nv_trt_llm_kv_cache_block_metrics{{model="{model}",kv_cache_block_type="{kind}",version="1"}} {number}\n'

    body = "".join(
        block(model, kind, number)
        for model, blocks, tokens in (("a", 100, 32), ("b", 10, 64), ("postprocessing", 7, 7))
        for kind, number in (("max", blocks), ("tokens_per", tokens), ("used", 1))
    )
    assert interpret(body.encode()).ranks[""][Quantity.KV_CACHE_CAPACITY] == 100 * 32 + 10 * 64
    alone = block("a", "max", 100) + block("b", "tokens_per", 32)
    assert Quantity.KV_CACHE_CAPACITY not in interpret(alone.encode()).ranks.get("", {}), "no guess at a block's size"


def test_triton_without_a_language_model_backend_gives_what_waits_and_what_ended():
    body = b'nv_inference_request_success{model="m",version="1"} 5\nnv_inference_pending_request_count{model="m"} 2\n'
    reading = interpret(body)
    assert reading.ranks == {"": {Quantity.REQUESTS_WAITING: 2.0}}
    assert reading.finished == {"": {"success": 5.0}}


def test_dynamos_frontend_gives_what_it_measures_itself():
    reading = interpret(DYNAMO_PAGE)
    assert recognise(DYNAMO_PAGE) is DYNAMO
    assert reading.model == "qwen"
    assert reading.finished == {"": {"success": 90.0, "error": 10.0}}
    assert reading.missing["kv_cache_usage"] == "on_the_workers_pages" and "kv_cache_hit" not in reading.missing
    assert reading.ranks[""][Quantity.PREFIX_CACHE_QUERIES] == 450.0
    assert reading.ranks[""][Quantity.PREFIX_CACHE_HITS] == 180.0


@pytest.mark.parametrize("name", ["sglang-0.5.23-real-cpu-after", "tgi-3.3.7-handmade-t2", "triton-handmade"])
def test_names_and_labels_of_future_versions_change_nothing(name):
    body = page(name)
    prefix = recognise(body).prefixes[0].encode()
    future = body + b'%sa_new_family_total{why="x"} 3\n%sanother{le="7"} nonsense\n' % (prefix, prefix)
    assert interpret(future).ranks == interpret(body).ranks
    assert interpret(future).finished == interpret(body).finished


def test_a_page_of_nothing_but_unknown_names_is_of_no_known_engine():
    assert recognise(b"vllm:tokens_of_tomorrow_total 5\nsglang:what_is_this 1\ntgi_v9_anything 3\n") is None


@pytest.mark.parametrize(
    "name", ["sglang-0.5.23-real-cpu-after", "tgi-3.3.7-handmade-t2", "vllm-0.32.0-real-cpu-after"]
)
def test_half_a_page_is_shown_as_far_as_it_goes_and_never_the_base_of_a_window(name):
    body, clock = page(name), Clock()
    for share in (0.2, 0.5, 0.9):
        cut = body.index(b"{", int(len(body) * share))
        poller = make_poller([body, body[: cut + 3], body], clock)
        polled(poller, clock, 2)
        assert poller.state.status.up
        assert poller.state.reading.complete is False
        assert polled(poller, clock).restarts == 0
        assert all(not window.request_rate for window in poller.state.windows.values())


def test_a_page_of_another_engine_is_refused_by_a_kind_that_was_set_and_followed_by_auto():
    clock = Clock()
    assert (
        polled(make_poller([VLLM_PAGE, SGLANG_PAGE], clock, kind="vllm"), clock, 2).status.reason
        == "no_engine_metrics"
    )
    poller = make_poller([VLLM_PAGE, SGLANG_PAGE], clock)
    state = polled(poller, clock, 2)
    assert state.labels == ("a", "sglang", "tiny-llama")
    assert state.windows == {}  # nothing of the other engine's past


def test_an_engine_that_is_left_out_of_a_shared_page_is_named_once_in_the_log(caplog):
    clock = Clock()
    polled(make_poller([VLLM_PAGE + SGLANG_PAGE], clock), clock, 3)
    assert [record.getMessage() for record in caplog.records if "several" in record.getMessage()] == [
        'event=several_engines source=engine:a kind=vllm ignored=sglang msg="the page has several engines; one is read"'
    ]


def test_a_page_that_is_looked_at_anew_and_turns_out_to_be_the_same_engines_keeps_its_history():
    body, clock = DYNAMO_PAGE + ROUTER, Clock()
    assert not still_matches(DYNAMO, body)  # names of an engine, but a router's figures
    state = polled(make_poller([body], clock), clock, 3)
    assert state.labels[1] == "dynamo"
    assert state.windows["1m"].seconds == 20.0


def test_a_page_that_mentions_another_engine_in_its_values_is_still_the_same_engines():
    assert still_matches(VLLM, VLLM_PAGE)
    assert not still_matches(VLLM, b'sglang:num_running_reqs{model_name="vllm:x"} 1\n# HELP vllm:y z\n')
    assert by_kind("sglang") is SGLANG


@pytest.mark.parametrize("name", ["sglang-0.5.23-real-cpu-after", "ray-2.60.0-vllm-0.33.0-reexport-lab"])
def test_a_server_that_comes_back_with_another_model_begins_a_new_history(name):
    clock, body = Clock(), page(name)
    model = interpret(body).model.encode()
    other = body.replace(model, b"another-model")
    poller = make_poller([body, body, other, other], clock)
    polled(poller, clock, 2)
    state = polled(poller, clock, 1)
    assert state.labels[2] == "another-model"
    assert state.windows == {}
    assert polled(poller, clock).windows["1m"].seconds == 10.0


def test_series_of_a_second_model_on_a_shared_page_are_left_out_and_counted():
    body = SGLANG_PAGE + b'sglang:num_running_reqs{model_name="second"} 70\n'
    assert interpret(body).ranks == interpret(SGLANG_PAGE).ranks
    assert interpret(body).parse_warnings == {"other_model": 1}


def test_a_histogram_of_hostile_size_is_bounded_in_its_parts():
    rows = b"".join(
        b'sglang:e2e_request_latency_seconds_bucket{model_name="m",user="%d",le="%s"} 1\n' % (i, le)
        for i in range(5_000)
        for le in (b"1.0", b"+Inf")
    )
    reading = interpret(rows)
    assert reading.histograms[Stage.REQUEST][""].counts == (4_000.0, 4_000.0)
    assert reading.parse_warnings == {"too_many_label_sets": 2 * 1_000}


# ── Engines without a prefix ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nim-handmade", "nim"),
        ("mindie-documented", "mindie"),
        ("tensorrt_llm-0.20-handmade", "tensorrt_llm"),
    ],
)
def test_an_engine_without_a_prefix_is_recognised_by_several_names_together(name, kind):
    body = page(name)
    engine = recognise(body)
    assert engine.kind == kind
    assert still_matches(engine, body)
    for mark in engine.bare_marks:
        lines = [
            line for line in body.splitlines() if not line.startswith((f"{mark}{{".encode(), f"{mark} ".encode()))
        ]
        assert recognise(b"\n".join(lines)) is not engine
        assert not still_matches(engine, b"\n".join(lines))


@pytest.mark.parametrize("name", ["nim-handmade", "mindie-documented", "tensorrt_llm-0.20-handmade"])
def test_names_without_a_prefix_beside_an_engines_own_change_nothing(name):
    for body in (VLLM_PAGE + page(name), page(name) + VLLM_PAGE):
        assert [engine.kind for engine in detect_all(body)] == ["vllm"]
        assert interpret(body).ranks == interpret(VLLM_PAGE).ranks


@pytest.mark.parametrize("name", ["nim-handmade", "mindie-documented", "tei-handmade", "aphrodite-documented"])
def test_a_new_engines_page_may_be_truncated_or_doubled(name):
    body = page(name)
    whole = interpret(body)
    assert interpret(body + body).ranks == whole.ranks
    for end in range(0, len(body), 97):
        try:
            part = interpret(body[:end], recognise(body))
        except PageError:
            continue
        for rank, quantities in part.ranks.items():
            assert quantities.keys() <= whole.ranks[rank].keys()


def test_an_embedding_server_gives_what_ended_and_says_that_it_generates_nothing():
    reading = interpret(page("tei-handmade"))
    assert reading.engine == "tei"
    assert reading.finished == {"": {"success": 90.0, "rejected": 6.0, "invalid": 3.0, "error": 1.0}}
    assert reading.ranks[""] == {Quantity.REQUESTS_WAITING: 2.0, Quantity.PROMPT_TOKENS: 9000.0}
    assert reading.missing["time_to_first_token"] == "no_generation"
    assert reading.missing["requests_running"] == "not_exposed_by_engine"


def test_nim_and_mindie_count_how_requests_ended():
    assert interpret(page("nim-handmade")).finished == {"": {"success": 95.0, "cancelled": 5.0}}
    assert interpret(page("mindie-documented")).finished == {"": {"success": 2267.0, "error": 12.0}}


def test_aphrodite_is_read_like_the_vllm_that_it_was_made_from():
    reading = interpret(page("aphrodite-documented"))
    assert (reading.engine, reading.model) == ("aphrodite", "meta-llama/Llama-3.1-8B-Instruct")
    assert reading.ranks[""][Quantity.REQUESTS_RUNNING] == 140.0
    assert reading.ranks[""][Quantity.KV_CACHE_CAPACITY] == 27889 * 16
    assert reading.ranks[""][Quantity.LIFETIME_HIT_RATIO] == pytest.approx(0.2852, abs=1e-4)


def test_llama_cpps_inter_token_latency_has_a_mean_and_no_quantile():
    clock = Clock()
    pages = [page("llamacpp-0.5.0-real-cpu-t1"), page("llamacpp-0.5.0-real-cpu-t2")]
    state = polled(make_poller(pages, clock, interval=30.0), clock, 2, step=30.0)
    histogram = state.histograms[Stage.INTER_TOKEN]
    assert histogram.bounds == ()
    assert (histogram.sum, histogram.counts) == (82.1002, (state.reading.ranks[""][Quantity.GENERATION_TOKENS],))
    assert state.reading.missing["inter_token"] == "only_as_sum"
    assert Stage.INTER_TOKEN not in state.windows["1m"].latency
