"""Files that are written whole or not at all, for every command that generates some."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator

from exporter.config.files import open_if_regular, read_bytes

MAX_BYTES = 16 << 20


def read_text(path: str | os.PathLike[str]) -> str | None:
    """Return the text of a file that was generated before, None where there is none.

    Raise OSError for what cannot be read, is no regular file (a pipe or device would be read without end) or holds
    more than 16 MiB, and UnicodeDecodeError for what is not UTF-8.
    """
    try:
        with open_if_regular(os.fspath(path)) as file:
            return read_bytes(file, MAX_BYTES).decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def write_text(output: str | os.PathLike[str], path: str | os.PathLike[str], text: str) -> None:
    """Replace the file ``path``, relative to the directory ``output``, by ``text`` in UTF-8; create its directories.

    Raise OSError, which leaves the file as it was.  A reader, or a full disk, never sees half of it.  ``output`` may
    be a symbolic link.  Below it a link to a directory is an error, and one at ``path`` is replaced: whoever may
    write to the directory must not choose what this user overwrites.
    """
    with contextlib.suppress(FileExistsError):
        os.makedirs(output)
    with _parent(output, path, create=True) as (folder, name):
        if _is_directory(folder, name):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary = f".{name}.{secrets.token_hex(4)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o644, dir_fd=folder)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


def remove(output: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Remove the file ``path``, relative to the directory ``output``; raise OSError, as ``write_text`` does."""
    with _parent(output, path) as (folder, name):
        os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _parent(
    output: str | os.PathLike[str], path: str | os.PathLike[str], *, create: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield the directory that holds ``path``, opened without following links below ``output``, and the file's name.

    An OSError inside, too, names the place as the user knows it.
    """
    *folders, name = os.fspath(path).split(os.sep)
    at, flags = os.fspath(output), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = -1
    try:
        descriptor = os.open(at, flags)
        for folder in folders:
            at = os.path.join(at, folder)
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, dir_fd=descriptor)
            below = os.open(folder, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        at = os.path.join(at, name)
        yield descriptor, name
    except OSError as error:
        is_link = error.errno in {errno.ELOOP, errno.ENOTDIR} and os.path.islink(at)
        why = "is a symbolic link, which is not followed" if is_link else error.strerror
        raise OSError(error.errno, why, at) from None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _is_directory(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
