"""The page that shows notifications: what Alertmanager sends, and what anybody else might."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import socket
import subprocess
import sys
import threading
from datetime import datetime, timezone

import pytest

from tests.support import stack_files
from tests.support.waiting import until

PLACE = stack_files.COMPOSE / "receiver" / "receiver.py"
_SPEC = importlib.util.spec_from_file_location("receiver", PLACE)
receiver = importlib.util.module_from_spec(_SPEC)
sys.modules["receiver"] = receiver
_SPEC.loader.exec_module(receiver)

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)
ALERT = {
    "status": "firing",
    "labels": {"alertname": "GpuLost", "severity": "critical", "gpu": "7", "instance": "node1:9853"},
    "annotations": {
        "summary": "Card 7 is lost",
        "description": "It fell off the bus.",
        "dashboard_url": "http://localhost:3000/d/shardwatch-gpu-health",
        "runbook_url": "javascript:alert(1)",
    },
    "startsAt": "2026-11-21T12:00:00Z",
}
NOTIFICATION = {"version": "4", "status": "firing", "receiver": "page", "alerts": [ALERT], "truncatedAlerts": 0}


@pytest.fixture
def port():
    with receiver.Receiver("127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(10)


def ask(port, method, path, body=None, headers=None):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def test_a_notification_is_shown_with_its_alert_and_dashboard(port):
    status, _, _ = ask(port, "POST", "/", json.dumps(NOTIFICATION))
    assert status == 200
    status, page, headers = ask(port, "GET", "/")
    assert status == 200
    assert "GpuLost" in page and "Card 7 is lost" in page and "gpu=7" in page
    assert 'href="http://localhost:3000/d/shardwatch-gpu-health"' in page
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    _, shown, _ = ask(port, "GET", "/notifications")
    assert [item["alerts"][0]["labels"]["alertname"] for item in json.loads(shown)] == ["GpuLost"]


def test_a_heartbeat_is_one_line_and_hides_nothing(port):
    watchdog = {**ALERT, "labels": {"alertname": "Watchdog", "severity": "none"}}
    assert "has not come yet" in ask(port, "GET", "/")[1]
    ask(port, "POST", "/", json.dumps(NOTIFICATION))
    for _ in range(receiver.MOST_KEPT):
        ask(port, "POST", "/watchdog", json.dumps({**NOTIFICATION, "alerts": [watchdog]}))
    page = ask(port, "GET", "/")[1]
    assert "Watchdog last came 20" in page and "GpuLost" in page
    assert len(json.loads(ask(port, "GET", "/notifications")[1])) == 1
    ask(port, "POST", "/", json.dumps({**NOTIFICATION, "alerts": [watchdog, ALERT]}))
    assert len(json.loads(ask(port, "GET", "/notifications")[1])) == 2


def test_what_a_browser_would_run_does_not_reach_it():
    hostile = {
        **ALERT,
        "labels": {"alertname": "<script>x</script>", "severity": '"><script>', "a": "<img onerror=x>"},
        "annotations": {"summary": "<b>", "dashboard_url": 'http://x/"><script>y</script>'},
    }
    notification = receiver.read(json.dumps({**NOTIFICATION, "alerts": [hostile, ALERT]}).encode(), NOW)
    page = receiver.page([notification])
    assert "<script" not in page and "<img" not in page and "<b>" not in page
    assert "javascript:" not in page


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[]", b"null", b'{"alerts": 5}', b'{"alerts": [5]}', b"[" * 100_000, b"\xff\xfe"]
)
def test_what_is_no_notification_is_refused_with_the_reason(port, body):
    status, text, _ = ask(port, "POST", "/", body)
    assert status == 400
    assert "JSON" in text or "alerts" in text
    assert ask(port, "GET", "/-/healthy")[0] == 200


@pytest.mark.parametrize("length, status", [("9999999999", 413), ("-1", 411), ("x", 411)])
def test_a_length_that_cannot_be_is_refused_before_it_is_read(port, length, status):
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(head.encode())
        assert client.recv(100).startswith(f"HTTP/1.0 {status} ".encode())


def test_only_the_newest_notifications_are_kept():
    with receiver.Receiver("127.0.0.1", 0) as server:
        for number in range(receiver.MOST_KEPT + 5):
            body = json.dumps({**NOTIFICATION, "status": str(number)}).encode()
            server.kept.append(receiver.read(body, NOW))
        assert len(server.kept) == receiver.MOST_KEPT
        assert server.kept[0].status == "5"


def test_alerts_beyond_the_most_are_counted_and_texts_cut():
    many = {**NOTIFICATION, "alerts": [{"labels": {"alertname": "x" * 10_000}}] * 70, "truncatedAlerts": 3}
    notification = receiver.read(json.dumps(many).encode(), NOW)
    assert len(notification.alerts) == receiver.MOST_ALERTS
    page = receiver.page([notification])
    assert "and 23 more" in page
    assert len(page) < (receiver.MOST_TEXT + 500) * receiver.MOST_ALERTS


def test_silent_clients_take_no_place_for_long_and_no_more_than_there_are(port, monkeypatch):
    monkeypatch.setattr(receiver.ReceiverHandler, "timeout", 0.1)

    def healthy():
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(port, "GET", "/-/healthy")[0] == 200
        return False

    with contextlib.ExitStack() as silent:
        for _ in range(receiver.MOST_REQUESTS * 2):
            silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        until(healthy, seconds=60)


def test_an_unknown_path_names_those_that_exist(port):
    status, text, _ = ask(port, "GET", "/metrics")
    assert status == 404 and "/notifications" in text


def test_an_occupied_port_ends_it_with_the_cure():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        run = subprocess.run(
            [sys.executable, str(PLACE), "--listen", address], capture_output=True, text=True, timeout=60
        )
    assert run.returncode == 1
    assert address in run.stderr and "--listen" in run.stderr


def test_a_wrong_address_is_bad_usage():
    run = subprocess.run(
        [sys.executable, str(PLACE), "--listen", "nonsense"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2 and "HOST:PORT" in run.stderr
