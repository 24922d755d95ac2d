"""Seconds until HAProxy ejects an engine by Shardwatch's verdicts, and what its clients notice.

    python -m tests.bench.ejection http://127.0.0.1:8000=PID http://127.0.0.1:8001=PID [--model NAME]

Each engine is an OpenAI-compatible server and the PID of the process to stop, for vLLM its EngineCore.  HAProxy spreads
a steady load over them.  The second engine is stopped and continued, with Shardwatch and, at the end, without it; between,
Shardwatch itself is stopped and killed, which must eject nothing by agent-check.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from compose.native.child import running

ROOT = Path(__file__).parents[2]
RATE = 4.0  # requests per second through HAProxy
HUNG = 5.0  # seconds until a client gives up
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

    def __init__(self, port, model):
        self._url, self._body = f"http://127.0.0.1:{port}/v1/completions", json.dumps(
            {"model": model, "prompt": "a b c", "max_tokens": 300, "ignore_eos": True}
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
    arguments = parser.parse_args()
    engines = [(url, int(pid)) for url, _, pid in (text.rpartition("=") for text in arguments.engine)]
    front, daemon, agent = free_port(), free_port(), free_port()
    print(f"{'case':32} {'agent s':>7} {'http s':>7} {'back s':>7} {'http s':>7} requests lost")
    with tempfile.TemporaryDirectory(prefix="shardwatch-") as folder, contextlib.ExitStack() as stack:
        proxy = stack.enter_context(haproxy(folder, front, engines, daemon, agent))
        load = stack.enter_context(Load(front, arguments.model))
        time.sleep(2)
        with shardwatch(folder, engines, daemon, agent):
            time.sleep(10)
            row("engine stopped, Shardwatch", *stopped(load, proxy, engines[1][1], arguments.seconds))
            time.sleep(5)
        with shardwatch(folder, engines, daemon, agent) as child:
            time.sleep(10)  # until the HTTP check is up again
            for signal_name in ("SIGSTOP", "SIGKILL"):
                sent, lost = load.sent, load.lost
                child.process.send_signal(getattr(signal, signal_name))
                out = {backend: 0.0 for backend, _ in _watch(proxy, 10)}
                row(f"Shardwatch {signal_name}", out, {}, (load.sent - sent, load.lost - lost))
            child.process.send_signal(signal.SIGCONT)
        row("engine stopped, no Shardwatch", *stopped(load, proxy, engines[1][1], 20))


def _watch(proxy, seconds):
    begun, found = time.monotonic(), set()
    while time.monotonic() - begun < seconds:
        found |= proxy.down()
        time.sleep(0.1)
    return found


if __name__ == "__main__":
    main()
