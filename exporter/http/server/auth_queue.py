"""Who waits for a password check, and who is next: bounded, and fair to addresses that do not guess."""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_WAITING_OF_PEER = 4
MAX_WAITING_OF_KNOWN = 8  # of addresses that authenticated before
MAX_WAITING_OF_OTHERS = 24
MAX_WAITING = MAX_WAITING_OF_KNOWN + MAX_WAITING_OF_OTHERS
_MAX_FAILED = 4096  # addresses that are remembered
_MAX_KNOWN = 128


class AuthQueue(Generic[T]):
    """Jobs by client address.  Not safe for threads.

    Addresses that authenticated before have places of their own and every second turn.  Within either group, who has
    not failed or failed longest ago is next, and who failed last gives way where all places are taken: guessers, from
    however many addresses, keep out each other.
    """

    def __init__(self) -> None:
        self._known = _AddressGroup[T](MAX_WAITING_OF_KNOWN)
        self._others = _AddressGroup[T](MAX_WAITING_OF_OTHERS)
        self._known_is_next = True
        self._known_peers: OrderedDict[str, None] = OrderedDict()
        self._failures = 0
        self._last_failure: OrderedDict[str, int] = OrderedDict()  # address → number of the failure

    def __len__(self) -> int:
        return self._known.count + self._others.count

    def add(self, peer: str, job: T) -> tuple[str, T] | None:
        """Add a job; return what lost its place for it with its address, which may be this one itself."""
        group = self._known if peer in self._known_peers else self._others
        return group.add(peer, job, self._last_failure)

    def pop(self) -> tuple[str, T]:
        """Remove and return the next job with its address.  Raises IndexError where none waits."""
        first, second = (self._known, self._others) if self._known_is_next else (self._others, self._known)
        group = first if first.count else second
        self._known_is_next = group is not self._known
        return group.pop(self._last_failure)

    def on_success(self, peer: str) -> None:
        """Remember an address that authenticated."""
        self._last_failure.pop(peer, None)
        _remember(self._known_peers, peer, None, _MAX_KNOWN)

    def on_failure(self, peer: str) -> None:
        """Remember an address whose credentials were wrong."""
        self._failures += 1
        _remember(self._last_failure, peer, self._failures, _MAX_FAILED)


class _AddressGroup(Generic[T]):
    """Jobs of some addresses, ``places`` at most."""

    def __init__(self, places: int) -> None:
        self.count = 0
        self._places = places
        self._jobs: OrderedDict[str, deque[T]] = OrderedDict()

    def add(self, peer: str, job: T, last_failure: OrderedDict[str, int]) -> tuple[str, T] | None:
        own = len(self._jobs.get(peer, ()))
        if own >= MAX_WAITING_OF_PEER:
            return peer, job
        evicted = None
        if self.count >= self._places:
            ranks = {other: (last_failure.get(other, 0), len(jobs)) for other, jobs in self._jobs.items()}
            last = max(ranks.values())
            if (last_failure.get(peer, 0), own + 1) > last:
                return peer, job
            # By chance among equals: nobody can tell which moment is the right one to come.
            other = secrets.choice([other for other, rank in ranks.items() if rank == last])
            evicted = other, self._take(other, newest=True)
        self._jobs.setdefault(peer, deque()).append(job)
        self.count += 1
        return evicted

    def pop(self, last_failure: OrderedDict[str, int]) -> tuple[str, T]:
        if not self._jobs:
            raise IndexError("no job waits")
        peer = min(self._jobs, key=lambda peer: last_failure.get(peer, 0))
        job = self._take(peer)
        if peer in self._jobs:
            self._jobs.move_to_end(peer)
        return peer, job

    def _take(self, peer: str, *, newest: bool = False) -> T:
        jobs = self._jobs[peer]
        job = jobs.pop() if newest else jobs.popleft()
        if not jobs:
            del self._jobs[peer]
        self.count -= 1
        return job


K = TypeVar("K")
V = TypeVar("V")


def _remember(entries: OrderedDict[K, V], entry: K, value: V, max_entries: int) -> None:
    entries[entry] = value
    entries.move_to_end(entry)
    while len(entries) > max_entries:
        entries.popitem(last=False)
