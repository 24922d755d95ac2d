"""What is read over HTTP, as whom, and how much of it at most."""

from __future__ import annotations

from msgspec import Struct

from exporter.http.client.url import redact_url

SMALL = 256 * 1024  # bytes of body; pages of one engine have 60 to 200 kB
LARGE = 1024 * 1024  # bytes of body; no page of a real engine is known to be larger


class Target(Struct, frozen=True, kw_only=True):
    """Where to read, and as whom.  ``timeout`` is in seconds, for the whole exchange.

    With more in ``accept`` than the text format, some engines rename their metrics.
    """

    url: str
    timeout: float = 1.0
    bearer_token_file: str | None = None
    username: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False
    accept: str = "text/plain;version=0.0.4"

    def __repr__(self) -> str:
        """Show what is safe to show."""
        return f"Target({redact_url(self.url)}, timeout={self.timeout:g})"


class Limits(Struct, frozen=True, kw_only=True):
    """What one answer may take: bytes and fields of head and trailers, bytes of body as sent and as inflated."""

    head_bytes: int = 16 * 1024
    head_fields: int = 64
    wire_bytes: int = 8 * 1024 * 1024
    body_bytes: int = 8 * 1024 * 1024
