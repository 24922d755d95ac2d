"""The topology of the simulated GPUs: NVLinks to a switch, or PCIe; four GPUs behind each socket."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from exporter.simulate.driver import NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVMLError
from exporter.simulate.gpu import SimulatedGpu

HOST_BRIDGE, NODE, SYSTEM = 30, 40, 50
P2P_OK, P2P_NOT_SUPPORTED = 0, 5
OVER_NVLINK, CAPABILITIES = 2, 5
SWITCH = 2
_SWITCHES = 4


def socket(gpu: SimulatedGpu) -> int:
    """Return the socket that the GPU stands behind."""
    return int(gpu.index >= gpu.product.numa_split)


def topology_functions(gpu: Callable[[Any], SimulatedGpu]) -> tuple[Callable[..., Any], ...]:
    """Return four functions; ``gpu`` returns the GPU behind a handle, or raises what the driver would.

    In this order: nearest common ancestor of two GPUs, access between them, type of the device at the remote end of a
    link, and its PCI address.
    """

    def ancestor(handle: Any, other: Any) -> int:
        first, second = gpu(handle), gpu(other)
        if socket(first) != socket(second):
            return SYSTEM
        return NODE if first.product.nvlinks else HOST_BRIDGE

    def access(handle: Any, other: Any, capability: int) -> int:
        linked = bool(gpu(handle).product.nvlinks and gpu(other).product.nvlinks)
        if not 0 <= capability < CAPABILITIES:
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        return P2P_OK if linked or capability != OVER_NVLINK else P2P_NOT_SUPPORTED

    def remote_type(handle: Any, link: int) -> int:
        found = gpu(handle)
        if not 0 <= link < found.product.nvlinks or link == found.dead_link:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return SWITCH

    def remote_pci(handle: Any, link: int) -> SimpleNamespace:
        remote_type(handle, link)
        return SimpleNamespace(busId=f"00000000:{0x05 + link % _SWITCHES:02X}:00.0")

    return ancestor, access, remote_type, remote_pci
