"""What the node web page costs: bytes of curves, time to render, sizes, first paint, and CPU with 0, 1 and 20 viewers.

    python -m tests.bench.web_page [--seconds 20]

W8: eight simulated GPUs and eight replicas, polled each second.  A viewer asks each second, as the script does: the
page with its curves once in five times, without them otherwise, compressed.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import http.server
import shutil
import statistics
import sys
import tempfile
import threading
import time

from exporter.model.text import Language
from exporter.web.assets import TYPES, asset
from exporter.web.html import HtmlWriter
from exporter.web.page import build
from tests.bench.load import REPLICAS, engines, free_port, get, running
from tests.bench.machine import cpu_seconds, percentile
from tests.bench.node import LAUNCH, configuration, driver_options, has_data
from tests.support.web_node import NODE, big_node

ACCEPT = {"Accept": "text/html", "Accept-Encoding": "gzip"}
REPEAT = 50
PAINTS = 9
FIRST_PAINT = """() => new Promise(done => {
  const look = () => {
    const entry = performance.getEntriesByName("first-contentful-paint")[0];
    entry ? done(entry.startTime) : setTimeout(look, 20);
  };
  look();
})"""


class Viewer(threading.Thread):
    """Asks as the page's script does, and keeps the times of the answers."""

    def __init__(self, port: int, phase: float) -> None:
        super().__init__(daemon=True)
        self._port, self._phase, self.over = port, phase, threading.Event()
        self.times: list[float] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        self.over.wait(self._phase)
        asked = 0
        while not self.over.is_set():
            begun = time.perf_counter()
            connection.request("GET", "/?curves=0" if asked % 5 else "/", headers=ACCEPT)
            connection.getresponse().read()
            self.times.append(time.perf_counter() - begun)
            asked += 1
            self.over.wait(max(0.0, 1.0 - (time.perf_counter() - begun)))


def rendering() -> None:
    """Print bytes and milliseconds of CPU of a small and a large node."""
    print("node                     curves  plain    gzip     render  compress")
    for gpus, replicas in ((8, 8), (64, 32)):
        snapshot, history = big_node(gpus, replicas)
        writer = HtmlWriter(history)
        for curves in (True, False):
            times = []
            for _ in range(REPEAT):
                begun = time.thread_time()
                page = build(snapshot, history.events, Language.ENGLISH, node=NODE, age=1.0)
                body = writer.write(page, curves=curves).encode()
                rendered = time.thread_time()
                packed = gzip.compress(body, compresslevel=1)
                times.append((rendered - begun, time.thread_time() - rendered))
            render, compress = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
            print(
                f"{gpus:3} GPUs, {replicas:2} replicas   {'yes' if curves else 'no ':6}"
                f"{len(body):8} {len(packed):7}  {render:6.2f} ms {compress:6.2f} ms"
            )
        print(f"                         curves kept: {history.size} bytes")
    for name in TYPES:
        print(f"{name:24} {len(asset(name).plain):12} {len(asset(name).gzip):7}")


def viewers(seconds: float) -> None:
    """Print the daemon's CPU and the latency of scrapes for each number of viewers."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file, engines() as engine_port:
        file.write(configuration(port, engine_port, "common", REPLICAS))
        file.flush()
        with (
            open("/dev/null", "wb") as nowhere,
            running([sys.executable, "-c", LAUNCH, file.name, driver_options()], stderr=nowhere) as daemon,
        ):
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not _ready(port):
                time.sleep(0.1)
            time.sleep(10)
            base = 0.0
            for number in (0, 1, 20, 0):
                watching = [Viewer(port, 1.0 * index / number) for index in range(number)]
                for viewer in watching:
                    viewer.start()
                begun, spent = time.monotonic(), cpu_seconds([daemon.pid])
                scrapes = []
                while time.monotonic() < begun + seconds:
                    scrapes.append(get(port)[0])
                    time.sleep(0.25)
                used = 100 * (cpu_seconds([daemon.pid]) - spent) / (time.monotonic() - begun)
                for viewer in watching:
                    viewer.over.set()
                base = base or used
                answers = [answer for viewer in watching for answer in viewer.times] or [0.0]
                print(
                    f"{number:3} viewers  daemon {used:5.2f} % of a core (+{used - base:.2f})  scrape p50 "
                    f"{1e3 * statistics.median(scrapes):.2f} ms p99 {1e3 * percentile(scrapes, 0.99):.1f} ms  "
                    f"page p50 {1e3 * statistics.median(answers):.1f} ms"
                )
            if shutil.which("chromium"):
                first_paint(port)


def _ready(port: int) -> bool:
    try:
        return has_data(port)
    except OSError:
        return False


class _Trivial(http.server.BaseHTTPRequestHandler):
    """A page of one word: what remains is the browser's own time."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"<!DOCTYPE html><title>t</title><p>text"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def first_paint(port: int) -> None:
    """Print the time from the navigation's start to the first contentful paint in Chromium, beside a trivial page's."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as started, http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Trivial) as trivial:
        threading.Thread(target=trivial.serve_forever, daemon=True).start()
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        ports = {"node web page": port, "trivial page": trivial.server_address[1]}
        paints: dict[str, list[float]] = {name: [] for name in ports}
        for _ in range(PAINTS):
            for name, shown in ports.items():
                page.goto(f"http://127.0.0.1:{shown}/")
                paints[name].append(page.evaluate(FIRST_PAINT))
        browser.close()
        trivial.shutdown()
    for name, times in paints.items():
        print(
            f"first contentful paint, {name}: {min(times):.0f} ms fastest, {statistics.median(times):.0f} ms median"
        )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    rendering()
    viewers(given.seconds)


if __name__ == "__main__":
    main()
