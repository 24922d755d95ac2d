"""Shows the notifications that Alertmanager sends: the newest hundred, on one page, in memory.

For trying things out: it takes what anybody posts, so it belongs on loopback or into a closed network.  Everything is
bounded: length of a notification, alerts shown of each, notifications kept, time for a request, requests at once.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LONGEST = 1_000_000  # bytes of one notification
MOST_KEPT = 100
HEARTBEAT = "Watchdog"  # fires always; a page full of it would show nothing else
MOST_ALERTS = 50  # of one notification; the rest is counted
MOST_TEXT = 2_000  # characters of one label or annotation
MOST_REQUESTS = 16  # at once
PATIENCE = 5.0  # seconds for any read or write of a request
COLOURS = {"critical": "#D55E00", "warning": "#E69F00", "info": "#0072B2"}

Alert = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One notification: when it came, its state, and the alerts in it."""

    received: datetime
    status: str
    alerts: Sequence[Alert]
    omitted: int


class NotANotificationError(ValueError):
    """What was posted is none; the message says why."""


def read(body: bytes, received: datetime) -> Notification:
    """Read the JSON that Alertmanager's webhook sends; raises NotANotificationError."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotANotificationError("this is no JSON") from error
    alerts = found.get("alerts") if isinstance(found, dict) else None
    if not isinstance(alerts, list) or not all(isinstance(alert, dict) for alert in alerts):
        raise NotANotificationError("there is no list `alerts`; is this Alertmanager's webhook (version 4)?")
    truncated = found.get("truncatedAlerts")
    return Notification(
        received=received,
        status=_text(found.get("status")),
        alerts=tuple(alerts[:MOST_ALERTS]),
        omitted=max(0, len(alerts) - MOST_ALERTS) + (truncated if isinstance(truncated, int) else 0),
    )


def is_heartbeat(notification: Notification) -> bool:
    """Return whether it says only that alerts still come through."""
    return bool(notification.alerts) and all(_name(alert) == HEARTBEAT for alert in notification.alerts)


def page(notifications: Sequence[Notification], heartbeat: datetime | None = None) -> str:
    """Return the page, the newest first; ``heartbeat`` is when the last one came."""
    alive = f"{HEARTBEAT} last came {_when(heartbeat)}" if heartbeat else f"{HEARTBEAT} has not come yet"
    rows = "".join(_notification(notification) for notification in reversed(notifications))
    body = rows or "<p>Nothing yet. Alerts that fire are sent some seconds later.</p>"
    return (
        '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>Notifications</title>'
        "<style>body{font:15px/1.5 sans-serif;margin:2em;max-width:70em}"
        "article{border-left:.4em solid #888;padding-left:1em;margin:1em 0}"
        ".resolved{opacity:.55}time,small{color:#555}</style>"
        f"<h1>Notifications</h1><small>{alive}</small>{body}"
    )


def _notification(notification: Notification) -> str:
    alerts = "".join(_alert(alert) for alert in notification.alerts)
    more = f"<p>and {notification.omitted} more</p>" if notification.omitted else ""
    status = html.escape(notification.status)
    return f"<section><time>{_when(notification.received)}</time> {status}{alerts}{more}</section>"


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _name(alert: Alert) -> str:
    return _pairs(alert.get("labels")).get("alertname", "without a name")


def _alert(alert: Alert) -> str:
    labels, annotations = _pairs(alert.get("labels")), _pairs(alert.get("annotations"))
    status = "resolved" if alert.get("status") == "resolved" else "firing"
    severity = labels.get("severity", "")
    links = "".join(
        f' <a rel="noreferrer" href="{html.escape(annotations[name])}">{title}</a>'
        for name, title in (("dashboard_url", "dashboard"), ("runbook_url", "runbook"))
        if annotations.get(name, "").startswith(("http://", "https://"))  # nothing that a browser would run
    )
    shown = ", ".join(f"{name}={value}" for name, value in labels.items() if name not in {"alertname", "severity"})
    return (
        f'<article class="{status}" style="border-color:{COLOURS.get(severity, "#888")}">'
        f"<strong>{html.escape(_name(alert))}</strong> {html.escape(severity)} {status}"
        + "".join(f"<br>{html.escape(annotations.get(name, ''))}" for name in ("summary", "description", "action"))
        + f"<br><small>{html.escape(shown)}</small>{links}</article>"
    )


def _pairs(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    return {_text(name): _text(value) for name, value in list(found.items())[:MOST_ALERTS]}


def _text(value: object) -> str:
    return str(value)[:MOST_TEXT] if isinstance(value, (str, int, float)) else ""


class Receiver(ThreadingHTTPServer):
    """Stores the requests that were sent."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128  # with the library's 5, clients that come at once wait seconds for their connection

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port), ReceiverHandler)
        self.kept: deque[Notification] = deque(maxlen=MOST_KEPT)
        self.heartbeat: datetime | None = None
        self._places = threading.BoundedSemaphore(MOST_REQUESTS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Close what comes beyond the most at once: no thread is made for it."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one, and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: a client that goes away is no event."""


class ReceiverHandler(BaseHTTPRequestHandler):
    """``POST /`` takes a notification, ``GET /`` shows them, ``GET /notifications`` counts, ``/-/healthy``."""

    server: Receiver
    timeout = PATIENCE
    server_version = "receiver"

    def do_POST(self) -> None:
        """Accept one notification."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._answer(411, "a Content-Length is needed")
            return
        if int(length) > LONGEST:
            self._answer(413, f"at most {LONGEST} bytes")
            return
        try:
            notification = read(self.rfile.read(int(length)), datetime.now(timezone.utc))
        except NotANotificationError as error:
            self._answer(400, str(error))
            return
        if is_heartbeat(notification):
            self.server.heartbeat = notification.received
        else:
            self.server.kept.append(notification)
            print(f"{notification.status}: {json.dumps(sorted(set(map(_name, notification.alerts))))}", flush=True)
        self._answer(200, "kept")

    def do_GET(self) -> None:
        """Show the page, the alerts as JSON, or that this lives."""
        kept = list(self.server.kept)
        if self.path == "/":
            self._answer(200, page(kept, self.server.heartbeat), kind="text/html")
        elif self.path == "/notifications":
            shown = [{"status": notification.status, "alerts": list(notification.alerts)} for notification in kept]
            self._answer(200, json.dumps(shown), kind="application/json")
        elif self.path == "/-/healthy":
            self._answer(200, "ok")
        else:
            self._answer(404, "there is /, /notifications and /-/healthy")

    def _answer(self, code: int, text: str, *, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - http.server names it so
        """Report nothing of requests."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; exit code 1 when the address cannot be had, 2 for bad usage."""
    parser = argparse.ArgumentParser(description="Show the notifications that Alertmanager's webhook sends.")
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:9095", help="default: %(default)s")
    host, _, port = parser.parse_args(argv).listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        parser.error("--listen: expected HOST:PORT, such as 127.0.0.1:9095")
    try:
        server = Receiver(host.strip("[]"), int(port))
    except OSError as error:
        print(f"receiver: cannot listen on {host}:{port}: {error.strerror}; free the port, or take another with "
              "--listen", file=sys.stderr)  # fmt: skip
        return 1
    with server:
        print(f"notifications http://{host}:{server.server_address[1]}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
