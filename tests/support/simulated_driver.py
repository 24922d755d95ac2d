"""The simulated driver on a clock that tests move."""

from __future__ import annotations

import math

from exporter.driver.nvml.library import load_driver
from exporter.simulate import nvml
from exporter.simulate.driver import SimulatedDriver
from exporter.simulate.node_spec import NodeSpec
from exporter.simulate.world import World


def simulated_driver(clock, world: World | None = None, **spec):
    """Return the module with pynvml's names, on ``clock``; one node at a time, because it is a module."""
    node_spec = NodeSpec(start=0.0, **{"started_unix": 1.7e9, **spec})
    driver = load_driver("exporter.simulate.nvml", node_spec.dumps())
    nvml.use(SimulatedDriver(node_spec, clock=clock, budget=math.inf, world=world))
    return driver
