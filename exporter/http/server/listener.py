"""Answers HTTP on one port, from one thread, and lets no client take that away from the others.

A metrics page is ready bytes, so an answer takes microseconds; what costs is the client: mute, slow, hostile, gone.
Hence one event loop (``selectors``), a deadline on everything that a client can delay, a cap on everything that it
can grow, and no thread, buffer or copy of the page per client.  When every place is taken, whoever has kept us
waiting longest for a request gives way, so that neither mute nor dripping clients keep a scrape out; a newcomer is
turned away only while all places are being written to.  Handlers run inside the loop: they must return at once, and
what may take longer they give ``DeferredResponse``.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from exporter.errors import ListenError
from exporter.http.server.connection import Connection, DeferredResponse, Handler, Phase, ServerLimits
from exporter.http.server.request import Request, Response, plain
from exporter.logs import Field, log_exception
from exporter.threads import Thread

__all__ = ["DeferredResponse", "Handler", "Listener", "Request", "Response", "ServerLimits"]

_log = logging.getLogger(__name__)

_ACCEPTS_A_TURN = 32  # then the connections that we already have get their turn
_SILENCE = 60.0  # seconds between two log lines about the same trouble


class Listener:
    """An HTTP/1.1 server on ``host``:``port``; port 0 picks a free one, ``::`` listens on IPv4 as well.

    Binds at once and raises ``ListenError`` when the address cannot be had; answers between ``start`` and ``stop``.
    The counters only rise, are written by the loop's thread alone, and may be read from any.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handler: Handler,
        limits: ServerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.accepted = 0  # connections
        self.refused = 0  # connections turned away because all places were taken
        self.timed_out = 0  # connections that ran into the header or the write deadline
        self.errors = 0  # handlers that raised, and bugs of our own that cost a client its connection
        self.exhausted = 0  # accepts that failed because the machine was out of descriptors or memory
        self.loop_restarts = 0
        self._handler = handler
        self._limits = limits or ServerLimits()
        self._clock = clock
        self._connections: dict[Connection, int] = {}  # → the interest that the selector knows
        self._accept_at: float | None = None  # while accepting is paused: when to try again
        self._silent_until: dict[str, float] = {}
        self._stopping = threading.Event()
        self._stop_at = 0.0
        self._beating = True
        self._socket = _bind(host, port, self._limits.backlog)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._selector: selectors.BaseSelector | None = None
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._thread = Thread(self._run, name="listener")

    @property
    def alive(self) -> bool:
        """True while the loop turns; False before ``start``, after ``stop``, and from a failure until it recovers."""
        return self._thread.is_alive() and self._beating

    def start(self) -> None:
        """Begin to answer, in a daemon thread.  Once only."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Free the port, let answers that are being written finish for up to ``timeout`` seconds, drop the rest."""
        if self._stopping.is_set():
            return
        self._stop_at = self._clock() + timeout * 0.8
        self._stopping.set()
        self._nudge()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        self._socket.close()
        if not self._thread.is_alive():  # otherwise a handler hangs, and its thread will still look at them
            self._wake.close()
            self._waker.close()

    # -- the loop

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._serve()
            if self._selector is not None:
                self._finish(self._selector)
        except Exception:
            self._log_exception("listener_stop_failed", "answers in progress were cut off")
        finally:
            self._end()

    def _serve(self) -> None:
        """Turn until told to stop; after a failure return, counted, so that the caller begins anew."""
        try:
            selector = self._begin()
            while not self._stopping.is_set():
                self._turn(selector)
                self._beating = True
        except Exception:
            self._beating = False
            self.loop_restarts += 1
            self._log_exception("listener_restarted", "the loop failed and starts again without its connections")
            self._stopping.wait(self._limits.pause_seconds)

    def _begin(self) -> selectors.BaseSelector:
        """Start from nothing but the listening socket: what broke the loop before may sit in a connection."""
        self._end()
        self._selector = selector = selectors.DefaultSelector()
        selector.register(self._wake, selectors.EVENT_READ)
        selector.register(self._socket, selectors.EVENT_READ)
        self._accept_at = None
        return selector

    def _end(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        if self._selector is not None:
            self._selector.close()
            self._selector = None

    def _finish(self, selector: selectors.BaseSelector) -> None:
        """Free the port, then let the answers that are on their way arrive."""
        selector.unregister(self._wake)
        if self._accept_at is None:
            selector.unregister(self._socket)
        self._accept_at = None
        self._socket.close()
        for connection in list(self._connections):
            connection.finish()
            self._follow(connection, selector)
        while self._connections and self._clock() < self._stop_at:
            self._turn(selector)

    def _turn(self, selector: selectors.BaseSelector) -> None:
        """Sleep until something happens, and deal with all that has."""
        for key, _ in selector.select(self._patience()):
            if isinstance(key.data, Connection):
                self._advance(key.data, selector)
            elif key.fileobj is self._socket:
                self._accept(selector)
            else:
                self._woken(selector)
        now = self._clock()
        if self._accept_at is not None and self._accept_at <= now:
            self._accept_at = None
            selector.register(self._socket, selectors.EVENT_READ)
        for connection in [each for each in self._connections if each.deadline <= now]:
            self.timed_out += connection.expire()
            self._follow(connection, selector)

    def _patience(self) -> float | None:
        """Seconds until the next deadline; None when nothing can become due."""
        if not self._beating:
            return 0.0  # the first turn after a failure only shows that the loop turns again
        moments = [connection.deadline for connection in self._connections]
        if self._accept_at is not None:
            moments.append(self._accept_at)
        if self._stopping.is_set():
            moments.append(self._stop_at)
        return max(0.0, min(moments) - self._clock()) if moments else None

    def _nudge(self) -> None:
        """End the loop's sleep, from any thread; a full buffer ends it as well, and a closed one has no loop."""
        with suppress(OSError):
            self._waker.send(b"x")

    def _woken(self, selector: selectors.BaseSelector) -> None:
        """Go on with what waited for an answer of another thread's."""
        self._wake.recv(4096)
        for connection in [each for each in self._connections if each.phase is Phase.HANDLING]:
            self._advance(connection, selector)

    # -- connections

    def _accept(self, selector: selectors.BaseSelector) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                sock, _peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError:
                # Out of descriptors, as a rule.  The client stays in the backlog and the socket stays readable:
                # without a pause this loop would spin, and starve the connections that it has.
                self.exhausted += 1
                self._accept_at = self._clock() + self._limits.pause_seconds
                selector.unregister(self._socket)
                self._log_exception("accept_paused", "new scrapes wait; raise LimitNOFILE")
                return
            self.accepted += 1
            try:
                self._welcome(sock, selector)
            except OSError:  # gone already
                sock.close()

    def _welcome(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        """Give a new client a place.

        Here TLS will wrap the socket, and a phase of its own will stand before WAITING: the loop must drive the
        handshake under its own deadline, never this method, or one silent client stops every scrape.
        """
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(sock, self._ask, self._limits, self._clock())
        if len(self._connections) >= self._limits.connections and not self._evict(selector):
            self.refused += 1
            connection.reject()
            return
        selector.register(sock, connection.interest, connection)
        self._connections[connection] = connection.interest
        self._advance(connection, selector)  # the request is usually there already

    def _evict(self, selector: selectors.BaseSelector) -> bool:
        """Free one place: of a client that has had its last answer, else of the one that we wait for longest."""
        leaving = [each for each in self._connections if each.phase is Phase.LEAVING]
        waiting = [each for each in self._connections if each.phase is Phase.WAITING]
        if not leaving and not waiting:
            return False
        connection = leaving[0] if leaving else min(waiting, key=lambda each: each.since)
        self.refused += not leaving and not connection.idle
        connection.reject()
        self._follow(connection, selector)
        return True

    def _advance(self, connection: Connection, selector: selectors.BaseSelector) -> None:
        """Serve one connection; what goes wrong costs this connection only."""
        try:
            connection.advance(self._clock())
        except OSError:  # the client is gone; that is its right, and no news
            connection.close()
        except Exception:
            self.errors += 1
            self._log_exception("connection_failed", "an internal error; one client lost its connection")
            connection.close()
        self._follow(connection, selector)

    def _follow(self, connection: Connection, selector: selectors.BaseSelector) -> None:
        """Tell the selector what has become of a connection."""
        known = self._connections.get(connection)
        if known is None:
            return
        interest = 0 if connection.phase is Phase.CLOSED else connection.interest
        self._connections[connection] = interest
        if connection.phase is Phase.CLOSED:
            del self._connections[connection]
        if known == interest:
            return
        if not interest:
            selector.unregister(connection.sock)
        elif not known:
            selector.register(connection.sock, interest, connection)
        else:
            selector.modify(connection.sock, interest, connection)

    def _ask(self, request: Request) -> Response | DeferredResponse:
        try:
            answer = self._handler(request)
        except Exception:
            self.errors += 1
            self._log_exception("handler_failed", "an internal error; the client got a 500", path=request.path[:80])
            return plain(500, "this answer failed; the log of the daemon says why")
        if isinstance(answer, DeferredResponse):
            answer.when_given(self._nudge)
        return answer

    def _log_exception(self, event: str, msg: str, **fields: Field) -> None:
        """Log the exception that is being handled, each event at most once a minute."""
        now = self._clock()
        if now >= self._silent_until.get(event, now):
            self._silent_until[event] = now + _SILENCE
            log_exception(_log, event, msg, **fields)


def _bind(host: str, port: int, backlog: int) -> socket.socket:
    """Give a listening, non-blocking socket that no child process inherits."""
    where = f"cannot listen on {f'[{host}]' if ':' in host else host}:{port}"
    if not 0 <= port <= 65535:
        raise ListenError(f"{where}: a port is a number from 0 to 65535")
    sock = None
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name such as localhost may have both: what people type is 127.0.0.1.
        family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a restart waits a minute for the port
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except (OSError, UnicodeError) as error:
        if sock is not None:
            sock.close()
        raise ListenError(f"{where}: {_cure(error, port)}") from error
    return sock


def _cure(error: OSError | UnicodeError, port: int) -> str:
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "no such host name or address; give an address of this machine, or 0.0.0.0 for all of them"
    cures = {
        errno.EADDRINUSE: f"the port is taken; `ss -ltnp sport = :{port}` shows by whom; stop that, or take another",
        errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE; take a port from 1024 on",
        errno.EADDRNOTAVAIL: "this machine does not have that address; `ip address` shows those it has",
        errno.EAFNOSUPPORT: "this machine has no IPv6; give an IPv4 address, or 0.0.0.0 for all of them",
    }
    return cures.get(error.errno or 0, error.strerror or str(error))
