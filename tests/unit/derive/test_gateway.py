"""How a gateway spread requests, from its counters alone: shares, unevenness, restarts, backends that come and go."""

from __future__ import annotations

import pytest

from exporter.derive.assignment import Endpoint
from exporter.derive.gateway import MAX_REMEMBERED, match_backends, update, window_figures
from exporter.derive.windows import History
from exporter.model import Backend, BackendLoad, GatewayReading

WINDOW = "1m"


def pool_reading(at, /, *, pool="p", **backends):
    """A page of one pool: each backend's requests, or all that is known of it; ``_name`` is a field of the page."""
    fields = {name[1:]: backends.pop(name) for name in list(backends) if name.startswith("_")}
    loads = {
        Backend(pool, name): load if isinstance(load, BackendLoad) else BackendLoad(requests=load)
        for name, load in backends.items()
    }
    return GatewayReading(at=at, gateway="haproxy", backends=loads, **fields)


def windows(*readings):
    progress, history = None, History([(WINDOW, 60.0)])
    for reading in readings:
        progress = update(progress, reading)
        history.add(progress.totals)
    return progress, window_figures(history, readings[-1]).get(WINDOW)


def shares(*readings):
    return {name: share for (_, name), share in windows(*readings)[1].shares.items()}


def test_a_backend_that_is_up_and_gets_nothing_is_unevenness_and_one_that_is_down_is_none():
    def spread(up):
        idle = BackendLoad(requests=0.0, up=up)
        return windows(pool_reading(0, a=0, b=0, c=idle), pool_reading(10, a=30, b=30, c=idle))[1].imbalance

    assert spread(up=True) == spread(up=None) == {"p": pytest.approx(1.5)}
    assert spread(up=False) == {"p": 1.0}


def test_a_backend_that_went_down_after_it_was_sent_something_still_counts():
    departed = BackendLoad(requests=30.0, up=False)
    assert windows(pool_reading(0, a=0, b=0), pool_reading(10, a=10, b=departed))[1].imbalance == {
        "p": pytest.approx(1.5)
    }


@pytest.mark.parametrize(("moved", "restarts"), [(0.0, 0), (1.4, 0), (-1.4, 0), (1.6, 1), (-1.6, 1), (3600.0, 1)])
def test_a_start_time_that_jitters_is_no_restart_and_one_that_moved_is_whichever_way(moved, restarts):
    readings = pool_reading(0, a=10, _started=5000.0), pool_reading(10, a=14, b=6, _started=5000.0 + moved)
    assert windows(*readings)[0].restarts == restarts
    assert shares(*readings) == ({"a": 0.4, "b": 0.6} if not restarts else {"a": 0.7, "b": 0.3})


def test_an_uptime_that_falls_is_a_restart_and_one_that_grows_is_none_whatever_counters_do():
    fallen = pool_reading(10, a=20, b=60, _uptime=5.0)
    assert shares(pool_reading(0, a=10, b=50, _uptime=100.0), fallen) == {"a": 0.25, "b": 0.75}
    taken_out = windows(pool_reading(0, a=10, b=50, _uptime=100.0), pool_reading(10, a=20, b=10, _uptime=110.0))[0]
    assert taken_out.restarts == 0


def test_requests_of_a_gateway_that_says_only_rates_are_rate_by_time():
    rates = [pool_reading(at, a=BackendLoad(rate=2.0), b=BackendLoad(rate=6.0)) for at in (0, 10, 30)]
    progress, figures = windows(*rates)
    assert progress.totals.sent == {("p", "a"): 60.0, ("p", "b"): 180.0}
    assert figures.shares == {("p", "a"): 0.25, ("p", "b"): 0.75}


def test_a_pool_of_which_some_backends_were_left_out_has_no_shares_and_a_new_face_brings_no_old_requests():
    cut = frozenset({"p"})
    readings = [
        pool_reading(0, a=0, _truncated_pools=cut),
        pool_reading(10, a=10, b=9000, _truncated_pools=cut),
        pool_reading(20, a=20, b=9010),
    ]
    assert windows(*readings[:2])[1].shares == {}
    assert shares(*readings) == {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}


def test_of_backends_that_are_gone_the_oldest_are_removed_first():
    progress = None
    for number in range(MAX_REMEMBERED + 10):
        progress = update(progress, pool_reading(float(number), **{f"b{number}": 5.0}))
    kept = {name for _, name in progress.totals.sent}
    assert len(kept) == len(progress.counters) == MAX_REMEMBERED
    assert kept == {f"b{number}" for number in range(10, MAX_REMEMBERED + 10)}


def test_half_a_page_changes_nothing():
    progress = update(None, pool_reading(0, a=10))
    assert update(progress, pool_reading(10, a=99, _complete=False)) is progress


def test_a_name_decides_only_where_no_process_has_the_address():
    two = [Endpoint(replica=name, host="node-7", port=8000, gpus=None) for name in ("node-7:8000", "other")]
    named = [Endpoint(replica="node-7:8000", host="far.example", port=9000, gpus=None)]
    assert match_backends([Backend("p", "node-7:8000")], two) == {}
    assert match_backends([Backend("p", "node-7:8000")], named) == {("p", "node-7:8000"): "node-7:8000"}


def test_the_error_ratio_of_a_backend_is_what_failed_of_what_it_was_sent_in_the_window():
    def page(at, requests, errors, **fields):
        load = BackendLoad(requests=requests, errors=errors)
        return pool_reading(at, a=load, b=float(requests), **fields)

    def ratios(*readings):
        return windows(*readings)[1].error_ratios

    assert ratios(page(0, 100, 50), page(10, 300, 60)) == {Backend("p", "a"): pytest.approx(0.05)}, "b counts none"
    assert ratios(page(0, 100, 50), page(10, 100, 50)) == {}, "nothing was sent"
    assert ratios(page(0, 100, 50), page(10, 20, 5)) == {Backend("p", "a"): pytest.approx(0.25)}, "a restart"
    unseen = pool_reading(0, a=BackendLoad(requests=100.0), b=0.0)
    assert ratios(unseen, page(10, 300, 60)) == {Backend("p", "a"): 0.0}, "errors of before are not of this window"
