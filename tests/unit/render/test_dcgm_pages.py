"""DCGM's names through the daemon: the question that is asked, the store of pages, the server, a demonstration."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from exporter.http.server.listener import Request
from exporter.http.server.routes import TEXT, routes
from exporter.model import Outcome
from exporter.render.dcgm.query import InvalidQueryError, parse_query, rows
from exporter.render.dcgm_pages import IDLE_TTL, DcgmPageStore, hostname
from exporter.render.pages import MAX_AGE
from tests.support import dcgm_contract as contract
from tests.support.builders import Clock, snapshot
from tests.support.dcgm_card import FULL, families, kinds, moved, samples
from tests.support.dcgm_contract import full
from tests.support.waiting import CEILING, until
from tests.system.test_end_to_end import Daemon

# -- the question


def test_no_query_is_the_legacy_style_with_its_default_rows():
    assert parse_query("") == parse_query("dialect=legacy&hostname=default&fields=default")
    assert parse_query("dialect=4%2E9") == parse_query("dialect=4.9")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("dialect=5.0", "legacy, 4.9"),
        ("dialect=", "legacy, 4.9"),
        ("dialect", "legacy, 4.9"),
        ("dialect=LEGACY", "legacy, 4.9"),
        ("dialect=legacy,4.9", "legacy, 4.9"),
        ("dialect=legacy&dialect=4.9", "each at most once"),
        ("dialact=4.9", "dialect=legacy|4.9"),
        ("hostname=HOSTNAME", "Hostname, hostname, both"),
        ("fields=GPU_UTIL", "default, all"),
        ("&".join(f"a{n}=1" for n in range(100)), "each at most once"),
        ("x=%00%ff%ZZ", "each at most once"),
    ],
)
def test_a_question_that_is_not_understood_is_refused_with_the_words_that_are(query, says):
    with pytest.raises(InvalidQueryError, match=re.escape(says)):
        parse_query(query)


@given(st.text(max_size=200))
def test_no_question_breaks_the_reader(query):
    message = ""
    try:
        wanted = parse_query(query)
    except InvalidQueryError as refused:
        message = str(refused)
    else:
        assert rows(wanted)
    assert len(message) < 300, "it repeats nothing of the question"


# -- the store


def store(clock):
    return DcgmPageStore(clock=clock, hostname=lambda: "node-1")


def test_a_page_is_rendered_once_for_each_snapshot_and_form():
    pages = store(Clock())
    pages.publish(FULL)
    wanted, other = parse_query(""), parse_query("dialect=4.9")
    first = pages.page(wanted, gzip=False)
    assert pages.page(wanted, gzip=False) is first
    packed = pages.page(wanted, gzip=True)
    assert pages.page(wanted, gzip=True) is packed
    assert gzip.decompress(packed) == first
    assert pages.page(other, gzip=False) != first
    pages.publish(FULL)
    assert pages.page(wanted, gzip=False) is not first


def test_there_is_no_page_before_the_first_snapshot_nor_when_the_newest_is_too_old():
    clock = Clock()
    pages = store(clock)
    assert pages.page(parse_query(""), gzip=False) is None
    pages.publish(FULL)
    assert pages.page(parse_query(""), gzip=False)
    clock.tick(MAX_AGE + 0.1)
    assert pages.page(parse_query(""), gzip=False) is None


def test_rates_appear_at_the_second_snapshot_after_the_first_request_and_end_without_requests():
    clock = Clock()
    pages = store(clock)
    wanted = parse_query("dialect=4.9")

    def publish(seconds):
        clock.tick(seconds)
        pages.publish(snapshot(cards=(moved(clock.now, pcie_transmit=100.0 * clock.now),)))

    publish(1.0)
    publish(1.0)
    assert pages._tracked is None, "nobody has asked"
    assert pages.page(wanted, gzip=False) == b""
    publish(1.0)
    assert pages.page(wanted, gzip=False).endswith(b" 100\n")
    publish(IDLE_TTL + 1.0)
    assert pages._tracked is None


def test_a_node_without_requests_for_dcgms_names_does_not_load_their_tables():
    code = (
        "import sys, exporter.runtime.app, exporter.http.server.routes\n"
        "print(sorted(name for name in sys.modules if name.startswith('exporter.render.dcgm')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    light = ("", ".page_query", ".rates", ".recent")
    assert done.stdout.strip() == str(
        [f"exporter.render.dcgm{name}" for name in light] + ["exporter.render.dcgm_pages"]
    )


def test_the_host_has_the_name_that_its_pod_is_given(monkeypatch):
    monkeypatch.setenv("NODE_NAME", "gpu-worker-7")
    assert hostname() == "gpu-worker-7"
    monkeypatch.setenv("NODE_NAME", "")
    monkeypatch.setattr("socket.gethostname", lambda: "metal")
    assert hostname() == "metal"


# -- the server


class Nothing:
    def page(self, **_):
        return None

    def healthy(self):
        return Outcome(True, "")

    ready = healthy


def ask(pages, query="", method="GET", **headers):
    handler = routes(Nothing(), Nothing(), reload=None, dcgm=pages)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return handler(Request(method=method, path="/metrics/dcgm", query=query, headers=named))


def test_the_server_answers_in_text_and_packed_where_that_is_welcome():
    pages = store(Clock())
    pages.publish(FULL)
    plain = ask(pages, accept="application/openmetrics-text;version=1.0.0")
    assert (plain.status, plain.content_type) == (200, TEXT)
    packed = ask(pages, accept_encoding="gzip")
    assert ("Content-Encoding", "gzip") in packed.headers
    assert gzip.decompress(packed.body) == plain.body
    assert ask(pages, method="HEAD") == plain
    assert ask(pages, "dialect=4.9").body != plain.body


def test_the_server_refuses_an_unknown_dialect_and_says_which_there_are():
    answer = ask(store(Clock()), "dialect=<script>")
    assert answer.status == 400
    assert b"legacy, 4.9" in answer.body
    assert b"script" not in answer.body


def test_the_server_has_no_page_before_there_is_data():
    answer = ask(store(Clock()))
    assert answer.status == 503
    assert b"/-/ready" in answer.body


@pytest.mark.slow
def test_a_demonstration_is_scraped_under_both_sets_of_names():
    daemon = Daemon("demo", "--listen", "127.0.0.1:0", environ={"NODE_NAME": "demo-node"})
    try:
        # Each GPU is read by a thread of its own: what one of them has, another may not have yet.
        ours = daemon.wait_for(lambda page: page.count("\ngpu_memory_total_bytes{") == 8, seconds=CEILING)
        pages = {}
        for dialect, last in (("legacy", full("NVLINK_BANDWIDTH_TOTAL")), ("4.9", full("FB_CAPACITY_BYTES"))):

            def all_have(dialect=dialect, last=last):
                status, pages[dialect] = daemon.get(f"/metrics/dcgm?dialect={dialect}")
                return status == 200 and pages[dialect].count(f"\n{last}{{") == 8

            until(all_have)
        assert daemon.get("/metrics/dcgm?dialect=5")[0] == 400
    finally:
        daemon.stop()
    total = {
        sample.labels["uuid"]: sample.value
        for family in text_string_to_metric_families(ours)
        for sample in family.samples
        if sample.name == "gpu_memory_total_bytes"
    }
    capacity = families(pages["4.9"])[full("FB_CAPACITY_BYTES")].samples
    assert {sample.labels["UUID"]: sample.value for sample in capacity} == total
    assert len(total) == 8
    for dialect, text in pages.items():
        assert len(kinds(text)) >= 18
        for labels, _ in samples(text, gpu="7").values():
            assert tuple(labels)[:7] == contract.LABELS[dialect]
            assert labels[contract.LABELS[dialect][5]] == "demo-node"
