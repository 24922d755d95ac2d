"""What a simulated card says of its board: which power limits may be set, its window onto the bus, its licence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporter.simulate.card import Card

_BAR1_USED = 24 << 20  # bytes; hardly anything of it is mapped


def about_the_board(card_of: Callable[[Any], Card]) -> tuple[Callable[[Any], Any], ...]:
    """Make the driver's functions: power limit asked for, default, and (least, most), in mW; BAR1; licences."""

    def limit(handle: Any) -> int:
        return round(card_of(handle).power_limit * 1000)

    def default(handle: Any) -> int:
        return round(card_of(handle).kind.power_limit * 1000)

    def least_and_most(handle: Any) -> list[int]:
        return [default(handle) * 2 // 7, default(handle)]

    def bar1(handle: Any) -> SimpleNamespace:
        total = 1 << (card_of(handle).kind.memory - 1).bit_length()  # the next power of two
        return SimpleNamespace(bar1Total=total, bar1Free=total - _BAR1_USED, bar1Used=_BAR1_USED)

    def licences(handle: Any) -> SimpleNamespace:
        card_of(handle)
        return SimpleNamespace(isGridLicenseSupported=0, licensableFeaturesCount=0, gridLicensableFeatures=[])

    return limit, default, least_and_most, bar1, licences
