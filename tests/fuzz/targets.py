"""What is fuzzed: for each reader of bytes from outside a function of any bytes, which raises where something is wrong.

What a reader refuses on purpose (``SourceError``, ``SettingsError``, ``BadRequestError``) is no find; every other
exception is one, and so is a broken promise, which an assertion states.  Seeds are what the reader is made for.
"""

from __future__ import annotations

import math
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from unittest import mock

import msgspec

from exporter.config import settings, web
from exporter.driver import protocol
from exporter.driver.protocol import FrameBuffer
from exporter.engines.detect import recognise
from exporter.engines.interpreter import EngineInterpreter
from exporter.engines.parse.layout import Values
from exporter.engines.parse.text import PageReader
from exporter.engines.tables import ENGINES
from exporter.errors import SettingsError, SourceError
from exporter.gateways.interpreter import GatewayInterpreter
from exporter.gateways.tables import GATEWAYS
from exporter.gpu_pages.interpreter import GpuPageInterpreter
from exporter.gpu_pages.tables import GPU_EXPORTERS
from exporter.http.client.deadline import Deadline
from exporter.http.client.response import StrictResponse
from exporter.http.client.sockets import DeadlineSocket
from exporter.http.client.target import Limits
from exporter.http.server.request import BadRequestError, parse_request
from exporter.model import EngineReading
from exporter.sources.kernel_log import record
from exporter.sources.kernel_log.messages import MAX_DETAIL, GpuNameMessage, MessageParser
from exporter.sources.processes import cgroup, procfs
from exporter.stores.interpreter import StoreInterpreter
from exporter.stores.tables import STORES
from tests.fuzz import seeds

CUT = b"\n--\n"  # divides an input into two pages


@dataclass(frozen=True)
class Target:
    """``check`` raises for a find; ``seeds`` give inputs to start from; ``words`` are what mutations should know of."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    words: tuple[bytes, ...] = ()


# ---------------------------------------------------------------------- metrics pages


def _reading(read: Callable[[bytes], Values], interpreter: EngineInterpreter, page: bytes) -> EngineReading | None:
    try:
        return interpreter.read(read(page), at=1.0)
    except SourceError:
        return None


def _warnings(found: Mapping[str, int]) -> dict[str, int]:
    """Return warnings without those of lines that cannot be read.

    One whose name is known to be of no use is not looked at again, and one whose series is known has a bad value.
    """
    return {reason: count for reason, count in found.items() if reason not in {"unreadable", "bad_value"}}


def check_page(data: bytes) -> None:
    """Two pages of one engine: whatever the first one left in the caches, the second one reads as it does alone.

    That holds for the full reading: the incremental one compares lines that are not wanted by their size alone.
    """
    first, _, second = data.partition(CUT)
    second = second or first
    engine = recognise(second) or ENGINES[0]
    interpreter = EngineInterpreter(engine)
    reader = PageReader(interpreter.wanted)
    _reading(reader.read, interpreter, first)
    incremental = _reading(reader.read, interpreter, second)
    after = _reading(reader.read_fully, interpreter, second)
    alone = _reading(PageReader(interpreter.wanted).read, EngineInterpreter(engine), second)
    # What is refused depends on what came before (churn, size), and a model that was chosen stays.
    if alone is not None and after is not None and after.model == alone.model:
        assert after.ranks == alone.ranks, (after.ranks, alone.ranks)
        assert after.finished == alone.finished
        assert _warnings(after.parse_warnings) == _warnings(alone.parse_warnings)
    for reading in (incremental, after, alone):
        for rank in reading.ranks.values() if reading else ():
            assert all(0.0 <= number < math.inf for number in rank.values()), rank


_INTERPRETERS = [
    *((GatewayInterpreter, table) for table in GATEWAYS),
    *((StoreInterpreter, table) for table in STORES),
    *((GpuPageInterpreter, table) for table in GPU_EXPORTERS),
]


def check_other_page(data: bytes) -> None:
    """A page of a gateway, a store or another exporter of GPUs, read twice: the first byte chooses which."""
    make, table = _INTERPRETERS[data[0] % len(_INTERPRETERS) if data else 0]
    interpreter = make(table)  # type: ignore[arg-type]
    with suppress(SourceError):
        first = interpreter.read(data[1:], at=1.0)
        again = interpreter.read(data[1:], at=1.0)
        assert _warnings(again.parse_warnings) == _warnings(first.parse_warnings)
        assert msgspec.structs.replace(again, parse_warnings=first.parse_warnings) == first


# ---------------------------------------------------------------------- HTTP


def check_request(data: bytes) -> None:
    """The head of a request: no longer than what came, and never complete before its end has come."""
    limits = {"header_bytes": 8192, "header_fields": 64, "body_bytes": 1024}
    parsed, refused = None, 0
    try:
        parsed = parse_request(bytearray(data), **limits)
    except BadRequestError as error:
        refused = error.response.status
    if refused:
        assert 400 <= refused < 600
    elif parsed is None:
        assert len(data) < 8192 + 1024
    else:
        assert 0 < parsed.size <= len(data)
        assert parse_request(bytearray(data[: parsed.size]), **limits) == parsed
        with suppress(BadRequestError):
            assert parse_request(bytearray(data[: parsed.size - 1]), **limits) is None


def check_response(data: bytes) -> None:
    """A response as it stands in a socket whose peer has closed: content within the limits, or a refusal."""
    limits = Limits(head_bytes=2048, head_fields=16, wire_bytes=16_384, body_bytes=65_536)
    ours, theirs = socket.socketpair()
    with theirs, DeadlineSocket(fileno=ours.detach()) as sock:
        theirs.sendall(data[:32_768])
        theirs.shutdown(socket.SHUT_WR)
        sock.deadline = Deadline(1.0)
        response = StrictResponse(sock, limits=limits, method="GET")
        try:
            response.begin()
            assert 100 <= response.status < 1000
            assert len(response.read()) <= limits.body_bytes
        except (SourceError, OSError):
            pass
        finally:
            response.close()


# ---------------------------------------------------------------------- configurations


def _refusal(read: Callable[[], object]) -> None:
    try:
        read()
        return
    except SettingsError as error:
        problems = error.problems
    assert problems
    assert all(len(str(problem)) < 2_000 for problem in problems), "a message quotes too much"


def check_config(data: bytes) -> None:
    """A configuration: settings, or a refusal that lists short problems."""
    _refusal(lambda: settings.parse(data.decode("utf-8", "surrogateescape"), "fuzz.yaml", {}))


def check_web_config(data: bytes) -> None:
    """A web configuration, likewise."""
    with tempfile.TemporaryDirectory() as folder:
        _refusal(lambda: web.parse(data.decode("utf-8", "surrogateescape"), "web.yml", base=folder))


# ---------------------------------------------------------------------- the node


def check_kernel_log(data: bytes) -> None:
    """Lines of a kernel log, by every way in: small printable records, or nothing."""
    parser = MessageParser()
    for raw in data.split(b"\n"):
        record.of_driver(raw)
        line = raw.decode("utf-8", "replace")
        written = record.written_at(line, 1.7e9)
        assert written is None or (math.isfinite(written) and written <= 1.7e9)
        for message in (line, record.message_of_line(line), record.message_of_journal_line(line) or ""):
            found = parser.parse(message)
            if found is None or isinstance(found, GpuNameMessage):
                continue
            assert len(found.detail) <= MAX_DETAIL
            assert found.detail.isprintable()


def check_proc(data: bytes) -> None:
    """One file of ``/proc`` in place of every file: stat, cmdline, environ, cgroup, status, maps, net."""

    def lines(_: str) -> Iterator[str]:
        return iter(data.decode("ascii", "replace").splitlines(keepends=True))

    with (
        mock.patch.object(procfs, "_read", lambda _path, limit: data[:limit]),
        mock.patch.object(procfs, "_lines", lines),
    ):
        stat = procfs.stat("/proc", 1)
        assert stat is None or stat.title.isprintable()
        assert all(word.isprintable() for word in procfs.command("/proc", 1))
        assert procfs.variable("/proc", 1, "RANK").isprintable()
        uid = procfs.real_uid("/nonexistent", 1)
        assert uid is None or 0 <= uid < 10**10
        procfs.libraries("/proc", 1)
        for found in procfs.listening("/proc", 1):
            assert 0 <= found.port < 65_536
        procfs.addresses("/proc", 1)
        assert procfs.hostname("/proc").isprintable()
        procfs.cgroup("/proc", 1)
        owner = cgroup.parse_cgroup(procfs.cgroup_lines("/proc", 1))
    for value in msgspec.structs.asdict(owner).values():
        assert not isinstance(value, str) or value.isprintable()


def check_frames(data: bytes) -> None:
    """The stream of a worker, and one frame of it: messages that can be written again, or a protocol error; pieces change nothing."""
    whole, pieces = FrameBuffer(), FrameBuffer()
    try:
        frames = whole.feed(data)
    except SourceError:
        return
    assert frames == [*pieces.feed(data[:7]), *pieces.feed(data[7:])]
    for frame in (*frames, data):
        with suppress(SourceError):
            message = protocol.decode(frame)
            assert protocol.decode(protocol.encode(message)[4:]) == message


# ---------------------------------------------------------------------- all of them


def _words(names: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(name.encode() for name in names)


def _both(read: Callable[[], Iterable[bytes]]) -> Callable[[], Iterator[bytes]]:
    """Return the seeds, and each once more as a second page behind the one before it."""

    def doubled() -> Iterator[bytes]:
        before = b""
        for seed in read():
            yield seed
            yield before + CUT + seed
            before = seed

    return doubled


TARGETS = {
    "page": Target(check_page, _both(seeds.engine_pages), seeds.PAGE_WORDS),
    "other_page": Target(check_other_page, seeds.other_pages, seeds.PAGE_WORDS),
    "request": Target(check_request, seeds.requests, seeds.HTTP_WORDS),
    "response": Target(check_response, seeds.responses, seeds.HTTP_WORDS),
    "config": Target(check_config, seeds.configurations, _words(settings.Settings.__struct_fields__)),
    "web_config": Target(check_web_config, seeds.web_configurations, _words(web.WebSettings.__struct_fields__)),
    "kernel_log": Target(check_kernel_log, seeds.kernel_lines, seeds.KERNEL_WORDS),
    "proc": Target(check_proc, seeds.proc_files, seeds.PROC_WORDS),
    "frames": Target(check_frames, seeds.frames),
}
