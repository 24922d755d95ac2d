"""Rows P9, P10, P21 and S15 of the fault matrix: little memory, no disk, the limits of Prometheus, and no scraper."""

from __future__ import annotations

import gc
import http.client
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress

import pytest

import tests.support.living_engines  # noqa: F401 - whose faults are served by name
from alerts.daemon import SERIES_NEAR_LIMIT
from compose.fleet.targets import LIMITS
from exporter.catalog.spec import SeriesSet
from exporter.engines.engine import MAX_LABEL_CHARACTERS
from exporter.http.server.listener import Request, Response
from exporter.render.exposition import MAX_SERIES, ExpositionRenderer
from tests.bench.engines import pages
from tests.bench.load import free_port, get, running
from tests.support.builders import busy_replica, snapshot
from tests.support.fault_matrix import (
    OPENMETRICS,
    ROOT,
    Harness,
    bare_environment,
    cards,
    configure,
)
from tests.support.harness_engines import Engine
from tests.support.raw_http import serving
from tests.support.servers import prometheus
from tests.support.tools import tool
from tests.support.waiting import CEILING, until

NOBODY = 65534


# ---------------------------------------------------------------------- P9: memory


MEMORY = 96  # MiB, of daemon and worker together
HUGE = {
    "endless-body": "too_large",
    "big-page": "too_large",
    "gzip-bomb": "too_large",
    "endless-gzip": "too_large",
    "explosion": "too_many_lines",
    "good-large-gzip": "too_many_lines",
}


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has had resident, by the kernel's own mark."""
    match = re.search(r"^VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match
    return int(match[1]) / 1024


@pytest.mark.slow
def test_p9_huge_pages_take_neither_the_daemon_nor_its_figures_beyond_96_mib(start, server, tmp_path):
    """The limit of data is enforced on each process, so what would exceed it ends in MemoryError; stacks are small."""
    engines = [("well", server.url("living")), *((name, server.url(name.replace("-", "_"))) for name in HUGE)]
    under = (tool("prlimit"), f"--data={MEMORY << 20}", f"--stack={512 << 10}")
    program = start(configure(tmp_path, engines), cards(tmp_path), under=under)

    def each_was_refused_often(page):
        failures = [sum(page.all("shardwatch_source_failures_total", source=f"engine:{name}")) for name in HUGE]
        return min(failures) >= 4.0 and page.all("llm_up", replica="well") == [1.0]

    before = program.wait_for(lambda page: page.all("llm_up", replica="well") == [1.0])
    page = program.wait_for(each_was_refused_often)
    for name, reason in HUGE.items():
        # Large pages are read in turn: who waits too long is late.
        assert page.reason(name) in {reason, "timeout"}, name
        assert f"source=engine:{name} state=down reason={reason}" in program.text()
    tokens = "llm_generation_tokens_total"
    assert page.value(tokens, replica="well") > before.value(tokens, replica="well")
    assert page.all("gpu_up") == [1.0, 1.0]
    assert sum(map(peak_mib, (program.pid, *program.children()))) <= MEMORY
    assert "MemoryError" not in program.text()
    assert program.end()[0] == 0


# ---------------------------------------------------------------------- P10: nothing can be written


@pytest.fixture
def readable_folder() -> Iterator[pathlib.Path]:
    """Make a folder that every user may read; those of pytest are the user's own."""
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name)
        path.chmod(0o755)
        yield path


def as_nobody() -> list[str]:
    """Return the command that gives up root, every capability and HOME, as far as there are any.

    The user stays who it is where nobody else may execute the interpreter, such as one below /root.
    """
    without_home = [tool("env"), "--unset=HOME", "TMPDIR=/nonexistent"]
    if os.geteuid() != 0:
        return without_home
    powerless = [*without_home, tool("setpriv"), "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    nobody = [*powerless, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    tried = subprocess.run([*nobody, "env", sys.executable, "-c", ""], capture_output=True, check=False)
    return powerless if tried.returncode else nobody


def no_room() -> list[str]:
    return [tool("prlimit"), "--fsize=0"]


def read_only() -> list[str]:
    """Return the command that makes / read-only and /var/tmp a full disk, which takes root and the kernel's leave."""
    mounts = (
        "set -e; mount --make-rprivate /; mount --bind / /; mount -o remount,bind,ro /; "
        "mount -t tmpfs -o size=4k tmpfs /var/tmp; dd if=/dev/zero of=/var/tmp/full 2>/dev/null || true; "
        'if touch /var/written 2>/dev/null; then exit 1; fi; exec "$@"'
    )
    return [tool("unshare"), "--mount", "sh", "-c", mounts, "sh"]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [no_room, read_only])
def test_p10_without_disk_home_root_or_capabilities_it_serves(start, server, readable_folder, limit):
    if limit is read_only and subprocess.run([*read_only(), "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    config = configure(readable_folder, [("well", server.url("living"))])
    for path in (config, plan := cards(readable_folder)):
        path.chmod(0o644)
    program = start(config, plan, under=[*limit(), *as_nobody()])
    status = pathlib.Path(f"/proc/{program.pid}/status").read_text()
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE) or os.geteuid() != 0
    page = program.wait_for(lambda page: page.all("llm_up") == [1.0] and page.all("gpu_up") == [1.0, 1.0])
    assert page.value("shardwatch_dropped_series") == 0.0
    assert program.end()[0] == 0
    assert "Traceback" not in program.text()


@pytest.mark.slow
def test_p10_a_log_on_a_full_disk_stops_nothing(server, tmp_path):
    config = configure(tmp_path, [("well", server.url("living"))])
    port = free_port()
    config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    command = [sys.executable, "-m", "exporter", "run", "--config", str(config)]
    with open("/dev/full", "wb") as full, running(command, stderr=full, cwd=ROOT, env=bare_environment()) as process:

        def up() -> bool:
            assert process.poll() is None
            with suppress(OSError, http.client.HTTPException):
                return b'\nllm_up{replica="well",' in get(port)[2]
            return False

        until(up)
        process.terminate()
        assert process.wait(CEILING) == 0


@pytest.mark.slow
def test_p10_rules_that_do_not_fit_on_the_disk_leave_the_old_ones_whole(tmp_path):
    old = {"rules.yaml": "old"}
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "rules.yaml").write_text(old["rules.yaml"])
    command = [*no_room(), sys.executable, "-m", "alerts", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=bare_environment(), timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    assert {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == old


# ---------------------------------------------------------------------- S15: nobody scrapes


QUIET = 120  # seconds
GROWTH = 128 * 1024  # bytes: caches of a few texts, not a page a second


def test_s15_after_two_minutes_without_a_scrape_two_scrapers_get_exact_counters_and_no_memory_was_taken():
    tracemalloc.start()
    try:
        harness = Harness({"a": Engine()})
        polls = 0

        def polled(seconds: int, scrapers: int) -> int:
            """Live so long; return the memory in use afterwards."""
            nonlocal polls
            for _ in range(seconds):
                harness.turn()
                polls += 1
                pages = [harness.page() for _ in range(scrapers)]
                for page in pages:
                    assert page.value("llm_generation_tokens_total", replica="a") == 1000.0 * polls
                    assert page.text == pages[0].text
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        scraped = polled(QUIET, scrapers=1)  # the window of a minute is full
        quiet = polled(QUIET, scrapers=0)
        assert quiet - scraped < GROWTH
        again = polled(QUIET, scrapers=2)
        assert again - scraped < GROWTH
        assert harness.page().value("llm_generation_token_rate", replica="a") == pytest.approx(1000.0)
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------------- P21: the limits of Prometheus


LONG = "模".encode() * 300  # a model's name of more characters than are kept
CONTENT_TYPES = {False: "text/plain; version=0.0.4; charset=utf-8", True: f"{OPENMETRICS}; charset=utf-8"}


def w16() -> dict[bool, bytes]:
    """Return the page of sixteen replicas of 3,000 lines, one of which has a model with the longest name, by format."""
    page = pages(9)[100]
    assert page.count(b"\n") > 3_000
    longest = re.sub(rb'model_name="[^"]*"', b'model_name="%s"' % LONG, pages(4)[100])
    harness = Harness({"longest": lambda: longest, **{f"r{number}": lambda: page for number in range(15)}})
    harness.turn()
    assert harness.page().all("llm_up") == [1.0] * 16
    return {openmetrics: harness.bytes(openmetrics=openmetrics) for openmetrics in (False, True)}


def at_the_cap() -> dict[bool, bytes]:
    """Return a page that the cap of the daemon has cut, with labels as long as they may be, by format."""
    replicas = tuple(
        busy_replica(name=f"r{number}-" + "模" * 200, model="型" * MAX_LABEL_CHARACTERS) for number in range(600)
    )
    bodies = {}
    for openmetrics in (False, True):
        page = ExpositionRenderer(openmetrics=openmetrics, series=SeriesSet.FULL).render(snapshot(replicas=replicas))
        assert (page.series, page.dropped > 0) == (MAX_SERIES, True)
        bodies[openmetrics] = page.body
    return bodies


@pytest.mark.slow
def test_p21_the_limits_that_we_recommend_are_never_reached_in_either_format_and_stop_what_is_beyond(tmp_path):
    served = {
        f"/{name}/{openmetrics}": (CONTENT_TYPES[openmetrics], body)
        for name, bodies in (("w16", w16()), ("cap", at_the_cap()))
        for openmetrics, body in bodies.items()
    }
    good = set(served)
    rows = b"".join(b'x{n="%d"} 1\n' % number for number in range(LIMITS["sample_limit"] + 1))
    text = CONTENT_TYPES[False]
    served |= {
        "/beyond/sample_limit": (text, rows),
        "/beyond/label_value_length_limit": (text, b'x{n="%s"} 1\n' % (b"a" * 3_000)),
        "/beyond/label_name_length_limit": (text, b'x{%s="1"} 1\n' % (b"a" * 300)),
        "/beyond/label_limit": (text, b"x{%s} 1\n" % b",".join(b'n%d="1"' % number for number in range(70))),
        "/beyond/body_size_limit": (text, b"# \n" * (23 << 20)),
    }
    assert {path.rpartition("/")[2] for path in set(served) - good} == set(LIMITS)

    def answer(request: Request) -> Response:
        content_type, body = served[request.path]
        return Response(status=200, content_type=content_type, body=body)

    with serving(answer) as listener:
        address = "{}:{}".format(*listener.address)
        static = [{"targets": [address], "labels": {"__metrics_path__": path, "instance": path}} for path in served]
        job = {"job_name": "shardwatch", "scrape_interval": "2s", "scrape_timeout": "2s", "static_configs": static}
        job |= LIMITS
        with prometheus({"scrape_configs": [job]}, folder=tmp_path) as running:

            def by_path(name: str) -> dict[str, float]:
                found = running.get("/api/v1/query", query=f"max_over_time({name}[1m])")["data"]["result"]
                return {row["metric"]["instance"]: float(row["value"][1]) for row in found}

            until(lambda: len(by_path("up")) == len(served) and sum(by_path("up").values()) >= len(good))
            up, samples = by_path("up"), by_path("scrape_samples_scraped")
    assert {path for path, number in up.items() if number} == good
    assert all(3_000 <= samples[path] <= 0.85 * LIMITS["sample_limit"] for path in good), samples


def test_p21_an_alert_warns_at_four_fifths_of_the_cap():
    assert SERIES_NEAR_LIMIT == 0.8 * MAX_SERIES
