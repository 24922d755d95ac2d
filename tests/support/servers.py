"""Real servers for tests, each a context: Prometheus, Alertmanager, a receiver of webhooks, the daemon's demo.

All listen on free loopback ports and end with their context; ``make stack`` starts them by the same code,
``compose.native``.  A program that is missing fails where CI=true and skips elsewhere: ``tool("prometheus")``.
"""

from __future__ import annotations

import contextlib
import email
import email.message
import email.policy
import http.server
import json
import queue
import socketserver
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from compose.native import servers as native
from compose.native.child import running
from tests.support.tools import tool


@dataclass
class Server:
    """Something that answers HTTP with JSON."""

    url: str

    def get(self, path, **parameters):
        query = f"?{urllib.parse.urlencode(parameters, doseq=True)}" if parameters else ""
        return self._answer(urllib.request.Request(f"{self.url}{path}{query}"))

    def post(self, path, body):
        data = json.dumps(body).encode()
        return self._answer(urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"}))

    def _answer(self, request):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{request.full_url}: {error.code} {error.read().decode()}") from error
        return json.loads(body) if body.startswith((b"{", b"[")) else body.decode()


@contextlib.contextmanager
def prometheus(config, *, folder, arguments=()):
    """Run Prometheus on a configuration (a mapping; ``rule_files`` as given), data and log below ``folder``."""
    tool("prometheus")
    with native.prometheus(Path(folder), config, data="data", arguments=arguments) as child:
        yield Server(child.url)


@contextlib.contextmanager
def alertmanager(config_file, *, folder, arguments=()):
    """Run Alertmanager alone (no cluster) on a configuration file; templates are found beside it."""
    tool("alertmanager")
    with native.alertmanager(Path(folder), Path(config_file), arguments=arguments) as child:
        yield Server(child.url)


@dataclass
class Inbox:
    """What was posted: (monotonic time, path, JSON) in order."""

    url: str = ""
    posts: list = field(default_factory=list)
    news: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)

    def wait(self, find, seconds):
        """Wait until ``found(posts)`` gives something, and give it; None when the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            if result := find(list(self.posts)):
                return result
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                return None
            with contextlib.suppress(queue.Empty):
                self.news.get(timeout=min(seconds_left, 0.5))


@contextlib.contextmanager
def webhook():
    """Receive webhooks."""
    inbox = Inbox()

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            inbox.posts.append((time.monotonic(), self.path, json.loads(body)))
            inbox.news.put(None)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")  # as Slack does; newer Alertmanagers want to read it

        def log_message(self, *arguments):
            pass

    class Quick(http.server.ThreadingHTTPServer):
        daemon_threads = True

    with Quick(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        inbox.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield inbox
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Mailbox:
    """The messages that an SMTP server without encryption accepted."""

    address: str = ""
    messages: list[email.message.EmailMessage] = field(default_factory=list)


@contextlib.contextmanager
def smtp():
    """Receive e-mail."""
    mailbox = Mailbox()

    class Handler(socketserver.StreamRequestHandler):
        timeout = 10

        def handle(self):
            self._say("220 mailbox")
            for line in self.rfile:
                match line[:4].upper():
                    case b"DATA":
                        self._say("354 go on")
                        lines = iter(self.rfile.readline, b".\r\n")
                        body = b"".join(line.removeprefix(b".") for line in lines)  # a point of its own is doubled
                        mailbox.messages.append(email.message_from_bytes(body, policy=email.policy.default))
                        self._say("250 kept")
                    case b"QUIT":
                        return self._say("221 bye")
                    case _:
                        self._say("250 ok")
            return None

        def _say(self, text):
            self.wfile.write(f"{text}\r\n".encode())

    class Quick(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Quick(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        mailbox.address = f"127.0.0.1:{server.server_address[1]}"
        try:
            yield mailbox
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def daemon(*arguments, log):
    """Run a command of the daemon (``demo --scenario X …``); gives host:port once it says where it serves."""
    command = [sys.executable, "-m", "exporter", *arguments]
    place = Path(log)
    with running(place.stem, command, place.parent, {"PYTHONPATH": str(native.ROOT)}) as child:
        yield child.wait_for(native.SERVES).removeprefix("http://")


def scratch():
    """Return a folder that is removed afterwards, as a context."""
    return tempfile.TemporaryDirectory(prefix="shardwatch-")
