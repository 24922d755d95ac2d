"""How the simulated cards are joined: by links to a switch, or over PCIe, four cards behind each socket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from exporter.simulate.playing import NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVMLError

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporter.simulate.card import Card

HOST_BRIDGE, NODE, SYSTEM = 30, 40, 50
P2P_OK, P2P_NOT_SUPPORTED = 0, 5
OVER_NVLINK, CAPABILITIES = 2, 5
SWITCH = 2
_SWITCHES = 4


def socket(card: Card) -> int:
    """Give the socket that the card stands behind."""
    return int(card.index >= card.kind.numa_split)


def questions(card: Callable[[Any], Card]) -> tuple[Callable[..., Any], ...]:
    """Make the four functions; ``card`` gives the card behind a handle, or raises what the driver would answer.

    In this order: nearest common ancestor of two cards, access between them, what is at the far end of a link, and
    its place on the bus.
    """

    def ancestor(handle: Any, other: Any) -> int:
        one, two = card(handle), card(other)
        if socket(one) != socket(two):
            return SYSTEM
        return NODE if one.kind.nvlinks else HOST_BRIDGE

    def access(handle: Any, other: Any, capability: int) -> int:
        linked = bool(card(handle).kind.nvlinks and card(other).kind.nvlinks)
        if not 0 <= capability < CAPABILITIES:
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        return P2P_OK if linked or capability != OVER_NVLINK else P2P_NOT_SUPPORTED

    def far_end(handle: Any, link: int) -> int:
        one = card(handle)
        if not 0 <= link < one.kind.nvlinks or link == one.dead_link:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return SWITCH

    def far_place(handle: Any, link: int) -> SimpleNamespace:
        far_end(handle, link)
        return SimpleNamespace(busId=f"00000000:{0x05 + link % _SWITCHES:02X}:00.0")

    return ancestor, access, far_end, far_place
