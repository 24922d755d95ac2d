"""What the tests of the fault matrix share: engines that turn hostile, the daemon as a process, and its page taken apart.

``Program`` is the daemon as its user runs it, with simulated cards where a plan for them is given.  ``Rig`` is the same
daemon without threads and sockets: pages go in, the clock is the test's, the page comes out.  ``Figures`` is a page.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from builders import Clock
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import exporter.app
import tests.hostile_pages  # noqa: F401 - whose faults are served by name
from exporter.errors import EndpointError
from exporter.settings import parse
from exporter.sources.replay import ReplayedPage
from tests.hostile import FAULTS, Peer, fault

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPENMETRICS = "application/openmetrics-text;version=1.0.0"

# ---------------------------------------------------------------------- engines


def living_page(
    seconds: float,
    *,
    model: str = "m",
    rank: str = "0",
    edges: tuple[float, ...] = (0.1, 1.0, 10.0),
    prefix: str = "vllm:",
    rate: float = 1000.0,
) -> bytes:
    """The page of an engine that generates ``rate`` tokens a second, ``seconds`` after its start."""
    labels = f'engine="{rank}",model_name="{model}"'
    requests = int(rate / 100 * seconds)
    numbers = {
        "num_requests_running": 3.0,
        "num_requests_waiting": 1.0,
        "kv_cache_usage_perc": 0.5,
        "generation_tokens_total": int(rate * seconds),
        "prompt_tokens_total": int(5 * rate * seconds),
        "prefix_cache_queries_total": int(5 * rate * seconds),
        "prefix_cache_hits_total": int(3 * rate * seconds),
    }
    lines = [f"{prefix}{name}{{{labels}}} {number}" for name, number in numbers.items()]
    lines.append(f'{prefix}request_success_total{{{labels},finished_reason="stop"}} {requests}')
    family = f"{prefix}time_to_first_token_seconds"
    share = [(index + 1) / (len(edges) + 1) for index in range(len(edges))] + [1.0]
    for edge, part in zip([*map(str, edges), "+Inf"], share, strict=True):
        lines.append(f'{family}_bucket{{{labels},le="{edge}"}} {int(requests * part)}')
    lines += [f"{family}_sum{{{labels}}} {requests * 0.3}", f"{family}_count{{{labels}}} {requests}"]
    return ("\n".join(lines) + "\n").encode()


STARTED = time.monotonic()


def living(peer: Peer) -> None:
    """A good page whose counters grow with the time."""
    peer.keep = True
    peer.reply(living_page(time.monotonic() - STARTED))


def closing(peer: Peer) -> None:
    """A good page, and then the connection is closed although it was to be kept."""
    peer.reply(living_page(time.monotonic() - STARTED))


FAULTS["living"] = living
FAULTS["closing"] = closing


@fault
def authorized(peer: Peer) -> None:
    """A good page for whoever brings a token, which is remembered."""
    peer.server.state[f"token {b'Bearer' in peer.request}"] = 1
    if b"\r\nAuthorization: Bearer " in peer.request:
        living(peer)
    else:
        FAULTS["status_401"](peer)


@fault
def turned(peer: Peer) -> None:
    """``/turned/NAME/FAULT`` is a living engine until ``state["turned"]`` or ``state[NAME]`` is set, then it is FAULT."""
    _, _, name, word = peer.path.partition("?")[0].split("/")
    state = peer.server.state
    if state.get("turned") or state.get(name):
        FAULTS[word](peer)
    else:
        living(peer)


@fault
def explosion(peer: Peer) -> None:
    """50,000 series that nobody has seen before, behind a good page."""
    peer.server.state["explosions"] = number = peer.server.state.get("explosions", 0) + 1
    new = b"".join(b'vllm:x_total{a="%d",b="%d"} 1\n' % (number, index) for index in range(50_000))
    peer.reply(living_page(time.monotonic() - STARTED) + new)


def _odd(change: Callable[[bytes], bytes]) -> Callable[[Peer], None]:
    def serve(peer: Peer) -> None:
        peer.keep = True
        peer.reply(change(living_page(time.monotonic() - STARTED)))

    return serve


# Pages that are used in part: fault → (row, what is done to a good page, reason that is counted).  Tokens are untouched.
ODD_PAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "odd_cut": ("E22", lambda page: page[: page.index(b"prefix_cache_queries") + 9], "unreadable"),
    "odd_crlf": ("E22", lambda page: page.replace(b"\n", b"\r\n")[:-2], ""),
    "odd_line": ("E23", lambda page: page + b"this is no sample\n", "unreadable"),
    "odd_value": ("E23", lambda page: page + b'vllm:num_requests_swapped{engine="0"} twelve\n', "bad_value"),
    "odd_bytes": ("E24", lambda page: page + b'vllm:num_requests_swapped{engine="\xff\x00"} 1\n', "unreadable"),
    "odd_nan": ("E25", lambda page: page.replace(b"} 3.0\n", b"} NaN\n"), "bad_number"),
    "odd_twice": ("E26", lambda page: page + page.replace(b"} ", b"} 9"), "duplicate"),
    "odd_label": ("E27", lambda page: page + b'vllm:num_requests_swapped{a="",a=""} 1\n', "unreadable"),
    "odd_types": ("E28", lambda page: b"# TYPE vllm:generation_tokens_total histogram\n" * 9 + page, ""),
    "odd_buckets": ("E29", lambda page: page.replace(b'le="+Inf"', b'le="99"'), "no_inf_bucket"),
    "odd_stamps": ("E30", lambda page: page.replace(b"\n", b" 99999999999999\n"), ""),
    "odd_length": ("E32", lambda page: page + b'vllm:x{a="' + b"x" * 900_000 + b'"} 1\n', "long_line"),
    "odd_escapes": ("E33", lambda page: page.replace(b'"m"', b'"\\"\\\\\\n}{,="'), ""),
    "odd_exemplars": ("E34", lambda page: page.replace(b"\n", b' # {a="b"} 1 2\n') + b"# EOF\n", ""),
}
FAULTS.update({name: _odd(change) for name, (_, change, _) in ODD_PAGES.items()})


# ---------------------------------------------------------------------- the page


_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Figures:
    """One page: ``at`` is when it came (Unix time).  Made only of pages without repeated series and without NaN."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, time.time()
        self.rows: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for line in text.split("\n"):
            if not line or line.startswith("#"):
                continue
            found = _LINE.match(line)
            assert found, f"no sample: {line!r}"
            key = (found[1], tuple(_LABEL.findall(found[2] or "")))
            number = float(found[3])
            assert key not in self.rows, f"twice on one page: {line!r}"
            assert math.isfinite(number), f"not finite: {line!r}"
            self.rows[key] = number

    def all(self, name: str, **labels: str) -> list[float]:
        wanted = set(labels.items())
        return [value for (found, have), value in self.rows.items() if found == name and wanted <= set(have)]

    def one(self, name: str, **labels: str) -> float:
        found = self.all(name, **labels)
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0]

    def labels(self, name: str, label: str, **labels: str) -> set[str]:
        wanted = set(labels.items())
        return {dict(have)[label] for found, have in self.rows if found == name and wanted <= set(have)}

    def reason(self, engine: str) -> str:
        """Why a replica is down; empty when it is up."""
        found = self.labels("shardwatch_source_down_info", "reason", source=f"engine:{engine}")
        assert len(found) <= 1, found
        return found.pop() if found else ""

    def families_of(self, engine: str) -> set[str]:
        return {name for name, have in self.rows if dict(have).get("replica") == engine}


# All that may be said of a replica that is down.
HEALTH = {
    "llm_up",
    "llm_scrape_duration_seconds",
    "llm_data_age_seconds",
    "llm_restarts_total",
    "llm_certificate_expiry_timestamp_seconds",
    "gpu_replica_info",
    "shardwatch_replica_unassigned_info",
}


def strictly(text: str, openmetrics: str | None = None) -> None:
    """Read the page with prometheus_client's parsers, the strict one included."""
    assert list(parse_text(text))
    if openmetrics is not None:
        assert list(parse_openmetrics(openmetrics))


def promtool_is_content(promtool: str, page: str) -> None:
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ---------------------------------------------------------------------- the daemon as a process

_WITH_CARDS = """\
import sys
from exporter import cli
from exporter.app import App, Driver
read = lambda: cli._read(sys.argv[1])
settings = read()
cli._log_to_stderr(settings.log)
driver = Driver(module="tests.fake_nvml", options=sys.argv[2])
sys.exit(cli._serve(App(settings, driver=driver, reread=read)))
"""


def bare_environment(**more: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWATCH_")}
    return {**environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", **more}


class Program:
    """A started daemon.  ``plan``: a file for ``fake_nvml``; without one there are no cards to read."""

    def __init__(self, config: pathlib.Path, plan: pathlib.Path | None = None, **environ: str) -> None:
        command = [sys.executable, "-m", "exporter", "run", "--config", str(config)]
        if plan is not None:
            command = [sys.executable, "-c", _WITH_CARDS, str(config), str(plan)]
        self.log: list[str] = []
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
            env=bare_environment(**environ),
        )  # fmt: skip
        self.pid = self.process.pid
        self._listening = threading.Event()
        self.port = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._listening.wait(30), "".join(self.log)
        assert self.port, "".join(self.log)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"event=listening address=\S+?:(\d+) ", line)
            if found:
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()

    def get(self, path: str = "/metrics", accept: str = "*/*", method: str = "GET") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, headers={"Accept": accept})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def page(self) -> Figures:
        status, text = self.get()
        assert status == 200, text
        return Figures(text)

    def wait_for(self, condition: Callable[[Figures], object], seconds: float = 20.0) -> Figures:
        deadline = time.monotonic() + seconds
        while True:
            status, text = self.get()
            page = Figures(text) if status == 200 else None
            if page is not None and condition(page):
                return page
            assert time.monotonic() < deadline, _in_short(text) + "".join(self.log[-20:])
            time.sleep(0.05)

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def resident(self) -> float:
        """In MiB."""
        return resident_of(self.pid)

    def children(self) -> list[int]:
        found = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(OSError):
                found += [
                    int(pid) for pid in pathlib.Path(f"/proc/{self.pid}/task/{task}/children").read_text().split()
                ]
        return found

    def text(self) -> str:
        return "".join(self.log)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; give the exit code and the seconds it took, at most ten."""
        begun = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(10)
        seconds = time.monotonic() - begun
        self._reader.join(5)
        return code, seconds

    def clean(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self.process.kill()
        self.process.wait(10)
        self._reader.join(5)
        if self.process.stderr is not None:
            self.process.stderr.close()


def _in_short(page: str) -> str:
    starts = ("llm_up", "gpu_up", "shardwatch_source_down", "shardwatch_source_failures", "shardwatch_loop")
    return "".join(f"{line}\n" for line in page.splitlines() if line.startswith(starts))


def resident_of(pid: int) -> float:
    found = re.search(r"^VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) / 1024


def alive(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def configure(
    folder: pathlib.Path,
    engines: Iterable[tuple[str, str]],
    *,
    pace: str = "interval: 1s, timeout: 800ms",
    more: dict[str, str] | None = None,
    extra: str = "",
) -> pathlib.Path:
    """Write a configuration; ``more`` is added to the engine of that name, ``extra`` to the whole."""
    lines = [f"  - {{name: {name}, url: '{url}', {pace}{(more or {}).get(name, '')}}}" for name, url in engines]
    head = "listen: 127.0.0.1:0\ndiscovery: {processes: false}\nwindows: [10s]\nquantiles: [0.5]\n"
    path = folder / "shardwatch.yaml"
    whole = head + extra + ("engines:\n" + "\n".join(lines) + "\n" if lines else "")
    replacement = folder / "shardwatch.new"
    replacement.write_text(whole)
    replacement.replace(path)  # a daemon that reads it meanwhile sees the old or the new one, never half
    return path


def cards(folder: pathlib.Path, **plan: object) -> pathlib.Path:
    """Write a plan of ``fake_nvml``."""
    path, new = folder / "cards.json", folder / "cards.new"
    new.write_text(json.dumps(plan))
    new.replace(path)
    return path


# ---------------------------------------------------------------------- the daemon without threads and sockets


class Scripted:
    """In place of an endpoint: each call of the test's function is one exchange; None is a refusal."""

    def __init__(self, pages: Callable[[], bytes | None]) -> None:
        self._pages = pages

    def fetch(self, path: str | None = None) -> ReplayedPage:
        page = self._pages() if path is None else None
        if page is None:
            raise EndpointError("refused", "as the test wants it")
        return ReplayedPage(body=page)

    def close(self) -> None:
        pass


class Rig:
    """The daemon with engines that are functions; ``turn`` is one second of its life."""

    def __init__(
        self,
        engines: dict[str, Callable[[], bytes | None]],
        *,
        kind: str = "vllm",
        wall: Callable[[], float] | None = None,
        series: str = "full",
        clock: Clock | None = None,
    ) -> None:
        text = (
            f"listen: 127.0.0.1:0\ngpu: {{enabled: false}}\nseries: {series}\nwindows: [1m]\nquantiles: [0.5, 0.99]\n"
        )
        rows = [f"  - {{name: {name}, kind: {kind}, url: 'http://127.0.0.1:9/{name}'}}\n" for name in engines]
        settings = parse(text + "engines:\n" + "".join(rows), "rig", {})
        self.clock = clock or Clock()
        wall = wall or (lambda: 1.7e9 + self.clock.now)
        self.app = exporter.app.App(settings, clock=self.clock, wall=wall)
        for engine in settings.engines:
            poller = self.app._make_replica(engine)
            poller._fetcher = Scripted(engines[engine.name])
            self.app._replicas[engine] = poller

    def turn(self, seconds: float = 1.0, publish: bool = True) -> None:
        self.clock.tick(seconds)
        for poller in self.app._replicas.values():
            poller.poll()
        if publish:
            self.app.publisher.turn()

    def bytes(self, *, openmetrics: bool = False) -> bytes:
        body = self.app.pages.page(openmetrics=openmetrics, gzip=False)
        assert body is not None
        return body

    def page(self) -> Figures:
        return Figures(self.bytes().decode())

    def checked(self) -> Figures:
        """Give the page, having read both formats strictly."""
        page = self.page()
        strictly(page.text, self.bytes(openmetrics=True).decode())
        return page


@contextlib.contextmanager
def programs() -> Iterator[Callable[..., Program]]:
    """Start daemons that end with the block."""
    started: list[Program] = []

    def start(*arguments: object, **environ: str) -> Program:
        program = Program(*arguments, **environ)  # type: ignore[arg-type]
        started.append(program)
        return program

    try:
        yield start
    finally:
        for program in started:
            program.clean()
