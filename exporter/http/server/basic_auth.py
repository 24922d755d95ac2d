"""Basic authentication against bcrypt hashes, in a thread of its own: guessing must cost no scrape.

A pair that was verified once is recognised by a keyed digest, in microseconds and in the event loop.  Any other pair
costs one bcrypt, one at a time, in turn for each client address; what is beyond the places of an address or of all is
refused with 429 at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

from exporter.config.web import MAX_USERS
from exporter.http.server.connection import DeferredResponse
from exporter.http.server.request import Request, Response, text_response
from exporter.threads import Thread

MAX_WAITING = 32  # checks; a connection waits for each
MAX_WAITING_OF_PEER = 4
_MAX_PASSWORD = 72  # bytes that bcrypt reads; newer versions of the library refuse more instead of ignoring them
# The hash of no password, so that a name that does not exist takes as long as one that does.
_NOBODY = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"

Check = Callable[[bytes, bytes], bool]


class _Job:
    __slots__ = ("deferred", "digest", "hashed", "known", "password", "resume")

    def __init__(self, deferred: DeferredResponse, resume: Callable[[], Response | DeferredResponse]) -> None:
        self.deferred = deferred
        self.resume = resume
        self.digest = b""
        self.hashed = ""
        self.known = False
        self.password = b""


class Authenticator:
    """Decides whether a request's user and password are those of the configuration."""

    def __init__(self, check: Check | None = None) -> None:
        self._check = check or _check
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by client address
        self._count = 0
        self._condition = threading.Condition()
        self._thread: Thread | None = None

    def authenticate(
        self,
        request: Request,
        peer: str,
        users: Mapping[str, str],
        handle: Callable[[], Response | DeferredResponse],
    ) -> Response | DeferredResponse:
        """Return what ``handle`` returns if the request is of one of ``users``, and otherwise 401 or 429.

        ``handle`` runs in the event loop, perhaps later; ``peer``: the address of the client.
        """
        pair = _credentials(request.headers.get("authorization", ""))
        if pair is None:
            return _unauthorized()
        user, password = pair
        known = user in users
        hashed = users.get(user) or next(iter(users.values()), _NOBODY)  # its cost is that of a real user's
        digest = self._digest(user, hashed, password)
        with self._condition:
            if known and digest in self._verified:
                self._verified.move_to_end(digest)
                recognised = True
            else:
                recognised = False
                waiting = self._waiting.get(peer)
                if self._count >= MAX_WAITING or (waiting is not None and len(waiting) >= MAX_WAITING_OF_PEER):
                    message = "too many passwords to verify; try again"
                    return text_response(429, message, ("Retry-After", "1"))
                deferred = DeferredResponse()
                job = _Job(deferred, handle)
                job.digest, job.hashed, job.known, job.password = digest, hashed, known, password
                self._waiting.setdefault(peer, deque()).append(job)
                self._count += 1
                if self._thread is None:
                    self._thread = Thread(self._run, name="basic-auth")
                    self._thread.start()
                self._condition.notify()
        return handle() if recognised else deferred

    def _digest(self, user: str, hashed: str, password: bytes) -> bytes:
        """Return a digest of all three; each is hashed alone, so that none can run into the next."""
        parts = (user.encode(), hashed.encode(), password)
        alone = b"".join(hashlib.blake2b(part, key=self._key, digest_size=32).digest() for part in parts)
        return hashlib.blake2b(alone, key=self._key, digest_size=32).digest()

    def _run(self) -> None:
        while True:
            job = self._next()
            try:
                verified = self._check(job.password, job.hashed.encode()) and job.known
            except Exception:
                verified = False
            if verified:
                with self._condition:
                    self._verified[job.digest] = None
                    while len(self._verified) > MAX_USERS:
                        self._verified.popitem(last=False)
                job.deferred.set_resume(job.resume)
            else:
                job.deferred.set_response(_unauthorized())

    def _next(self) -> _Job:
        """Wait for the next check; the addresses take turns."""
        with self._condition:
            while not self._waiting:
                self._condition.wait()
            peer, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[peer] = jobs
            self._count -= 1
            return job


def _check(password: bytes, hashed: bytes) -> bool:
    import bcrypt  # noqa: PLC0415 - an optional package, which only a daemon with users needs

    return bool(bcrypt.checkpw(password, hashed))


def _credentials(header: str) -> tuple[str, bytes] | None:
    """Return user and password of an Authorization field; None where it is none of the Basic scheme."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password[:_MAX_PASSWORD]) if colon else None
    except (binascii.Error, ValueError):
        return None


def _unauthorized() -> Response:
    return text_response(401, "a user and password are needed", ("WWW-Authenticate", "Basic"))
