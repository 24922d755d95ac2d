"""Secrets come from files, are read again when the file changes, and are shown by nothing.

A file that is missing, empty, too long or no regular file is EndpointError ``credentials``, and the message names the
file, never what stood in it.  Nothing of a failed reading is kept, so a rotation caught half done heals by itself.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from dataclasses import dataclass

from exporter.errors import EndpointError

_MAX_SECRET = 16 * 1024
_TOKEN = re.compile(r"[!-~]+")  # anything else would end the header, and http.client's complaint would quote it

Stamp = tuple[int, int, int, int]


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def stamp_of(path: str) -> Stamp:
    """Give what changes with a file; raise EndpointError ``credentials`` when it is none or cannot be read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as problem:
        raise EndpointError("credentials", f"cannot read {path}: {why(problem)}") from None
    if not stat.S_ISREG(status.st_mode):
        raise EndpointError("credentials", f"cannot read {path}: not a regular file")
    return _stamp(status)


def why(problem: Exception) -> str:
    """Give the reason in the system's words, without the file's text."""
    return getattr(problem, "strerror", None) or type(problem).__name__


class SecretFile:
    """The stripped text of a small file, read again whenever its time, size or inode changes."""

    __slots__ = ("_path", "_stamp", "_text")

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self._text = ""

    def read(self) -> str:
        """Return the secret, never empty; raise EndpointError ``credentials``."""
        if self._stamp is None or stamp_of(self._path) != self._stamp:
            self._stamp = None
            self._text, self._stamp = self._load()
        return self._text

    def _load(self) -> tuple[str, Stamp]:
        stamp_of(self._path)  # a named pipe is refused before it is opened: opening one may disturb its writer
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                stamp = _stamp(os.fstat(descriptor))
                raw = file.read(_MAX_SECRET + 1)
            text = raw.decode().strip()
        except (OSError, ValueError) as problem:
            raise EndpointError("credentials", f"cannot read {self._path}: {why(problem)}") from None
        if not text or len(raw) > _MAX_SECRET:
            raise EndpointError("credentials", f"{self._path} is {'empty' if not text else 'too long for a secret'}")
        return text, stamp


class Authorization:
    """The value of the Authorization header, or None where nothing is configured."""

    __slots__ = ("_secret", "_secret_path", "_username")

    def __init__(self, bearer_token_file: str | None, username: str | None, password_file: str | None) -> None:
        path = bearer_token_file or password_file
        self._username = None if bearer_token_file else username
        self._secret_path = path
        self._secret = SecretFile(path) if path else None

    def value(self) -> str | None:
        """Return ``Bearer …`` or ``Basic …``; raise EndpointError ``credentials``."""
        if self._secret is None:
            if self._username is None:
                return None
            raise EndpointError("credentials", "username is set and password_file is not")
        secret = self._secret.read()
        if self._username is not None:
            return "Basic " + base64.b64encode(f"{self._username}:{secret}".encode()).decode()
        if not _TOKEN.fullmatch(secret):
            raise EndpointError("credentials", f"{self._secret_path} holds more than one word, or no token")
        return f"Bearer {secret}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files, and whether the server is believed without proof."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    insecure_skip_verify: bool = False
