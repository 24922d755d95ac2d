"""The node web page over HTTP: who gets HTML, in which language, coded how, cached how, and rendered how often."""

from __future__ import annotations

import gzip
import threading

import pytest

from exporter.http.server.connection import DeferredResponse
from exporter.http.server.request import Request
from exporter.http.server.routes import routes
from exporter.http.server.web_page import FILES, TOO_OLD, WebPage
from exporter.model import Outcome
from exporter.web.history import NodeHistory
from tests.support.builders import Clock, card, replica, snapshot
from tests.support.records import replace
from tests.support.web_node import malicious_snapshot

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
SNAPSHOT = snapshot(cards=(card(0, utilization=0.5),), replicas=(replica("chat-a"),))


class Pages:
    def page(self, *, openmetrics, gzip):
        return b""


class Health:
    def healthy(self):
        return Outcome(True, "")

    ready = healthy


class Node:
    def __init__(self):
        self.snapshot, self.clock = SNAPSHOT, Clock(SNAPSHOT.at + 1)
        self.page = WebPage(lambda: self.snapshot, NodeHistory(), node=lambda: "node-1", clock=self.clock)
        self.handler = routes(Pages(), Health(), reload=None, web=self.page)

    def get(self, path="/", query="", method="GET", **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.handler(Request(method=method, path=path, query=query, headers=headers))
        if isinstance(answer, DeferredResponse):
            done = threading.Event()
            answer.add_done_callback(done.set)
            assert done.wait(60)
            answer = answer.response
        return answer


@pytest.fixture
def node():
    return Node()


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (BROWSER, True), ("text/html", True), ("text/html, text/plain", True), ("*/*", False), ("", False),
        ("text/plain", False), ("text/plain, text/html;q=0.5", False), ("text/html;q=0", False), (",;q=x", False),
    ],
)  # fmt: skip
def test_browsers_get_html_and_everybody_else_text(node, accept, html):
    answer = node.get(accept=accept)
    assert answer.status == 200
    assert answer.content_type == f"text/{'html' if html else 'plain'}; charset=utf-8"
    assert answer.body.startswith(b"<!DOCTYPE html>") is html
    assert b"node-1" in answer.body


@pytest.mark.parametrize(
    ("query", "header", "language"),
    [
        ("", "", "en"), ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("", "de, en;q=0.5, zh;q=0.9", "zh"),
        ("", "fr", "en"), ("lang=zh", "en", "zh"), ("lang=en", "zh", "en"), ("lang=zh-CN", "en", "zh"), ("lang=zh-Hans", "", "zh"), ("", "zh-CN;q=0.9", "zh"), ("lang=xx", "zh", "zh"),
        ("lang=%3Cscript%3E", "", "en"), ("&".join(["a=1"] * 100), "zh", "zh"),
    ],
)  # fmt: skip
def test_the_language_is_the_querys_else_the_browsers(node, query, header, language):
    answer = node.get(query=query, accept=BROWSER, accept_language=header)
    assert f'<html lang="{language}"'.encode() in answer.body


def test_the_policy_allows_nothing_but_the_pages_own_files(node):
    for path in ("/", *(f"/web/{name}" for name in FILES)):
        headers = dict(node.get(path, accept=BROWSER).headers)
        policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
        assert policy == {
            "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'",
            "img-src": "'self'", "frame-ancestors": "'none'", "base-uri": "'none'", "form-action": "'none'",
        }  # fmt: skip
        assert headers["Referrer-Policy"] == "no-referrer"


def test_gzip_is_sent_to_whoever_accepts_it(node):
    plain, packed = node.get(accept=BROWSER), node.get(accept=BROWSER, accept_encoding="gzip")
    assert dict(packed.headers)["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in dict(plain.headers)
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2


def test_what_the_client_has_is_not_sent_again(node):
    first = node.get(accept=BROWSER)
    etag = dict(first.headers)["ETag"]
    again = node.get(accept=BROWSER, if_none_match=etag)
    assert (again.status, again.body) == (304, b"")
    assert node.get(accept="text/plain", if_none_match=etag).status == 200
    node.snapshot = replace(SNAPSHOT, at=SNAPSHOT.at + 1)
    assert node.get(accept=BROWSER, if_none_match=etag).status == 200


@pytest.mark.parametrize("path", ["/", "/web/page.js"])
@pytest.mark.parametrize(
    ("form", "status"),
    [("{0}", 304), ("{1}", 304), ('"other", {0}', 304), ('W/"a,b",{1} , "c"', 304), ("*", 304), ('"other"', 200)],
)
def test_if_none_match_may_be_a_list_weak_or_any(node, path, form, status):
    weak = dict(node.get(path, accept=BROWSER, accept_encoding="gzip").headers)["ETag"]
    assert weak.startswith("W/"), "a proxy may compress and unpack"
    answer = node.get(path, accept=BROWSER, if_none_match=form.format(weak, weak.removeprefix("W/")))
    assert (answer.status, dict(answer.headers)["ETag"]) == (status, weak)


def test_half_of_a_surrogate_pair_in_a_name_is_replaced(node):
    node.snapshot = malicious_snapshot("a\ud800b")
    for accept in (BROWSER, "text/plain"):
        answer = node.get(accept=accept)
        assert answer.status == 200
        assert "a\ufffdb" in answer.body.decode()


def test_a_snapshot_is_rendered_once_however_many_ask(node):
    bodies = {id(node.get(accept=BROWSER).body) for _ in range(20)}
    assert len(bodies) == 1


def test_those_who_ask_while_it_is_rendered_share_the_result(node, monkeypatch):
    go, rendered = threading.Event(), []
    render = node.page._body

    def slow(*arguments):
        rendered.append(arguments)
        go.wait(60)
        return render(*arguments)

    monkeypatch.setattr(node.page, "_body", slow)
    request = Request(method="GET", path="/", query="", headers={"accept": BROWSER})
    waiting = [node.handler(request) for _ in range(20)]
    done = [threading.Event() for _ in waiting]
    for deferred, event in zip(waiting, done, strict=True):
        deferred.add_done_callback(event.set)
    go.set()
    assert all(event.wait(60) for event in done)
    assert len(rendered) == 1
    assert len({id(deferred.response.body) for deferred in waiting}) == 1


def test_a_page_that_cannot_be_rendered_is_an_error_and_the_next_one_is_tried(node, monkeypatch):
    render = node.page._body
    monkeypatch.setattr(node.page, "_body", lambda *_: 1 / 0)
    assert node.get(accept=BROWSER).status == 500
    monkeypatch.setattr(node.page, "_body", render)
    assert node.get(accept=BROWSER).status == 200


def test_old_data_is_served_and_said_to_be_old(node):
    node.clock.tick(TOO_OLD + 1)
    answer = node.get(accept=BROWSER)
    assert answer.status == 200
    assert b"the daemon has stopped reading" in answer.body
    etag = dict(answer.headers)["ETag"]
    node.clock.tick(1)
    assert node.get(accept=BROWSER, if_none_match=etag).status == 200, "its age has changed"


def test_without_a_snapshot_the_page_says_so(node):
    node.snapshot = None
    answer = node.get(accept=BROWSER)
    assert b"No snapshot yet" in answer.body
    assert "ETag" not in dict(answer.headers)


def test_the_page_links_the_other_paths(node):
    body = node.get(accept=BROWSER).body.decode()
    for path in ("/metrics", "/-/healthy", "/-/ready"):
        assert f'<a href="{path}">' in body
    assert "/-/reload" not in body, "a link would send GET"


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_cached_until_it_changes_and_compressed(node, name):
    path = f"/web/{name}"
    answer, packed = node.get(path), node.get(path, accept_encoding="gzip, br")
    headers = dict(answer.headers)
    assert (answer.status, headers["Cache-Control"]) == (200, "no-cache")
    assert gzip.decompress(packed.body) == answer.body
    assert node.get(path, if_none_match=headers["ETag"]).status == 304
    assert answer.content_type in {"text/css; charset=utf-8", "text/javascript; charset=utf-8", "image/svg+xml"}


@pytest.mark.parametrize("path", ["/web/", "/web/../page.js", "/web/page.py", "/web/__init__.py", "/web"])
def test_there_are_no_other_files(node, path):
    assert node.get(path).status == 404


def test_only_get_and_head_are_answered(node):
    assert node.get(method="HEAD", accept=BROWSER).status == 200
    assert node.get(method="POST").status == 405
    assert node.get("/web/page.js", method="POST").status == 405


def test_where_it_is_switched_off_there_is_nothing():
    handler = routes(Pages(), Health(), reload=None)
    for path in ("/", "/web/page.js"):
        assert handler(Request(method="GET", path=path, query="", headers={})).status == 404
