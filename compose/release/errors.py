"""What a release is refused for."""

from __future__ import annotations


class ReleaseError(Exception):
    """The release cannot be made; the text says what is wrong."""
