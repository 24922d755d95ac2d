"""Shardwatch beside other exporters under the same load, one after the other in one run: figures and their ratios.

    python -m tests.bench.peers [--case W8|D8|W16|G8|starved|TLS] [--seconds N] [--write]

Peers run where they are installed: vmagent (Debian's victoria-metrics) and a Prometheus agent (Debian's prometheus)
poll the same engines and write to a sink that drops everything; nvitop-exporter (PyPI) reads the same GPUs and no
engines; node_exporter (Debian) reads the host.  GPUs are the C library of the test suite behind NVIDIA's own binding,
which costs next to nothing, so that what is compared are the exporters.  CPU is that of all processes over elapsed
time, in percent of one core; memory is proportional (PSS).  Figures of different runs or machines do not compare;
ratios of one run do.  All cases take a quarter of an hour.  ``--write`` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench import engines as engine_pages
from tests.bench import peers_table
from tests.bench.load import Figures, Load, engines, free_port, get, hogs, measure, running
from tests.bench.node import configuration, has_data
from tests.bench.peers_table import CASES, Case, Measured
from tests.support.nvml_node import build
from tests.support.web_config import make_keys, tls

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "performance.md"
SECONDS = {1.0: 15.0, 15.0: 30.0}  # by the interval of scrapes


@dataclass(frozen=True)
class Secured:
    """A web configuration in the format that Prometheus' programs share, its files, and a client's context."""

    web_config: pathlib.Path
    certificate: str
    key: str
    context: ssl.SSLContext


@dataclass(frozen=True)
class Setting:
    """Where a peer runs, and what it reads."""

    folder: pathlib.Path
    port: int
    engine_port: int
    sink_port: int
    load: Load
    secured: Secured | None

    def get(self, path: str = "/metrics") -> bytes:
        return get(self.port, path, tls=self.secured.context if self.secured else None)[2]


@dataclass(frozen=True)
class Peer:
    """An exporter: the program it needs, its command line, whether it has shown data, and how many series it gives."""

    name: str
    programs: tuple[str, ...]
    hint: str
    command: Callable[[str, Setting], list[str]]
    has_data: Callable[[Setting], bool]
    series: Callable[[Figures, Load], int] = lambda measured, _: measured.series

    def program(self) -> str | None:
        """Return the path of its program, in the virtual environment or elsewhere."""
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        return next(filter(None, (shutil.which(name, path=path) for name in self.programs)), None)


def shardwatch(program: str, setting: Setting) -> list[str]:
    load = setting.load
    config = setting.folder / "shardwatch.yaml"
    text = configuration(setting.port, setting.engine_port, "common", load.replicas, f"{load.engines:g}s")
    if setting.secured:
        text += f"web_config_file: {setting.secured.web_config}\n"
    config.write_text(f"{text}discovery: {{processes: false}}\n")
    return [program, "-m", "exporter", "run", "--config", str(config)]


def scrape_configuration(setting: Setting) -> pathlib.Path:
    """Write what polls the engines in Prometheus' format."""
    jobs = "".join(
        f"- {{job_name: r{i}, metrics_path: /r{i}/metrics,"
        f" static_configs: [{{targets: ['127.0.0.1:{setting.engine_port}']}}]}}\n"
        for i in range(setting.load.replicas)
    )
    config = setting.folder / "scrape.yaml"
    interval = f"{setting.load.engines:g}s"
    config.write_text(f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\nscrape_configs:\n{jobs}")
    return config


def vmagent(program: str, setting: Setting) -> list[str]:
    secured = setting.secured
    return [
        program,
        f"-promscrape.config={scrape_configuration(setting)}",
        f"-remoteWrite.url=http://127.0.0.1:{setting.sink_port}/write",
        f"-remoteWrite.tmpDataPath={setting.folder}/data",
        f"-httpListenAddr=127.0.0.1:{setting.port}",
        *(["-tls", f"-tlsCertFile={secured.certificate}", f"-tlsKeyFile={secured.key}"] if secured else []),
    ]


def _web_config(setting: Setting) -> list[str]:
    return [f"--web.config.file={setting.secured.web_config}"] if setting.secured else []


def prometheus_agent(program: str, setting: Setting) -> list[str]:
    config = scrape_configuration(setting)
    config.write_text(f"{config.read_text()}remote_write: [{{url: 'http://127.0.0.1:{setting.sink_port}/write'}}]\n")
    return [
        program,
        "--enable-feature=agent",
        f"--config.file={config}",
        f"--storage.agent.path={setting.folder}/data",
        f"--web.listen-address=127.0.0.1:{setting.port}",
        *_web_config(setting),
    ]


def nvitop_exporter(program: str, setting: Setting) -> list[str]:
    return [program, "--bind-address", "127.0.0.1", "--port", str(setting.port), "--interval", "1.0"]


def node_exporter(program: str, setting: Setting) -> list[str]:
    return [program, f"--web.listen-address=127.0.0.1:{setting.port}", *_web_config(setting)]


def targets_up(setting: Setting) -> bool:
    return setting.get("/api/v1/targets").count(b'"health":"up"') == setting.load.replicas


def forwarded(_: Figures, load: Load) -> int:
    """Return how many series of the engines are read and forwarded."""
    page = engine_pages.pages(load.ranks)[0]
    return load.replicas * sum(1 for line in page.splitlines() if line and not line.startswith(b"#"))


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "Shardwatch",
            (sys.executable,),
            "",
            shardwatch,
            lambda setting: has_data(
                setting.port, setting.load.replicas, setting.secured.context if setting.secured else None
            ),
        ),
        Peer("vmagent", ("vmagent",), "apt install victoria-metrics", vmagent, targets_up, forwarded),
        Peer("Prometheus agent", ("prometheus",), "apt install prometheus", prometheus_agent, targets_up, forwarded),
        Peer(
            "nvitop-exporter",
            ("nvitop-exporter",),
            "pip install nvitop-exporter",
            nvitop_exporter,
            lambda setting: setting.get().count(b"\ngpu_utilization_Percentage{") == 8,
        ),
        Peer(
            "node_exporter",
            ("prometheus-node-exporter", "node_exporter"),
            "apt install prometheus-node-exporter",
            node_exporter,
            lambda setting: b"\nnode_cpu_seconds_total{" in setting.get(),
        ),
    )
}


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


def run(peer: Peer, program: str, case: Case, seconds: float, library: pathlib.Path) -> Measured:
    """Measure one exporter alone."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(library)}
    with (
        tempfile.TemporaryDirectory() as name,
        engines(case.load.ranks) as engine_port,
        sink() as sink_port,
        hogs(stress=case.starved),
    ):
        folder = pathlib.Path(name)
        secured = secure(folder) if case.tls else None
        setting = Setting(folder, free_port(), engine_port, sink_port, case.load, secured)
        command = peer.command(program, setting)
        started = time.perf_counter()
        with (
            open("/dev/null", "wb") as nowhere,
            running(command, stdout=nowhere, stderr=nowhere, env=environment) as process,
        ):
            figures = measure(
                process, setting.port, case.load, seconds, started=started,
                has_data=lambda: peer.has_data(setting), tls=secured.context if secured else None,
            )  # fmt: skip
    return Measured(
        cpu=figures.cpu, pss=figures.pss, p50=figures.p50, p99=figures.p99, first_page=figures.first_page,
        first_data=figures.first_data, series=peer.series(figures, case.load),
    )  # fmt: skip


def secure(folder: pathlib.Path) -> Secured:
    """Make certificates and a web configuration that all programs but vmagent read."""
    keys = make_keys(folder)
    path = folder / "web.yml"
    path.write_text(tls(keys))
    context = ssl.create_default_context(cafile=keys.path("ca.pem"))
    return Secured(path, keys.path("server.pem"), keys.path("server.key"), context)


def compare(case: Case, seconds: float, library: pathlib.Path) -> dict[str, Measured]:
    """Measure every exporter that takes part and is installed; print figures and ratios as they come."""
    print(f"\n{case.name}: {case.description}")
    print(f"{'':28}" + "".join(f"{title:>16}" for title in peers_table.COLUMNS))
    found: dict[str, Measured] = {}
    for name in case.peers:
        program = PEERS[name].program()
        if program is None:
            print(f"{name:28}  not installed: {PEERS[name].hint}")
            continue
        measured = found[name] = run(PEERS[name], program, case, seconds, library)
        print(f"{name:28}" + "".join(f"{cell:>16}" for cell in peers_table.cells(measured)), flush=True)
        if name != "Shardwatch":
            ratios = peers_table.ratios(found["Shardwatch"], measured)
            print(f"{'  Shardwatch ÷ it':28}" + "".join(f"{ratio:16.2f}" for ratio in ratios), flush=True)
    return found


def versions() -> dict[str, str]:
    """Return the version of each peer's program, as far as it is installed."""
    found = {}
    for name, peer in PEERS.items():
        program = peer.program()
        if program is None or name == "Shardwatch":
            continue
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        match = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
        found[name] = match[0] if match else peers_table.debian_version(peer.hint.rpartition(" ")[2])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument(
        "--seconds", type=float, help="of CPU time in each case; else 15, or 30 where scrapes are rare"
    )
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/performance.md; takes all cases"
    )
    given = parser.parse_args()
    compiler = shutil.which("cc")
    if compiler is None:
        parser.exit(2, "a C compiler is needed for the library that stands in for the driver's: apt install gcc\n")
    chosen = [case for case in CASES if given.write or not given.case or case.name in given.case]
    with tempfile.TemporaryDirectory() as folder:
        library = build(compiler, pathlib.Path(folder) / "nvml")
        results = {case.name: compare(case, given.seconds or SECONDS[case.load.scrape], library) for case in chosen}
    if given.write:
        missing = {name for case in CASES for name in case.peers if name not in results[case.name]}
        if missing:
            parser.exit(
                1, f"not written, because the table has every exporter: {', '.join(sorted(missing))} missing\n"
            )
        table = peers_table.render(results, peers_table.machine(), versions())
        DOCUMENT.write_text(peers_table.replaced(DOCUMENT.read_text(), table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
