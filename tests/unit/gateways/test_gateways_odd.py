"""Gateway pages that are odd: of something else, endless, hostile, half wrong, or of an old version."""

from __future__ import annotations

import pytest

from exporter.errors import PageError
from exporter.gateways.compile import MAX_BACKENDS, backend_name
from exporter.gateways.detect import recognise
from exporter.gateways.interpreter import GatewayInterpreter
from exporter.gateways.tables import GATEWAYS, by_kind
from exporter.model import BackendLoad
from tests.support.builders import Clock
from tests.support.gateway_probe import CAPTURES, by_backend, haproxy, make_poller, polled, read, rendered, shares


@pytest.mark.parametrize("kind", [gateway.kind for gateway in GATEWAYS])
@pytest.mark.parametrize(
    "page",
    ["", "<html><body>haproxy_server_up</body></html>", "up 1\n", "# HELP haproxy_up nginx_up envoy_x\nup 1\n"],
)
def test_a_page_of_something_else_is_a_reason_and_not_an_exception(kind, page):
    with pytest.raises(PageError) as caught:
        read(kind, page)
    assert caught.value.reason in ("no_gateway_metrics", "not_metrics")
    clock = Clock()
    assert polled(make_poller([page.encode()], clock), clock, 1).status.reason == "unknown_gateway"


def test_an_engines_page_is_no_router_although_it_shares_its_names():
    page = (CAPTURES.parent / "vllm-0.32.0-real-cpu-load.prom").read_bytes()
    assert recognise(page) is None
    with pytest.raises(PageError, match="belongs under engines"):
        GatewayInterpreter(by_kind("production_stack")).read(page, 1.0)


def test_a_port_that_changes_hands_starts_anew():
    clock = Clock()
    envoy = b'envoy_cluster_endpoint_rq_total{envoy_cluster_name="p",envoy_endpoint_address="h:1"} 9\n'
    poller = make_poller([haproxy(a=1), haproxy(a=2), envoy, b"up 1\n"], clock)
    state = polled(poller, clock, 3)
    assert state.labels == ("edge", "envoy")
    assert state.windows == {}
    assert polled(poller, clock, 1).status.reason == "unknown_gateway"


def test_backends_beyond_the_cap_are_left_out_and_their_pool_has_no_shares():
    clock = Clock()
    wide = {f"s{number}": 10 for number in range(5000)}
    small = haproxy(pool="small", a=1, b=1)
    pages = [small + haproxy(pool="wide", **{**wide, "s0": n}) for n in (10, 99)]
    poller = make_poller([*pages, haproxy(pool="small", a=4, b=2) + haproxy(pool="wide", s0=100, s4999=77)], clock)
    state = polled(poller, clock, 2)
    assert len(state.reading.backends) == MAX_BACKENDS
    assert state.windows["1m"].imbalance == {}
    assert shares(state) == {}
    assert poller.parse_warnings == {"too_many_backends": 2 * (5002 - MAX_BACKENDS)}
    assert rendered(state).count("gateway_requests_total{") == MAX_BACKENDS
    # When the pool fits again, a server that was never looked at is not credited with its whole past.
    state = polled(poller, clock, 1)
    assert shares(state)["s4999"] == 0.0
    assert (shares(state)["a"], shares(state)["b"]) == (0.75, 0.25)


def test_pools_beyond_the_cap_are_left_out():
    page = "".join(f'envoy_cluster_upstream_rq_total{{envoy_cluster_name="c{n}"}} 1\n' for n in range(1000))
    reading = read("envoy", page)
    assert len(reading.pools) == 64
    assert reading.parse_warnings == {"too_many_pools": 936}


def test_a_pool_that_was_let_in_keeps_all_its_figures_however_many_come_after_it():
    page = "".join(f'envoy_cluster_upstream_rq_total{{envoy_cluster_name="c{n}"}} {n}\n' for n in range(100))
    page += 'envoy_cluster_upstream_rq_active{envoy_cluster_name="c7"} 3\n'
    assert read("envoy", page).pools["c7"] == BackendLoad(requests=7.0, active=3.0)


def test_nginx_sums_over_the_codes_beside_the_codes_are_not_counted_again():
    codes = {"1xx": 0, "2xx": 90, "3xx": 5, "4xx": 3, "5xx": 2, "total": 100, "6xx": 7, "200": 90}
    page = "".join(
        f'nginx_vts_upstream_requests_total{{upstream="u",backend="10.0.0.1:8000",code="{code}"}} {number}\n'
        for code, number in codes.items()
    )
    assert read("nginx", page).backends == {("u", "10.0.0.1:8000"): BackendLoad(requests=100.0, errors=2.0)}


def test_hostile_names_stay_inside_their_label():
    name = 'x\\"} 1\\n\\\\gateway_up{gateway=\\"' + "y" * 10_000
    page = f'haproxy_server_sessions_total{{proxy="p\\n#",server="{name}"}} 7\n'
    poller = make_poller([page.encode()])
    poller.poll()
    (key,) = poller.state.reading.backends
    assert len(key[1]) == 256
    text = rendered(poller.state)
    assert [line for line in text.splitlines() if line.startswith("gateway_up{")] == [
        'gateway_up{gateway="edge",kind="haproxy"} 1'
    ]
    assert text.count("\ngateway_requests_total{") == 1


@pytest.mark.parametrize(
    "written, shown",
    [
        ("http://user:secret@10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000/?api_key=secret", "http://10.0.0.1:8000/"),
        ("http://10.0.0.1:8000@3", "http://10.0.0.1:8000@3"),
        ("srv?x", "srv?x"),
    ],
)
def test_what_a_url_carries_in_secret_does_not_become_a_label(written, shown):
    assert backend_name(written) == shown


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-7"])
def test_a_number_that_cannot_be_is_missing_and_counted(value):
    poller = make_poller([haproxy(a=value, b=3)])
    poller.poll()
    assert by_backend(poller.state, "requests") == {"a": None, "b": 3}
    assert poller.parse_warnings == {"bad_number": 1}


def test_labels_in_another_order_are_the_same_series():
    page = haproxy(a=5) + b'haproxy_server_sessions_total{server="a",proxy="p"} 5\n'
    poller = make_poller([page])
    poller.poll()
    assert by_backend(poller.state, "requests") == {"a": 5}
    assert poller.parse_warnings == {"duplicate": 1}


@pytest.mark.parametrize(
    "text",
    [
        "Active connections: 1 \nserver accepts handled requests\n 1 1 \nReading: 0 Writing: 1 Waiting: 0 \n",
        "Active connections: x \nserver accepts handled requests\n 1 1 1 \nReading: 0 Writing: 1 Waiting: 0 \n",
        "Active connections: "
        + "9" * 400
        + " \nserver accepts handled requests\n 1 1 1 \nReading: 0 Writing: 1 Waiting: 0 \n",
        "Active connections: 1 \n",
    ],
)
def test_text_that_is_nearly_stub_status_is_not_metrics(text):
    with pytest.raises(PageError):
        read("nginx", text)


def test_envoys_clusters_text_keeps_ipv6_addresses_and_health_and_drops_the_rest():
    text = (
        "p::observability_name::p\np::default_priority::max_requests::1024\np::outlier::success_rate_average::-1\n"
        "p::[::1]:8000::rq_total::5\np::[::1]:8000::health_flags::/failed_active_hc\n"
        'p"q\\::10.0.0.1:1::rq_total::6\np::10.0.0.2:1::rq_total::none\n::::rq_total::1\nnonsense\n'
    )
    reading = read("envoy", text)
    assert reading.backends == {
        ("p", "[::1]:8000"): BackendLoad(requests=5.0, up=False), ('p"q\\', "10.0.0.1:1"): BackendLoad(requests=6.0),
    }  # fmt: skip


def test_drained_servers_and_the_numbers_of_old_versions_are_understood():
    states = {"a": "UP", "b": "DRAIN", "c": "MAINT", "d": "NOLB"}
    page = "".join(
        f'haproxy_server_status{{proxy="p",server="{name}",state="{state}"}} {int(state == now)}\n'
        for name, now in states.items()
        for state in ("DOWN", "UP", "MAINT", "DRAIN", "NOLB")
    )
    assert [load.up for load in read("haproxy", page).backends.values()] == [True, False, False, False]
    old = "".join(f'haproxy_server_status{{proxy="p",server="s{n}"}} {n}\n' for n in range(4))
    assert [load.up for load in read("haproxy", old).backends.values()] == [False, True, False, False]
