"""Requests as clients send them: Poisson arrivals on a slow daily curve, shared prompt beginnings, impatience."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import accumulate

from exporter.simulate.records import ReplicaSpec

DAY = 86_400.0
ANSWER_LIMITS = (256, 512, 1024, 2048, 4096)


def stream(*names: object) -> random.Random:
    """Return a random stream that depends on nothing but its names, so that every process draws the same numbers."""
    return random.Random("/".join(map(str, names)))  # noqa: S311 - a simulation, no secret


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """One request on its way through a rank; instants are seconds since the start of the node.

    Two requests are the same only if they are one object, however alike they look.
    """

    arrival: float
    abandon_at: float  # the client leaves then, wherever the request is
    prefix: int  # which shared beginning
    shared: int  # tokens of it, whole blocks
    prompt: int  # tokens, shared ones included
    max_tokens: int
    output: int  # tokens it will produce
    reason: str  # stop or length; error when it fails
    remaining: int = 0  # prompt tokens still to be computed
    cached: int = 0
    produced: int = 0
    scheduled: float | None = None
    first_token: float = 0.0
    last_token: float = 0.0
    preemptions: int = 0


@dataclass(slots=True)
class Arrivals:
    """The stream of requests to one replica."""

    replica: ReplicaSpec
    seed: str
    day: float = DAY
    weight: float = 1.0  # of the gateway: so many times the usual requests
    bad_requests: int = 0  # refused with 400, never seen by the engine
    _random: random.Random = field(init=False)
    _next: float = field(init=False, default=0.0)
    _lengths: tuple[int, ...] = field(init=False)
    _popularity: tuple[float, ...] = field(init=False)
    _shares: tuple[float, ...] = field(init=False)
    _credit: list[float] = field(init=False)

    def __post_init__(self) -> None:
        """Fix the shared beginnings and draw the first arrival."""
        traffic, block = self.replica.traffic, self.replica.block
        self._random = stream(self.seed, self.replica.name, "arrivals")
        low, high = traffic.prefix
        self._lengths = tuple(self._random.randint(low, high) // block * block for _ in range(traffic.prefixes))
        self._popularity = tuple(accumulate(1.0 / (rank + 1) for rank in range(traffic.prefixes)))
        shares = traffic.shares or (1.0,) * len(self.replica.ranks)
        self._shares = tuple(share / sum(shares) for share in shares)
        self._credit = [0.0] * len(shares)
        self._next = self._gap(0.0)

    def until(self, end: float) -> list[tuple[int, SimulatedRequest]]:
        """Return (rank, request) for everything that arrives before ``end``, in order; call with rising ``end``."""
        arrived = []
        while self._next < end:
            if self._random.random() < self.replica.traffic.bad_request_ratio:
                self.bad_requests += 1
            else:
                arrived.append(self._draw(self._next))
            self._next += self._gap(self._next)
        return arrived

    def _gap(self, now: float) -> float:
        traffic = self.replica.traffic
        rate = self.weight * traffic.rate * (1.0 + traffic.daily * math.sin(2.0 * math.pi * now / self.day))
        return self._random.expovariate(rate)

    def _choose_rank(self) -> int:
        """Deal requests out in turn, each rank as often as its share says."""
        self._credit = [credit + share for credit, share in zip(self._credit, self._shares, strict=True)]
        rank = self._credit.index(max(self._credit))
        self._credit[rank] -= 1.0
        return rank

    def _draw(self, now: float) -> tuple[int, SimulatedRequest]:
        traffic, draw, limit = self.replica.traffic, self._random, self.replica.model.max_model_len
        prefix = draw.choices(range(len(self._lengths)), cum_weights=self._popularity)[0]
        own = min(int(draw.lognormvariate(math.log(traffic.prompt), traffic.prompt_spread)) + 1, limit // 4)
        wanted = int(draw.lognormvariate(math.log(traffic.output), traffic.output_spread)) + 1
        max_tokens = max(1, min(draw.choice(ANSWER_LIMITS), limit - own - self._lengths[prefix]))
        # a fickle client leaves while it reads; everybody else waits out their patience
        stay = draw.expovariate(0.4) if draw.random() < traffic.cancel_ratio else traffic.client_timeout
        return self._choose_rank(), SimulatedRequest(
            arrival=now,
            abandon_at=now + stay,
            prefix=prefix,
            shared=self._lengths[prefix],
            prompt=self._lengths[prefix] + own,
            max_tokens=max_tokens,
            output=min(wanted, max_tokens),
            reason="length" if wanted >= max_tokens else "stop",
        )
