"""The physics of one GPU: from the work of its rank to utilisation, clocks, watts, degrees, joules and bytes."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from exporter.simulate.degradation import UNDEGRADED, Degradation
from exporter.simulate.load import Load
from exporter.simulate.records import GpuProduct
from exporter.simulate.traffic import stream
from exporter.simulate.unit_counters import UnitCounters

# The driver's reason bits.
IDLE, POWER_CAP, SW_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x20, 0x80 | 0x8

SLOWDOWN_CELSIUS = 87.0
SHUTDOWN_CELSIUS = 92.0
MEMORY_MAX_CELSIUS = 95.0
INLET_CELSIUS = 26.0
THERMAL_SECONDS = 40.0  # time constant of GPU and cooler
CLOCK_EXPONENT = 2.2  # dynamic power over clock
CLOCK_STEP = 15  # MHz


@dataclass(slots=True)
class SimulatedGpu:
    """One GPU.  Counters are exact integrals of the rates that were reported for each step of time."""

    product: GpuProduct
    index: int
    seed: str
    parent: int | None = None  # index of the GPU that this one is an instance (MIG) of
    memory_used: float = 0.0  # bytes, without the driver's reserve
    process_memory: float = 0.0  # bytes of it that processes hold
    lost: bool = False
    utilization: float = 0.0
    memory_activity: float = 0.0
    power: float = 0.0  # W
    energy: float = 0.0  # J
    temperature: float = 38.0
    clock: float = 0.0  # MHz
    reasons: int = IDLE
    power_cap_seconds: float = 0.0
    thermal_seconds: float = 0.0
    pcie_sent: float = 0.0
    pcie_received: float = 0.0
    nvlink_sent: float = 0.0  # bytes, all links
    nvlink_received: float = 0.0
    nvlink_replays: int = 0
    nvlink_recoveries: int = 0
    nvlink_crc: int = 0
    dead_link: int | None = None  # down
    fault_link: int | None = None  # the one whose errors are counted
    cooling: float = 1.0  # share of its heat that the cooler still moves
    samples: deque[tuple[float, float, float, float]] = field(default_factory=lambda: deque(maxlen=120))
    thermal_factor: float = 1.0
    degradation: Degradation = UNDEGRADED
    units: UnitCounters = field(default_factory=UnitCounters)
    _random: random.Random = field(init=False)
    identity: str = field(init=False)  # 32 hexadecimal digits that no other GPU has
    _resistance: float = field(init=False)

    def __post_init__(self) -> None:
        """Derive identity and cooling from the seed; every GPU is cooled a little differently."""
        self._random = stream(self.seed, "card", self.index)
        self.identity = f"{self._random.getrandbits(128):032x}"
        self._resistance = self.product.thermal_resistance * self._random.uniform(0.94, 1.06)
        self.clock = float(self.product.idle_clock)
        self.power = self.product.idle_power
        self.energy = self._random.uniform(2e8, 4e9)  # counted since the driver was loaded, long before the start

    @property
    def power_limit(self) -> float:
        """Watts that the GPU may draw now."""
        return self.product.power_limit * self.degradation.power_limit_ratio

    @property
    def memory_temperature(self) -> float:
        """Degrees Celsius of the memory stacks, which sit beside the die and run hotter."""
        return self.temperature + 5.0 + 0.012 * self.power

    def restart(self) -> None:
        """Reset the GPU: links are up, and counters start at zero."""
        self.lost, self.dead_link = False, None
        self.nvlink_replays = self.nvlink_recoveries = self.nvlink_crc = 0
        self.energy = self.pcie_sent = self.pcie_received = self.nvlink_sent = self.nvlink_received = 0.0
        self.power_cap_seconds = self.thermal_seconds = 0.0

    def advance(self, now: float, seconds: float, load: Load) -> None:
        """Advance by ``seconds`` up to ``now`` (seconds since the start) under ``load``."""
        noise = self._random.gauss(0.0, 0.006)
        busy = load.utilization > 0.0
        self.utilization = min(1.0, max(0.0, load.utilization + noise)) if busy else 0.0
        self.memory_activity = self.utilization * (0.62 - 0.25 * load.prefill) * load.pace
        self.memory_activity += self.degradation.tenant_share * (0.62 - self.memory_activity) if busy else 0.0
        self._draw_power(load, noise)
        load.compute += self.degradation.tenant_share if busy else 0.0
        self.units.advance(seconds, load, self.utilization, self.clock / self.product.sm_clock)
        self._heat(seconds)
        self.energy += self.power * seconds
        self._count_bytes(seconds, load)
        if self.reasons & POWER_CAP:
            self.power_cap_seconds += seconds
        if self.reasons & SW_THERMAL:
            self.thermal_seconds += seconds
        self.samples.append((now, self.utilization, self.memory_activity, self.power))

    def _draw_power(self, load: Load, noise: float) -> None:
        """Set the clock that heat and power limit allow, and the power that follows from it."""
        product = self.product
        if not load.utilization:
            self.clock, self.reasons = float(product.idle_clock), IDLE
            self.power = product.idle_power * (1.0 + noise)
            return
        mixed = product.decode_power + (product.prefill_power - product.decode_power) * load.prefill
        full = self.utilization * mixed * (0.35 + 0.65 * load.pace)
        factor, self.reasons = self.thermal_factor, 0
        if factor < 1.0:
            self.reasons |= SW_THERMAL
        if self.degradation.clock_ratio < factor:
            factor = self.degradation.clock_ratio
            self.reasons |= POWER_BRAKE
        allowed = (self.power_limit - product.idle_power) / full if full else 1.0
        if allowed < factor**CLOCK_EXPONENT:
            factor = allowed ** (1.0 / CLOCK_EXPONENT)
            self.reasons |= POWER_CAP
        self.clock = max(float(product.idle_clock), product.sm_clock * factor // CLOCK_STEP * CLOCK_STEP)
        self.power = min(self.power_limit, product.idle_power + full * factor**CLOCK_EXPONENT)

    def _heat(self, seconds: float) -> None:
        goal = INLET_CELSIUS + self._resistance / self.cooling * self.power
        self.temperature += (goal - self.temperature) * min(1.0, seconds / THERMAL_SECONDS)
        if self.temperature > SLOWDOWN_CELSIUS - 3.0:
            self.thermal_factor = max(0.4, self.thermal_factor - 0.02 * seconds)
        elif self.temperature < SLOWDOWN_CELSIUS - 5.0:
            self.thermal_factor = min(1.0, self.thermal_factor + 0.01 * seconds)

    def _count_bytes(self, seconds: float, load: Load) -> None:
        skew = self._random.uniform(0.98, 1.02)
        if self.product.nvlinks:
            self.nvlink_sent += load.peer_bytes
            self.nvlink_received += load.peer_bytes * skew
        else:
            self.pcie_sent += load.peer_bytes
            self.pcie_received += load.peer_bytes * skew
        self.pcie_sent += load.host_bytes * 0.4 + 2e5 * seconds  # telemetry never rests
        self.pcie_received += load.host_bytes + 3e5 * seconds
