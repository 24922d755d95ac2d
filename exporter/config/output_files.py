"""Files that are written whole or not at all, for every command that generates some."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat

MAX_BYTES = 16 << 20


def read_text(path: str | os.PathLike[str]) -> str | None:
    """Return the text of a file that was generated before, None where there is none.

    Raise OSError for what cannot be read, is no regular file (a pipe or device would be read without end) or holds
    more than 16 MiB, and UnicodeDecodeError for what is not UTF-8.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
    with open(descriptor, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(path))
    return content.decode()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file by ``text`` in UTF-8, and create its directories; raise OSError, which leaves it as it was.

    A reader, or a full disk, never sees half of it.  A symbolic link at ``path`` is replaced, not followed: whoever
    may write to the directory must not choose what this user overwrites.
    """
    path = os.fspath(path)
    folder = os.path.dirname(path) or os.curdir
    os.makedirs(folder, exist_ok=True)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    temporary = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, path) from None  # the name that the user knows
        raise
