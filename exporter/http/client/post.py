"""Sends a body to a receiver: one POST within one deadline; its answer is read as far as it is of use.

The rules are those of ``client``: no secret is shown, nothing is taken from the environment.  A redirect is not
followed: the body and the credentials are for the configured receiver.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from exporter.http.client.client import ClientConnection, SessionClient
from exporter.http.client.credentials import header_value
from exporter.http.client.resolver import Resolver, default_resolver
from exporter.http.client.target import Limits, Target
from exporter.http.client.url import Origin
from exporter.model.push import PushAnswer

_LIMITS = Limits(wire_bytes=64 * 1024, body_bytes=64 * 1024)  # of the answer; receivers say little


class PostClient(SessionClient):
    """One receiver and the connection kept to it.

    ``headers`` are sent as they are, ``header_files`` name the files that hold the values.
    """

    def __init__(
        self,
        target: Target,
        *,
        headers: Mapping[str, str],
        header_files: Mapping[str, str],
        resolver: Resolver = default_resolver,
    ) -> None:
        super().__init__(target, _LIMITS, resolver=resolver)
        self._own_headers, self._header_files = headers, header_files

    def post(self, body: bytes, headers: Mapping[str, str]) -> PushAnswer:
        """Send ``body``; raise EndpointError, and nothing else, where no answer came."""

        def exchange(connection: ClientConnection, origin: Origin, path: str) -> PushAnswer:
            secret = {name: header_value(file) for name, file in self._header_files.items()}
            every = {**self._headers(origin), **self._own_headers, **secret, **headers}
            url, timeout = f"{origin}{path}", connection.deadline.remaining()
            raw = self._session.post(url, data=body, headers=every, timeout=timeout, stream=True).raw
            answered = {name.lower(): value for name, value in raw.headers.items()}
            return PushAnswer(status=raw.status, headers=answered, body=_read(raw, connection))

        return self._guarded(None, exchange)[0]


def _read(raw: Any, connection: ClientConnection) -> bytes:
    """Return the body of an answer; close the connection where it is of no use for another request."""
    with suppress(Exception):  # ours, the socket's, and those that urllib3 wraps them in
        body = b""
        while piece := raw.read(_LIMITS.body_bytes):
            body += piece
        return body
    connection.close()
    return b""
