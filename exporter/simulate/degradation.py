"""External limits on one healthy GPU: a power limit, a power brake, a narrow link, another tenant.

Each belongs to a GPU for the time of a fault and leaves nothing behind.  A lower clock makes the GPU's group slow
by itself; how much longer the steps take for other reasons is what ``step_slowdown`` returns.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.simulate.records import Fault

LANES = 16
KINDS = ("cap", "brake", "lanes", "tenant")
_NARROW = 0.3  # share of a step more, where the link of one GPU has a quarter of its lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """The limits on a GPU now; by default there are none."""

    power_limit_ratio: float = 1.0  # of the power limit of its product
    clock_ratio: float = 1.0  # of the highest clock
    pcie_lanes: int = LANES
    tenant_share: float = 0.0  # share of the time that another process keeps the GPU at work


UNDEGRADED = Degradation()


def degradation(fault: Fault) -> Degradation:
    """Return what the fault does to its GPU; its ``strength`` is what it leaves (a tenant's: what it takes)."""
    if fault.kind == "cap":
        return Degradation(power_limit_ratio=fault.strength)
    if fault.kind == "brake":
        return Degradation(clock_ratio=fault.strength)
    if fault.kind == "lanes":
        return Degradation(pcie_lanes=int(LANES * fault.strength))
    return Degradation(tenant_share=fault.strength)


def step_slowdown(fault: Fault) -> float:
    """Return how much longer a step of the group takes, beside what the GPU's clock does to it."""
    if fault.kind == "lanes":
        return 1.0 + _NARROW * (1.0 / fault.strength - 1.0) / 3.0
    return 1.0 + fault.strength if fault.kind == "tenant" else 1.0
