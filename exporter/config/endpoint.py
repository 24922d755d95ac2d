"""What every place that is asked over HTTP has in its configuration: a URL, credentials from files, and TLS."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.config import fields, parsers
from exporter.config.schema import SectionResult, key

ENDPOINT_URL = fields.written_as("a URL that begins with http:// or https://", parsers.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicAuth:
    """A user name, and the file its password is read from at every use."""

    username: str = field(metadata=key(fields.text("a user name", forbidden=":")))
    password_file: str = field(metadata=key(fields.file(secret=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How an https endpoint is verified, and the certificate we show it.  None: the system's own authorities."""

    ca_file: str | None = field(default=None, metadata=key(fields.file()))
    cert_file: str | None = field(default=None, metadata=key(fields.file()))
    key_file: str | None = field(default=None, metadata=key(fields.file(secret=True)))
    server_name: str | None = field(default=None, metadata=key(fields.text("a host name")))
    insecure_skip_verify: bool = field(default=False, metadata=key(fields.boolean()))


def finish_tls(found: SectionResult) -> None:
    """Refuse half a client certificate."""
    for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if found.given(one) and not found.given(other):
            found.refuse(one, f"needs {other} beside it")


def finish_credentials(found: SectionResult) -> None:
    """Refuse what contradicts itself, or would have no effect."""
    if found.given("bearer_token_file") and found.given("basic_auth"):
        found.refuse("basic_auth", "stands beside bearer_token_file, and a request carries one of the two; keep one")
    if found.given("tls") and str(found.known("url", "")).startswith("http://"):
        found.refuse("tls", "has no effect on an http:// URL; write https://, or take tls out")
