"""Gateway pages, recorded and made up: what each backend was sent, and which replica it is."""

from __future__ import annotations

import pytest

from exporter.config.settings import GATEWAY_KINDS
from exporter.derive.assignment import Endpoint
from exporter.derive.gateway import match_backends
from exporter.gateways.detect import recognise
from exporter.gateways.tables import GATEWAYS, by_kind
from exporter.model import Backend, BackendLoad
from tests.support.builders import Clock
from tests.support.gateway_probe import (
    CAPTURES,
    RECORDINGS,
    by_backend,
    capture,
    make_poller,
    played,
    polled,
    read,
    rendered,
    shares,
)

# ------------------------------------------------------------------ recorded pages and the truth about them


@pytest.mark.parametrize("stem", RECORDINGS)
def test_a_recorded_gateway_gives_the_same_page_as_ever(stem, golden):
    golden(f"gateways/{stem}.prom", rendered(played(*RECORDINGS[stem])))


def test_every_golden_gateway_page_belongs_to_a_test():
    golden_names = {path.stem for path in (CAPTURES.parent.parent / "golden" / "gateways").iterdir()}
    assert golden_names == set(RECORDINGS)


def test_haproxy_counts_every_request_and_not_only_fresh_decisions():
    state = played(*RECORDINGS["haproxy-2.6.12"])
    sent = by_backend(state, "requests")
    assert sent == {"vllm-a": 616, "vllm-b": 293, "vllm-c": 91, "vllm-d": 0}  # loadbalanced_total: 256, 136, 56
    assert by_backend(state, "errors") == {"vllm-a": 0, "vllm-b": 8, "vllm-c": 8, "vllm-d": 0}
    assert state.reading.pools == {"vllm_pool": BackendLoad(requests=1000.0, errors=16.0, active=0.0, queued=0.0)}


def test_haproxy_states_are_one_series_each_and_only_one_of_them_counts():
    state = played(*RECORDINGS["haproxy-2.6.12"])
    assert by_backend(state, "up") == {"vllm-a": True, "vllm-b": True, "vllm-c": True, "vllm-d": False}


def test_shares_are_of_the_requests_between_the_pages_and_not_of_all_time():
    state = played(*RECORDINGS["haproxy-2.6.12"])
    first = by_backend(played(RECORDINGS["haproxy-2.6.12"][0]), "requests")
    last = by_backend(state, "requests")
    assert sum(first.values()) == 400
    assert shares(state) == {name: pytest.approx((last[name] - first[name]) / 600) for name in last}
    # The dead server was sent nothing, which is no unevenness of the gateway's making.
    busiest = max(last[name] - first[name] for name in last)
    assert state.windows["1m"].imbalance == {"vllm_pool": pytest.approx(busiest / 200)}


def test_envoy_endpoints_add_up_to_their_cluster():
    state = played(*RECORDINGS["envoy-1.40.0"])
    assert by_backend(state, "requests") == {"127.0.0.1:18101": 540, "127.0.0.1:18102": 270, "127.0.0.1:18103": 90}
    assert by_backend(state, "errors") == {"127.0.0.1:18101": 0, "127.0.0.1:18102": 8, "127.0.0.1:18103": 15}
    assert state.reading.pools["vllm_pool"].requests == 900
    assert state.reading.pools["vllm_pool"].errors == 23
    assert shares(state) == {
        "127.0.0.1:18101": pytest.approx(0.6), "127.0.0.1:18102": pytest.approx(0.3), "127.0.0.1:18103": 0.1,
    }  # fmt: skip


def test_envoys_clusters_text_says_the_same_as_its_endpoint_statistics():
    text, page = played(*RECORDINGS["envoy-1.40.0-clusters"]), played(*RECORDINGS["envoy-1.40.0"])
    assert text.reading.backends == page.reading.backends


def test_envoy_without_endpoint_statistics_shows_the_cluster_and_no_backend():
    lines = capture("envoy-1.40.0-lab-t2.prom").decode().splitlines(keepends=True)
    page = "".join(line for line in lines if "envoy_cluster_endpoint_" not in line)
    reading = read("envoy", page)
    assert reading.backends == {}
    assert reading.pools["vllm_pool"].requests == 900


def test_nginx_vts_shows_backends_by_address():
    state = played(*RECORDINGS["nginx-1.22.1-vts-0.2.7"])
    assert by_backend(state, "requests") == {"127.0.0.1:18101": 480, "127.0.0.1:18102": 240, "127.0.0.1:18103": 80}
    assert by_backend(state, "errors") == {"127.0.0.1:18101": 0, "127.0.0.1:18102": 6, "127.0.0.1:18103": 7}
    assert set(by_backend(state, "up").values()) == {None}  # VTS does not say


def test_stub_status_has_a_total_no_backends_and_its_own_scrape_in_the_count():
    state = played(*RECORDINGS["nginx-1.22.1-stub_status"])
    assert state.reading.backends == {}
    # Writing is 1 on the page: that is the scrape itself.
    assert state.reading.pools == {"": BackendLoad(requests=704.0, active=0.0)}
    assert state.windows["1m"].shares == {}
    assert state.windows["1m"].imbalance == {}


def test_backends_are_joined_to_replicas_by_address():
    state = played(*RECORDINGS["nginx-1.22.1-vts-0.2.7"])
    assert state.replicas == {("vllm", "127.0.0.1:18101"): "chat-a", ("vllm", "127.0.0.1:18102"): "vllm-b"}
    # HAProxy's page has no addresses: a server that is called like a replica is taken for it.
    assert played(*RECORDINGS["haproxy-2.6.12"]).replicas == {("vllm_pool", "vllm-b"): "vllm-b"}


# ------------------------------------------------------------------ model-aware routers


ROUTERS = {
    "production_stack": (
        (
            'vllm:healthy_pods_total{server="http://127.0.0.1:18101"} 1\n'
            'vllm:healthy_pods_total{server="http://127.0.0.1:18102"} 0\n'
            'vllm:num_requests_running{server="http://127.0.0.1:18101"} 3\n'
            'vllm:num_requests_running{server="http://127.0.0.1:18102"} 0\n'
            'vllm:avg_itl{server="http://127.0.0.1:18101"} -1\n'
            'vllm:request_latency_seconds_count{server="http://127.0.0.1:18101",model="m",status="success"} 70\n'
            'vllm:request_latency_seconds_count{server="http://127.0.0.1:18101",model="m",status="error"} 5\n'
            'vllm:request_errors_total{server="http://127.0.0.1:18101",model="m",error_type="502"} 5\n'
            'vllm:num_incoming_requests_total{model="m"} 75\n'
            # An engine's series of the same name, on the same page
            'vllm:num_requests_running{model_name="m",engine="0",server="http://127.0.0.1:18101"} 900\n'
        ),
        {
            "http://127.0.0.1:18101": BackendLoad(requests=75.0, errors=5.0, active=3.0, up=True),
            "http://127.0.0.1:18102": BackendLoad(active=0.0, up=False),
        },
        75.0,
    ),
    "vllm_router": (
        (
            'vllm_router_requests_total{route="/v1/chat/completions"} 40\n\n'
            'vllm_router_processed_requests_total{worker="http://127.0.0.1:18101"} 30\n'
            'vllm_router_policy_decisions_total{policy="cache_aware",worker="http://127.0.0.1:18101"} 30\n'
            'vllm_router_cb_outcomes_total{worker="http://127.0.0.1:18101",outcome="success"} 28\n'
            'vllm_router_cb_outcomes_total{worker="http://127.0.0.1:18101",outcome="failure"} 2\n'
            'vllm_router_worker_health{worker="http://127.0.0.1:18101"} 1\n'
            'vllm_router_running_requests{worker="http://127.0.0.1:18101"} 4\n'
        ),
        {"http://127.0.0.1:18101": BackendLoad(requests=30.0, errors=2.0, active=4.0, up=True)},
        40.0,
    ),
    "sglang_router": (  # 0.1 and 0.2
        (
            'sgl_router_requests_total{route="/generate"} 9\n'
            'sgl_router_processed_requests_total{worker="http://127.0.0.1:18101"} 9\n'
            'sgl_router_running_requests{worker="http://127.0.0.1:18101"} 1\n'
            'sgl_router_cache_hits_total{worker="http://127.0.0.1:18101"} 8\n'
        ),
        {"http://127.0.0.1:18101": BackendLoad(requests=9.0, active=1.0)},
        9.0,
    ),
    "sglang_router 0.3": (  # requests only through the circuit breaker
        (
            'smg_worker_cb_outcomes_total{worker="grpc://127.0.0.1:18101",outcome="success"} 90\n'
            'smg_worker_cb_outcomes_total{worker="grpc://127.0.0.1:18101",outcome="failure"} 10\n'
            'smg_worker_health{worker="grpc://127.0.0.1:18101"} 0\n'
            'smg_http_inflight_request_age_count{gt="30",le="60"} 7\n'
            'smg_router_requests_total{router_type="http",model="m",endpoint="chat"} 100\n'
        ),
        {"grpc://127.0.0.1:18101": BackendLoad(requests=100.0, errors=10.0, up=False)},
        100.0,
    ),
    "sglang_router smg": (
        (
            'smg_worker_requests_total{worker="http://127.0.0.1:18101",model="m"} 5\n'
            'smg_worker_requests_total{worker="http://127.0.0.1:18101",model="n"} 6\n'
            'smg_worker_requests_total{worker="http://127.0.0.1:18102",model="m"} 0\n'
            'smg_worker_cb_outcomes_total{worker="http://127.0.0.1:18101",outcome="success"} 13\n'
            'smg_worker_requests_active{worker="http://127.0.0.1:18101"} 2\n'
            'smg_http_requests_total{method="POST",path="/v1/completions"} 12\n'
        ),
        {
            "http://127.0.0.1:18101": BackendLoad(requests=11.0, active=2.0),
            "http://127.0.0.1:18102": BackendLoad(requests=0.0),
        },
        12.0,
    ),
    "inference_extension": (  # old names beside new ones
        (
            'llm_d_epp_scheduler_attempts_total{status="success",target_model_name="m",endpoint_name="pod-a",port="8000"} 8\n'
            'llm_d_epp_scheduler_attempts_total{status="failure",target_model_name="m",endpoint_name="pod-a",port=""} 3\n'
            'inference_extension_scheduler_attempts_total{status="success",endpoint_name="pod-a",port="8000"} 8\n'
            'llm_d_epp_per_endpoint_queue_size{name="pool",model_server_endpoint="pod-a"} 2\n'
            'inference_pool_per_pod_queue_size{name="pool",model_server_pod="pod-a"} 2\n'
            'llm_d_epp_request_total{model_name="m"} 11\n'
            'inference_objective_request_total{model_name="m"} 11\n'
        ),
        {"pod-a": BackendLoad(requests=8.0, queued=2.0)},
        11.0,
    ),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_shows_its_workers_once_and_in_one_set_of_names(name):
    page, backends, total = ROUTERS[name]
    kind = name.split()[0]
    assert recognise(page.encode()) is by_kind(kind)
    reading = read(kind, page)
    assert {backend: load for (_, backend), load in reading.backends.items()} == backends
    assert reading.pools[""].requests == total


def test_a_router_that_has_sent_nothing_yet_is_up_and_its_first_request_counts():
    idle = b"# TYPE sgl_router_active_workers gauge\nsgl_router_active_workers 2\n"
    worked = idle + (
        b'sgl_router_processed_requests_total{worker="http://a:1"} 3\n'
        b'sgl_router_processed_requests_total{worker="http://b:1"} 1\n'
    )
    clock = Clock()
    poller = make_poller([idle, worked], clock)
    assert polled(poller, clock, 1).status.up
    assert shares(polled(poller, clock, 1)) == {"http://a:1": 0.75, "http://b:1": 0.25}


def test_rates_weigh_by_the_time_they_held():
    pages = [
        f'vllm:current_qps{{server="http://a:1"}} {a}\nvllm:current_qps{{server="http://b:1"}} {b}\n'.encode()
        for a, b in ((0, 0), (6, 2), (0, 6))
    ]
    clock = Clock()
    poller = make_poller(pages, clock)
    polled(poller, clock, 1, step=10.0)
    polled(poller, clock, 1, step=20.0)
    assert shares(polled(poller, clock, 1)) == {"http://a:1": 0.3, "http://b:1": 0.7}


def test_a_router_that_says_rates_only_has_shares_and_no_count():
    page = b'vllm:current_qps{server="http://a:1"} 6\nvllm:current_qps{server="http://b:1"} 2\n'
    departed = b'vllm:current_qps{server="http://a:1"} -1\nvllm:current_qps{server="http://b:1"} 2\n'
    clock = Clock()
    poller = make_poller([page, page, departed], clock)
    state = polled(poller, clock, 2)
    assert shares(state) == {"http://a:1": 0.75, "http://b:1": 0.25}
    assert by_backend(state, "requests") == {"http://a:1": None, "http://b:1": None}
    assert set(shares(polled(poller, clock, 1))) == {"http://b:1"}
    assert poller.parse_warnings == {}


# ------------------------------------------------------------------ who a backend is


@pytest.mark.parametrize(
    "backend, replica",
    [
        ("http://127.0.0.1:8000", "a"),
        ("[::1]:8000", "a"),
        ("localhost:8000", "a"),
        ("http://127.0.0.1:8000@1", "a"),
        ("grpc://Node-7:8001/x", "b"),
        ("a", "a"),
        ("node-7:8002", None),  # two replicas are at that address
        ("node-7", None),
        ("127.0.0.1", None),
        ("127.0.0.1:99999999", None),
        ("http://127.0.0.1", None),
        ("", None),
    ],
)
def test_a_backend_is_the_replica_at_its_address_or_of_its_name(backend, replica):
    places = [
        Endpoint(replica="a", host="127.0.0.1", port=8000, gpus=None),
        Endpoint(replica="b", host="node-7", port=8001, gpus=None),
        Endpoint(replica="c", host="node-7", port=8002, gpus=None),
        Endpoint(replica="d", host="node-7", port=8002, gpus=None),
    ]
    assert match_backends([Backend("p", backend)], places).get(("p", backend)) == replica


def test_a_backend_at_any_address_of_this_machine_is_the_replica_polled_on_loopback():
    places = [Endpoint(replica="a", host="127.0.0.1", port=8000, gpus=None)]
    is_local = {"10.0.0.9", "node-7"}.__contains__
    for backend in ("10.0.0.9:8000", "http://Node-7:8000", "[::1]:8000"):
        assert match_backends([Backend("p", backend)], places, is_local) == {("p", backend): "a"}
    for backend in ("10.0.0.8:8000", "10.0.0.9:8001"):
        assert match_backends([Backend("p", backend)], places, is_local) == {}
    assert match_backends([Backend("p", "10.0.0.9:8000")], places) == {}


def test_every_kind_that_can_be_configured_can_be_read_and_the_other_way_round():
    assert {gateway.kind for gateway in GATEWAYS} == set(GATEWAY_KINDS)


def test_only_the_pools_own_failures_are_errors_of_the_endpoint_picker():
    codes = (
        "BadRequest",
        "Forbidden",
        "ResourceExhausted",
        "Internal",
        "ModelServerError",
        "ServiceUnavailable",
        "New",
    )
    rows = [
        f'llm_d_epp_request_error_total{{error_code="{code}",model_name="m"}} {1 << n}'
        for n, code in enumerate(codes)
    ]
    reading = read("inference_extension", "\n".join([*rows, 'llm_d_epp_request_total{model_name="m"} 200', ""]))
    assert reading.pools[""].errors == 8 + 16 + 32 + 64


def test_istios_envoy_names_its_clusters_by_another_label():
    pool = "outbound|8000||vllm.default.svc.cluster.local"
    rows = "".join(
        f'envoy_cluster_upstream_{name}{{cluster_name="{pool}"{more}}} {value}\n'
        for name, more, value in (
            ("rq_total", "", 90),
            ("rq_xx", ',response_code_class="5"', 4),
            ("rq_xx", ',response_code_class="2"', 86),
            ("rq_active", "", 7),
            ("rq_pending_active", "", 3),
        )
    )
    load = read("envoy", rows).pools[pool]
    assert (load.requests, load.errors, load.active, load.queued) == (90, 4, 7, 3)


BY_WORKER = {
    "vllm_router": ("vllm_router_processed_requests_total", "vllm_router_worker_health"),
    "sglang_router": ("smg_worker_cb_outcomes_total", "smg_worker_health"),
    "sglang_router, 0.2": ("sgl_router_processed_requests_total", "sgl_router_worker_health"),
}


@pytest.mark.parametrize("router", BY_WORKER)
def test_a_healthy_worker_that_is_never_chosen_has_a_share_of_zero(router):
    requests, health = BY_WORKER[router]

    def body(sent, second_is_healthy=1):
        rows = f'{health}{{worker="http://a:1"}} 1\n{health}{{worker="http://b:1"}} {second_is_healthy}\n'
        return (rows + (f'{requests}{{worker="http://a:1",outcome="success"}} {sent}\n' if sent else "")).encode()

    clock = Clock()
    figures = polled(make_poller([body(0), body(10), body(40)], clock), clock, 3).windows["1m"]
    assert {name: share for (_, name), share in figures.shares.items()} == {"http://a:1": 1.0, "http://b:1": 0.0}
    assert figures.imbalance == {"": 2.0}
    down = polled(make_poller([body(10, 0), body(40, 0)], clock), clock, 2).windows["1m"]
    assert down.imbalance == {}, "a worker that is down is not neglected"


def test_a_router_that_counts_requests_by_no_worker_shows_no_zeros():
    page = 'vllm_router_worker_health{worker="http://a:1"} 1\nvllm_router_requests_total{route="/"} 9\n'
    (load,) = read("vllm_router", page).backends.values()
    assert load.requests is None


def test_the_endpoint_pickers_older_labels_give_shares_by_pod():
    reading = read("inference_extension", capture("inference_extension-pod_name-documented.prom").decode())
    assert {name: load.requests for (_, name), load in reading.backends.items()} == {"pod-1": 2.0}


def test_litellms_deployments_have_shares_and_errors_of_their_own():
    reading = read("litellm", capture("litellm-handmade.prom").decode())
    first, second = (
        reading.backends[Backend("chat", url)] for url in ("http://localhost:18101/v1", "http://127.0.0.1:18102/v1")
    )
    assert (first.requests, first.errors, first.up) == (100.0, 2.0, True)  # neither the client's nor shed load
    assert (second.requests, second.errors, second.up) == (20.0, 2.0, False)
    assert reading.pools[""].requests == 110.0


@pytest.mark.parametrize(
    ("status", "errors"),
    [("408", 3.0), ("401", 3.0), ("403", 3.0), ("404", 3.0), ("500", 3.0), ("400", 0.0), ("422", 0.0), ("429", 0.0)],
)
def test_what_litellm_alone_can_mend_and_its_timeouts_are_errors_of_the_deployment(status, errors):
    labels = f'api_base="http://127.0.0.1:9001/v1",litellm_model_name="m",exception_status="{status}"'
    page = (
        f"litellm_deployment_failure_responses_total{{{labels}}} 3\n"
        'litellm_deployment_failure_responses_total{api_base="http://127.0.0.1:9001/v1",litellm_model_name="m",'
        'exception_status="502"} 0\n'
    )
    assert read("litellm", page).backends[Backend("m", "http://127.0.0.1:9001/v1")].errors == errors


@pytest.mark.parametrize(("states", "up"), [((0, 2), True), ((2, 1), True), ((2, 2), False), ((0, 0), True)])
def test_an_address_with_several_deployments_is_up_while_one_of_them_is(states, up):
    page = "".join(
        'litellm_deployment_state{api_base="http://127.0.0.1:9001/v1",litellm_model_name="m",'
        f'model_id="{index}"}} {state}\n'
        for index, state in enumerate(states)
    )
    assert read("litellm", page).backends[Backend("m", "http://127.0.0.1:9001/v1")].up is up


@pytest.mark.parametrize("version", ["", "consumer_"], ids=["older names", "by consumer"])
def test_higress_counts_the_answers_of_each_model_by_cluster_beside_what_envoy_counts(version):
    page = capture("envoy-higress-documented.prom").decode().replace("_model_consumer_", f"_model_{version}")
    reading = read("envoy", page)
    clusters = ("outbound|80||model-1-1.static", "outbound|80||model-1-2.static")
    assert [reading.backends[Backend("qwen3-0.6b", name)].requests for name in clusters] == [78.0, 20.0]
    assert (reading.pools[clusters[0]].requests, reading.pools[clusters[0]].errors) == (80.0, 2.0)


@pytest.mark.parametrize("prefix", ["llm_d_epp_", "llm_d_router_epp_", "inference_extension_"])
def test_an_endpoint_picker_is_read_under_each_name_that_it_has_had(prefix):
    body = f'{prefix}scheduler_attempts_total{{status="success",pod_name="pod-a"}} 8\n'
    assert read("inference_extension", body).backends[Backend("", "pod-a")].requests == 8.0


@pytest.mark.parametrize("prefix", ["llm_d_epp_", "llm_d_router_epp_", "llm_d_inference_scheduler_"])
def test_an_endpoint_picker_tells_what_it_cannot_see_and_whether_it_disaggregates(prefix):
    page = "\n".join(
        [
            f'{prefix}flow_control_stale_endpoints{{detector="utilization-detector"}} 2',
            f'{prefix}datalayer_poll_errors_total{{source_type="a"}} 3',
            f'{prefix}datalayer_extract_errors_total{{source_type="a",extractor_type="b"}} 4',
            f'{prefix}disagg_decision_total{{model_name="m",decision_type="decode-only"}} 9',
            "",
        ]
    )
    pool = read("inference_extension", page).pools[""]
    assert (pool.stale_endpoints, pool.poll_errors, pool.decode_only) == (2.0, 7.0, 9.0)
    assert pool.disaggregated is None


def test_the_older_counter_of_decisions_is_read_where_the_newer_one_is_not():
    old = 'llm_d_inference_scheduler_pd_decision_total{model_name="m",decision_type="decode-only"} 9\n'
    new = 'llm_d_inference_scheduler_disagg_decision_total{model_name="m",decision_type="decode-only"} 8\n'
    assert read("inference_extension", old).pools[""].decode_only == 9.0
    assert read("inference_extension", old + new).pools[""].decode_only == 8.0
