"""The daemon for the tests of the fault matrix, twice: as a process, and as a harness without threads and sockets.

``Program`` is the daemon as its user runs it, with simulated cards where a plan for them is given.  ``Harness`` takes pages
from functions, its clock is the test's, and the page comes out.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import exporter.runtime.app
from exporter.config.settings import parse
from exporter.errors import EndpointError
from exporter.sources.replay import ReplayedPage
from tests.support.builders import Clock
from tests.support.page_figures import Figures, strictly
from tests.support.waiting import CEILING

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPENMETRICS = "application/openmetrics-text;version=1.0.0"

# ---------------------------------------------------------------------- the daemon as a process

_WITH_CARDS = """\
import sys
from exporter.cli.daemon import serve
from exporter.cli.setup import log_to_stderr, read_settings
from exporter.runtime.app import App, Driver
read = lambda: read_settings(sys.argv[1])
settings = read()
log_to_stderr(settings.log)
driver = Driver(module="tests.support.fake_nvml", options=sys.argv[2])
sys.exit(serve(App(settings, driver=driver, reread=read)))
"""


def bare_environment(**more: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWATCH_")}
    return {**environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", **more}


class Program:
    """A started daemon.  ``plan``: a file for ``fake_nvml``; without one there are no cards to read.

    ``under``: a command that executes the daemon, such as ``prlimit`` with limits.
    """

    def __init__(
        self, config: pathlib.Path, plan: pathlib.Path | None = None, *, under: Sequence[str] = (), **environ: str
    ) -> None:
        command = [*under, sys.executable, "-m", "exporter", "run", "--config", str(config)]
        if plan is not None:
            command = [*under, sys.executable, "-c", _WITH_CARDS, str(config), str(plan)]
        self.log: list[str] = []
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
            env=bare_environment(**environ),
        )  # fmt: skip
        self.pid = self.process.pid
        self._listening, self._reading = threading.Event(), threading.Event()
        self._reading.set()
        self.port = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._listening.wait(CEILING)
        if not self.port:
            self.clean()  # nobody else knows of it
            raise AssertionError("the daemon does not listen: " + "".join(self.log))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            match = re.search(r"event=listening address=\S+?:(\d+) ", line)
            if match:
                self.port = int(match[1])
                self._listening.set()
            self._reading.wait()
        self._listening.set()

    def stop_reading(self) -> None:
        """Read standard error no more, and let the pipe hold one page of memory."""
        assert self.process.stderr is not None
        fcntl.fcntl(self.process.stderr.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        self._reading.clear()

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

    def wait_for(self, condition: Callable[[Figures], object], seconds: float = CEILING) -> Figures:
        deadline = time.monotonic() + seconds
        while True:
            status, text = self.get()
            page = Figures(text) if status == 200 else None
            if page is not None and condition(page):
                return page
            if time.monotonic() >= deadline:
                log = "".join(self.log[-20:])
                raise AssertionError(f"not so within {seconds:g} s; last seen:\n{_in_short(text)}{log}")
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
        pids = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(OSError):
                pids += [
                    int(pid) for pid in pathlib.Path(f"/proc/{self.pid}/task/{task}/children").read_text().split()
                ]
        return pids

    def text(self) -> str:
        return "".join(self.log)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; return the exit code and the seconds it took."""
        begun = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(CEILING)
        seconds = time.monotonic() - begun
        self._reading.set()
        self._reader.join(5)
        return code, seconds

    def clean(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self.process.kill()
        self.process.wait(10)
        self._reading.set()
        self._reader.join(5)
        if self.process.stderr is not None:
            self.process.stderr.close()


def _in_short(page: str) -> str:
    starts = ("llm_up", "gpu_up", "shardwatch_source_down", "shardwatch_source_failures", "shardwatch_loop")
    return "".join(f"{line}\n" for line in page.splitlines() if line.startswith(starts))


def resident_of(pid: int) -> float:
    match = re.search(r"^VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match
    return int(match[1]) / 1024


def alive(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


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


class Harness:
    """The daemon with engines that are functions; ``turn`` is one second of its life."""

    def __init__(
        self,
        engines: dict[str, Callable[[], bytes | None]],
        *,
        kind: str = "vllm",
        unix_now: Callable[[], float] | None = None,
        series: str = "full",
        clock: Clock | None = None,
    ) -> None:
        text = (
            f"listen: 127.0.0.1:0\ngpu: {{enabled: false}}\nseries: {series}\nwindows: [1m]\nquantiles: [0.5, 0.99]\n"
        )
        rows = [f"  - {{name: {name}, kind: {kind}, url: 'http://127.0.0.1:9/{name}'}}\n" for name in engines]
        settings = parse(text + "engines:\n" + "".join(rows), "harness", {})
        self.clock = clock or Clock()
        unix_now = unix_now or (lambda: 1.7e9 + self.clock.now)
        self.app = exporter.runtime.app.App(settings, clock=self.clock, unix_now=unix_now)
        for engine in settings.engines:
            poller = self.app.pollers.make_replica(engine)
            poller._fetcher = poller.handler.engine_info.fetcher = Scripted(engines[engine.name])
            self.app.pollers.replicas[engine] = poller

    def turn(self, seconds: float = 1.0, publish: bool = True) -> None:
        self.clock.tick(seconds)
        for poller in self.app.pollers.replicas.values():
            poller.poll()
        if publish:
            self.app.publisher.publish_once()

    def bytes(self, *, openmetrics: bool = False) -> bytes:
        body = self.app.pages.page(openmetrics=openmetrics, gzip=False)
        assert body is not None
        return body

    def page(self) -> Figures:
        return Figures(self.bytes().decode())

    def checked(self) -> Figures:
        """Return the page, having read both formats strictly."""
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
