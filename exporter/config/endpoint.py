"""What every HTTP endpoint that is polled has in its configuration: a URL, credentials from files, and TLS."""

from __future__ import annotations

from exporter.config import fields
from exporter.config.section import Record, SectionResult, key, section

ENDPOINT_URL = fields.url("a URL that begins with http:// or https://")


class BasicAuth(Record):
    """A user name, and the file that its password is read from at every use."""

    username: str = key(fields.text("a user name", forbidden=":"), "User name.", example="shardwatch")
    password_file: str = key(
        fields.file(secret=True),
        "File that holds the password; read again when it changes.",
        example="/etc/shardwatch/password",
    )


class TlsSettings(Record):
    """How an https endpoint is verified, and the client certificate.  None: the system's default."""

    ca_file: str | None = key(
        fields.file(),
        "Certificate authorities that the endpoint is verified against.",
        default=None,
        default_text="the system's authorities",
        example="/etc/shardwatch/ca.pem",
    )
    cert_file: str | None = key(
        fields.file(), "Client certificate; needs key_file.", default=None, example="/etc/shardwatch/client.pem"
    )
    key_file: str | None = key(
        fields.file(secret=True), "Key of the client certificate.", default=None, example="/etc/shardwatch/client.key"
    )
    server_name: str | None = key(
        fields.text("a host name"),
        "Host name that the certificate must be valid for.",
        default=None,
        default_text="the host of the URL",
        example="engine.example",
    )
    insecure_skip_verify: bool = key(fields.boolean(), "Accept any certificate. For tests only.", default=False)


def finish_tls(found: SectionResult) -> None:
    """Refuse half a client certificate."""
    for key_name, needed in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if found.given(key_name) and not found.given(needed):
            found.refuse(key_name, f"needs {needed} beside it")


TLS = section(TlsSettings, finish_tls)
BASIC_AUTH = section(BasicAuth)


def finish_credentials(found: SectionResult) -> None:
    """Refuse settings that contradict each other, or would have no effect."""
    if found.given("bearer_token_file") and found.given("basic_auth"):
        found.refuse("basic_auth", "is set beside bearer_token_file, and a request carries only one; remove one")
    if found.given("tls") and str(found.known("url", "")).startswith("http://"):
        found.refuse("tls", "has no effect on an http:// URL; write https://, or remove tls")
