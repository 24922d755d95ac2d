"""HTTP server on one port, in one thread, that no client can block.

A metrics page is ready bytes, so a response takes microseconds; what costs is the client: silent, slow, hostile,
gone.  Hence one event loop (``selectors``), a deadline on everything that a client can delay, a cap on everything
that it can grow, and no thread, buffer or copy of the page per client.  When all connections are in use, the client
that has kept a request waiting longest is evicted, so that neither silent nor slow clients keep a scrape out; a new
one is rejected only while all others are being written to.  Handlers run in the loop: they must return at once, and
return ``DeferredResponse`` for what may take longer.
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
from typing import TYPE_CHECKING

from exporter.errors import ListenError
from exporter.http.server.connection import DeferredResponse, Phase, RequestHandler, ServerConnection, ServerLimits
from exporter.http.server.request import Request, Response, text_response
from exporter.logs import Field, log_event, log_exception
from exporter.threads import Thread

if TYPE_CHECKING:
    from exporter.http.server.access_control import AccessControl

__all__ = ["DeferredResponse", "HttpServer", "Request", "RequestHandler", "Response", "ServerLimits"]

_log = logging.getLogger(__name__)

_MAX_ACCEPTS = 32  # in a row; then the connections that are open are served
_LOG_INTERVAL = 60.0  # seconds between two log lines of one event


class HttpServer:
    """An HTTP/1.1 server on ``host``:``port``; port 0 picks a free one, ``::`` listens on IPv4 as well.

    ``access`` decides who may read, and how; None is plain HTTP for everybody.
    Binds at once and raises ListenError when the address cannot be had; serves between ``start`` and ``stop``.
    The counters only rise, are written by the loop's thread alone, and may be read from any.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handler: RequestHandler,
        limits: ServerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        access: AccessControl | None = None,
    ) -> None:
        self.accepted = 0  # connections
        self.refused = 0  # connections closed because all were in use
        self.timed_out = 0  # connections that ran into the header or the write deadline
        self.errors = 0  # handlers that raised, and internal errors that cost a client its connection
        self.exhausted = 0  # accepts that failed because the machine was out of descriptors or memory
        self.loop_restarts = 0
        self._handler = handler
        self._limits = limits or ServerLimits()
        self._clock = clock
        self._access = access
        self._connections: dict[ServerConnection, int] = {}  # → the interest registered with the selector
        self._accept_at: float | None = None  # while accepting is paused: when to try again
        self._quiet_until: dict[str, float] = {}
        self._stopping = threading.Event()
        self._stop_at = 0.0
        self._loop_ok = True
        self._socket = _bind(host, port, self._limits.backlog)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._selector: selectors.BaseSelector | None = None
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._thread = Thread(self._run, name="listener")

    @property
    def alive(self) -> bool:
        """True while the loop runs; False before ``start``, after ``stop``, and from a failure until it recovers."""
        return self._thread.is_alive() and self._loop_ok

    def start(self) -> None:
        """Start serving, in a daemon thread.  Once only."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Free the port; finish responses that are being written within ``timeout`` seconds, drop the rest."""
        if self._stopping.is_set():
            return
        self._stop_at = self._clock() + timeout * 0.8
        self._stopping.set()
        self._wake_loop()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        self._socket.close()
        if not self._thread.is_alive():  # otherwise a handler hangs, and its thread still uses them
            self._wake.close()
            self._waker.close()

    # -- the loop

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._run_loop()
            if self._selector is not None:
                self._finish(self._selector)
        except Exception:
            self._log_exception("listener_stop_failed", "responses in progress were cut off")
        finally:
            self._close_all()

    def _run_loop(self) -> None:
        """Run until told to stop; after a failure return, counted, so that the caller starts again."""
        try:
            selector = self._open()
            while not self._stopping.is_set():
                self._run_once(selector)
                self._loop_ok = True
        except Exception:
            self._loop_ok = False
            self.loop_restarts += 1
            self._log_exception("listener_restarted", "the loop failed and starts again without its connections")
            self._stopping.wait(self._limits.pause_seconds)

    def _open(self) -> selectors.BaseSelector:
        """Start with nothing but the listening socket: a connection may be what broke the loop before."""
        self._close_all()
        self._selector = selector = selectors.DefaultSelector()
        selector.register(self._wake, selectors.EVENT_READ)
        selector.register(self._socket, selectors.EVENT_READ)
        self._accept_at = None
        return selector

    def _close_all(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        if self._selector is not None:
            self._selector.close()
            self._selector = None

    def _finish(self, selector: selectors.BaseSelector) -> None:
        """Free the port, then finish the responses that are being written."""
        selector.unregister(self._wake)
        if self._accept_at is None:
            selector.unregister(self._socket)
        self._accept_at = None
        self._socket.close()
        for connection in list(self._connections):
            connection.finish()
            self._update_interest(connection, selector)
        while self._connections and self._clock() < self._stop_at:
            self._run_once(selector)

    def _run_once(self, selector: selectors.BaseSelector) -> None:
        """Wait for events, and handle all that have come."""
        for key, _ in selector.select(self._select_timeout()):
            if isinstance(key.data, ServerConnection):
                self._advance(key.data, selector)
            elif key.fileobj is self._socket:
                self._accept(selector)
            else:
                self._on_wake(selector)
        now = self._clock()
        if self._accept_at is not None and self._accept_at <= now:
            self._accept_at = None
            selector.register(self._socket, selectors.EVENT_READ)
        for connection in [client for client in self._connections if client.deadline <= now]:
            self.timed_out += connection.expire()
            self._update_interest(connection, selector)

    def _select_timeout(self) -> float | None:
        """Return the seconds until the next deadline; None when there is none."""
        if not self._loop_ok:
            return 0.0  # the first pass after a failure only shows that the loop runs again
        moments = [connection.deadline for connection in self._connections]
        if self._accept_at is not None:
            moments.append(self._accept_at)
        if self._stopping.is_set():
            moments.append(self._stop_at)
        return max(0.0, min(moments) - self._clock()) if moments else None

    def _wake_loop(self) -> None:
        """Wake the loop, from any thread; a full buffer wakes it as well, and a closed one has no loop."""
        with suppress(OSError):
            self._waker.send(b"x")

    def _on_wake(self, selector: selectors.BaseSelector) -> None:
        """Go on with the connections whose response another thread has made."""
        self._wake.recv(4096)
        for connection in [client for client in self._connections if client.phase is Phase.HANDLING]:
            self._advance(connection, selector)

    # -- connections

    def _accept(self, selector: selectors.BaseSelector) -> None:
        for _ in range(_MAX_ACCEPTS):
            try:
                sock, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self.exhausted += 1
                if self._evict_mute(selector):  # whose descriptor the new client gets
                    continue
                # Out of descriptors, as a rule.  The client stays in the backlog and the socket stays readable:
                # without a pause this loop would spin, and starve the connections that it has.
                self._accept_at = self._clock() + self._limits.pause_seconds
                selector.unregister(self._socket)
                if self._may_log("accept_paused"):
                    msg = "new scrapes wait; raise LimitNOFILE"
                    log_event(_log, logging.WARNING, "accept_paused", msg, error=error.strerror)
                return
            self.accepted += 1
            try:
                self._add(sock, peer[0], selector)
            except OSError:  # gone already
                sock.close()

    def _add(self, sock: socket.socket, peer: str, selector: selectors.BaseSelector) -> None:
        """Register a new client, or reject it."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._connect(sock, peer)
        if len(self._connections) >= self._limits.connections and not self._evict(selector):
            self.refused += 1
            connection.reject()
            return
        selector.register(connection.sock, connection.interest, connection)
        self._connections[connection] = connection.interest
        self._advance(connection, selector)  # the request is usually there already

    def _connect(self, sock: socket.socket, peer: str) -> ServerConnection:
        if self._access is None:
            return ServerConnection(sock, self._handle, self._limits, self._clock())
        return self._access.connect(sock, peer, self._handle, self._limits, now=self._clock(), wake=self._wake_loop)

    def _evict(self, selector: selectors.BaseSelector) -> bool:
        """Close one connection: one that has had its last response, else the one that has kept us waiting longest."""
        lingering = [client for client in self._connections if client.phase is Phase.LINGERING]
        waiting = [client for client in self._connections if client.phase is Phase.WAITING]
        if not lingering and not waiting:
            return False
        connection = lingering[0] if lingering else min(waiting, key=lambda client: client.waiting_since)
        self.refused += not lingering and not connection.idle
        connection.reject()
        self._update_interest(connection, selector)
        return True

    def _evict_mute(self, selector: selectors.BaseSelector) -> bool:
        """Close the connection that has waited longest without a whole request; False where there is none."""
        mute = [client for client in self._connections if client.phase is Phase.WAITING and not client.idle]
        if not mute:
            return False
        connection = min(mute, key=lambda client: client.waiting_since)
        self.refused += 1
        connection.reject()
        self._update_interest(connection, selector)
        return True

    def _advance(self, connection: ServerConnection, selector: selectors.BaseSelector) -> None:
        """Serve one connection; a failure costs this connection only."""
        if self._access is not None:
            connection.last = not self._access.is_current(connection)
        try:
            connection.advance(self._clock())
        except OSError:  # the client is gone or was not admitted, which is no error
            connection.close()
        except Exception:
            self.errors += 1
            self._log_exception("connection_failed", "an internal error; one client lost its connection")
            connection.close()
        self._update_interest(connection, selector)

    def _update_interest(self, connection: ServerConnection, selector: selectors.BaseSelector) -> None:
        """Register with the selector what a connection waits for now."""
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

    def _handle(self, request: Request) -> Response | DeferredResponse:
        try:
            response = self._handler(request)
        except Exception:
            self.errors += 1
            self._log_exception("handler_failed", "an internal error; the client got a 500", path=request.path[:80])
            return text_response(500, "internal error; see the log of the daemon")
        if isinstance(response, DeferredResponse):
            response.add_done_callback(self._wake_loop)
        return response

    def _log_exception(self, event: str, msg: str, **fields: Field) -> None:
        """Log the exception that is being handled, each event at most once a minute."""
        if self._may_log(event):
            log_exception(_log, event, msg, **fields)

    def _may_log(self, event: str) -> bool:
        now = self._clock()
        if now < self._quiet_until.get(event, now):
            return False
        self._quiet_until[event] = now + _LOG_INTERVAL
        return True


def _bind(host: str, port: int, backlog: int) -> socket.socket:
    """Return a listening, non-blocking socket that no child process inherits."""
    where = f"cannot listen on {f'[{host}]' if ':' in host else host}:{port}"
    if not 0 <= port <= 65535:
        raise ListenError(f"{where}: a port is a number from 0 to 65535")
    sock = None
    try:
        candidates = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name such as localhost may have both: what people type is 127.0.0.1.
        family, kind, protocol, _, address = min(candidates, key=lambda candidate: candidate[0] != socket.AF_INET)
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
        raise ListenError(f"{where}: {_hint(error, port)}") from error
    return sock


def _hint(error: OSError | UnicodeError, port: int) -> str:
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "no such host name or address; give an address of this machine, or 0.0.0.0 for all of them"
    hints = {
        errno.EADDRINUSE: f"the port is taken; `ss -ltnp sport = :{port}` shows by whom; stop that, or set --listen",
        errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE; set --listen to a port from 1024 on",
        errno.EADDRNOTAVAIL: "this machine does not have that address; `ip address` shows those it has",
        errno.EAFNOSUPPORT: "this machine has no IPv6; give an IPv4 address, or 0.0.0.0 for all of them",
    }
    return hints.get(error.errno or 0, error.strerror or str(error))
