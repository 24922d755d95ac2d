"""Shardwatch beside other exporters under the same load, one after the other in one run: figures and their ratios.

    python -m tests.bench.peers [--load W8|D8|G8|all] [--seconds N] [--stress]

Peers run where they are installed: vmagent (Debian's victoria-metrics) and a Prometheus agent (Debian's prometheus)
poll the same engines and write to a sink that drops everything; nvitop-exporter (PyPI) reads the same GPUs and no
engines.  GPUs are the C library of the test suite behind NVIDIA's own binding, which costs next to nothing, so that
what is compared are the exporters.  CPU is that of all processes over elapsed time, in percent of one core; memory is
proportional (PSS).  Figures of different runs or machines do not compare; ratios of one run do.
Without options it takes under five minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench.load import LOADS, REPLICAS, Figures, Load, engines, free_port, get, hogs, measure, running
from tests.bench.node import configuration, has_data
from tests.support.nvml_node import build

COLUMNS = (
    ("CPU %", lambda measured: measured.cpu),
    ("PSS MiB", lambda measured: measured.pss),
    ("p50 ms", lambda measured: measured.p50),
    ("p99 ms", lambda measured: measured.p99),
    ("first page s", lambda measured: measured.first_page),
    ("first data s", lambda measured: measured.first_data),
    ("series", lambda measured: measured.series),
)
SECONDS = {"W8": 15.0, "D8": 20.0, "G8": 30.0}  # D8 and G8 are scraped each 15 s


@dataclass(frozen=True)
class Setting:
    """Where a peer runs, and what it reads."""

    folder: pathlib.Path
    port: int
    engine_port: int
    sink_port: int
    load: Load


@dataclass(frozen=True)
class Peer:
    """An exporter: the program it needs, its command line, and whether it has shown data."""

    name: str
    program: str
    hint: str
    command: Callable[[str, Setting], list[str]]
    has_data: Callable[[int, Load], bool]
    reads_gpus: bool = True


def shardwatch(program: str, setting: Setting) -> list[str]:
    config = setting.folder / "shardwatch.yaml"
    text = configuration(
        setting.port, setting.engine_port, "common", setting.load.replicas, f"{setting.load.engines or 1:g}s"
    )
    config.write_text(f"{text}discovery: {{processes: false}}\n")
    return [program, "-m", "exporter", "run", "--config", str(config)]


def scrape_configuration(setting: Setting) -> pathlib.Path:
    """Write what polls the engines in Prometheus' format."""
    jobs = "".join(
        f"- {{job_name: r{i}, metrics_path: /r{i}/metrics,"
        f" static_configs: [{{targets: ['127.0.0.1:{setting.engine_port}']}}]}}\n"
        for i in range(REPLICAS)
    )
    config = setting.folder / "scrape.yaml"
    interval = f"{setting.load.engines:g}s"
    config.write_text(f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\nscrape_configs:\n{jobs}")
    return config


def vmagent(program: str, setting: Setting) -> list[str]:
    return [
        program,
        f"-promscrape.config={scrape_configuration(setting)}",
        f"-remoteWrite.url=http://127.0.0.1:{setting.sink_port}/write",
        f"-remoteWrite.tmpDataPath={setting.folder}/data",
        f"-httpListenAddr=127.0.0.1:{setting.port}",
    ]


def prometheus_agent(program: str, setting: Setting) -> list[str]:
    config = scrape_configuration(setting)
    config.write_text(f"{config.read_text()}remote_write: [{{url: 'http://127.0.0.1:{setting.sink_port}/write'}}]\n")
    return [
        program,
        "--enable-feature=agent",
        f"--config.file={config}",
        f"--storage.agent.path={setting.folder}/data",
        f"--web.listen-address=127.0.0.1:{setting.port}",
    ]


def nvitop_exporter(program: str, setting: Setting) -> list[str]:
    return [program, "--bind-address", "127.0.0.1", "--port", str(setting.port), "--interval", "1.0"]


def targets_up(port: int, load: Load) -> bool:
    return get(port, "/api/v1/targets")[2].count(b'"health":"up"') == load.replicas


PEERS = (
    Peer("shardwatch", sys.executable, "", shardwatch, lambda port, load: has_data(port, load.replicas)),
    Peer("vmagent", "vmagent", "apt install victoria-metrics", vmagent, targets_up, reads_gpus=False),
    Peer("prometheus agent", "prometheus", "apt install prometheus", prometheus_agent, targets_up, reads_gpus=False),
    Peer(
        "nvitop-exporter (GPUs only)",
        "nvitop-exporter",
        "pip install nvitop-exporter",
        nvitop_exporter,
        lambda port, _: get(port)[2].count(b"\ngpu_utilization_Percentage{") == 8,
    ),
)


class _Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def sink() -> Iterator[int]:
    """Accept remote writes and drop them; give the port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def run(peer: Peer, program: str, load: Load, seconds: float, library: pathlib.Path, *, stress: bool) -> Figures:
    """Measure one exporter alone."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(library)}
    with tempfile.TemporaryDirectory() as folder, engines() as engine_port, sink() as sink_port, hogs(stress=stress):
        port = free_port()
        command = peer.command(program, Setting(pathlib.Path(folder), port, engine_port, sink_port, load))
        started = time.perf_counter()
        with (
            open("/dev/null", "wb") as nowhere,
            running(command, stdout=nowhere, stderr=nowhere, env=environment) as process,
        ):
            return measure(process, port, load, seconds, started=started, has_data=lambda: peer.has_data(port, load))


def compare(load: Load, seconds: float, library: pathlib.Path, *, stress: bool) -> None:
    """Measure every exporter that is installed and print figures and ratios."""
    beside = ", two busy processes a core" if stress else ""
    engines_each = "no engines" if load.engines is None else f"engines each {load.engines:g} s"
    print(f"\n{load.name}: {engines_each}, {load.scrapers} scrapers each {load.scrape:g} s{beside}")
    print(f"{'':28}" + "".join(f"{title:>14}" for title, _ in COLUMNS))
    ours: list[float] = []
    for peer in PEERS:
        if not (peer.reads_gpus or load.replicas):
            continue
        program = shutil.which(peer.program, path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
        if program is None:
            print(f"{peer.name:28}  not installed: {peer.hint}")
            continue
        measured = run(peer, program, load, seconds, library, stress=stress)
        values = [read(measured) for _, read in COLUMNS]
        print(f"{peer.name:28}" + "".join(f"{value:14.2f}" for value in values), flush=True)
        if not ours:
            ours = values
        else:
            ratios = (mine / theirs if theirs else float("nan") for mine, theirs in zip(ours, values, strict=True))
            print(f"{'  shardwatch ÷ it':28}" + "".join(f"{ratio:14.2f}" for ratio in ratios), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", default="all", choices=[*sorted(LOADS), "all"])
    parser.add_argument(
        "--seconds", type=float, help="of CPU time under each load; else 15 for W8, 20 for D8, 30 for G8"
    )
    parser.add_argument("--stress", action="store_true")
    given = parser.parse_args()
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("a C compiler is needed for the library that stands in for the driver's: apt install gcc")
    with tempfile.TemporaryDirectory() as folder:
        library = build(compiler, pathlib.Path(folder) / "nvml")
        for load in LOADS.values() if given.load == "all" else (LOADS[given.load],):
            compare(load, given.seconds or SECONDS[load.name], library, stress=given.stress)


if __name__ == "__main__":
    main()
