"""Basic authentication against bcrypt hashes, in a thread of its own: guessing must cost no scrape.

A pair that was verified once is recognised by a keyed digest, in microseconds and in the event loop.  Any other pair
costs one bcrypt, one at a time, in turn for each client address, and after a wrong one the thread rests, so that
guessing costs a fifth of a core at most.  What is beyond the places of an address or of all is refused with 429.
A wrong pair costs what the most expensive hash costs, so that the time tells no names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from exporter.config.web import MAX_USERS
from exporter.http.server.auth_queue import AuthQueue
from exporter.http.server.connection import DeferredResponse
from exporter.http.server.request import Request, Response, text_response
from exporter.threads import Thread

REST = 4.0  # times the CPU time of a wrong pair's check
_MAX_PASSWORD = 72  # bytes that bcrypt reads; newer versions of the library refuse more instead of ignoring them
_UNMATCHED = "QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"  # salt and digest of no known password

Check = Callable[[bytes, bytes], bool]

MISSING, WRONG, LIMITED = REASONS = ("missing", "wrong", "limited")  # why a request was refused


class _Job:
    __slots__ = ("deferred", "digest", "hashed", "known", "max_cost", "password", "resume")

    def __init__(self, deferred: DeferredResponse, resume: Callable[[], Response | DeferredResponse]) -> None:
        self.deferred = deferred
        self.resume = resume
        self.digest = b""
        self.hashed = ""
        self.known = False
        self.max_cost = 0  # of all users' hashes
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
        self._queue: AuthQueue[_Job] = AuthQueue()
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
        max_cost = max(map(_cost, users.values()))
        hashed = users.get(user) or _hash_of_no_password(max_cost)
        digest = self._digest(user, hashed, password)
        with self._condition:
            if known and digest in self._verified:
                self._verified.move_to_end(digest)
                self._queue.on_success(peer)
                deferred = None
            else:
                deferred = DeferredResponse()
                job = _Job(deferred, handle)
                job.digest, job.hashed, job.known, job.password = digest, hashed, known, password
                job.max_cost = max_cost
                if not self._wait(peer, job):
                    return _too_many()
        return handle() if deferred is None else deferred

    def _wait(self, peer: str, job: _Job) -> bool:
        """Have a check wait, and return whether there is a place for it; who gives way for it gets 429."""
        evicted = self._queue.add(peer, job)
        if evicted is not None:
            other, refused = evicted
            self._on_failure(LIMITED, other)
            if refused is job:
                return False
            refused.deferred.set_response(_too_many())
        if self._thread is None:
            self._thread = Thread(self._run, name="basic-auth")
            self._thread.start()
        self._condition.notify()
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
            verified = self._verify(job)
            with self._condition:
                if verified:
                    self._queue.on_success(peer)
                    self._verified[job.digest] = None
                    while len(self._verified) > MAX_USERS:
                        self._verified.popitem(last=False)
                else:
                    self._queue.on_failure(peer)
            if verified:
                job.deferred.set_resume(job.resume)
            else:
                self._on_failure(WRONG, peer)
                job.deferred.set_response(_unauthorized())
                self._rest(REST * (time.thread_time() - began))

    def _verify(self, job: _Job) -> bool:
        """Return whether a pair is right; a wrong one takes as long as with the most expensive hash."""
        try:
            if self._check(job.password, job.hashed.encode()) and job.known:
                return True
            # Each step of the cost doubles the time: c + c + (c + 1) + ... + (max - 1) is as long as max.
            for cost in range(_cost(job.hashed), job.max_cost):
                self._check(job.password, _hash_of_no_password(cost).encode())
        except Exception:
            return False
        return False

    def _next(self) -> tuple[str, _Job]:
        """Wait for the next check and return it with its address."""
        with self._condition:
            while not self._queue:
                self._condition.wait()
            return self._queue.pop()


def _cost(hashed: str) -> int:
    """Return the base-2 logarithm of a bcrypt hash's rounds."""
    return int(hashed[4:6])


def _hash_of_no_password(cost: int) -> str:
    return f"$2y${cost:02}${_UNMATCHED}"


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
    return text_response(401, "a user and password are needed", ("WWW-Authenticate", 'Basic realm="shardwatch"'))
