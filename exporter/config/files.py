"""The text of a configuration file, or why there is none: nothing is read that is not a file of bounded size."""

from __future__ import annotations

from exporter.config.document import MAX_BYTES, TOO_LARGE
from exporter.config.fields import open_regular
from exporter.config.parsers import Invalid


def read_text(path: str) -> str:
    """Read a file of at most MAX_BYTES, or raise Invalid; says the line where it stops being UTF-8."""
    if not path:
        raise Invalid("is no file's name; is a variable unset that should hold one?")
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
