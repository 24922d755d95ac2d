"""CPU time and bytes of one push at W8, beside one scrape of the same snapshot.

    python -m tests.bench.push [--series common|full] [--rounds 60]

Eight GPUs and eight replicas behind one snapshot; a receiver on loopback that reads and answers 204.  Prints medians.
CPU is that of this process without the receiver's thread.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import statistics
import threading
import time
from contextlib import closing

from exporter.catalog.spec import SeriesSet
from exporter.http.client.post import PostClient
from exporter.http.client.target import Target
from exporter.model.push import PushAnswer
from exporter.render.exposition import ExpositionRenderer
from exporter.render.push import push_format
from exporter.sources import process_metrics
from tests.bench.snapshot import node
from tests.support.builders import Clock

LABELS = {"job": "shardwatch", "instance": "gpu-node-7:9853"}
WARM_UP = 5  # seconds of the node, and rounds


class Receiver(http.server.BaseHTTPRequestHandler):
    """Reads and accepts."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log no request."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", choices=("common", "full"), default="common")
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    clock = Clock()
    publisher, pollers = node(SeriesSet(given.series), clock)
    renderer = ExpositionRenderer(openmetrics=False, series=SeriesSet(given.series))
    two, one, otlp = (
        push_format(protocol, LABELS, given.series, process_metrics.families)
        for protocol in ("remote_write", "remote_write", "otlp")
    )
    one.judge(PushAnswer(status=415), 1)  # from now on it speaks 1.0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    target = Target(url=f"http://127.0.0.1:{server.server_address[1]}/write", timeout=10)
    spent: dict[str, list[tuple[float, int]]] = {}

    def timed(what: str, work) -> bytes:
        started = time.thread_time()
        body = work()
        spent.setdefault(what, []).append(((time.thread_time() - started) * 1e3, len(body)))
        return body

    with closing(PostClient(target, headers={}, header_files={})) as client:
        for _ in range(given.rounds + WARM_UP):
            clock.tick(1.0)
            for poller in pollers:
                poller.poll()
            snapshot = publisher.compose()
            timed("scrape, rendered and gzip", lambda: _page(renderer, snapshot))  # noqa: B023 - called at once
            for name, form in (("remote write 2.0", two), ("remote write 1.0", one), ("OTLP", otlp)):
                body = timed(f"{name}, encoded", lambda: form.wire(form.read(snapshot, 0)[0]))  # noqa: B023
                timed(f"{name}, posted", lambda: _posted(client, body, form.headers))  # noqa: B023
    server.shutdown()
    for what, rounds in spent.items():
        cpu, size = (statistics.median(column) for column in zip(*rounds[WARM_UP:], strict=True))
        print(f"{what:28} {cpu:7.2f} ms {f'{size:9.0f} bytes' if size else ''}")
    print(f"{len(renderer.render(snapshot).body.splitlines())} lines, set {given.series}")


def _page(renderer: ExpositionRenderer, snapshot) -> bytes:
    return gzip.compress(renderer.render(snapshot, process_metrics.exposition(False)).body, compresslevel=1, mtime=0)


def _posted(client: PostClient, body: bytes, headers) -> bytes:
    assert client.post(body, headers).status == 204
    return b""


if __name__ == "__main__":
    main()
