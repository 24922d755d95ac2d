"""Basic authentication against bcrypt hashes, in a thread of its own: guessing must cost no scrape.

A pair that was verified once is recognised by a keyed digest, in microseconds and in the event loop.  Any other pair
costs one bcrypt, one at a time, in turn for each client address, and after a wrong one the thread rests, so that
guessing costs a fifth of a core at most.  What is beyond the places of an address or of all is refused with 429.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

from exporter.config.web import MAX_USERS
from exporter.http.server.connection import DeferredResponse
from exporter.http.server.request import Request, Response, text_response
from exporter.threads import Thread

MAX_WAITING = 32  # checks; a connection waits for each
MAX_WAITING_OF_PEER = 4
REST = 4.0  # times the CPU time of a wrong pair's check
_MAX_PASSWORD = 72  # bytes that bcrypt reads; newer versions of the library refuse more instead of ignoring them
# The hash of no password, so that a name that does not exist takes as long as one that does.
_NOBODY = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"

Check = Callable[[bytes, bytes], bool]

MISSING, WRONG, LIMITED = REASONS = ("missing", "wrong", "limited")  # why a request was refused


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

    def __init__(
        self,
        check: Check | None = None,
        *,
        on_failure: Callable[[str, str], None] = lambda *_: None,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        """``on_failure`` is called with one of REASONS and the client's address, for WRONG from another thread."""
        self._check = check or _check
        self._on_failure, self._rest = on_failure, rest
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
            self._on_failure(MISSING, peer)
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
                if not self._has_place(peer):
                    self._on_failure(LIMITED, peer)
                    return _too_many()
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

    def _has_place(self, peer: str) -> bool:
        """Return whether one more check of an address may wait; if all places are taken, who has most loses one."""
        if len(self._waiting.get(peer, ())) >= MAX_WAITING_OF_PEER:
            return False
        if self._count < MAX_WAITING:
            return True
        other, jobs = max(self._waiting.items(), key=lambda item: len(item[1]))
        if peer in self._waiting or len(jobs) == 1:
            return False
        jobs.pop().deferred.set_response(_too_many())
        self._count -= 1
        self._on_failure(LIMITED, other)
        return True

    def _digest(self, user: str, hashed: str, password: bytes) -> bytes:
        """Return a digest of all three; each is hashed alone, so that none can run into the next."""
        parts = (user.encode(), hashed.encode(), password)
        alone = b"".join(hashlib.blake2b(part, key=self._key, digest_size=32).digest() for part in parts)
        return hashlib.blake2b(alone, key=self._key, digest_size=32).digest()

    def _run(self) -> None:
        while True:
            peer, job = self._next()
            began = time.thread_time()
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
                self._on_failure(WRONG, peer)
                job.deferred.set_response(_unauthorized())
                self._rest(REST * (time.thread_time() - began))

    def _next(self) -> tuple[str, _Job]:
        """Wait for the next check and return its address as well; the addresses take turns."""
        with self._condition:
            while not self._waiting:
                self._condition.wait()
            peer, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[peer] = jobs
            self._count -= 1
            return peer, job


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


def _too_many() -> Response:
    return text_response(429, "too many passwords to verify; try again", ("Retry-After", "1"))


def _unauthorized() -> Response:
    return text_response(401, "a user and password are needed", ("WWW-Authenticate", "Basic"))
