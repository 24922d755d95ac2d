"""Rows P1, P2, P7, P8, P11 and P14 to P16 of the fault matrix: signals, starvation, bugs, health, secrets."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import tests.support.living_engines  # noqa: F401 - whose faults are served by name
from exporter.config.settings import parse
from exporter.runtime.app import App, Driver
from tests.support.fault_matrix import OPENMETRICS, Program, alive, bare_environment, cards, configure
from tests.support.malicious_server import MaliciousServer, Peer, fault
from tests.support.page_figures import HEALTH, Figures, strictly
from tests.support.waiting import CEILING, until

STOP = 2.0 + 3.0  # seconds: what is promised, and what a machine with other work may add
STAMP = "shardwatch_source_last_success_timestamp_seconds"


def folder(tmp_path: pathlib.Path, name: str) -> pathlib.Path:
    made = tmp_path / name
    made.mkdir()
    return made


# ---------------------------------------------------------------------- P1, P2: signals


BLOCK = {"nvmlDeviceGetTemperatureV": {"block": True}}
STATES = {
    "healthy": {},
    "driver call never returns": {"calls": BLOCK},
    "driver never starts": {"calls": {"nvmlInit": {"block": True}, "nvmlInitWithFlags": {"block": True}}},
    "driver holds the interpreter": {"calls": {"nvmlDeviceGetTemperatureV": {"hold": 60.0}}},
    "card lost": {},
    "driver dies": {"calls": {"nvmlDeviceGetTemperatureV": {"abort": True}}},
    "driver missing": None,
    "engines hang": {},
    "mute clients": {},
    "bad reload": {},
    "just started": {},
}


@pytest.mark.slow
def test_p1_sigterm_ends_every_state_with_zero_and_leaves_no_worker(start, server, tmp_path):
    running: dict[str, Program] = {}
    hang = [
        ("hung", server.url("silent/1")),
        ("drips", server.url("drip_body/1")),
        ("floods", server.url("endless_body")),
    ]
    with contextlib.ExitStack() as stack:

        def begin(state: str) -> None:
            place = folder(tmp_path, state.replace(" ", "-"))
            engines = [("well", server.url("living"))] + (hang if state == "engines hang" else [])
            config = configure(place, engines, extra="gpu: {deadline: 500ms}\n")
            plan = STATES[state]
            program = running[state] = start(config, cards(place, **plan) if plan is not None else None)
            if state == "mute clients":
                for _ in range(30):
                    stack.enter_context(socket.create_connection(("127.0.0.1", program.port)))
            if state == "card lost":
                program.wait_for(lambda page: page.all("gpu_up") == [1.0, 1.0])
                cards(place, at={"GPU-a": {"*": {"error": 15}}})
            if state == "bad reload":
                config.write_text("nonsense: true\n")
                program.process.send_signal(signal.SIGHUP)
            if state != "just started":
                program.wait_for(lambda page: page.all("llm_up", replica="well") == [1.0])

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(begin, STATES))
        time.sleep(1.5)  # deadlines pass, hung calls are noticed
        pages = {state: program.page() for state, program in running.items() if state != "just started"}
        assert pages["healthy"].all("gpu_up") == [1.0, 1.0]
        assert pages["driver call never returns"].all("gpu_up") in ([0.0, 0.0], [])
        assert sorted(pages["card lost"].all("gpu_up")) == [0.0, 1.0]
        assert pages["engines hang"].reason("hung") == "timeout"
        assert pages["bad reload"].value("shardwatch_config_last_reload_successful") == 0.0
        assert "event=reload_refused" in running["bad reload"].text()
        workers = {state: program.children() for state, program in running.items()}
        with ThreadPoolExecutor(len(running)) as pool:
            ended = dict(zip(running, pool.map(lambda program: program.end(), running.values()), strict=True))
    assert {state: code for state, (code, _) in ended.items()} == dict.fromkeys(STATES, 0)
    assert all(seconds < STOP for _, seconds in ended.values()), ended
    assert workers["healthy"] and workers["driver never starts"]
    alive_by_state = {state: [pid for pid in pids if alive(pid)] for state, pids in workers.items()}
    assert not any(alive_by_state.values()), alive_by_state
    for program in running.values():
        assert "Traceback" not in program.text()


@pytest.mark.slow
@pytest.mark.parametrize("plan", [{}, {"calls": BLOCK}], ids=["cards answer", "cards hang"])
def test_p2_a_killed_daemon_takes_its_worker_along_and_a_new_one_binds_at_once(start, server, tmp_path, plan):
    config = configure(tmp_path, [("well", server.url("living"))])
    program = start(config, cards(tmp_path, **plan))
    program.wait_for(lambda page: page.all("llm_up") == [1.0] and program.children())
    workers = program.children()
    assert workers and all(map(alive, workers))
    with socket.create_connection(("127.0.0.1", program.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(100)
        os.kill(program.pid, signal.SIGKILL)
        program.process.wait(10)
        until(lambda: not any(map(alive, workers)), 1.0 + 1.5)
        text = config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{program.port}")
        config.write_text(text)
        again = start(config, cards(tmp_path))
    assert again.port == program.port
    again.wait_for(lambda page: page.all("llm_up") == [1.0])


# ---------------------------------------------------------------------- P7, P8: time that is not ours


@fault
def timed(peer: Peer) -> None:
    """A living engine that remembers when it was asked."""
    from tests.support.malicious_server import FAULTS

    peer.server.state[f"asked {time.monotonic():.6f}"] = 1
    FAULTS["living"](peer)


@pytest.mark.slow
def test_p7_a_daemon_that_was_suspended_shows_a_gap_and_no_spike_and_no_burst(start, server, tmp_path):
    config = configure(
        tmp_path, [("a", server.url("timed"))], pace="interval: 500ms, timeout: 400ms", extra="series: full\n"
    )
    program = start(config, cards(tmp_path))
    program.wait_for(lambda page: page.all("llm_generation_token_rate") and page.all("gpu_up") == [1.0, 1.0])
    time.sleep(1.0)
    program.process.send_signal(signal.SIGSTOP)
    time.sleep(4.5)
    program.process.send_signal(signal.SIGCONT)
    woken = time.monotonic()
    rates = []
    while time.monotonic() < woken + 2.5:
        page = program.page()
        rates += page.all("llm_generation_token_rate")
        assert page.all("shardwatch_source_failures_total", source="driver") == []
        time.sleep(0.1)
    asked = sorted(float(key.split()[1]) for key in server.state if key.startswith("asked "))
    assert max(after - before for before, after in zip(asked, asked[1:], strict=False)) > 4.0  # the gap
    assert len([moment for moment in asked if woken <= moment < woken + 1.0]) <= 4  # ten were missed
    assert rates and all(700.0 < rate < 1300.0 for rate in rates), rates
    assert page.value("shardwatch_source_polls_skipped_total", source="engine:a") >= 8.0
    assert page.all("gpu_up") == [1.0, 1.0]
    assert "reason=hung" not in program.text()


@pytest.mark.slow
def test_p8_beside_two_busy_processes_a_core_it_still_polls_and_serves(start, server, tmp_path):
    engines = [(f"e{number}", server.url(f"living/{number}")) for number in range(4)]
    program = start(configure(tmp_path, engines), cards(tmp_path))
    program.wait_for(lambda page: page.all("llm_up") == [1.0] * 4 and page.all("gpu_up") == [1.0, 1.0])
    busy = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        page_read = []
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            page_read.append(program.page())
            assert page_read[-1].all("llm_up") == [1.0] * 4
            assert page_read[-1].all("gpu_up") == [1.0, 1.0]
            time.sleep(0.2)
        assert all(hog.poll() is None for hog in hogs)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    for name, _ in engines:
        assert len({page.value(STAMP, source=f"engine:{name}") for page in page_read}) >= 3
    assert program.get("/-/healthy")[0] == 200


# ---------------------------------------------------------------------- P11: standard error


@pytest.mark.slow
def test_p11_standard_error_without_a_reader_stops_nothing(start, tmp_path):
    names = [f"e{number}" for number in range(40)]
    with MaliciousServer() as server:
        config = configure(tmp_path, [(name, server.url(f"living/{name}")) for name in names])
        program = start(config, cards(tmp_path))
        program.wait_for(lambda page: page.all("llm_up") == [1.0] * 40 and page.all("gpu_up") == [1.0, 1.0])
        program.stop_reading()
    cards(tmp_path, at={"GPU-a": {"*": {"error": 15}}})
    page = program.wait_for(lambda page: not any(page.all("llm_up")) and sorted(page.all("gpu_up")) == [0.0, 1.0])
    assert {page.reason(name) for name in names} == {"refused"}, "polled, and not merely overdue"
    assert page.value("shardwatch_log_lines_dropped_total") == 0.0, "some hundred lines have room"
    assert program.get("/-/healthy")[0] == program.get("/-/ready")[0] == 200, "one GPU answers"
    code, seconds = program.end()
    assert code == 0 and seconds < STOP


@pytest.mark.parametrize("fault", ["usage", "configuration", "address", "check-config", "alerts"])
def test_p11_a_start_that_fails_ends_although_nobody_reads_why(tmp_path, fault):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {
            "usage": ["run", "--no-such-option"],
            "configuration": ["run", "--listen", "nonsense"],
            "address": ["run", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"],
            "check-config": ["check-config", str(tmp_path / "none.yaml")],
            "alerts": ["alerts", "--output", str(tmp_path), "--receivers", str(tmp_path / "none.yaml")],
        }[fault]
        reader, writer = os.pipe()
        try:
            os.set_blocking(writer, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(writer, b"x" * 4096)
            os.set_blocking(writer, True)
            command = [sys.executable, "-m", "exporter", *words]
            environment = os.environ | {"SHARDWATCH_GPU_ENABLED": "false"}
            process = subprocess.Popen(command, stderr=writer, env=environment)
            try:
                assert process.wait(CEILING) == (1 if fault == "address" else 2)
            finally:
                process.kill()
                process.wait()
        finally:
            os.close(reader)
            os.close(writer)


# ---------------------------------------------------------------------- P14: bugs of our own


def test_p14_an_exception_in_any_loop_is_survived_and_counted(server, tmp_path, monkeypatch, caplog):
    text = "listen: 127.0.0.1:0\ngpu: {interval: 200ms}\nengines:\n  - {name: a, url: '%s', interval: 200ms}\n"
    settings = parse(text % server.url("living"), "test", {})
    app = App(settings, driver=Driver(module="tests.support.fake_nvml", options=str(cards(tmp_path))))
    app.start()
    host, port = app.listen()

    def page() -> Figures | None:
        connection = http.client.HTTPConnection(host, port, timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            return Figures(answer.read().decode()) if answer.status == 200 else None
        return None

    def whole() -> Figures | None:
        page_read = page()
        good = page_read and page_read.all("llm_up") == [1.0] and page_read.all("gpu_up") == [1.0, 1.0]
        return page_read if good else None

    def raise_once(place: object, name: str) -> None:
        """Let the next call of a part of a loop fail, and only that."""
        original = getattr(place, name)
        raised = threading.Event()

        def broken(*args: object, **more: object) -> object:
            if not raised.is_set():
                raised.set()
                raise ZeroDivisionError("a bug that the test put there")
            return original(*args, **more)

        monkeypatch.setattr(place, name, broken)

    try:
        until(whole)
        (poller,) = app.pollers.replicas.values()
        before = page()
        loops = {
            "engines": lambda: raise_once(poller.handler, "parse"),
            "publisher": lambda: raise_once(app.publisher, "compose"),
            "placement": lambda: (raise_once(app.assignments, "refresh"), app.assignments.refresh_now()),
            "cards": lambda: raise_once(app.cards, "_run_cycle"),
            "listener": lambda: (raise_once(app.listener, "_run_once"), page()),
        }
        assert set(loops) <= before.labels("shardwatch_loop_restarts_total", "loop")
        for loop, inject in loops.items():
            inject()
            until(
                lambda loop=loop: (
                    (page_read := page()) and page_read.value("shardwatch_loop_restarts_total", loop=loop) >= 1.0
                )
            )
        after = None
        until(lambda: (page_read := whole()) and page_read.at > time.time() - 1 and page_read)
        after = whole()
        assert after
        stamps = [page_read.value(STAMP, source="engine:a") for page_read in (before, after)]
        assert stamps[1] > stamps[0]
        assert app.publisher.healthy().ok
    finally:
        app.stop()
        poller.join(5)
        app.assignments._thread.join(5)
    assert caplog.text.count("ZeroDivisionError") >= len(loops)
    assert not app.publisher.healthy().ok  # a loop that has ended is not healthy


# ---------------------------------------------------------------------- P15: health


@pytest.mark.slow
def test_p15_liveness_is_200_and_readiness_is_correct_while_everything_hangs(start, server, tmp_path):
    engines = [("hung", server.url("turned/hung/silent")), ("gone", server.url("turned/gone/no_answer"))]
    program = start(configure(tmp_path, engines, extra="gpu: {deadline: 500ms}\n"), cards(tmp_path))
    program.wait_for(lambda page: page.all("llm_up") == [1.0, 1.0] and page.all("gpu_up") == [1.0, 1.0])
    # The page is out before the sources of XIDs have been polled, and readiness waits for those as well.
    until(lambda: program.get("/-/ready") == (200, "2 of 2 GPUs and 2 of 2 replicas answer\n"))
    cards(tmp_path, calls=BLOCK)
    server.state["turned"] = 1
    page = program.wait_for(
        lambda page: (
            page.all("llm_up") == [0.0, 0.0] and not any(page.all("gpu_up")) and not page.all("gpu_power_watts")
        )
    )
    for _ in range(10):
        assert program.get("/-/healthy")[0] == 200
        status, sentence = program.get("/-/ready")
        assert status == 503
        assert sentence.endswith("and 0 of 2 replicas answer\n") and sentence.startswith("0 of ")
        page = program.page()
        assert {page.reason("hung"), page.reason("gone")} == {"timeout", "closed"}
        assert page.families_of("hung") <= HEALTH
        time.sleep(0.2)
    strictly(page.text, program.get(accept=OPENMETRICS)[1])
    assert page.value("llm_data_age_seconds", replica="hung") > 1.0
    cards(tmp_path)
    server.state["turned"] = 0
    program.wait_for(lambda page: page.all("llm_up") == [1.0, 1.0] and page.all("gpu_up") == [1.0, 1.0], 45)
    assert program.get("/-/ready")[0] == 200


# ---------------------------------------------------------------------- P16: secrets


TOKEN, PASSWORD, QUERY = "CANARYtoken0001", "CANARYpassword0002", "CANARYquery0003"


@fault
def parrot(peer: Peer) -> None:
    """Set back all that was sent, in every place where somebody might quote it."""
    sent = peer.request.replace(b"\r\n", b" ")
    peer.raw(b"HTTP/1.1 200 OK\r\n" + sent + b"\r\nLocation: " + sent + b"\r\n\r\n" + sent)


@fault
def parrot_as_redirect(peer: Peer) -> None:
    secret = re.sub(rb"[^!-~]", b"", peer.request).decode()
    peer.redirect(f"http://127.0.0.2:1/{secret}?{secret}")


@fault
def parrot_as_page(peer: Peer) -> None:
    """What an engine puts on its page is its business; that it is no metric must not get it into the log."""
    peer.reply(b"\n".join(peer.request.split(b"\r\n")))


@pytest.mark.slow
def test_p16_secrets_occur_in_no_log_page_answer_or_process_list(start, server, tmp_path):
    for name, secret in (("token", TOKEN), ("password", PASSWORD)):
        (tmp_path / name).write_text(secret + "\n")
        (tmp_path / name).chmod(0o600)
    faults = ["living", "parrot", "parrot_as_redirect", "parrot_as_page", "status_401", "status_500", "silent",
              "not_http", "redirect_loop", "no_answer", "huge_head_line", "gzip_lie", "html"]  # fmt: skip
    engines, more = [], {}
    for number, fault_name in enumerate(faults):
        for kind, key in (("t", f", bearer_token_file: {tmp_path / 'token'}"),
                          ("p", f", basic_auth: {{username: me, password_file: {tmp_path / 'password'}}}")):  # fmt: skip
            engines.append((f"{kind}{number}", server.url(f"{fault_name}?view={QUERY}&n={kind}{number}")))
            more[f"{kind}{number}"] = key
    extra = "reload_endpoint: true\nlog: {level: debug}\nseries: full\n"
    config = configure(tmp_path, engines, more=more, extra=extra)
    plan = cards(tmp_path)
    assert "canary" not in config.read_text().lower().replace(QUERY.lower(), "")
    program = start(config, plan)
    program.wait_for(lambda page: page.all("llm_up", replica="t0") == [1.0] and page.reason("t6") == "timeout")
    time.sleep(1.5)
    page_read = [
        program.get(path)[1] for path in ("/metrics", "/", "/-/ready", "/-/healthy", "/nothing", "/metrics?x=1")
    ]
    page_read.append(program.get(accept=OPENMETRICS)[1])
    for pid in (program.pid, *program.children()):
        for name in ("cmdline", "environ", "comm"):
            page_read.append(pathlib.Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace"))
    good = config.read_text()
    check = [sys.executable, "-m", "exporter", "check-config", str(config)]
    checked = subprocess.run(check, capture_output=True, text=True, timeout=30, env=bare_environment())
    assert checked.returncode == 0
    page_read += [checked.stdout, checked.stderr]

    # Secrets where they do not belong: refused, by every way in, and not quoted.
    for line in (
        f"  - {{name: x, url: 'http://me:{PASSWORD}@127.0.0.1:1/metrics'}}\n",
        f"  - {{name: x, url: 'http://127.0.0.1:1/metrics?api_key={TOKEN}'}}\n",
        f"  - {{name: x, url: 'http://127.0.0.1:1/metrics?token={TOKEN}'}}\n",
        f"  - {{name: x, url: 'http://127.0.0.1:1/metrics', bearer_token: {TOKEN}}}\n",
        f"  - {{name: x, url: 'http://127.0.0.1:1/metrics', basic_auth: {{username: a, password: {PASSWORD}}}}}\n",
    ):
        config.write_text(good + line)
        status, text = program.get("/-/reload", method="POST")
        assert status == 500
        result = subprocess.run(check, capture_output=True, text=True, timeout=30, env=bare_environment())
        assert result.returncode == 2
        page_read += [text, result.stdout, result.stderr]
    (tmp_path / "token").write_text("two words " + TOKEN)
    program.process.send_signal(signal.SIGHUP)
    program.wait_for(lambda page: page.reason("t0") == "credentials")
    page_read.append(program.get()[1])
    code, _ = program.end()
    assert code == 0
    everything = "\n".join([*page_read, program.text()])
    assert len(program.log) > 10
    for secret in (TOKEN, PASSWORD, QUERY):
        assert any(secret.encode() in head for _, head in server.requests) or secret == PASSWORD
        assert secret not in everything
    assert base64.b64encode(f"me:{PASSWORD}".encode()) in b"".join(head for _, head in server.requests)
    for hidden in (f"me:{PASSWORD}", PASSWORD, TOKEN):
        assert base64.b64encode(hidden.encode()).decode().rstrip("=")[:12] not in everything
