"""One gateway's poller: windows across restarts and flapping, the loop, the simulated gateway, and the daemon."""

from __future__ import annotations

import http.server
import logging
import threading
import time

import pytest

from exporter.config import settings
from exporter.errors import EndpointError
from exporter.model import Window
from exporter.runtime.app import App
from exporter.runtime.gateway import GatewayConfig, gateway_poller
from exporter.simulate import gateway as simulated
from exporter.simulate.node_spec import NodeSpec
from exporter.sources.replay import ReplayedPage
from tests.support.builders import Clock
from tests.support.gateway_probe import (
    by_backend,
    capture,
    haproxy,
    make_poller,
    polled,
    rendered,
    shares,
)
from tests.support.waiting import until

# ------------------------------------------------------------------ windows


def test_windows_go_on_across_a_restart_that_the_start_time_shows():
    clock = Clock()
    pages = [haproxy(start=100, a=50, b=50), haproxy(start=100, a=60, b=50), haproxy(start=200, a=70, b=10)]
    poller = make_poller(pages, clock)
    state = polled(poller, clock, 3)
    assert state.restarts == 1
    assert shares(state) == {"a": pytest.approx(80 / 90), "b": pytest.approx(10 / 90)}


def test_windows_go_on_across_a_restart_that_only_falling_counters_show():
    clock = Clock()
    state = polled(make_poller([haproxy(a=50, b=50), haproxy(a=3, b=1)], clock), clock, 2)
    assert state.restarts == 1
    assert shares(state) == {"a": 0.75, "b": 0.25}


def test_nginx_restarts_are_seen_although_stub_status_has_no_backends():
    text = (
        "Active connections: 1 \nserver accepts handled requests\n {0} {0} {0} \nReading: 0 Writing: 1 Waiting: 0 \n"
    )
    clock = Clock()
    assert polled(make_poller([text.format(n).encode() for n in (90, 99, 4)], clock), clock, 3).restarts == 1


def test_a_flapping_backend_is_not_credited_with_its_old_requests_again():
    clock = Clock()
    with_b, without = haproxy(start=1, a=1000, b=5000), haproxy(start=1, a=1001)
    poller = make_poller([with_b, without, haproxy(start=1, a=1002, b=5001), haproxy(start=1, a=1003)], clock)
    state = polled(poller, clock, 3)
    assert shares(state) == {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}
    assert state.restarts == 0
    # Once it is gone it has no share, but what it was sent stays in the window.
    assert shares(polled(poller, clock, 1)) == {"a": 0.75}


def test_a_server_that_was_put_back_with_new_counters_is_no_restart_of_the_gateway():
    clock = Clock()
    state = polled(make_poller([haproxy(start=1, a=10, b=100), haproxy(start=1, a=25, b=5)], clock), clock, 2)
    assert shares(state) == {"a": 0.75, "b": 0.25}
    assert state.restarts == 0


def test_pools_are_judged_apart():
    clock = Clock()
    pages = [haproxy(pool="x", a=0, b=0) + haproxy(pool="y", c=0, d=0)]
    pages.append(haproxy(pool="x", a=10, b=10) + haproxy(pool="y", c=9000, d=3000))
    state = polled(make_poller(pages, clock), clock, 2)
    assert state.windows["1m"].imbalance == {"x": 1.0, "y": 1.5}
    assert shares(state) == {"a": 0.5, "b": 0.5, "c": 0.75, "d": 0.25}


def test_without_requests_there_are_no_shares_and_no_imbalance():
    clock = Clock()
    state = polled(make_poller([haproxy(a=5, b=7)] * 3, clock), clock, 3)
    assert state.windows["1m"].shares == {}
    assert state.windows["1m"].imbalance == {}


def test_half_a_page_shows_what_it_has_and_leaves_the_windows_alone():
    clock = Clock()
    half = haproxy(start=1, a=20) + b'haproxy_server_sessions_total{proxy="p",ser'
    poller = make_poller([half, haproxy(start=1, a=30, b=100), half, haproxy(start=1, a=60, b=110)], clock)
    state = polled(poller, clock, 1)
    assert (by_backend(state, "requests"), state.windows) == ({"a": 20}, {})
    assert shares(polled(poller, clock, 3)) == {"a": 0.75, "b": 0.25}


def test_a_failed_poll_withdraws_every_figure_and_keeps_identity_and_age():
    clock = Clock()
    poller = make_poller([haproxy(a=1, b=1), haproxy(a=2, b=2), None], clock)
    assert polled(poller, clock, 2).windows
    state = polled(poller, clock, 1)
    assert (state.reading, state.windows, state.replicas) == (None, {}, {})
    assert (state.labels, state.status.reason, state.last_read_at) == (("edge", "haproxy"), "refused", 1005.0)
    page = rendered(state)
    assert 'gateway_up{gateway="edge",kind="haproxy"} 0' in page
    assert "backend=" not in page


def test_an_exchange_that_never_returns_is_withdrawn_by_who_looks():
    clock = Clock()
    poller = make_poller([haproxy(a=1)], clock)
    poller.poll()
    poller.poll_loop.begin()
    assert poller.view(clock.now + 10).reading is not None
    late = poller.view(clock.now + 16)
    assert (late.reading, late.status.reason, late.status.hung) == (None, "hung", True)


# ------------------------------------------------------------------ the loop


class Counting:
    def __init__(self, fail):
        self.polls, self.fail, self.closed = 0, fail, False

    def fetch(self, path=None):
        self.polls += 1
        if self.fail is not None:
            raise self.fail
        return ReplayedPage(body=haproxy(a=self.polls))

    def close(self):
        self.closed = True


@pytest.mark.parametrize("fail, reason", [(RuntimeError("a bug"), "internal"), (None, "")])
def test_the_loop_polls_survives_a_bug_and_ends(fail, reason):
    before = threading.active_count()
    gateway = Counting(fail)
    plan = GatewayConfig(name="edge", kind="haproxy", interval=0.05, windows=(Window("1m", 60.0),))
    poller = gateway_poller(plan, gateway)
    poller.start(time.monotonic())
    until(lambda: gateway.polls >= 3)
    poller.stop()
    poller.join(5.0)
    assert threading.active_count() == before
    assert gateway.polls >= 3
    assert gateway.closed
    assert poller.state.status.reason == reason
    assert (poller.loop_restarts >= 3) == (fail is not None)


def test_a_flapping_gateway_is_logged_three_times_and_then_once_a_minute(caplog):
    clock = Clock()
    poller = make_poller([haproxy(a=1), None] * 60, clock)
    with caplog.at_level(logging.INFO):
        polled(poller, clock, 120, step=1.0)
    lines = [record.message for record in caplog.records if "state=" in record.message]
    assert 4 <= len(lines) <= 5
    assert all("source=gateway:edge" in line for line in lines)


def test_a_gateway_that_does_not_answer_is_polled_less_often():
    poller = gateway_poller(
        GatewayConfig(name="g", kind="auto", interval=1.0, windows=()), Counting(EndpointError("timeout", "late"))
    )
    for _ in range(12):
        poller.poll()
    assert poller.poll_loop._back_off() > 8 > poller.poll_loop.interval


# ------------------------------------------------------------------ the simulated gateway


def test_the_simulated_haproxy_counts_what_the_simulated_engines_count():
    plan = NodeSpec(scenario="mixed", speed=0.0)  # its clock stands still: only the test moves it
    site = simulated.SimulatedGateway(plan)
    site._world.advance_to(90.0)
    _, page = site.respond("/metrics")
    state = polled(make_poller([page]), Clock(), 1)
    world = plan.world().advance_to(90.0)
    arrived = {
        replica.spec.name: sum(rank.metrics.arrived for rank in replica.ranks) + replica.refused
        for replica in world.replicas
    }
    assert min(arrived.values()) > 0
    assert state.labels == ("edge", "haproxy")
    assert by_backend(state, "requests") == arrived
    assert {pool: load.requests for pool, load in state.reading.pools.items()} == {
        model: sum(arrived[r.spec.name] for r in world.replicas if r.spec.model.name == model)
        for model in {replica.spec.model.name for replica in world.replicas}
    }
    assert set(by_backend(state, "up").values()) == {True}
    assert site.respond("/") is None


def test_the_simulated_haproxys_counters_go_on_when_an_engine_starts_anew():
    ledger = simulated.MonotonicTotals()
    assert ledger.add({"sessions": 70.0, "5xx": 1.0}) == {"sessions": 70.0, "5xx": 1.0}
    assert ledger.add({"sessions": 5.0, "5xx": 1.0}) == {"sessions": 75.0, "5xx": 2.0}
    assert ledger.add({"sessions": 9.0, "5xx": 1.0}) == {"sessions": 79.0, "5xx": 2.0}


# ------------------------------------------------------------------ in the daemon


@pytest.fixture
def served():
    """Yield the URL of a server on loopback that answers with HAProxy's recorded page, and who asked with what."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers.get("Authorization"))
            body = capture("haproxy-2.6.12-lab-t2.prom")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/metrics", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_reload_keeps_the_poller_and_what_it_has_read_under_other_windows_too(served, tmp_path):
    url, asked = served
    (tmp_path / "token").write_text("s3cret")
    text = (
        "gpu: {enabled: false}\ndiscovery: {processes: false}\nwindows: [WINDOW]\n"
        f"gateways: [{{name: edge, url: '{url}', interval: 200ms, bearer_token_file: {tmp_path}/token}}]\n"
    )
    wanted = [settings.parse(text.replace("WINDOW", window), "test", {}) for window in ("1m", "1m", "2m")]
    app = App(wanted.pop(0), reread=lambda: wanted.pop(0))
    app.start()
    try:
        (first,) = app.pollers.gateways.values()
        until(lambda: first.state.status.up)
        assert first.state.labels == ("edge", "haproxy")
        assert app.publisher.compose().gateways == (first.state,)
        assert set(asked) == {"Bearer s3cret"}
        assert app.reload().ok
        assert list(app.pollers.gateways.values()) == [first]
        until(lambda: (known := first.state.windows.get("1m")) and known.seconds >= 0.3)
        assert app.reload().ok
        assert list(app.pollers.gateways.values()) == [first]
        assert first.config.windows == (Window("2m", 120.0),)
        until(lambda: "2m" in first.state.windows)
        assert first.state.windows["2m"].seconds > 0.3, "begun before the reload"
    finally:
        app.stop()
    first.join(10.0)
    assert not first.poll_loop._thread.is_alive()
