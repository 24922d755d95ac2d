"""Serves the pages of many nodes: real daemons on simulated nodes give the figures, templates the identities.

Node ``n`` is at ``/node/n/metrics``, from the daemon ``n`` modulo their number.  Counters move as they do there,
because each daemon's page is fetched anew every few seconds; a node whose daemon has died answers 503.
"""

from __future__ import annotations

import gzip
import logging
import threading
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from compose.fleet.template import Template, template

logger = logging.getLogger(__name__)
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PATIENCE = 5.0  # seconds for one fetch of a daemon's page, and for a scraper to take its answer


class Originals:
    """The newest page of each daemon, as a template."""

    def __init__(self, urls: Sequence[str]) -> None:
        """``urls`` are the metrics pages of the daemons."""
        self._urls = tuple(urls)
        self._templates: tuple[Template | None, ...] = ()

    def refresh(self) -> None:
        """Fetch every daemon's page once."""
        self._templates = tuple(map(self._fetched, self._urls))

    def page(self, node: int) -> bytes | None:
        """Return the page of a node; None when its daemon gave none last time."""
        template = self._templates[node % len(self._templates)]
        return template.page(node) if template else None

    @staticmethod
    def _fetched(url: str) -> Template | None:
        try:
            with _direct.open(url, timeout=PATIENCE) as answer:
                return template(answer.read())
        except OSError as error:
            logger.warning("event=original_gone url=%s error=%s", url, error)
            return None


class Nodes:
    """The server; use it as a context.  ``port`` says where it listens, on loopback."""

    def __init__(self, originals: Originals, count: int, *, port: int = 0, every: float = 5.0) -> None:
        """Serve ``count`` nodes; fetch the daemons' pages anew ``every`` so many seconds."""
        self._originals = originals
        self._every = every
        self._over = threading.Event()
        self._server = _NodeServer(("127.0.0.1", port), _handler(originals, count))
        self.port: int = self._server.server_address[1]
        self._threads = (
            threading.Thread(target=self._server.serve_forever, args=(0.2,)),
            threading.Thread(target=self._keep_fresh),
        )

    def __enter__(self) -> Nodes:  # noqa: PYI034 - typing.Self is younger than the oldest Python we serve
        """Fetch once, then serve."""
        self._originals.refresh()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the threads."""
        self._over.set()
        self._server.shutdown()
        for thread in self._threads:
            thread.join()
        self._server.server_close()

    def _keep_fresh(self) -> None:
        while not self._over.wait(self._every):
            self._originals.refresh()


class _NodeServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # a scraper may ask for all of them at once


def _handler(originals: Originals, count: int) -> type[BaseHTTPRequestHandler]:
    class NodesHandler(BaseHTTPRequestHandler):
        """Answers one scrape per connection: a thousand kept-alive ones would be a thousand threads."""

        timeout = PATIENCE

        def do_GET(self) -> None:
            node = _node_of(self.path)
            if node is None or node >= count:
                self.send_error(404)
                return
            page = originals.page(node)
            if page is None:
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            if "gzip" in self.headers.get("Accept-Encoding", ""):
                page = gzip.compress(page, compresslevel=1, mtime=0)  # as the daemon does
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
            """Report nothing of each scrape."""

    return NodesHandler


def _node_of(path: str) -> int | None:
    parts = path.split("/")
    if len(parts) == 4 and parts[1] == "node" and parts[2].isdecimal() and parts[3] == "metrics":
        return int(parts[2][:9])
    return None
