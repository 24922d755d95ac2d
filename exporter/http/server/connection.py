"""One client of the server: reads its requests one after another and writes the answers, never waiting for it.

A connection is driven from outside: ``advance`` when its socket has become ready for what ``interest`` says, and
``expire`` when ``deadline`` has passed.  It owns its socket, holds at most one head and one body of a request, and
only views of the answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from selectors import EVENT_READ, EVENT_WRITE

from exporter.http.server.request import BadRequestError, Message, Request, Response, head, plain, take


class DeferredResponse:
    """An answer that another thread makes, because making it may take a while; the loop goes on meanwhile."""

    __slots__ = ("_on_given", "response")

    def __init__(self) -> None:
        self.response: Response | None = None
        self._on_given: Callable[[], None] | None = None

    def give(self, response: Response) -> None:
        """Hand the answer over.  Once, from any thread."""
        self.response = response
        if self._on_given is not None:
            self._on_given()

    def when_given(self, call: Callable[[], None]) -> None:
        """Have ``call`` made, at once if the answer is there already, and at times twice."""
        self._on_given = call
        if self.response is not None:
            call()


Handler = Callable[[Request], Response | DeferredResponse]

_SCRAP = 16384  # bytes thrown away in one go
_LINGER_BYTES = 4 << 20  # thrown away in all before a refused client is cut off
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What one client, and all of them together, may take.  Times in seconds, each for the whole of its step."""

    header_seconds: float = 5.0  # from the accept, or from the first byte of a later request, to the request's end
    header_bytes: int = 8192  # request line and fields
    header_fields: int = 64
    body_bytes: int = 1024  # of a POST; read and thrown away
    answer_seconds: float = 30.0  # that an answer of another thread's may take
    write_seconds: float = 10.0
    idle_seconds: float = 60.0  # between two requests
    linger_seconds: float = 1.0  # after the last answer, so that the client can read it before the connection dies
    pause_seconds: float = 0.1  # without accepting, after the machine ran out of descriptors
    connections: int = 64
    backlog: int = 512  # with 128, two hundred scrapers at once overflow it, and some wait a second for a new SYN


class Phase(Enum):
    """What a connection is doing."""

    WAITING = "for a request, or the rest of one"
    HANDLING = "another thread for the answer"
    WRITING = "an answer"
    LEAVING = "answered for the last time; what still arrives is thrown away"
    CLOSED = "its socket is closed"


class Connection:
    """Where one client stands.  Takes over ``sock``; times are those of the clock that ``advance`` is told."""

    __slots__ = (
        "_bodiless", "_handler", "_inbox", "_keep", "_later", "_limits", "_out", "_thrown_away",
        "answered", "deadline", "interest", "phase", "since", "sock",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, handler: Handler, limits: ServerLimits, now: float) -> None:
        self.sock = sock
        self.phase = Phase.WAITING
        self.interest = EVENT_READ
        self.since = now  # it has kept us waiting since then
        self.deadline = now + limits.header_seconds
        self.answered = 0
        self._handler = handler
        self._limits = limits
        self._inbox = bytearray()
        self._out: list[memoryview] = []
        self._later: DeferredResponse | None = None
        self._keep = True
        self._bodiless = False
        self._thrown_away = 0

    @property
    def idle(self) -> bool:
        """True between two requests, when closing costs the client nothing but a new connection."""
        return self.phase is Phase.WAITING and self.answered > 0 and not self._inbox

    def advance(self, now: float) -> None:
        """Go as far as possible without waiting.  Raises OSError when the client is gone; the caller closes then."""
        try:
            if self.phase is Phase.WRITING:
                self._write(now)
            elif self.phase is Phase.LEAVING:
                self._drain()
            elif self.phase is Phase.WAITING:
                self._read(now)
            elif self._later is not None and self._later.response is not None:
                self._respond(self._later.response, now)
        except (BlockingIOError, InterruptedError):
            return

    def expire(self) -> bool:
        """Close because ``deadline`` has passed; True when the client was too slow, False when that is no fault."""
        slow = self.phase is Phase.WRITING or (self.phase is Phase.WAITING and not self.idle)
        if self.phase is Phase.WRITING:
            with contextlib.suppress(OSError):  # or the kernel keeps its copy of the page, and offers it for minutes
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        elif self.phase is Phase.HANDLING:
            self._send_error(plain(504, "no answer yet; it is being worked on, and the log of the daemon tells how"))
        elif self._inbox:
            self._send_error(plain(408, f"no whole request within {self._limits.header_seconds:g} s"))
        self.close()
        return slow

    def reject(self) -> None:
        """Close because there is no place; says so with a 503 unless the client is merely idle."""
        if not self.idle and self.phase is Phase.WAITING:
            # Bytes left unread would make close() send a reset, which can overtake the answer.
            with contextlib.suppress(OSError):
                self.sock.recv(_SCRAP)
            self._send_error(plain(503, "all connections are in use, try again", ("Retry-After", "1")))
        self.close()

    def finish(self) -> None:
        """Let an answer that is being written arrive, then close; close at once when there is none."""
        self._keep = False
        if self.phase is not Phase.WRITING:
            self.close()

    def close(self) -> None:
        """Close the socket and let go of the page."""
        self.phase = Phase.CLOSED
        self._out.clear()
        self.sock.close()

    def _send_error(self, response: Response) -> None:
        with contextlib.suppress(OSError):
            self.sock.send(head(response, keep=False) + response.body)

    def _read(self, now: float) -> None:
        if self.interest == EVENT_READ:  # otherwise the inbox may hold the next request already
            data = self.sock.recv(self._limits.header_bytes + self._limits.body_bytes - len(self._inbox))
            if not data:
                self.close()
                return
            if self.idle:
                self.since = now
                self.deadline = now + self._limits.header_seconds
            self._inbox += data
        self.interest = EVENT_READ
        try:
            message = self._take()
        except BadRequestError as error:
            self._keep = False
            self._respond(error.response, now)
            return
        if message is not None:
            del self._inbox[: message.size]
            self._keep = message.keep
            self._bodiless = message.request.method == "HEAD"
            answer = self._handler(message.request)
            if isinstance(answer, DeferredResponse):
                self._ask(answer, now)
            else:
                self._respond(answer, now)

    def _take(self) -> Message | None:
        return take(
            self._inbox,
            header_bytes=self._limits.header_bytes,
            header_fields=self._limits.header_fields,
            body_bytes=self._limits.body_bytes,
        )

    def _ask(self, answer: DeferredResponse, now: float) -> None:
        self.phase, self._later = Phase.HANDLING, answer
        self.deadline = now + self._limits.answer_seconds
        self.interest = 0  # whatever the client sends meanwhile waits in the kernel

    def _respond(self, response: Response, now: float) -> None:
        self.phase, self._later = Phase.WRITING, None
        self.deadline = now + self._limits.write_seconds
        self.interest = EVENT_WRITE
        self._out.append(memoryview(head(response, keep=self._keep)))
        if not self._bodiless:
            self._out.append(memoryview(response.body))
        self._write(now)

    def _write(self, now: float) -> None:
        while self._out:
            rest = self._out[0]
            rest = rest[self.sock.send(rest) :]
            if rest:
                self._out[0] = rest
            else:
                del self._out[0]
        self.answered += 1
        if self._keep:
            self._wait(now)
        else:
            self._leave(now)

    def _wait(self, now: float) -> None:
        self.phase = Phase.WAITING
        self.since = now
        self.deadline = now + (self._limits.header_seconds if self._inbox else self._limits.idle_seconds)
        # A pipelined request has its turn after those of the other connections: a socket is writable at once.
        self.interest = EVENT_WRITE if self._inbox else EVENT_READ

    def _leave(self, now: float) -> None:
        """Say goodbye, but read on: bytes left unread would turn the close into a reset, which eats the answer."""
        self.phase = Phase.LEAVING
        self.deadline = now + self._limits.linger_seconds
        self.interest = EVENT_READ
        self._inbox.clear()
        self.sock.shutdown(socket.SHUT_WR)

    def _drain(self) -> None:
        data = self.sock.recv(_SCRAP)
        self._thrown_away += len(data)
        if not data or self._thrown_away > _LINGER_BYTES:
            self.close()
