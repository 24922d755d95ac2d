"""The daemon with GPUs from a dcgm-exporter over HTTP: metrics, the replica on them, and an exporter that goes away."""

from __future__ import annotations

import contextlib
import http.server
import threading

from exporter.config.settings import parse
from exporter.runtime.app import App
from tests.support.gpu_page_probe import capture
from tests.support.waiting import until

VLLM = b'vllm:num_requests_running{model_name="m"} 1.0\nvllm:generation_tokens_total{model_name="m"} 5.0\n'


@contextlib.contextmanager
def served(pages):
    """Serve the pages of a mapping, path → body, which may change; None is an error."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802 - the library's name
            body = pages.get(self.path)
            self.send_response(200 if body is not None else 503)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def daemon(text):
    app = App(parse(f"kernel_log: {{enabled: false}}\n{text}", "t", {}))
    app.start()
    try:
        yield app
    finally:
        app.stop()


def lines(app, *beginnings):
    page = app.pages.page(openmetrics=False, gzip=False)
    return [line for line in (page or b"").decode().splitlines() if line.startswith(beginnings)]


def values(app, beginning):
    return [float(line.rpartition(" ")[2]) for line in lines(app, beginning)]


def test_gpus_of_an_exporter_are_gpus_of_the_node_until_it_goes_away():
    pages = {"/dcgm": capture("dcgm-4.4-documented"), "/vllm": VLLM}
    with served(pages) as url:
        text = f"gpu: {{pages: [{{url: '{url}/dcgm', name: dcgm, interval: 200ms}}]}}\n"
        text += f"engines: [{{url: '{url}/vllm', name: chat, gpus: [0], interval: 200ms}}]\n"
        with daemon(text) as app:
            assert app.cards is None, "the driver is not loaded"
            until(lambda: len(lines(app, "gpu_replica_info{")) == 1)
            (replica,) = lines(app, "gpu_replica_info{")
            assert 'gpu="0"' in replica and 'replica="chat"' in replica
            assert len(lines(app, "gpu_power_watts{")) == 2
            assert values(app, "gpu_up{") == [1, 1]
            assert values(app, 'shardwatch_source_up{source="gpu_page:dcgm"}') == [1]

            pages["/dcgm"] = None
            until(lambda: values(app, "gpu_up{") == [0, 0])
            assert lines(app, "gpu_power_watts{") == []
            assert values(app, 'shardwatch_source_up{source="gpu_page:dcgm"}') == [0]
            assert not [finding for finding in app.publisher.snapshot.findings if finding.id == "GpuLost"]

            pages["/dcgm"] = capture("dcgm-4.9-documented")
            until(lambda: values(app, "gpu_up{") == [1, 1])
            assert len(lines(app, "gpu_power_watts{")) == 2
