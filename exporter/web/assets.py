"""The files of the page: style sheet, script, icon; read and compressed once, when they are first requested."""

from __future__ import annotations

import functools
import gzip
import hashlib
import pkgutil

from msgspec import Struct

TYPES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class Asset(Struct, frozen=True, kw_only=True):
    """One file as it is served."""

    content_type: str
    etag: str
    plain: bytes
    gzip: bytes


@functools.cache
def asset(name: str) -> Asset:
    """Return one of ``TYPES``."""
    plain = pkgutil.get_data(__package__, f"static/{name}")
    assert plain is not None, "the package's own loader reads data"
    return Asset(
        content_type=TYPES[name],
        etag=f'W/"{hashlib.sha256(plain).hexdigest()[:16]}"',
        plain=plain,
        gzip=gzip.compress(plain, mtime=0),
    )
