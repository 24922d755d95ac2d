"""A real HAProxy and a real nginx before uneven backends: what the daemon says against what the backends counted."""

from __future__ import annotations

import http.client
import http.server
import os
import re
import signal
import socket
import subprocess
import threading

import pytest

from exporter.http.client.client import HttpClient, Target
from exporter.model import Window
from exporter.runtime.gateway import GatewayConfig, gateway_poller
from tests.support.tools import tool
from tests.support.waiting import until
from tests.system.test_end_to_end import Daemon

pytestmark = pytest.mark.slow


class Backend:
    """An HTTP server on loopback that counts what it is asked; answers 500 where ``failing``."""

    def __init__(self, *, failing=False):
        backend = self
        self.asked = 0
        self._lock = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with backend._lock:
                    backend.asked += 1
                self.send_response(500 if failing else 200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def listening():
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(64)
    made.set_inheritable(True)
    return made


def send(port, count, *, kept_alive=False):
    connection = None
    for _ in range(count):
        connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/v1/models")
        connection.getresponse().read()
        if not kept_alive:
            connection.close()
            connection = None
    if connection is not None:
        connection.close()


@pytest.fixture
def backends():
    made = {"a": Backend(), "b": Backend(), "c": Backend(failing=True)}
    yield made
    for backend in made.values():
        backend.close()


@pytest.fixture
def program(tmp_path):
    """Start a gateway in the foreground, with the sockets it inherits; end it with the test."""
    started = []

    def begin(command, sockets, **environ):
        log = (tmp_path / "log").open("w")
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            pass_fds=[sock.fileno() for sock in sockets],
            env={**os.environ, **environ},
            cwd=tmp_path,
        )
        started.append((process, log, sockets))
        return process

    yield begin
    for process, log, sockets in started:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
        for sock in sockets:
            sock.close()


HAPROXY = """
global
  nbthread 2
defaults
  mode http
  timeout connect 2s
  timeout client 10s
  timeout server 10s
frontend in
  bind fd@{door}
  default_backend pool
frontend statistics
  bind fd@{page}
  http-request use-service prometheus-exporter if {{ path /metrics }}
backend pool
  balance roundrobin
  server a {a} weight 60
  server {b} {b} weight 30
  server c {c} weight 10
  server dead {dead} weight 10 check inter 100ms fall 1
"""


@pytest.fixture
def haproxy(program, backends, tmp_path):
    """Yield (the door's port, the page's URL) of an HAProxy with one dead server beside the backends."""
    path = tool("haproxy")
    door, page = listening(), listening()
    dead = socket.socket()  # bound and not listening: refused for as long as it is held
    dead.bind(("127.0.0.1", 0))
    addresses = {name: backend.address for name, backend in backends.items()}
    text = HAPROXY.format(
        door=door.fileno(), page=page.fileno(), dead=f"127.0.0.1:{dead.getsockname()[1]}", **addresses
    )
    (tmp_path / "haproxy.cfg").write_text(text)
    program([path, "-db", "-q", "-f", "haproxy.cfg"], [door, page])
    yield door.getsockname()[1], f"http://127.0.0.1:{page.getsockname()[1]}/metrics"
    dead.close()


def watch(url, kind="auto"):
    plan = GatewayConfig(name="edge", kind=kind, interval=5.0, windows=(Window("1m", 60.0),))
    return gateway_poller(plan, HttpClient(Target(url=url, timeout=5.0)))


def test_a_real_haproxys_shares_errors_and_health_are_what_the_backends_saw(haproxy, backends):
    door, url = haproxy
    poller = watch(url)

    def dead_is_seen():
        poller.poll()
        return poller.state.reading is not None and poller.state.reading.backends["pool", "dead"].up is False

    until(dead_is_seen, 20.0)
    before = {name: backend.asked for name, backend in backends.items()}
    send(door, 60)
    send(door, 40, kept_alive=True)
    poller.poll()
    poller._fetcher.close()
    state = poller.state
    # b's server is called by its address, as some configurations do.
    names = {"a": "a", backends["b"].address: "b", "c": "c"}
    sent = {name: backend.asked - before[name] for name, backend in backends.items()}
    assert sum(sent.values()) == 100
    assert sent["a"] > sent["b"] > sent["c"] > 0
    shown = {names.get(name, name): load for (_, name), load in state.reading.backends.items()}
    assert {name: shown[name].requests for name in sent} == {
        name: backend.asked for name, backend in backends.items()
    }
    assert (shown["dead"].requests, shown["dead"].up) == (0, False)
    assert {shown[name].up for name in sent} == {True}
    assert (shown["a"].errors, shown["c"].errors) == (0, backends["c"].asked)
    shares = {names.get(name, name): share for (_, name), share in state.windows["1m"].shares.items()}
    assert shares == {**{name: pytest.approx(count / 100) for name, count in sent.items()}, "dead": 0.0}
    assert state.windows["1m"].imbalance["pool"] == pytest.approx(max(sent.values()) / (100 / 3))
    assert state.labels == ("edge", "haproxy")
    assert poller.parse_warnings == {}


CONFIGURATION = """
gpu: {{enabled: false}}
engines:
  - {{name: chat, kind: vllm, url: "http://{replica}/metrics", interval: 1s, timeout: 500ms}}
gateways:
  - {{name: edge, url: "{url}", interval: 200ms}}
windows: [10s]
"""


def test_the_daemon_polls_the_gateways_of_its_configuration_and_removes_them_on_reload(haproxy, backends, tmp_path):
    door, url = haproxy
    path = tmp_path / "shardwatch.yaml"
    path.write_text(CONFIGURATION.format(replica=backends["b"].address, url=url))
    daemon = Daemon("run", "--config", str(path), "--listen", "127.0.0.1:0")
    try:
        daemon.wait_for(lambda page: 'gateway_up{gateway="edge",kind="haproxy"} 1.0' in page)
        asked = backends["a"].asked
        send(door, 50)
        sent = backends["a"].asked
        assert sent > asked
        line = 'gateway_requests_total{gateway="edge",kind="haproxy",pool="pool",backend="a"} ' + f"{float(sent)!r}\n"
        page = daemon.wait_for(lambda page: line in page)
        (share,) = re.findall(r'^gateway_request_share_ratio\{.*backend="a".*\} (\S+)$', page, re.MULTILINE)
        assert 0.5 < float(share) < 0.7
        # The engine's page is no vLLM page, yet the backend is known to be that replica.
        assert re.search(
            rf'^gateway_backend_replica_info\{{.*backend="{backends["b"].address}",replica="chat"\}} 1.0$',
            page,
            re.MULTILINE,
        )
        assert 'shardwatch_source_up{source="gateway:edge"} 1.0' in page
        assert daemon.get("/-/ready") == (200, "0 of 0 GPUs and 0 of 1 replicas and 1 of 1 gateways answer\n")
        text = path.read_text()
        path.write_text(text[: text.index("gateways:")])
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for(lambda page: "gateway" not in page.replace('loop="gateways"', ""))
    finally:
        code, _, log = daemon.stop()
    assert (code, "Traceback" in log) == (0, False)


NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream pool {{ server {a} weight=6; server {b} weight=3; server {c} weight=1; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://pool; }}
    location = /status {{ stub_status; }}
  }}
}}
"""


def test_a_real_nginxs_total_is_what_was_sent_and_the_scrapes_and_it_names_no_backend(program, backends, tmp_path):
    path = tool("nginx")
    door = listening()
    port = door.getsockname()[1]
    addresses = {name: backend.address for name, backend in backends.items()}
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, port=port, **addresses))
    # nginx takes over listening sockets that the variable names, as it does when it replaces itself.
    command = [path, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")]
    program(command, [door], NGINX=f"{door.fileno()};")
    poller = watch(f"http://127.0.0.1:{port}/status")
    until(lambda: poller.poll() or poller.state.status.up, 20.0)
    first = poller.state.reading.pools[""].requests
    send(port, 30)
    send(port, 20, kept_alive=True)
    poller.poll()
    poller._fetcher.close()
    assert sum(backend.asked for backend in backends.values()) == 50
    assert poller.state.reading.pools[""].requests == first + 50 + 1
    assert poller.state.reading.pools[""].active == 0
    assert poller.state.reading.backends == {}
    assert poller.state.labels == ("edge", "nginx")
