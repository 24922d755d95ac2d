"""Opening the files of a configuration: only regular files, and at most as much as a configuration can be."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

from exporter.config.document import MAX_BYTES, TOO_LARGE
from exporter.config.parsers import Invalid

_HINTS: dict[type[Exception], str] = {
    PermissionError: "; the user that runs the program needs read access to the file and to its directories",
    FileNotFoundError: "; in a container only mounted files exist",
}


def read_text(path: str) -> str:
    """Return the text of a file of at most MAX_BYTES; raises Invalid, with the line where it stops being UTF-8."""
    if not path:
        raise Invalid("the file name is empty; is a variable unset that should hold it?")
    with open_regular(path) as opened:
        try:
            content = read_bytes(opened, MAX_BYTES)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise Invalid(TOO_LARGE) from None
            raise Invalid(f"cannot be read: {error.strerror or 'the device failed'}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Invalid(f"is not UTF-8 text from line {line} on; save it as UTF-8") from None


def read_bytes(opened: BinaryIO, max_bytes: int) -> bytes:
    """Return the whole content; raise OSError, with EFBIG if it has more than ``max_bytes``."""
    content: bytes | None = opened.read(max_bytes + 1)
    if content is None:  # /proc/kmsg, say, claims to be a regular file
        raise OSError(errno.EAGAIN, "it has nothing to read yet, as no regular file has", opened.name)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), opened.name)
    return content


def open_regular(path: str, when_missing: str = "") -> BinaryIO:
    """Open a regular file, or raise Invalid: a pipe without a writer or a device would block for ever.

    ``when_missing``: what else to say if there is no such file.
    """
    try:
        return open_if_regular(path)
    except NotRegularError as error:
        mounted = "; Docker creates a directory where the file to mount does not exist" if error.is_directory else ""
        raise Invalid(f"is not a regular file{mounted}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "the name is malformed"
        relative = when_missing if isinstance(error, FileNotFoundError) else ""
        raise Invalid(f"cannot be opened: {why}{relative}{_HINTS.get(type(error), '')}") from None


class NotRegularError(OSError):
    """A pipe, a device or a directory."""

    def __init__(self, path: str, *, is_directory: bool) -> None:
        super().__init__(errno.EINVAL, "is not a regular file", path)
        self.is_directory = is_directory


def open_if_regular(path: str) -> BinaryIO:
    """Open a regular file; raise NotRegularError for anything else, OSError or ValueError otherwise."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    # Checked by the descriptor and before a file object exists: that would not close a directory's descriptor.
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotRegularError(path, is_directory=stat.S_ISDIR(mode))
    return open(descriptor, "rb")
