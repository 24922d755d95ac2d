"""HAProxy's agent-check: a replica's name in, one word out, on a port of its own.

The server line's ``agent-send`` names the replica and ends with a newline.  The answers: ``up`` for serve, ``drain``,
and ``down #reason`` for eject.  ``ready`` clears every drain, an operator's too: it is added only for a time after a
drain of our own.  For what is unknown the connection is closed without an answer: HAProxy keeps its state, as it does
when the daemon is gone.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable

from exporter.errors import ListenError
from exporter.logs import log_event
from exporter.model import Snapshot
from exporter.model.finding import VerdictState
from exporter.threads import Thread

MAX_AGE = 15.0  # seconds of the newest snapshot; an older one is not answered from
MAX_CONNECTIONS = 64
MAX_NAME = 256  # bytes
PATIENCE = 1.0  # seconds for the name to arrive
READY_TIME = 60.0  # seconds after the end of our own drain; several HAProxies ask, each at its own interval
MAX_DRAINED = 4096  # names remembered; discovery makes new ones without end

logger = logging.getLogger(__name__)


class AgentCheckServer:
    """Answers with verdicts.  ``newest`` returns the newest snapshot, ``clock`` monotonic seconds."""

    def __init__(
        self,
        host: str,
        port: int,
        newest: Callable[[], Snapshot | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind; raises ListenError when the address cannot be bound."""
        self._newest, self._clock = newest, clock
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        except OSError as error:
            raise ListenError(f"agent_check: cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._pending: dict[socket.socket, tuple[float, bytes]] = {}  # → deadline, what arrived
        self._ready_until: dict[str, float] = {}  # of those that were answered with drain; infinite while it lasts
        self._stopping = threading.Event()
        self._thread = Thread(self._run, name="agent-check")

    def start(self) -> None:
        """Start answering, in a daemon thread."""
        self._thread.start()

    def stop(self, timeout: float = 0.5) -> None:
        """Free the port."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)  # it closes the socket itself: its descriptor may be reused at once
        else:
            self._socket.close()

    def answer(self, name: str) -> bytes:
        """Return the answer for a replica; empty where nothing is known."""
        snapshot, now = self._newest(), self._clock()
        if snapshot is None or now - snapshot.at > MAX_AGE:
            return b""
        verdict = snapshot.verdicts.replicas.get(name)
        if verdict is None or verdict.state is VerdictState.UNKNOWN:
            return b""
        if verdict.state is VerdictState.EJECT:
            return f"down #{verdict.reason}\n".encode()
        if verdict.state is VerdictState.DRAIN:
            self._ready_until.pop(name, None)
            if len(self._ready_until) >= MAX_DRAINED:
                del self._ready_until[next(iter(self._ready_until))]
            self._ready_until[name] = math.inf
            return b"drain\n"
        return b"up ready\n" if self._is_ending_drain(name, now) else b"up\n"

    def _is_ending_drain(self, name: str, now: float) -> bool:
        ready_until = self._ready_until.get(name)
        if ready_until is None:
            return False
        if ready_until == math.inf:
            self._ready_until[name] = now + READY_TIME
        elif now >= ready_until:
            del self._ready_until[name]
            return False
        return True

    def _run(self) -> None:
        with self._socket, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while not self._stopping.is_set():
                self._turn_or_wait(selector)
            for connection in list(self._pending):
                connection.close()

    def _turn_or_wait(self, selector: selectors.BaseSelector) -> None:
        try:
            self._turn(selector)
        except OSError as error:  # descriptors ran out
            log_event(logger, logging.WARNING, "agent_check_failed", str(error))
            self._stopping.wait(PATIENCE)

    def _turn(self, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(PATIENCE / 4):
            if key.fileobj is self._socket:
                self._accept(selector)
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._pending:
                self._read(selector, key.fileobj)  # else closed in this turn, to make room
        now = self._clock()
        for connection in [late for late, (deadline, _) in self._pending.items() if deadline <= now]:
            self._close(selector, connection)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        connection, _ = self._socket.accept()
        if len(self._pending) >= MAX_CONNECTIONS:  # HAProxy sends the name at once: the oldest is one that is mute
            self._close(selector, next(iter(self._pending)))
        connection.setblocking(False)
        self._pending[connection] = (self._clock() + PATIENCE, b"")
        selector.register(connection, selectors.EVENT_READ)

    def _read(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        deadline, arrived = self._pending[connection]
        try:
            data = connection.recv(MAX_NAME)
            arrived += data
            if data and b"\n" not in arrived and len(arrived) < MAX_NAME:
                self._pending[connection] = (deadline, arrived)
                return
            if arrived:
                name = arrived.partition(b"\n")[0].strip().decode(errors="replace")
                if answer := self.answer(name):
                    connection.send(answer)  # a few bytes into an empty buffer: never blocks
        except OSError:
            pass  # HAProxy hung up
        self._close(selector, connection)

    def _close(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        del self._pending[connection]
        selector.unregister(connection)
        connection.close()
