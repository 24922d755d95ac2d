"""The web configuration file in use: read at start, and again when it or a file that it names changes.

A thread looks once a second, so that a disk that hangs delays no scrape.  Connections use what was newest when they
were accepted; those made before a change end with their next response.  Users are those of the newest file.  A file
that cannot be used changes nothing, and is logged.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from exporter.config import web
from exporter.config.document import read_document
from exporter.config.files import read_text
from exporter.config.parsers import Invalid
from exporter.config.reader import find
from exporter.errors import Problem, SettingsError
from exporter.logs import log_event, log_exception
from exporter.model import EMPTY
from exporter.threads import Thread

if TYPE_CHECKING:
    import ssl

    from exporter.config.web import TlsServerSettings

INTERVAL = 1.0  # seconds between two looks at the files

_log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int, int]


class Access(Struct, frozen=True, kw_only=True):
    """Who may read, and how; ``context`` None is plain HTTP, without ``users`` everybody may."""

    context: ssl.SSLContext | None = None
    allowed_sans: frozenset[str] = frozenset()
    users: Mapping[str, str] = EMPTY
    headers: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()  # that it was made from


def read_access(path: str) -> Access:
    """Read a web configuration and the files that it names.  Raises SettingsError with lines."""
    try:
        text = read_text(path)
    except Invalid as invalid:
        raise SettingsError([Problem("", str(invalid))], path) from None
    settings = web.parse(text, path, base=os.path.dirname(os.path.abspath(path)))
    tls = settings.tls_server_config
    try:
        context = None if tls is None else _context(tls, path)
    except SettingsError as error:
        raise _with_lines(error, text) from None
    named = () if tls is None else (tls.cert_file, tls.key_file, tls.client_ca_file)
    headers = settings.http_server_config.headers
    return Access(
        context=context,
        allowed_sans=frozenset() if tls is None else frozenset(tls.client_allowed_sans),
        users=settings.basic_auth_users,
        # Every response has X-Content-Type-Options already, and an empty value means no header.
        headers=tuple((name, value) for name, value in headers.items() if value and name != "X-Content-Type-Options"),
        files=(path, *(name for name in named if name is not None)),
    )


def _context(tls: TlsServerSettings, origin: str) -> ssl.SSLContext:
    from exporter.http.server.tls_context import server_context  # noqa: PLC0415 - ssl takes 10 ms to import

    return server_context(tls, origin)


def _with_lines(error: SettingsError, text: str) -> SettingsError:
    root, _ = read_document(text)
    nodes = [(problem, find(root, problem.path)) for problem in error.problems]
    return SettingsError(
        [Problem(problem.path, problem.message, node.line if node else None) for problem, node in nodes], error.origin
    )


class WebConfigFile:
    """The newest usable content of a web configuration file.  Raises SettingsError when it is bad at the start."""

    def __init__(self, path: str, *, interval: float = INTERVAL, read: Callable[[str], Access] = read_access) -> None:
        self._path = path
        self._interval = interval
        self._read = read
        self.access = read(path)
        self._stamps = self._look()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = Thread(self._run, name="web-config")

    def current(self) -> Access:
        """Return the newest usable content, the same object until it changes."""
        return self.access

    def start(self) -> None:
        """Follow changes from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more changes."""
        self._stopping.set()

    def _look(self) -> tuple[_Stamp | None, ...]:
        return tuple(_stamp(path) for path in self.access.files)

    def _run(self) -> None:
        before = self._stamps
        while not self._stopping.wait(self._interval):
            before = self._follow(before)

    def _follow(self, before: tuple[_Stamp | None, ...]) -> tuple[_Stamp | None, ...]:
        """Look once; return what was seen."""
        try:
            seen = self._look()
            # Only once nothing has changed for an interval: certificate and key are replaced one after the other.
            if seen == before and seen != self._stamps:
                self.refresh()
                seen = self._look()
        except Exception:
            log_exception(_log, "web_config_failed", "the previous web configuration stays in use")
            return before
        return seen

    def refresh(self) -> bool:
        """Read the file again if it or a file that it names has changed; return whether it can be used."""
        with self._lock:
            stamps = self._look()
            return stamps == self._stamps or self._refresh(stamps)

    def _refresh(self, stamps: tuple[_Stamp | None, ...]) -> bool:
        try:
            access = self._read(self._path)
        except SettingsError as error:
            self._stamps = stamps
            problems = "; ".join(map(str, error.problems))
            msg = "the web configuration is invalid; the previous one stays in use"
            log_event(_log, logging.ERROR, "web_config_refused", msg, error=problems)
            return False
        same_files = access.files == self.access.files
        self.access = access
        self._stamps = stamps if same_files else self._look()
        log_event(_log, logging.INFO, "web_config_reloaded", users=len(access.users), tls=access.context is not None)
        return True


def _stamp(path: str) -> _Stamp | None:
    """Return what changes with a file; None where it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev
