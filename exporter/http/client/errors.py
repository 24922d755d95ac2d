"""Every way in which an exchange fails becomes one closed word and a sentence that is safe to log.

Exception texts of the libraries below are never passed on: some quote the URL with its query, some quote headers,
some quote what the peer sent.
"""

from __future__ import annotations

import errno
import os
from http import HTTPStatus

from exporter.errors import EndpointError

READING = "reading the body"


class DisconnectedError(ConnectionError):
    """The peer closed the connection before the first byte of an answer."""


_STATUSES = frozenset(int(status) for status in HTTPStatus)


def of_status(status: int) -> EndpointError:
    """Name an answer other than 200; numbers that no standard knows share a word, or a peer could invent labels."""
    word = str(status) if status in _STATUSES else f"{str(status)[0]}xx"
    return EndpointError(f"http_{word}", f"answered with status {status}")


def explain(cause: Exception, phase: str, seconds: float) -> EndpointError:
    """Give reason and sentence for whatever stopped an exchange in ``phase``, ``seconds`` being its deadline."""
    if isinstance(cause, EndpointError):
        return EndpointError(cause.reason, str(cause))
    if isinstance(cause, TimeoutError):
        return EndpointError("timeout", f"not done within {seconds:g} s, stopped while {phase}")
    if type(cause).__module__ == "ssl":
        from exporter.http.client import tls  # noqa: PLC0415 - loaded already, where such an error can come from

        return tls.explain(cause, phase)
    if isinstance(cause, DisconnectedError):
        return EndpointError("closed", "the peer closed the connection without an answer")
    if isinstance(cause, OSError):
        return _system(cause, phase)
    return EndpointError("protocol", f"{type(cause).__name__} while {phase}")


def dropped(cause: OSError) -> bool:
    """Say whether the connection ended: what a kept one does when its server has closed it meanwhile."""
    return isinstance(cause, ConnectionError) or type(cause).__name__ in {"SSLEOFError", "SSLZeroReturnError"}


def _system(cause: OSError, phase: str) -> EndpointError:
    if isinstance(cause, ConnectionRefusedError):
        return EndpointError("refused", "connection refused; is the server running on that port?")
    if isinstance(cause, ConnectionError):
        return EndpointError("reset", f"the peer reset the connection while {phase}")
    text = os.strerror(cause.errno) if cause.errno else type(cause).__name__
    if cause.errno in (errno.EMFILE, errno.ENFILE):
        text += " (of this process; raise its limit)"
    return EndpointError("unreachable", f"{text.lower()} while {phase}")
