"""One client of the server: reads its requests one after another and writes the responses, without blocking.

A connection is driven from outside: ``advance`` when its socket is ready for what ``interest`` says, ``expire`` when
``deadline`` has passed.  It owns its socket, and holds at most one head and one body of a request and only views of
the response.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from enum import Enum
from selectors import EVENT_READ, EVENT_WRITE

from msgspec import Struct

from exporter.http.server.request import (
    BadRequestError,
    ParsedRequest,
    Request,
    Response,
    format_head,
    parse_request,
    text_response,
)


class DeferredResponse:
    """A response that another thread makes, because that may take a while; the event loop goes on meanwhile."""

    __slots__ = ("_callback", "response", "resume")

    def __init__(self) -> None:
        self.response: Response | None = None
        self.resume: Callable[[], Response | DeferredResponse] | None = None
        self._callback: Callable[[], None] | None = None

    def set_response(self, response: Response) -> None:
        """Set the response.  Once, from any thread."""
        self.response = response
        if self._callback is not None:
            self._callback()

    def set_resume(self, resume: Callable[[], Response | DeferredResponse]) -> None:
        """Have the event loop call ``resume`` for the response.  Once, from any thread."""
        self.resume = resume
        if self._callback is not None:
            self._callback()

    def add_done_callback(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the response is set, at once if it is already; at times twice."""
        self._callback = call
        if self.response is not None or self.resume is not None:
            call()


RequestHandler = Callable[[Request], Response | DeferredResponse]

_DRAIN_CHUNK = 16384  # bytes
_MAX_DRAINED = 4 << 20  # bytes, before a client that goes on sending is cut off
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


class ServerLimits(Struct, frozen=True, kw_only=True):
    """What one client, and all of them together, may take.  Times in seconds, each for the whole of its step."""

    header_seconds: float = 5.0  # from the accept, or from the first byte of a later request, to the request's end
    header_bytes: int = 8192  # request line and fields
    header_fields: int = 64
    body_bytes: int = 1024  # of a POST; read and discarded
    deferred_seconds: float = 30.0  # that a deferred response may take
    write_seconds: float = 10.0
    idle_seconds: float = 60.0  # between two requests
    linger_seconds: float = 1.0  # after the last response, so that the client can read it before the connection ends
    pause_seconds: float = 0.1  # without accepting, after descriptors ran out
    connections: int = 64
    backlog: int = 512  # with 128, two hundred scrapers at once overflow it, and some wait a second for a new SYN


class Phase(Enum):
    """What a connection is doing."""

    WAITING = "for a request, or for the rest of one"
    HANDLING = "another thread makes the response"
    WRITING = "a response"
    LINGERING = "the last response is sent; what still arrives is discarded"
    CLOSED = "its socket is closed"


class ServerConnection:
    """The state of one client.  Takes over ``sock``; times are those of the clock that ``advance`` is given."""

    __slots__ = (
        "_buffered", "_deferred", "_drained", "_handler", "_inbox", "_keep", "_limits", "_omit_body", "_out",
        "access", "authorize", "deadline", "headers", "interest", "last", "phase", "responses_sent",
        "sock", "waiting_since",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, handler: RequestHandler, limits: ServerLimits, now: float) -> None:
        self.sock = sock
        self.phase = Phase.WAITING
        self.interest = EVENT_READ
        self.waiting_since = now
        self.deadline = now + limits.header_seconds
        self.responses_sent = 0
        self.access: object = None  # the rules under which it was accepted
        # Of requests that get the given response, to whoever may know it.
        self.authorize: Callable[[Request, Response], Response | DeferredResponse] = lambda _, response: response
        self.headers: tuple[tuple[str, str], ...] = ()  # of every response
        self.last = False  # the next response ends the connection
        self._buffered = False  # the inbox may hold the next request already
        self._handler = handler
        self._limits = limits
        self._inbox = bytearray()
        self._out: list[memoryview] = []
        self._deferred: DeferredResponse | None = None
        self._keep = True
        self._omit_body = False
        self._drained = 0

    @property
    def idle(self) -> bool:
        """True between two requests, when closing costs the client nothing but a new connection."""
        return self.phase is Phase.WAITING and self.responses_sent > 0 and not self._inbox

    def advance(self, now: float) -> None:
        """Go as far as possible without blocking.  Raises OSError when the client is gone; the caller then closes."""
        try:
            if self.phase is Phase.WRITING:
                self._write(now)
            elif self.phase is Phase.LINGERING:
                self._drain()
            elif self.phase is Phase.WAITING:
                self._read(now)
            elif self._deferred is not None:
                self._finish_deferred(self._deferred, now)
        except (BlockingIOError, InterruptedError):
            return

    def expire(self) -> bool:
        """Close because ``deadline`` has passed; return whether the client was too slow, and not merely idle."""
        slow = self.phase is Phase.WRITING or (self.phase is Phase.WAITING and not self.idle)
        if self.phase is Phase.WRITING:
            with contextlib.suppress(OSError):  # or the kernel keeps its copy of the page, and retries for minutes
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        elif self.phase is Phase.HANDLING:
            self._send_error(text_response(504, "no response yet; the daemon goes on with it and logs the outcome"))
        elif self._inbox:
            self._send_error(text_response(408, f"no whole request within {self._limits.header_seconds:g} s"))
        self.close()
        return slow

    def reject(self) -> None:
        """Close because all connections are in use; with a 503 unless the client is merely idle."""
        if not self.idle and self.phase is Phase.WAITING:
            # Bytes left unread would make close() send a reset, which can overtake the response.
            with contextlib.suppress(OSError):
                self.sock.recv(_DRAIN_CHUNK)
            self._send_error(text_response(503, "all connections are in use, try again", ("Retry-After", "1")))
        self.close()

    def finish(self) -> None:
        """Close once a response that is being written is sent; at once when there is none."""
        self._keep = False
        if self.phase is not Phase.WRITING:
            self.close()

    def close(self) -> None:
        """Close the socket and drop the response."""
        self.phase = Phase.CLOSED
        self._out.clear()
        self.sock.close()

    def _send_error(self, response: Response) -> None:
        with contextlib.suppress(OSError):
            self.sock.send(format_head(response, keep=False, headers=self.headers) + response.body)

    def _pending(self) -> bool:
        """Return whether bytes have been received that neither the inbox nor the kernel has."""
        return False

    def _read(self, now: float) -> None:
        if not self._buffered:
            data = self.sock.recv(self._limits.header_bytes + self._limits.body_bytes - len(self._inbox))
            if not data:
                self.close()
                return
            if self.idle:
                self.waiting_since = now
                self.deadline = now + self._limits.header_seconds
            self._inbox += data
        self._buffered = False
        self.interest = EVENT_READ
        try:
            parsed = self._parse()
        except BadRequestError as error:
            self._keep = False
            if error.request is None:
                self._respond(error.response, now)
            else:
                self._dispatch(self.authorize(error.request, error.response), now)
            return
        if parsed is not None:
            del self._inbox[: parsed.size]
            self._keep = parsed.keep and not self.last
            self._omit_body = parsed.request.method == "HEAD"
            self._dispatch(self._handler(parsed.request), now)
        elif self._pending():
            self.interest = EVENT_WRITE  # the socket is not readable, and writable at once

    def _dispatch(self, response: Response | DeferredResponse, now: float) -> None:
        if isinstance(response, DeferredResponse):
            self._defer(response, now)
        else:
            self._respond(response, now)

    def _finish_deferred(self, deferred: DeferredResponse, now: float) -> None:
        if deferred.response is not None:
            self._respond(deferred.response, now)
        elif deferred.resume is not None:
            self._dispatch(deferred.resume(), now)

    def _parse(self) -> ParsedRequest | None:
        return parse_request(
            self._inbox,
            header_bytes=self._limits.header_bytes,
            header_fields=self._limits.header_fields,
            body_bytes=self._limits.body_bytes,
        )

    def _defer(self, deferred: DeferredResponse, now: float) -> None:
        self.phase, self._deferred = Phase.HANDLING, deferred
        self.deadline = now + self._limits.deferred_seconds
        self.interest = 0  # what the client sends meanwhile waits in the kernel

    def _respond(self, response: Response, now: float) -> None:
        self.phase, self._deferred = Phase.WRITING, None
        self.deadline = now + self._limits.write_seconds
        self.interest = EVENT_WRITE
        self._out.append(memoryview(format_head(response, keep=self._keep, headers=self.headers)))
        if not self._omit_body:
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
        self.responses_sent += 1
        if self._keep:
            self._wait_for_request(now)
        else:
            self._linger(now)

    def _wait_for_request(self, now: float) -> None:
        self.phase = Phase.WAITING
        self.waiting_since = now
        self.deadline = now + (self._limits.header_seconds if self._inbox else self._limits.idle_seconds)
        # A pipelined request is served after those of the other connections: a socket is writable at once.
        self._buffered = bool(self._inbox)
        self.interest = EVENT_WRITE if self._inbox or self._pending() else EVENT_READ

    def _linger(self, now: float) -> None:
        """Stop writing but read on: bytes left unread would make close() send a reset, which loses the response."""
        self.phase = Phase.LINGERING
        self.deadline = now + self._limits.linger_seconds
        self.interest = EVENT_READ
        self._inbox.clear()
        self.sock.shutdown(socket.SHUT_WR)

    def _drain(self) -> None:
        data = self.sock.recv(_DRAIN_CHUNK)
        self._drained += len(data)
        if not data or self._drained > _MAX_DRAINED:
            self.close()
