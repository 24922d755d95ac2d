"""What the processes of one simulated node must agree on, and how they tell each other: one line of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from exporter.simulate.world import World

CATCH_UP = 0.3  # s that one call may spend on living up to now


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A world and its clock.

    ``start`` is ``time.monotonic()`` at the node's start, ``wall`` the Unix time at the same instant; ``speed`` is
    simulated seconds per real second.  ``pids`` gives, by replica, the process of each rank.
    """

    scenario: str = "healthy"
    seed: int = 0
    node: int = 0
    speed: float = 1.0
    start: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)
    fault_at: float | None = None
    fault_until: float | None = None
    pids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def now(self) -> float:
        """Give the simulated seconds since the start."""
        return (time.monotonic() - self.start) * self.speed

    def world(self) -> World:
        """Build this process's copy of the world; KeyError for an unknown scenario."""
        return World(
            self.scenario,
            seed=self.seed,
            node=self.node,
            fault_at=self.fault_at,
            fault_until=self.fault_until,
        )

    def dumps(self) -> str:
        """Write the plan as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> Plan:
        """Read a plan; ValueError when it is not one."""
        record = json.loads(text)
        if not isinstance(record, dict):
            raise ValueError("the plan of a simulated node is a JSON object")  # noqa: TRY004 - it is about the text
        pids = {str(name): tuple(map(int, ranks)) for name, ranks in record.pop("pids", {}).items()}
        try:
            return Plan(pids=pids, **record)
        except TypeError as error:
            raise ValueError(f"not the plan of a simulated node: {error}") from None
