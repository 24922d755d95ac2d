"""Seconds until HAProxy ejects an engine by Shardwatch's verdicts, and what its clients notice.

    python -m tests.bench.ejection http://127.0.0.1:8000=PID http://127.0.0.1:8001=PID [--model NAME]

Each engine is an OpenAI-compatible server and the PID of the process to stop, for vLLM its EngineCore.  HAProxy spreads
a steady load over them.  With Shardwatch the second engine is stopped and continued, runs a tenth of the time, and is
killed; with --restart, which starts it again, also until it is back.  Shardwatch itself is stopped, continued, killed and
started again, which must eject nothing by agent-check.  Without Shardwatch: nothing, and the engine stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from compose.native.child import running

ROOT = Path(__file__).parents[2]
RATE = 2.0  # requests per second through HAProxy
HUNG = 10.0  # seconds until a client gives up
SERVERS = ("engine-0", "engine-1")
CONFIG = """
global
    stats socket {folder}/haproxy.sock
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
frontend clients
    bind 127.0.0.1:{front}
    default_backend agent
backend agent
    balance roundrobin
{agent}
backend http
    option httpchk GET /api/v1/verdicts/replica/engine-1
    http-check expect ! status 503
{http}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Load:
    """Requests at a steady rate, each with a thread; counts those that failed or hung."""

    def __init__(self, port, model, tokens):
        self._url, self._body = f"http://127.0.0.1:{port}/v1/completions", json.dumps(
            {"model": model, "prompt": "a b c", "max_tokens": tokens, "ignore_eos": True}
        ).encode()  # fmt: skip
        self.sent, self.lost, self._over = 0, 0, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.wait(1 / RATE):
            self.sent += 1
            threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self):
        request = urllib.request.Request(self._url, self._body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=HUNG) as answer:
                answer.read()
        except OSError:
            self.lost += 1


class HaProxy:
    """States of the second engine as HAProxy has them."""

    def __init__(self, folder):
        self._path = f"{folder}/haproxy.sock"

    def down(self):
        """Return the (backend, server) that are not up."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            connection.sendall(b"show stat\n")
            rows = connection.makefile().read().splitlines()
        rows = [row.split(",") for row in rows if row]
        return {(row[0], row[1]) for row in rows if row[1] in SERVERS and not row[17].startswith(("UP", "no check"))}

    def wait(self, seconds, *, down):
        """Return for each backend after how many seconds its second server went down or came up."""
        begun, found = time.monotonic(), {}
        while time.monotonic() - begun < seconds and len(found) < 2:
            now = self.down()
            for backend in ("agent", "http"):
                if ((backend, SERVERS[1]) in now) is down:
                    found.setdefault(backend, time.monotonic() - begun)
            time.sleep(0.1)
        return found


@contextlib.contextmanager
def haproxy(folder, front, engines, daemon, agent):
    rows = []
    for name, (url, _) in zip(SERVERS, engines, strict=True):
        address = url.removeprefix("http://")
        rows.append(
            f"    server {name} {address} check inter 2s agent-check agent-addr 127.0.0.1 agent-port {agent} "
            f'agent-inter 2s agent-send "{name}\\n"'
        )
    address = engines[1][0].removeprefix("http://")
    checked = f"    server {SERVERS[1]} {address} check inter 2s fall 2 rise 2 addr 127.0.0.1 port {daemon}"
    text = CONFIG.format(folder=folder, front=front, agent="\n".join(rows), http=checked)
    path = Path(folder) / "haproxy.cfg"
    path.write_text(text)
    with running("haproxy", ["haproxy", "-db", "-f", str(path)], Path(folder)) as child:
        deadline = time.monotonic() + 20
        while not Path(folder, "haproxy.sock").exists():
            if child.ended() or time.monotonic() > deadline:
                sys.exit(child.last_output())
            time.sleep(0.05)
        yield HaProxy(folder)


@contextlib.contextmanager
def shardwatch(folder, engines, daemon, agent):
    rows = "\n".join(
        f"  - name: {name}\n    kind: vllm\n    url: {url}/metrics"
        for name, (url, _) in zip(SERVERS, engines, strict=True)
    )
    path = Path(folder) / "shardwatch.yaml"
    path.write_text(
        f"listen: 127.0.0.1:{daemon}\nagent_check: 127.0.0.1:{agent}\ngpu:\n  enabled: false\nengines:\n{rows}\n"
    )
    command = [sys.executable, "-m", "exporter", "run", "--config", str(path)]
    with running("shardwatch", command, Path(folder), {"PYTHONPATH": str(ROOT)}) as child:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{daemon}/api/v1/verdicts/replica/{SERVERS[1]}", timeout=2
                ) as answer:
                    if json.load(answer).get("state") == "serve":
                        break
            if child.ended() or time.monotonic() > deadline:
                sys.exit(child.last_output())
            time.sleep(0.2)
        yield child


def stopped(load, proxy, pid, seconds):
    """Stop the engine for so long; return when it was ejected, when it was back, and how many requests were lost."""
    sent, lost = load.sent, load.lost
    os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        out = proxy.wait(seconds, down=True)
        time.sleep(max(0.0, seconds - (time.monotonic() - begun)))
        figures = load.sent - sent, load.lost - lost
    finally:
        os.kill(pid, signal.SIGCONT)
    return out, proxy.wait(40 if out else 0.5, down=False), figures


def slow(load, proxy, pid, seconds):
    """Let the engine run a tenth of the time for so long; return what went down meanwhile, and the lost requests."""
    sent, lost, begun, found = load.sent, load.lost, time.monotonic(), {}
    try:
        while time.monotonic() - begun < seconds:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.9)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.1)
            for backend, _ in proxy.down():
                found.setdefault(backend, time.monotonic() - begun)
    finally:
        os.kill(pid, signal.SIGCONT)
    return found, {}, (load.sent - sent, load.lost - lost)


def killed(load, proxy, pid, restart):
    """Kill the engine and start it again; return when it was ejected and, after it answered again, when it was back."""
    sent, lost = load.sent, load.lost
    os.kill(pid, signal.SIGKILL)
    out = proxy.wait(60, down=True)
    figures = load.sent - sent, load.lost - lost
    if not restart:
        return out, {}, figures
    subprocess.run(restart, shell=True, check=True, stdout=subprocess.DEVNULL)
    return out, proxy.wait(60, down=False), figures


def quiet(load, proxy, seconds):
    """Wait; return what was down meanwhile, and the lost requests."""
    sent, lost, begun, found = load.sent, load.lost, time.monotonic(), {}
    while time.monotonic() - begun < seconds:
        for backend, _ in proxy.down():
            found.setdefault(backend, time.monotonic() - begun)
        time.sleep(0.1)
    return found, {}, (load.sent - sent, load.lost - lost)


def row(case, out, back, figures):
    def seconds(found, name):
        return f"{found[name]:.1f}" if name in found else "-"

    print(
        f"{case:32} {seconds(out, 'agent'):>7} {seconds(out, 'http'):>7} {seconds(back, 'agent'):>7} "
        f"{seconds(back, 'http'):>7} {figures[1]:>5} of {figures[0]}",
        flush=True,
    )


def main():
    """Print one row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", nargs=2, metavar="URL=PID")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seconds", type=float, default=45.0, help="how long the engine is stopped")
    parser.add_argument("--tokens", type=int, default=100, help="of each request")
    parser.add_argument("--restart", help="command that starts the second engine and waits until it answers")
    arguments = parser.parse_args()
    engines = [(url, int(pid)) for url, _, pid in (text.rpartition("=") for text in arguments.engine)]
    pid, front, daemon, agent = engines[1][1], free_port(), free_port(), free_port()
    print(f"{'case':32} {'agent s':>7} {'http s':>7} {'back s':>7} {'http s':>7} requests lost")
    with tempfile.TemporaryDirectory(prefix="shardwatch-") as folder, contextlib.ExitStack() as stack:
        proxy = stack.enter_context(haproxy(folder, front, engines, daemon, agent))
        load = stack.enter_context(Load(front, arguments.model, arguments.tokens))
        time.sleep(5)
        row("no Shardwatch", *quiet(load, proxy, 20))
        row("no Shardwatch, engine stopped", *stopped(load, proxy, pid, arguments.seconds))
        with shardwatch(folder, engines, daemon, agent) as child:
            time.sleep(30)  # until the requests that waited for the engine have ended
            row("engine stopped", *stopped(load, proxy, pid, arguments.seconds))
            time.sleep(20)
            row("engine runs a tenth of the time", *slow(load, proxy, pid, 60))
            time.sleep(20)
            child.process.send_signal(signal.SIGSTOP)
            row("Shardwatch stopped", *quiet(load, proxy, 10))
            child.process.send_signal(signal.SIGCONT)
            row("Shardwatch continued", *quiet(load, proxy, 20))
            child.process.send_signal(signal.SIGKILL)
            row("Shardwatch killed", *quiet(load, proxy, 10))
        with shardwatch(folder, engines, daemon, agent):
            row("Shardwatch started again", *quiet(load, proxy, 20))
            row("engine killed", *killed(load, proxy, pid, arguments.restart))


if __name__ == "__main__":
    main()
