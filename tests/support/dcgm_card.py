"""A card on which everything was read, its page under DCGM's names, and that page taken apart."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from exporter.model import DriverFacts, Signal, XidCount, XidLabels
from exporter.render.dcgm.page import render
from exporter.render.dcgm.query import parse_query
from tests.support.builders import card, snapshot
from tests.support.records import replace

ALL = {signal.value: float(place) for place, signal in enumerate(Signal, start=1)}
GIB = 2.0**30
PLAUSIBLE = {
    **ALL,
    "utilization": 0.875,
    "memory_activity": 0.125,
    "encoder_utilization": 0.0,
    "decoder_utilization": 0.05,
    "memory_total": 80 * GIB,
    "memory_used": 60 * GIB + 1.5 * 2**20,
    "memory_free": 19 * GIB + 1023 * 1024.0,
    "memory_reserved": GIB - 0.5 * 2**20,
    "power": 345.678,
    "energy": 1234567.891,
    "temperature_gpu": 61.0,
    "temperature_memory": 72.0,
    "clock_sm": 1980e6,
    "clock_memory": 2619e6,
    "sm_active": 0.5,
    "sm_occupancy": 0.25,
    "tensor_active": 0.123456789,
    "dram_active": 0.75,
    "graphics_active": 0.9,
    "fabric_state": 3.0,
    "fabric_status": 0.0,
    "fabric_health": 5.0,
    "fabric_summary": 1.0,
    "bar1_total": 128 * GIB,
    "bar1_used": 2.5 * 2**20,
    "bar1_free": 128 * GIB - 2.5 * 2**20,
    "power_instant": 401.5,
    "power_limit": 650.0,
    "power_limit_requested": 650.0,
    "power_limit_default": 700.0,
    "power_limit_min": 200.0,
    "power_limit_max": 700.0,
    "vgpu_licensed": 0.0,
    "row_remap_failed": 0.0,
    "row_remap_pending": 1.0,
    "temperature_margin": -2.0,
    "fan_speed": 0.3,
    "ecc_mode": 1.0,
    "ecc_mode_pending": 0.0,
    "clock_application_sm": 1830e6,
    "clock_application_memory": 2619e6,
}
EVENTS = {"sw_power_cap": 1.5, "sync_boost": 0.0, "sw_thermal_slowdown": 2e-9}
EVENTS |= {"hw_thermal_slowdown": 4.0, "hw_power_brake_slowdown": 0.25}
POLICIES = {
    "thermal": 4.5,
    "board_limit": 0.0,
    "low_utilization": 9000.0,
    "reliability": 1e-9,
    "application_clocks": 0.5,
    "base_clocks": 0.0,
}
PIPES = dict.fromkeys(
    ("integer", "tensor_dfma", "tensor_hmma", "tensor_dmma", "tensor_imma", "fp64", "fp32", "fp16"), 0.5
)


def full_card(index=0, **signals):
    gpu = card(index, **{**PLAUSIBLE, **signals})
    reading = replace(
        gpu.reading,
        clock_events={"sw_power_cap": True, "gpu_idle": False, "hw_thermal_slowdown": True},
        clock_event_seconds=EVENTS,
        policy_seconds=POLICIES,
        nvlink_errors={"replay": 3.0, "recovery": 2.0, "crc": 1.0},
        nvlink_bytes=dict.fromkeys(range(18), (1.0, 2.0)),
        pipe_active=PIPES,
    )
    facts = replace(gpu.facts, name="NVIDIA H100 80GB HBM3", pci_bus_id=f"00000000:{0x19 + index:02X}:00.0")
    return replace(gpu, reading=reading, facts=facts)


def moved(at, index=0, **counters):
    """Return a card of which only these counters were read, at ``at``."""
    return replace(card(index, at=at, **counters), last_read_at=at)


def xid(index, code, count=0, last_unix_time=None):
    return XidCount(
        labels=XidLabels(str(index), f"GPU-{index:04d}", str(code or "other"), "nvml"),
        xid=code,
        count=count,
        last_unix_time=last_unix_time,
    )


RATES = {
    f"GPU-{index:04d}": {
        Signal.NVLINK_TRANSMIT: 3_000_000_000.0,
        Signal.NVLINK_RECEIVE: 1_500_000_000.5,
        Signal.PCIE_TRANSMIT: 4096.4,
        Signal.PCIE_RECEIVE: 8192.5,
    }
    for index in range(2)
}
FULL = snapshot(
    cards=(full_card(0), full_card(1)),
    driver=DriverFacts(driver_version="580.95.05"),
    xids=(xid(0, 48), xid(0, 79), xid(1, 13, 2, 1e9), xid(1, 48, 1, 2e9), xid(1, 63, 0, 3e9)),
)

RECENT = {"GPU-0001": {13: 2, 48: 1}}
CLOCK_EVENTS = {"GPU-0000": {}, "GPU-0001": {"sw_power_cap": 120, "hw_thermal_slowdown": 3}}
LINK_RATES = {f"GPU-{index:04d}": {link: 2_048_000_000.0 * (17 - link) for link in range(18)} for index in range(2)}


def page(query="", shot=FULL, rates=RATES, recent=RECENT):
    return render(
        shot, parse_query(query), hostname="node-1", rates=rates, recent=recent, clock_events=CLOCK_EVENTS,
        link_rates=LINK_RATES,
    )  # fmt: skip


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def kinds(text):
    return dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))


def samples(text, gpu="0"):
    """Return name → (labels, value as written) of one card's series; of a name that is there twice, the first."""
    samples_by_name = {}
    for line in text.splitlines():
        match = re.fullmatch(r'(\w+)\{(gpu="(\d+)".*)\} (\S+)', line)
        if match and match[3] == gpu:
            samples_by_name.setdefault(match[1], (dict(re.findall(r'(\w+)="([^"]*)"', match[2])), match[4]))
    return samples_by_name
