"""The external programs of the preview, and the Debian packages that contain them."""

from __future__ import annotations

import shutil

PACKAGES = {"prometheus": "prometheus", "haproxy": "haproxy", "chromium": "chromium", "node": "nodejs", "npm": "npm"}


class PreviewError(Exception):
    """The preview failed; the message states how to go on."""


def program(name: str) -> str:
    """Return the path of a program; PreviewError names the package where it is missing."""
    path = shutil.which(name)
    if path is None:
        raise PreviewError(f"{name} is not installed: apt-get install {PACKAGES[name]}")
    return path
