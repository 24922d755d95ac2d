"""Pushing to real receivers: what they answer equals what a scrape would have brought, also after an outage.

The minutes are virtual, the receivers real: Prometheus and VictoriaMetrics.  Debian's know remote write 1.0 only, so
2.0 is refused in their way, which is to accept it and store nothing; a newer Prometheus takes it.
"""

from __future__ import annotations

import math
import urllib.request

import pytest

from compose.native import servers as native
from tests.support import pushed_node, servers
from tests.support.pushed_node import AWAY, END, INSTANCE, INTERVAL, LOST, series_of
from tests.support.servers import Server
from tests.support.tools import tool
from tests.support.virtual_node import UNIX_START

pytestmark = pytest.mark.slow
RECEIVERS = ("prometheus", "victoria")
LOST_GPU = "6"


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """Return {receiver: (Lived, Server)} after the minutes."""
    tool("victoria-metrics")
    folder = tmp_path_factory.mktemp("push")
    store = native.victoria_metrics(folder, arguments=("-search.latencyOffset=0s", "-retentionPeriod=100y"))
    with (
        servers.prometheus({}, folder=folder, arguments=("--web.enable-remote-write-receiver",)) as prometheus,
        store as child,
    ):
        asked = {"prometheus": prometheus, "victoria": Server(child.url)}
        lived = pushed_node.live({
            name: ("remote_write", f"{server.url}/api/v1/write") for name, server in asked.items()
        })  # fmt: skip
        urllib.request.urlopen(f"{child.url}/internal/force_flush", timeout=60).close()
        yield {name: (lived[name], asked[name]) for name in asked}


def stored(server, at):
    """Return {sorted labels: value} of the node's series at a time; VictoriaMetrics looks before it, not at it."""
    query = {"query": f'{{instance="{INSTANCE}"}}', "time": at + 0.001, "step": "1s"}
    rows = server.get("/api/v1/query", **query)["data"]["result"]
    return {tuple(sorted(row["metric"].items())): float(row["value"][1]) for row in rows}


@pytest.mark.parametrize("name", RECEIVERS)
def test_every_series_of_every_push_has_the_value_that_the_endpoint_showed(name, lived):
    one, server = lived[name]
    assert len(one.pages) == END // INTERVAL
    for at, page in one.pages.items():
        expected, found = series_of(page), stored(server, at)
        assert found.keys() == expected.keys()
        # VictoriaMetrics keeps 12 to 15 digits.
        differing = {key: found[key] for key in expected if not math.isclose(found[key], expected[key], rel_tol=1e-9)}
        assert differing == {}


@pytest.mark.parametrize("name", RECEIVERS)
def test_what_vanishes_with_a_lost_gpu_is_gone_at_the_next_push(name, lived):
    one, server = lived[name]
    before = max(at for at in one.pages if at < LOST + UNIX_START)
    (power,) = server.get(
        "/api/v1/query", query=f'gpu_power_watts{{gpu="{LOST_GPU}"}}', time=before + 0.001, step="1s"
    )["data"]["result"]
    gone = {at for at in one.pages if f'gpu_power_watts{{gpu="{LOST_GPU}"' not in one.pages[at]}
    assert gone, "the fault of the scenario"
    at = min(gone)
    assert at - before <= 2 * INTERVAL, "long before the five minutes after which it would be gone anyway"
    rows = server.get("/api/v1/query", query=f'gpu_power_watts{{gpu="{LOST_GPU}"}}', time=at + 0.001, step="1s")
    assert rows["data"]["result"] == [], power


@pytest.mark.parametrize("name", RECEIVERS)
def test_an_outage_loses_nothing_and_changes_no_order(name, lived):
    one, _ = lived[name]
    queued = {now: state.queue_bytes for now, state in one.states.items()}
    assert max(queued.values()) > 0, "something waited"
    assert queued[END] == 0
    state = one.states[END]
    assert state.dropped == {}
    assert set(one.receiver.answers) == {204}, "a receiver refuses what is out of order"
    spoken = one.receiver.versions[-1]
    in_vain = 0 if spoken == "2.0.0" else 1  # a request of 2.0 that an older receiver took for an empty one
    pushes = END // INTERVAL + 1  # and the end
    assert one.receiver.versions == ["2.0.0"] * in_vain + [spoken] * int(pushes)


@pytest.mark.parametrize("name", RECEIVERS)
def test_the_health_says_since_when_nothing_is_accepted(name, lived):
    one, _ = lived[name]
    inside = [now for now in one.states if AWAY[0] + INTERVAL <= now < AWAY[1]]
    assert {one.statuses[now].reason for now in inside} == {"refused"}
    (since,) = {one.states[now].failing_since for now in inside}
    assert since - UNIX_START == pytest.approx(AWAY[0], abs=INTERVAL)
    assert one.statuses[END].up
    assert one.states[END].failing_since is None


@pytest.mark.parametrize("name", RECEIVERS)
def test_a_clean_stop_ends_every_series(name, lived):
    one, server = lived[name]
    last = max(one.pages)
    assert stored(server, last)
    assert stored(server, last + INTERVAL) == {}
