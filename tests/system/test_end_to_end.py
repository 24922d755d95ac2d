"""The program as its user runs it: a process, a port, signals and a page."""

from __future__ import annotations

import http.client
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.catalog import CATALOG

ARCHITECTURE = pathlib.Path(__file__).parents[2] / "docs" / "architecture.md"
pytestmark = pytest.mark.slow


class Daemon:
    """A started shardwatch; waits for its port, and ends with the test."""

    def __init__(self, *arguments, stderr=None, environ=None):
        environ = {**{k: v for k, v in os.environ.items() if not k.startswith("SHARDWATCH_")}, **(environ or {})}
        command = [sys.executable, "-m", "exporter", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
        )
        self.log = []
        self.port = self._port()

    def _port(self):
        for line in self.process.stderr:
            self.log.append(line)
            match = re.search(r"event=listening address=\S+?:(\d+) ", line)
            if match:
                return int(match[1])
        raise AssertionError("".join(self.log))

    def get(self, path="/metrics", accept="*/*", method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers={"Accept": accept})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def wait_for(self, condition, seconds=20.0):
        deadline = time.monotonic() + seconds
        while True:
            status, page = self.get()
            if status == 200 and condition(page):
                return page
            assert time.monotonic() < deadline, page[-3000:]
            time.sleep(0.1)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            out, err = self.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
        self.log.append(err)
        return self.process.returncode, out, "".join(self.log)


@pytest.fixture
def start():
    started = []

    def begin(*arguments, **more):
        daemon = Daemon(*arguments, **more)
        started.append(daemon)
        return daemon

    yield begin
    for daemon in started:
        daemon.stop()


def count(page, name, value="1.0"):
    return len(re.findall(rf"^{name}\{{.*\}} {re.escape(value)}$", page, re.MULTILINE))


def whole(page):
    return count(page, "gpu_up") == 8 and count(page, "gpu_replica_info") == 8 and "llm_kv_cache_hit_ratio{" in page


def thread_names(pid):
    return {path.read_text().strip() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/comm")}


def drawn_threads():
    """Return the pattern of each thread that docs/architecture.md draws, as the kernel cuts its name."""
    (block,) = re.findall(r"^```threads\n(.*?)^```", ARCHITECTURE.read_text(), re.DOTALL | re.MULTILINE)
    names = re.findall(r"[├└]─ (\S+)", block)
    return {name: re.compile(re.sub("NAME$|N$", ".*", name)) for name in names}


def test_the_threads_of_the_demo_are_those_that_the_documentation_draws(start):
    daemon = start("demo", "--listen", "127.0.0.1:0")
    daemon.wait_for(whole)
    interpreter = (
        pathlib.Path(f"/proc/{daemon.process.pid}/comm").read_text().strip()
    )  # started as python -m exporter
    names = thread_names(daemon.process.pid) - {interpreter} | {"shardwatch"}
    children = pathlib.Path(f"/proc/{daemon.process.pid}/task").glob("*/children")
    pids = {pid for path in children for pid in path.read_text().split()}
    (worker,) = (found for found in map(thread_names, pids) if "shardwatch-nvml" in found)
    drawn = drawn_threads()
    running = {name for name in names | worker if not name.startswith(("info-", "resolve-"))}
    assert {name for name in running if not any(known.fullmatch(name) for known in drawn.values())} == set()
    not_running = {name for name, known in drawn.items() if not any(map(known.fullmatch, running))}
    assert not_running <= {
        *("discovery:NAME", "gpu_page:NAME", "store:NAME", "nics", "kernel_log"),
        *("push:NAME", "agent-check", "reload", "nvml-release", "nvml-init"),
    }


def test_the_demo_joins_gpus_and_replicas_and_its_page_is_clean(start, promtool):
    daemon = start("demo", "--listen", "127.0.0.1:0")
    page = daemon.wait_for(whole)
    assert count(page, "llm_up") == 2
    daemon.wait_for(
        lambda page: "gateway_request_share_ratio{" in page and count(page, "gateway_backend_replica_info") == 2
    )
    result = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
    families = {
        family.name
        for family in parse_openmetrics(daemon.get(accept="application/openmetrics-text;version=1.0.0")[1])
    }
    assert families >= {"gpu_power_watts", "llm_generation_tokens", "process_cpu_seconds", "shardwatch_build_info"}
    known = {metric.family for metric in CATALOG} | {
        name for name in families if name.startswith(("process_", "python_"))
    }
    assert families <= known
    assert daemon.get("/-/ready") == (200, "8 of 8 GPUs and 2 of 2 replicas and 1 of 1 gateways answer\n")
    code, out, log = daemon.stop()
    assert code == 0
    assert f"http://127.0.0.1:{daemon.port}/metrics" in out
    assert f"shardwatch check 127.0.0.1:{daemon.port}" in out
    assert "Traceback" not in log
    assert not re.search("level=(warning|error)|unsupported_signals|no_driver", log), log
    assert "event=stopped signal=SIGTERM" in log.splitlines()[-1]


def test_a_gpu_lost_in_the_demo_costs_its_own_series_only(start):
    daemon = start("demo", "--scenario", "hang", "--fault-at", "4", "--listen", "127.0.0.1:0")
    # Not one card that is down while the others are not listed yet, as in the first pages.
    lost = re.compile(r'^shardwatch_source_down_info\{source="gpu:([^"]+)",reason="lost"\} 1.0$', re.MULTILINE)
    page = daemon.wait_for(
        lambda page: (count(page, "gpu_up", "0.0"), count(page, "gpu_up")) == (1, 7) and lost.search(page), seconds=60
    )
    assert len(re.findall(r"^gpu_power_watts\{", page, re.MULTILINE)) == 7
    (uuid,) = lost.findall(page)
    assert f'uuid="{uuid}"' in page


def test_sigterm_ends_it_quickly_with_zero_and_frees_the_port(start):
    daemon = start("demo", "--listen", "127.0.0.1:0")
    daemon.wait_for(whole)
    begun = time.monotonic()
    code, _, _ = daemon.stop()
    assert code == 0
    assert time.monotonic() - begun < 5
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", daemon.port))


def test_without_driver_and_engines_it_runs_and_says_so(start):
    daemon = start("run", "--listen", "127.0.0.1:0", environ={"SHARDWATCH_DISCOVERY_PROCESSES": "false"})
    page = daemon.wait_for(lambda page: "shardwatch_source_down_info" in page)
    assert re.search(r'^shardwatch_source_down_info\{source="driver",reason="\w+"\} 1.0$', page, re.MULTILINE)
    assert daemon.get("/-/healthy")[0] == 200
    assert daemon.get("/-/ready")[0] == 503


CONFIG = """\
listen: 127.0.0.1:0
gpu: {{enabled: false}}
reload_endpoint: {reload}
engines:
{engines}
"""


def configured(tmp_path, names, reload="false", extra=""):
    engines = "\n".join(f"  - {{name: {name}, url: 'http://127.0.0.1:9/{name}', interval: 1s}}" for name in names)
    (tmp_path / "c.yaml").write_text(CONFIG.format(engines=engines, reload=reload) + extra)
    return str(tmp_path / "c.yaml")


def test_sighup_adopts_a_good_configuration_and_refuses_a_bad_one_whole(start, tmp_path):
    daemon = start("run", "--config", configured(tmp_path, ["a", "b"]))
    daemon.wait_for(lambda page: count(page, "llm_up", "0.0") == 2)
    configured(tmp_path, ["b", "c", "d"])
    daemon.process.send_signal(signal.SIGHUP)
    page = daemon.wait_for(lambda page: count(page, "llm_up", "0.0") == 3)
    assert 'replica="a"' not in page
    configured(tmp_path, ["b"], extra="nonsense: true\n")
    daemon.process.send_signal(signal.SIGHUP)
    page = daemon.wait_for(lambda page: "shardwatch_config_last_reload_successful 0.0" in page)
    assert count(page, "llm_up", "0.0") == 3
    configured(tmp_path, ["b"])
    daemon.process.send_signal(signal.SIGHUP)
    page = daemon.wait_for(lambda page: "shardwatch_config_last_reload_successful 1.0" in page)
    assert count(page, "llm_up", "0.0") == 1


def test_reload_over_http_is_off_unless_allowed_and_says_what_was_wrong(start, tmp_path):
    forbidden = start("run", "--config", configured(tmp_path, ["a"]))
    assert forbidden.get("/-/reload", method="POST")[0] == 403
    allowed = start("run", "--config", configured(tmp_path, ["a"], reload="true"))
    assert allowed.get("/-/reload", method="POST")[0] == 200
    configured(tmp_path, ["a"], reload="true", extra="widnows: [1m]\n")
    status, text = allowed.get("/-/reload", method="POST")
    assert status == 500
    assert "widnows" in text
    assert "windows" in text


def run(*arguments, environ=None):
    environ = {**{k: v for k, v in os.environ.items() if not k.startswith("SHARDWATCH_")}, **(environ or {})}
    command = [sys.executable, "-m", "exporter", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)


def test_check_config_lists_every_problem_with_path_and_line(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("listen: nowhere\nengines:\n  - {url: 'ftp://x', interval: 0s}\nquantile: [2]\n")
    result = run("check-config", str(path))
    assert result.returncode == 2
    for expected in ("line 1: listen", "line 3: engines[0].url", "line 3: engines[0].interval", "line 4: quantile"):
        assert expected in result.stderr
    assert "Traceback" not in result.stderr
    good = tmp_path / "good.yaml"
    good.write_text("gpu: {interval: 2s}\n")
    result = run("check-config", str(good))
    assert (result.returncode, result.stderr) == (0, "")


def test_once_prints_one_clean_page(tmp_path):
    result = run("once", "--config", configured(tmp_path, ["a"]))
    assert result.returncode == 0
    names = {family.name for family in parse_text(result.stdout)}
    assert {"llm_up", "shardwatch_build_info"} <= names
    assert 'shardwatch_source_down_info{source="engine:a",reason="refused"} 1.0' in result.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["run", "--nonsense"], ["fly"], ["demo", "--scenario", "moon"], ["run", "--listen", "x"]]
)
def test_bad_usage_is_exit_code_two_and_no_traceback(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_a_taken_port_is_exit_code_one_and_one_line_that_names_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run("run", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("shardwatch run:")]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "command", [("run", "--config"), ("check-config",), ("once", "--config")], ids=lambda c: c[0]
)
def test_a_web_configuration_that_cannot_be_used_is_refused_with_its_line(command, tmp_path):
    web = tmp_path / "web.yaml"
    web.write_text("tls_server_config: {}\n")
    config = tmp_path / "c.yaml"
    config.write_text(f"web_config_file: {web}\n")
    result = run(*command, str(config))
    assert result.returncode == 2
    head, *problems = result.stderr.splitlines()
    assert head == f"shardwatch {command[0]}: {web}: 2 problems"
    assert [problem.split(": ")[1] for problem in problems] == [
        "tls_server_config.cert_file",
        "tls_server_config.key_file",
    ]


def test_checking_a_configuration_does_not_load_the_daemon():
    code = (
        "import sys, exporter.cli.main as c; assert c.main(['check-config', sys.argv[1]]) == 0; print(*sys.modules)"
    )
    full = os.path.join(pathlib.Path(__file__).parents[1], "support", "configs", "good", "full.yaml")
    result = subprocess.run([sys.executable, "-c", code, full], capture_output=True, text=True, timeout=30)
    verdict, *hints, loaded = result.stdout.splitlines()
    assert all(": hint: " in hint for hint in hints)
    assert verdict.startswith(
        f"{full}: valid; GPUs through NVML and 2 exporters; 2 engines and 2 gateways configured; "
    )
    # exporter.catalog: which labels a push must not set; nothing else asks for it.
    assert not set(loaded.split()) & {"pynvml", "exporter.runtime.app", "exporter.engines.parse", "socket"}


def test_version_and_help_answer_without_loading_the_daemon():
    code = "import sys; sys.argv = ['shardwatch', '--version']\ntry:\n import exporter.cli.main as c; c.main()\nexcept SystemExit: pass\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert result.stdout.startswith("shardwatch ")
    loaded = set(result.stdout.split())
    assert not loaded & {"yaml", "urllib3", "requests", "pynvml", "prometheus_client", "exporter.runtime.app"}


def test_the_demo_names_the_gpu_that_the_others_wait_for_and_why(start):
    daemon = start("demo", "--scenario", "brake", "--fault-at", "3", "--listen", "127.0.0.1:0")
    page = daemon.wait_for(lambda page: "\ngpu_straggler{" in page, seconds=60)
    (row,) = re.findall(r"^gpu_straggler\{(.+)\} 1.0$", page, re.MULTILINE)
    assert re.fullmatch(r'gpu="1",uuid="GPU-[0-9a-f-]+",replica="chat-a",cause="power_brake"', row)
    (slowdown,) = re.findall(r"^gpu_straggler_slowdown_ratio\{.+\} (\S+)$", page, re.MULTILINE)
    assert float(slowdown) > 1.2
    assert count(page, "gpu_straggler_judged") == 2
