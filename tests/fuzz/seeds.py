"""Inputs to start from: what the readers are made for, small, so that mutations reach every part of them."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path

from exporter.driver import protocol
from exporter.model import CardFacts, CardReading, DriverFacts, MigInstance, Missing, Signal
from tests.support.fake_proc import kernel_address

CAPTURES = Path(__file__).parents[1] / "captures"
CONFIGS = Path(__file__).parents[1] / "support" / "configs"
LINES = 25  # of a page

PAGE_WORDS = (
    b"# TYPE ", b"# HELP ", b"# EOF\n", b' # {trace_id="a"} 1', b"_bucket{", b"_count ", b"_sum ", b"_total ", b"_created ",
    b'le="+Inf"', b'engine="0"', b'engine="1"', b'model_name="m"', b"NaN", b"+Inf", b"-1", b"1e309", b"\\\\", b'\\"', b"\r\n",
    b"\n--\n",
)  # fmt: skip
HTTP_WORDS = (
    b"\r\n\r\n", b"HTTP/1.1 ", b"HTTP/1.0 ", b"Host: ", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"gzip",
    b"Content-Encoding: ", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"100 Continue\r\n\r\n", b"GET ", b"POST ",
)  # fmt: skip
KERNEL_WORDS = (
    b"NVRM: ", b"Xid (PCI:", b" GPU-I:", b" GPU-CI:", b"fallen off the bus", b"GPU at PCI:", b"SXid (PCI:", b"mlx5_core ",
    b"nvidia-nvswitch", b"Link down", b"Link up", b" kernel: ", b"0000:65:00", b"\xe2\x80\xae", b"\x1b[31m",
)  # fmt: skip
PROC_WORDS = (
    b"0::/", b"kubepods", b"cri-containerd-", b"docker-", b".scope", b".slice", b"slurmstepd.scope/job_", b"Uid:\t", b"RANK=",
    b" 0A ", b"00000000:0000", b"/32 host LOCAL", b"|-- ", b"libnccl.so.2",
)  # fmt: skip


def _sampled(path: Path) -> bytes:
    """Return every so many lines of a page, so that each family of it may be there."""
    lines = path.read_bytes().splitlines(keepends=True)
    return b"".join(lines[:: max(1, len(lines) // LINES)])


def engine_pages() -> Iterator[bytes]:
    """Return a part of each engine's page."""
    return (_sampled(path) for path in sorted(CAPTURES.glob("*.prom")))


def other_pages() -> Iterator[bytes]:
    """Return a part of each gateway's, store's and GPU exporter's page behind each first byte that chooses a reader."""
    folders = ("gateways", "stores", "gpu_pages")
    pages = [_sampled(path) for folder in folders for path in sorted((CAPTURES / folder).iterdir()) if path.is_file()]
    return (bytes([number]) + page for page, number in itertools.product(pages, range(16)))


def requests() -> Iterator[bytes]:
    """Return requests of scrapers, browsers and probes."""
    for line in (b"GET /metrics?x=1 HTTP/1.1", b"HEAD / HTTP/1.0", b"POST /-/reload HTTP/1.1", b"TRACE * HTTP/1.1"):
        fields = b"Host: x:9853\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1\r\n"
        yield line + b"\r\n" + fields + b"Accept-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
        yield line + b"\r\n" + fields + b"Authorization: Basic dTpw\r\nConnection: keep-alive, close\r\n\r\n"
    yield b"GET /\r\n"


def responses() -> Iterator[bytes]:
    """Return responses with every kind of length and coding."""
    page = b"up 1\n" * 20
    packed = gzip.compress(page, mtime=0)
    ok = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
    yield ok + b"Content-Length: %d\r\n\r\n" % len(page) + page
    yield ok + b"Content-Length: %d\r\nContent-Encoding: gzip\r\n\r\n" % len(packed) + packed
    yield ok + b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nup 1\n\r\n0\r\nX-Trailer: 1\r\n\r\n"
    yield (
        ok
        + b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n%x\r\n" % len(packed)
        + packed
        + b"\r\n0\r\n\r\n"
    )
    yield ok + b"\r\n" + page
    yield b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 302 Found\r\nLocation: /m\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
    yield b"HTTP/1.1 204 No Content\r\n\r\n"


def configurations() -> Iterator[bytes]:
    """Return good and bad configurations."""
    return (path.read_bytes() for path in sorted(CONFIGS.glob("*/*.yaml")))


def web_configurations() -> Iterator[bytes]:
    """Return web configurations with TLS, users and headers."""
    hashed = b"$2b$10$" + b"a" * 53
    yield b"basic_auth_users:\n  prometheus: '%s'\n" % hashed
    yield b"""tls_server_config:
  cert_file: server.pem
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
  client_allowed_sans: [a.example.org]
  min_version: TLS12
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
http_server_config: {http2: false, headers: {Strict-Transport-Security: max-age=1, X-Frame-Options: deny}}
"""
    yield b"rate_limit: {interval: 1s, burst: 5}\n"


def kernel_lines() -> Iterator[bytes]:
    """Return what the driver, the switches and the adapters write, as each kind of log has it."""
    messages = (
        b"NVRM: Xid (PCI:0000:65:00 GPU-I:05 GPU-CI:00): 94, pid=7, name=x, Contained: SM",
        b"NVRM: The NVIDIA GPU 0000:29:00.0\nNVRM: (PCI ID: 10de:2330)\nNVRM: fallen off the bus and is not responding.",
        b"NVRM: GPU at PCI:0000:29:00: GPU-b4b09f8c-7f6d-4c3b-9a43-5b1b0d0f0c7a",
        b"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 42 sourceport deadlock timeout error",
        b"mlx5_core 0000:5e:00.0 ens1f0np0: Link down",
        b"mlx5_core 0000:5e:00.0: temp_warn:208:(pid 0): High temperature on sensors with bit set 0x1",
    )
    for message in messages:
        yield message
        yield b"2026-01-05T12:00:00.123456+0100 node1 kernel: [   12.345678] " + message
        yield b"Jan  5 12:00:00 node1 kernel: " + message
        yield b"1767571200.123456 node1 kernel: " + message


def proc_files() -> Iterator[bytes]:
    """Return files of /proc as engines on bare metal, in pods and in jobs have them."""
    name = b"a" * 64
    yield b"4242 (VLLM::Worker (x) TP0) S 4000 4242 4242 0 -1 4194560 1 0 0 0 10 5 0 0 20 0 80 0 123456 1 1\n"
    yield b"python3\0-m\0vllm.entrypoints.openai.api_server\0--port=8000\0--tensor-parallel-size\x004\0"
    yield b"PATH=/bin\0RANK=3\0MASTER_ADDR=10.0.0.1\0"
    yield b"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice/cri-containerd-%s.scope\n" % (
        b"0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f", name,
    )  # fmt: skip
    yield b"12:memory:/docker/%s\n1:name=systemd:/system.slice/docker-%s.scope\n" % (name, name)
    yield b"0::/system.slice/n1_slurmstepd.scope/job_4711/step_0/user/task_0\n"
    yield b"0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service\n"
    yield b"Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\n"
    yield b"7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libnccl.so.2.21.5\n7f02-7f03 r-xp 0 0:0 0 [heap]\n"
    for address in ("127.0.0.1", "::", "::1"):
        fields = f"   0: {kernel_address(address)}:1F40 {kernel_address(address)}:0000 0A 0:0 00:0 0 1000 0 31337 1\n"
        yield b"  sl  local_address rem_address   st tx_queue rx_queue\n" + fields.encode()
    yield b"Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 192.0.2.10\n        /32 host LOCAL\n"
    yield b"fe800000000000000000000000000001 02 40 20 80 eth0\n"


def frames() -> Iterator[bytes]:
    """Return messages of a worker, alone and in a row."""
    instance = MigInstance(number=2, parent="GPU-3", profile="1g.10gb", gpu_instance=9, compute_instance=0)
    reading = CardReading(at=1.5, signals={Signal.POWER: 412.25}, missing={Signal.UTILIZATION: Missing.MIG})
    messages = [
        protocol.Initialised(
            facts=DriverFacts(driver_version="590.48", nvml_version="13", cuda_version="13.1"), cards=8
        ),
        protocol.CardFound(facts=CardFacts(index=3, uuid="MIG-3", name="H100", instance=instance)),
        protocol.CardRead(index=3, uuid="GPU-3", cycle=7, duration=0.25, reading=reading),
        protocol.CardFailed(index=1, uuid="", cycle=7, reason="lost", message="gone"),
        protocol.Heartbeat(cycle=9, ask=False, busy={0: 1.5}, counting=2.5, joining=0.5, profiling={"GPU-a": 3.0}),
        protocol.XidSeen(uuid="GPU-3", xid=79, times=3, at=12.5),
        protocol.DriverFailed(reason="mismatch", message="x"),
    ]
    written = [protocol.encode(message) for message in messages]
    return iter([*written, b"".join(written)])
