# ruff: noqa: N802 - the names are the binding's
"""The part of the driver that knows divided cards (MIG): which are, and which instances they have.

An instance is a card of the world that stands after the whole ones and has a parent; its handle is its index.  Its
place in the parent's list counts from 0, its GPU instance from 1, and each holds one compute instance, 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exporter.simulate.playing import NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED, Node, NVMLError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exporter.simulate.card import Card
    from exporter.simulate.work import Sample

MOST = 7  # instances of one card


def _of(parent: Card, cards: Sequence[Card]) -> list[Card]:
    return [one for one in cards if one.parent == parent.index]


def _at(parts: list[Card], place: int) -> Card:
    if not 0 <= place < len(parts):
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return parts[place]


def functions(driver: Callable[[], Node], card: Callable[[Any], Card]) -> tuple[Callable[..., Any], ...]:
    """Give the binding's functions about division: mode, most, by place, GPU instance, compute instance, sample."""

    def parts(handle: Any) -> list[Card]:
        return _of(card(handle), driver().world.cards)

    def nvmlDeviceGetMigMode(handle: Any) -> list[int]:
        return [int(bool(parts(handle)))] * 2  # now, and after the next reset

    def nvmlDeviceGetMaxMigDeviceCount(handle: Any) -> int:
        card(handle)
        return MOST

    def nvmlDeviceGetMigDeviceHandleByIndex(handle: Any, place: int) -> int:
        return _at(parts(handle), place).index

    def nvmlDeviceGetGpuInstanceId(handle: Any) -> int:
        if (parent := card(handle).parent) is None:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return [one.index for one in parts(parent)].index(handle) + 1

    def nvmlDeviceGetComputeInstanceId(handle: Any) -> int:
        nvmlDeviceGetGpuInstanceId(handle)
        return 0

    def nvmlGpmMigSampleGet(handle: Any, instance: int, sample: Sample) -> Sample:
        found, node = _at(parts(handle), instance - 1), driver()
        with node.lock:
            sample.take(found, node.world.now)
        return sample

    return (
        nvmlDeviceGetMigMode,
        nvmlDeviceGetMaxMigDeviceCount,
        nvmlDeviceGetMigDeviceHandleByIndex,
        nvmlDeviceGetGpuInstanceId,
        nvmlDeviceGetComputeInstanceId,
        nvmlGpmMigSampleGet,
    )
