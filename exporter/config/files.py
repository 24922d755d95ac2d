"""Opening the files of a configuration: only regular files, and at most as much as a configuration can be."""

from __future__ import annotations

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
            content = opened.read(MAX_BYTES + 1)
        except OSError as error:
            raise Invalid(f"cannot be read: {error.strerror or 'the device failed'}") from None
    if len(content) > MAX_BYTES:
        raise Invalid(TOO_LARGE)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Invalid(f"is not UTF-8 text from line {line} on; save it as UTF-8") from None


def open_regular(path: str, when_missing: str = "") -> BinaryIO:
    """Open a regular file, or raise Invalid: a pipe without a writer or a device would block for ever.

    ``when_missing``: what else to say if there is no such file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "the name is malformed"
        relative = when_missing if isinstance(error, FileNotFoundError) else ""
        raise Invalid(f"cannot be opened: {why}{relative}{_HINTS.get(type(error), '')}") from None
    # Checked by the descriptor and before a file object exists: that would not close a directory's descriptor.
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        mounted = "; Docker creates a directory where the file to mount does not exist" if stat.S_ISDIR(mode) else ""
        raise Invalid(f"is not a regular file{mounted}")
    return open(descriptor, "rb")
