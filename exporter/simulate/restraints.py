"""What holds one card back from outside while the rest of it is well: a limit, a brake, a narrow link, a visitor.

Each belongs to a card for the time of a fault and leaves nothing behind.  A lower clock makes the card's group slow
by itself; how much longer the steps take for other reasons is what ``lateness`` gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exporter.simulate.scenarios import Fault

LANES = 16
KINDS = ("cap", "brake", "lanes", "tenant")
_NARROW = 0.3  # share of a step more, where the link of one card has a quarter of its lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Restraint:
    """What holds a card back now; by default nothing does."""

    allowance: float = 1.0  # of the power limit of its kind
    brake: float = 1.0  # of the highest clock
    lanes: int = LANES
    visitor: float = 0.0  # share of the time that another process keeps the card at work


NONE = Restraint()


def restraint(fault: Fault) -> Restraint:
    """Give what the fault does to its card; its ``strength`` is what it leaves (a tenant's: what it takes)."""
    if fault.kind == "cap":
        return Restraint(allowance=fault.strength)
    if fault.kind == "brake":
        return Restraint(brake=fault.strength)
    if fault.kind == "lanes":
        return Restraint(lanes=int(LANES * fault.strength))
    return Restraint(visitor=fault.strength)


def lateness(fault: Fault) -> float:
    """Give how much longer a step of the group takes, beside what the card's clock does to it."""
    if fault.kind == "lanes":
        return 1.0 + _NARROW * (1.0 / fault.strength - 1.0) / 3.0
    return 1.0 + fault.strength if fault.kind == "tenant" else 1.0
