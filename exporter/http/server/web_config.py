"""The web configuration file in use: read at start, and again when it or a file that it names changes.

A thread looks once a second, so that a disk that hangs delays no scrape.  Connections use what was newest when they
were accepted; those made before a change end with their next response.  Users are those of the newest file.  A file
that cannot be used changes nothing, and is logged.
"""

from __future__ import annotations

import logging
import os
import threading
import time
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
RETRY_LOOKS = 10  # until a file that was refused is tried again although nothing is seen to change

_log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int, int, int]


class Access(Struct, frozen=True, kw_only=True):
    """Who may read, and how; ``context`` None is plain HTTP, without ``users`` everybody may."""

    context: ssl.SSLContext | None = None
    certificate_expires: float | None = None  # Unix time
    allowed_sans: frozenset[str] = frozenset()
    users: Mapping[str, str] = EMPTY
    headers: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, _Stamp | None], ...] = ()  # that it was made from, as they were before they were read

    @property
    def protections(self) -> tuple[str, ...]:
        """The keys of what keeps others out."""
        given = {
            "tls_server_config": self.context is not None,
            "client_auth_type": self.context is not None and bool(self.context.verify_mode),
            "client_allowed_sans": bool(self.allowed_sans),
            "basic_auth_users": bool(self.users),
        }
        return tuple(name for name, is_given in given.items() if is_given)


def read_access(path: str) -> Access:
    """Read a web configuration and the files that it names.  Raises SettingsError with lines."""
    files = [(path, _stamp(path))]
    try:
        text = read_text(path)
    except Invalid as invalid:
        raise SettingsError([Problem("", str(invalid))], path) from None
    settings = web.parse(text, path, base=os.path.dirname(os.path.abspath(path)))
    tls = settings.tls_server_config
    if tls is not None:
        named = (tls.cert_file, tls.key_file, tls.client_ca_file)
        files += [(name, _stamp(name)) for name in named if name is not None]
    try:
        context, expires = (None, None) if tls is None else _context(tls, path)
    except SettingsError as error:
        raise _with_lines(error, text) from None
    headers = settings.http_server_config.headers
    return Access(
        context=context,
        certificate_expires=expires,
        allowed_sans=frozenset() if tls is None else frozenset(tls.client_allowed_sans),
        users=settings.basic_auth_users,
        # Every response has X-Content-Type-Options already, and an empty value means no header.
        headers=tuple((name, value) for name, value in headers.items() if value and name != "X-Content-Type-Options"),
        files=tuple(files),
    )


def _context(tls: TlsServerSettings, origin: str) -> tuple[ssl.SSLContext, float | None]:
    from exporter.http.server import tls_context  # noqa: PLC0415 - ssl takes 10 ms to import

    return tls_context.server_context(tls, origin), tls_context.certificate_expires(tls.cert_file)


def _with_lines(error: SettingsError, text: str) -> SettingsError:
    root, _ = read_document(text)
    nodes = [(problem, find(root, problem.path)) for problem in error.problems]
    return SettingsError(
        [Problem(problem.path, problem.message, node.line if node else None) for problem, node in nodes], error.origin
    )


class WebConfigFile:
    """The newest usable content of a web configuration file.  Raises SettingsError when it is bad at the start.

    ``notify`` is called after each attempt to read it again.
    """

    def __init__(
        self,
        path: str,
        *,
        interval: float = INTERVAL,
        read: Callable[[str], Access] = read_access,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._interval = interval
        self._read = read
        self._notify = notify
        self.access = read(path)
        self._tried = self._after_load(self.access)
        self._idle_looks = 0  # since the last attempt
        self._error = ""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = Thread(self._run, name="web-config")

    @property
    def last_load_successful(self) -> bool:
        """False while the file, or one that it names, cannot be used and an older content is in force."""
        return not self._error

    def current(self) -> Access:
        """Return the newest usable content, the same object until it changes."""
        return self.access

    def start(self) -> None:
        """Follow changes from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more changes."""
        self._stopping.set()

    def _run(self) -> None:
        before = self._look()
        while not self._stopping.wait(self._interval):
            seen = self._look()
            # Only once nothing has changed for an interval: certificate and key are replaced one after the other.
            if seen == before:
                self.refresh()
            before = seen

    def _look(self) -> tuple[_Stamp | None, ...]:
        return tuple(_stamp(path) for path, _ in self.access.files)

    def refresh(self) -> None:
        """Read the file again if it or a file that it names has changed.  Raises nothing."""
        with self._lock:
            seen = self._look()
            self._idle_looks += 1
            # A refused file may name files that are not followed, so it is tried again without a change.
            if seen == self._tried and (not self._error or self._idle_looks < RETRY_LOOKS):
                return
            self._idle_looks = 0
            self._tried = seen
            try:
                access = self._read(self._path)
                self._check_protects(access)
            except SettingsError as error:
                self._refuse("; ".join(map(str, error.problems)))
            except Exception as error:
                if self._error != repr(error):
                    log_exception(_log, "web_config_failed", "the previous web configuration stays in use")
                self._error = repr(error)
            else:
                self.access, self._error = access, ""
                self._tried = self._after_load(access)
                tls = access.context is not None
                log_event(_log, logging.INFO, "web_config_reloaded", users=len(access.users), tls=tls)
        self._notify()

    def _check_protects(self, access: Access) -> None:
        """Raise SettingsError for a file that protects less than before: it may be cut off or half written."""
        gone = [name for name in self.access.protections if name not in access.protections]
        if gone:
            message = f"no longer has {' and '.join(gone)}; restart the daemon to serve without"
            raise SettingsError([Problem("", message)], self._path)

    def _refuse(self, problems: str) -> None:
        if self._error != problems:
            msg = "the web configuration is invalid; the previous one stays in use"
            log_event(_log, logging.ERROR, "web_config_refused", msg, file=self._path, error=problems)
        self._error = problems

    @staticmethod
    def _after_load(access: Access) -> tuple[_Stamp | None, ...]:
        if access.certificate_expires is not None and access.certificate_expires < time.time():
            msg = "the certificate has expired; clients that verify it refuse it"
            log_event(_log, logging.WARNING, "certificate_expired", msg, file=access.files[1][0])
        return tuple(stamp for _, stamp in access.files)


def _stamp(path: str) -> _Stamp | None:
    """Return what changes with a file; None where it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    # The time of the last change of status as well: permissions may be what was wrong.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev
