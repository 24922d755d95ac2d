"""The world behind the simulated driver of this process, and the errors it raises."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from exporter.simulate.gpu import SimulatedGpu
from exporter.simulate.node_spec import CATCH_UP_BUDGET, NodeSpec
from exporter.simulate.world import World

NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_GPU_IS_LOST = 15


class NVMLError(Exception):
    """An error of the driver; ``value`` is the return code."""

    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__(f"NVML answered {value}")


class SimulatedDriver:
    """The world, its lock, and how often the driver was initialised.

    ``clock`` gives monotonic seconds; ``budget`` is how many real seconds one call may spend on catching up;
    ``world`` one to share instead of a copy of its own.
    """

    def __init__(
        self,
        node_spec: NodeSpec,
        *,
        clock: Callable[[], float] = time.monotonic,
        budget: float = CATCH_UP_BUDGET,
        world: World | None = None,
    ) -> None:
        self.node_spec = node_spec
        self._clock, self._budget = clock, budget
        self.world = world or node_spec.world()
        self.lock = threading.Lock()
        self.init_count = 0

    def current_world(self) -> World:
        """Advance the world to now and return it."""
        if not self.init_count:
            raise NVMLError(NVML_ERROR_UNINITIALIZED)
        with self.lock:
            return self.world.advance_to(self.node_spec.elapsed(self._clock()), budget=self._budget)

    def gpu(self, handle: Any) -> SimulatedGpu:
        """Return the GPU behind a handle."""
        world = self.current_world()
        if not isinstance(handle, int) or not 0 <= handle < len(world.gpus):
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        gpu = world.gpus[handle]
        if gpu.lost:
            raise NVMLError(NVML_ERROR_GPU_IS_LOST)
        return gpu
