"""Secrets come from files, are read for each request, so that a rotation needs no restart, and are shown by nothing.

A file that is missing, empty, too long or no regular file is EndpointError ``credentials``, and the message names the
file, never what stood in it.
"""

from __future__ import annotations

import base64
import os
import re
import stat

from exporter.errors import EndpointError
from exporter.http.client.target import Target

_MAX_SECRET = 16 * 1024
_TOKEN = re.compile(r"[!-~]+")  # anything else would end the header, and http.client's complaint would quote it
_VALUE = re.compile(r"[ -~]+")

FileStamp = tuple[int, int, int, int]


def file_stamp(path: str) -> FileStamp:
    """Return what changes with a file; raise EndpointError ``credentials`` when it is none or cannot be read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as problem:
        raise _unreadable(path, system_reason(problem)) from None
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(path, "not a regular file")
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def _unreadable(path: str, why: str) -> EndpointError:
    return EndpointError("credentials", f"cannot read {path}: {why}", detail=path)


def system_reason(problem: Exception) -> str:
    """Return the reason in the words of the system, without the text of the file."""
    return getattr(problem, "strerror", None) or type(problem).__name__


def read_secret(path: str) -> str:
    """Return the stripped text of a small file, never empty; raise EndpointError ``credentials``."""
    file_stamp(path)  # a named pipe is refused before it is opened: opening one may disturb its writer
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            raw = file.read(_MAX_SECRET + 1)
        text = raw.decode().strip()
    except (OSError, ValueError) as problem:
        raise _unreadable(path, system_reason(problem)) from None
    if not text or len(raw) > _MAX_SECRET:
        what = "empty" if not text else "too long for a secret"
        raise EndpointError("credentials", f"{path} is {what}", detail=path)
    return text


def header_value(path: str) -> str:
    """Return the value of a header from its file; raise EndpointError ``credentials`` where it is none."""
    value = read_secret(path)
    if not _VALUE.fullmatch(value):
        raise EndpointError("credentials", f"{path} holds more than one line, or no text", detail=path)
    return value


def authorization(target: Target) -> dict[str, str]:
    """Return the Authorization field, Bearer or Basic, or nothing; raise EndpointError ``credentials``."""
    if target.bearer_token_file:
        token = read_secret(target.bearer_token_file)
        if not _TOKEN.fullmatch(token):
            path = target.bearer_token_file
            raise EndpointError("credentials", f"{path} holds more than one word, or no token", detail=path)
        return {"Authorization": f"Bearer {token}"}
    if target.username is None:
        return {}
    if target.password_file is None:
        raise EndpointError("credentials", "username is set and password_file is not")
    credentials = f"{target.username}:{read_secret(target.password_file)}"
    return {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}
