"""Every way in which an exchange fails becomes one closed word and a sentence that is safe to log.

Exception texts of the libraries below are never passed on: some quote the URL with its query, some quote headers,
some quote what the peer sent.
"""

from __future__ import annotations

import errno
import http.client
import os
import ssl

from exporter.errors import EndpointError

READING = "reading the body"

_EXPIRED = 10  # verification results of OpenSSL, x509_vfy.h
_WRONG_NAME = frozenset({62, 64})
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21})


def is_disconnect(cause: BaseException) -> bool:
    """Return whether the connection ended: what a kept one does when its server has closed it meanwhile."""
    return isinstance(_root(cause), (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError))


def explain(cause: BaseException, phase: str, seconds: float) -> EndpointError:
    """Return the error for whatever stopped an exchange in ``phase``, ``seconds`` being its deadline."""
    cause = _root(cause)
    if isinstance(cause, EndpointError):
        return EndpointError(cause.reason, str(cause), detail=cause.detail)
    if isinstance(cause, TimeoutError):
        return EndpointError("timeout", f"not done within {seconds:.1f} s, stopped while {phase}", detail=seconds)
    if isinstance(cause, ssl.SSLError):
        return _explain_tls(cause, phase)
    if isinstance(cause, http.client.RemoteDisconnected):
        return EndpointError("closed", "the peer closed the connection without an answer")
    if isinstance(cause, OSError):
        return _explain_system(cause, phase)
    return EndpointError("protocol", f"{type(cause).__name__} while {phase}")


def _root(cause: BaseException) -> BaseException:
    """Return what urllib3 and requests have wrapped."""
    while not isinstance(cause, EndpointError) and cause.__context__ is not None:
        cause = cause.__context__
    return cause


def _explain_system(cause: OSError, phase: str) -> EndpointError:
    if isinstance(cause, ConnectionRefusedError):
        return EndpointError("refused", "connection refused; is the server running on that port?")
    if isinstance(cause, ConnectionError):
        return EndpointError("reset", f"the peer reset the connection while {phase}")
    text = os.strerror(cause.errno) if cause.errno else type(cause).__name__
    if cause.errno in (errno.EMFILE, errno.ENFILE):
        text += " (of this process; raise its limit)"
    return EndpointError("unreachable", f"{text.lower()} while {phase}")


def _explain_tls(cause: ssl.SSLError, phase: str) -> EndpointError:
    if isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        hint = "" if phase == READING else "; it may want a client certificate, see cert_file"
        return EndpointError("closed", f"the peer ended the TLS connection while {phase}{hint}")
    if not isinstance(cause, ssl.SSLCertVerificationError):
        reason = cause.reason or "failed"
        return EndpointError("tls", f"TLS while {phase}: {reason.replace('_', ' ').lower()}")
    if cause.verify_code == _EXPIRED:
        return EndpointError("tls_expired", "the server's certificate has expired")
    if cause.verify_code in _WRONG_NAME:
        return EndpointError("tls_name", "the server's certificate is for another name; see server_name")
    if cause.verify_code in _UNKNOWN_ISSUER:
        return EndpointError("tls_unknown_ca", "the server's certificate is of an unknown authority; see ca_file")
    return EndpointError("tls", f"the server's certificate is refused: {cause.verify_message}")
