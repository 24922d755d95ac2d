"""What can be simulated, as records: GPUs, models, traffic, replicas, faults, and scenarios made of them.

Nothing here computes.  A scenario is a node and what happens to it; ``world.py`` advances it.  Times of faults are
seconds after the start of the simulated node; sizes are bytes, tokens or blocks as named.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProduct:
    """A make of GPU: what its driver reports about it, and how it turns work into heat."""

    name: str
    memory: int  # bytes
    reserved: int  # bytes the driver keeps for itself
    sm_clock: int  # MHz, the highest
    idle_clock: int  # MHz
    memory_clock: int  # MHz
    power_limit: float  # W
    idle_power: float  # W
    decode_power: float  # W above idle at full utilisation in memory-bound work
    prefill_power: float  # W above idle at full utilisation in compute-bound work
    thermal_resistance: float  # K/W from the inlet air
    nvlinks: int  # active links; 0: the GPUs talk over PCIe
    numa_split: int = 4  # GPUs below this index sit on the first socket


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions on one node.  ``pace`` scales step times: old software is a little slower."""

    driver: str = "580.95.05"
    nvml: str = "13.580.95.05"
    cuda: int = 13000  # as the driver numbers it: major × 1000 + minor × 10
    engine: str = "0.32.0"
    pace: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A served model and how long its steps take on healthy GPUs of the group size it is meant for."""

    name: str
    weights: int  # bytes over the whole group
    kv_bytes: int  # bytes of KV cache for one token, over the whole group
    step_base: float  # s for any step
    step_sequence: float  # s more for each sequence in the batch
    step_prefill: float  # s more for each prompt token computed
    link_bytes: int  # bytes that each GPU sends to its peers for one token
    max_model_len: int = 32_768
    launch_floor: float = 0.75  # utilisation of a busy GPU with a tiny batch: the rest is gaps between kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What clients ask of one replica; lengths are medians of log-normal distributions."""

    rate: float  # requests per second, averaged over the day
    daily: float = 0.0  # amplitude of the daily curve, share of the rate
    prompt: int = 900  # tokens of a request's own
    prompt_spread: float = 0.8
    output: int = 260
    output_spread: float = 0.8
    prefixes: int = 24  # shared beginnings (system prompts, documents), popularity falls like 1/rank
    prefix: tuple[int, int] = (512, 4096)  # tokens, between
    client_timeout: float = 90.0  # s until a client gives up
    cancel_ratio: float = 0.006  # share of clients that leave before their answer is complete
    bad_request_ratio: float = 0.002  # share of HTTP requests refused with 400 before they reach the engine
    shares: tuple[float, ...] = ()  # of the ranks; empty: even


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """One engine server: ``ranks`` lists the GPUs of each data-parallel rank."""

    name: str
    model: Model
    traffic: Traffic
    ranks: tuple[tuple[int, ...], ...]
    engine: str = "vllm"
    memory_fraction: float = 0.90  # of each GPU, weights and KV cache together
    max_sequences: int = 64
    batch_tokens: int = 2048  # at most so many tokens in one step
    block: int = 16  # tokens per KV block
    step_scale: float = 1.0  # how much longer a step takes because of the way the GPUs talk


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that happens to one GPU.

    ``lost``: link errors and slow steps for ``lead`` seconds, then the GPU is gone and its group freezes.
    ``memory``: the process on the GPU grows by what is left, within ``lead`` seconds.
    ``heat``: the cooler moves only ``strength`` of its heat.
    ``cap``, ``brake``, ``lanes``: only ``strength`` of its power limit, clock or PCIe lanes are left.
    ``nic``: the adapter beside the GPU flaps for ``ramp`` seconds, then its link is gone and the group freezes.
    ``tenant``: somebody else's process takes ``strength`` of the group's time.
    """

    kind: str
    gpu: int
    at: float
    until: float | None = None
    ramp: float = 8.0
    strength: float = 1.0

    @property
    def sentence(self) -> str:
        """What happens, without its time."""
        return FAULTS[self.kind].format(gpu=self.gpu, ramp=self.ramp, percent=self.strength)


FAULTS = {
    "lost": "GPU {gpu} has NVLink errors for {ramp:g} s and is then lost",
    "memory": "a process on GPU {gpu} takes the rest of its memory within {ramp:g} s",
    "heat": "the cooler of GPU {gpu} fails",
    "cap": "the power limit of GPU {gpu} is lowered to {percent:.0%}",
    "brake": "the power supply brakes GPU {gpu} to {percent:.0%} of its clock",
    "lanes": "the PCIe link of GPU {gpu} is left with {percent:.0%} of its lanes",
    "nic": "the network adapter beside GPU {gpu} flaps for {ramp:g} s and then loses its link",
    "tenant": "another tenant's process starts to work on GPU {gpu}",
}


@dataclass(frozen=True, slots=True)
class Symptom:
    """A line of the metrics endpoint that shows what a scenario is about.

    ``expr`` compares one series with a number, as PromQL does; it holds ``within`` so many seconds of the scenario's
    fault, or of the start where there is none, and not before.
    """

    expr: str
    meaning: str
    _: KW_ONLY
    within: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """An instance of a MIG-enabled GPU.  Replicas name it by its index, counted on from the whole GPUs."""

    parent: int  # the index of the GPU
    product: GpuProduct
    share: float  # of the parent's processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A node and what happens to it.  ``software`` holds one entry per node variant."""

    name: str
    summary: str
    replicas: tuple[ReplicaSpec, ...]
    product: GpuProduct
    gpus: int = 8
    mig_slices: tuple[MigSlice, ...] = ()
    busy_ratio: tuple[float, ...] = (1.0,) * 8  # a GPU's share of its group's busy time
    faults: tuple[Fault, ...] = ()
    software: tuple[Software, ...] = (Software(),)
    has_nics: bool = False  # a network adapter beside each GPU, and one of Ethernet
    expect: tuple[Symptom, ...] = ()

    def guide(self, fault_at: float | None = None) -> tuple[str, ...]:
        """Return what happens at which second and what to watch on the metrics endpoint, a sentence a line.

        ``fault_at`` replaces the time of the scenario's faults, seconds after the start.
        """
        begins = [fault.at if fault_at is None else fault_at for fault in self.faults]
        happens = [f"After {at:g} s {fault.sentence}." for at, fault in zip(begins, self.faults, strict=True)]
        watch = [
            f"Watch {symptom.expr} (about {symptom.within + max(begins, default=0.0):g} s after the start):"
            f" {symptom.meaning}."
            for symptom in self.expect
        ]
        return (*happens, *watch)
