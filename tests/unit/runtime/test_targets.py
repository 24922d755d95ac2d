"""Where an engine's own paths are, beside its metrics."""

from __future__ import annotations

import http.server
import threading

import pytest

from exporter.http.client.client import Target
from exporter.runtime.poll.targets import EngineClient, path_prefix


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("http://host:8000/metrics", ""),
        ("http://host:8000", ""),
        ("http://host:8000/", ""),
        ("http://host/tgi-a/metrics", "/tgi-a"),
        ("http://host/a/b/metrics/", "/a/b"),
        ("http://host:8000/prometheus/metrics", ""),
        ("http://host/trt/prometheus/metrics?x=1", "/trt"),
        ("http://host/v/scrape", "/v"),
    ],
)
def test_the_path_before_the_metrics_is_the_engines_own(url, prefix):
    assert path_prefix(url) == prefix


def test_engines_behind_one_host_are_each_asked_below_their_own_path():
    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f'{{"model_id": "{self.path}"}}'.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for name in ("/tgi-a", "/tgi-b", ""):
            client = EngineClient(Target(url=f"http://127.0.0.1:{server.server_port}{name}/metrics", timeout=5.0))
            assert client.fetch("/info").body == f'{{"model_id": "{name}/info"}}'.encode()
            client.close()
    finally:
        server.shutdown()
        server.server_close()
