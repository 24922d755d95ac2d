"""The specification of a simulated node, which its processes share as one line of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from exporter.simulate.traffic import DAY
from exporter.simulate.world import World

CATCH_UP_BUDGET = 0.3  # s that one call may spend on catching up


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A world and its clock, and the processes of its ranks.

    ``start`` is ``time.monotonic()`` at the node's start, ``started_unix`` the Unix time at the same instant.
    ``speed``: simulated seconds per real second.  ``pids`` gives, by replica, the process of each rank.
    """

    scenario: str = "healthy"
    seed: int = 0
    node: int = 0
    speed: float = 1.0
    start: float = field(default_factory=time.monotonic)
    started_unix: float = field(default_factory=time.time)
    fault_at: float | None = None
    fault_until: float | None = None
    day: float = DAY
    pids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def elapsed(self, now: float) -> float:
        """Return the simulated seconds since the start at ``now`` (monotonic)."""
        return (now - self.start) * self.speed

    def world(self) -> World:
        """Build this process's copy of the world; KeyError for an unknown scenario."""
        return World(
            self.scenario,
            seed=self.seed,
            node=self.node,
            fault_at=self.fault_at,
            fault_until=self.fault_until,
            day=self.day,
        )

    def dumps(self) -> str:
        """Return the specification as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> NodeSpec:
        """Parse a specification; ValueError when it is not one."""
        record = json.loads(text)
        if not isinstance(record, dict):
            raise ValueError("the specification of a simulated node is a JSON object")  # noqa: TRY004 - it is about the text
        pids = {str(name): tuple(map(int, ranks)) for name, ranks in record.pop("pids", {}).items()}
        try:
            return NodeSpec(pids=pids, **record)
        except TypeError as error:
            raise ValueError(f"not the specification of a simulated node: {error}") from None
