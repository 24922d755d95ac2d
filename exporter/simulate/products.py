"""GPUs and models of the simulated nodes."""

from __future__ import annotations

from dataclasses import replace

from exporter.simulate.records import GpuProduct, Model

GPU_BUSES = (0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xBB, 0xCB, 0xDB)  # of the PCI addresses

GIB = 1024**3
MIB = 1024**2

H100 = GpuProduct(
    name="NVIDIA H100 80GB HBM3",
    memory=81_559 * MIB,
    reserved=551 * MIB,
    sm_clock=1980,
    idle_clock=345,
    memory_clock=2619,
    power_limit=700.0,
    idle_power=72.0,
    decode_power=300.0,
    prefill_power=600.0,
    thermal_resistance=0.066,
    nvlinks=18,
)
H100_PCIE = GpuProduct(
    name="NVIDIA H100 PCIe",
    memory=81_559 * MIB,
    reserved=551 * MIB,
    sm_clock=1755,
    idle_clock=345,
    memory_clock=1593,
    power_limit=350.0,
    idle_power=48.0,
    decode_power=190.0,
    prefill_power=290.0,
    thermal_resistance=0.115,
    nvlinks=0,
)
H100_HALF = replace(H100, name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", memory=40_448 * MIB, reserved=25 * MIB, nvlinks=0)

LLAMA_70B = Model(
    name="llama-3.3-70b-instruct",
    weights=141 * 10**9,
    kv_bytes=327_680,
    step_base=0.0165,
    step_sequence=0.00011,
    step_prefill=0.00006,
    link_bytes=3_900_000,
)
LLAMA_70B_EIGHT = Model(
    name="llama-3.3-70b-instruct",
    weights=141 * 10**9,
    kv_bytes=327_680,
    step_base=0.0115,
    step_sequence=0.00008,
    step_prefill=0.00004,
    link_bytes=4_500_000,
    launch_floor=0.98,
)
QWEN_32B = Model(
    name="qwen2.5-coder-32b",
    weights=65 * 10**9,
    kv_bytes=262_144,
    step_base=0.0150,
    step_sequence=0.00012,
    step_prefill=0.00006,
    link_bytes=2_600_000,
)
LLAMA_8B = Model(
    name="llama-3.1-8b-instruct",
    weights=16 * 10**9,
    kv_bytes=131_072,
    step_base=0.0080,
    step_sequence=0.00012,
    step_prefill=0.00003,
    link_bytes=0,
    launch_floor=0.40,
)
