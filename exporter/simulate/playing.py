"""The world that plays the driver in this process, and the refusals it knows."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from exporter.simulate.plan import CATCH_UP, Plan

if TYPE_CHECKING:
    from exporter.simulate.card import Card
    from exporter.simulate.world import World

NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_GPU_IS_LOST = 15


class NVMLError(Exception):
    """The driver's refusal; ``value`` is the return code."""

    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__(f"NVML answered {value}")


class Node:
    """The world, its lock, and how often the driver was initialised."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world: World = plan.world()
        self.lock = threading.Lock()
        self.users = 0

    def live(self) -> World:
        """Bring the world up to now."""
        if not self.users:
            raise NVMLError(NVML_ERROR_UNINITIALIZED)
        with self.lock:
            return self.world.at(self.plan.now(), budget=CATCH_UP)

    def card(self, handle: Any) -> Card:
        """Give the card behind a handle."""
        world = self.live()
        if not isinstance(handle, int) or not 0 <= handle < len(world.cards):
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        card = world.cards[handle]
        if card.lost:
            raise NVMLError(NVML_ERROR_GPU_IS_LOST)
        return card
