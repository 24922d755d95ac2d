"""Files that are written whole or not at all, for every command that generates some."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets


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
