"""The numbered fields of a simulated card: id and scope to value type and number, with the driver branch's ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporter.simulate.card import Card

ALL_LINKS = 0xFFFFFFFF
UNSIGNED, UNSIGNED_LONG_LONG = 1, 3  # value types
_DWORD = 0xFFFFFFFF


class Value:
    """The union of a field or sample: integers read through any integer member, as on a little-endian machine."""

    __slots__ = ("dVal", "siVal", "sllVal", "uiVal", "ulVal", "ullVal", "usVal")

    def __init__(self, kind: int, number: int) -> None:
        low = number & _DWORD
        self.uiVal = low
        self.siVal = low - (low >> 31 << 32)
        self.usVal = number & 0xFFFF
        self.ullVal = self.ulVal = self.sllVal = number if kind == UNSIGNED_LONG_LONG else low
        self.dVal = 5e-324 * number  # what a double of those bits would be


def fabric_structure() -> Any:
    """Make the structure that the driver fills with the state of the NVLink fabric."""
    import ctypes  # noqa: PLC0415 - only whoever asks for the fabric pays for it

    class Info(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint), ("state", ctypes.c_ubyte), ("status", ctypes.c_uint))

    return Info()


def ecc_errors(card: Card) -> int:
    """Give the corrected errors of the card's whole life; most cards have had a few."""
    return int(card.identity[:1], 16)


def remapped_rows(card: Card) -> int:
    """Give the rows remapped after correctable errors; few cards have one."""
    return int(card.identity[1] == "0")


# Scope 0 throughout.
_FIELDS: dict[int, tuple[int, Callable[[Card], float]]] = {
    3: (UNSIGNED_LONG_LONG, lambda _: 0),
    4: (UNSIGNED_LONG_LONG, lambda _: 0),
    5: (UNSIGNED_LONG_LONG, ecc_errors),
    6: (UNSIGNED_LONG_LONG, lambda _: 0),
    74: (UNSIGNED_LONG_LONG, lambda card: card.power_cap_seconds * 1e9),
    75: (UNSIGNED_LONG_LONG, lambda card: card.thermal_seconds * 1e9),
    76: (UNSIGNED_LONG_LONG, lambda _: 0),
    77: (UNSIGNED_LONG_LONG, lambda _: 0),
    78: (UNSIGNED_LONG_LONG, lambda _: 0),
    79: (UNSIGNED_LONG_LONG, lambda _: 0),
    82: (UNSIGNED, lambda card: round(card.memory_temperature)),
    83: (UNSIGNED_LONG_LONG, lambda card: card.energy * 1000),
    91: (UNSIGNED, lambda card: card.kind.nvlinks),
    94: (UNSIGNED, lambda _: 0),
    142: (UNSIGNED, remapped_rows),
    143: (UNSIGNED, lambda _: 0),
    144: (UNSIGNED, lambda _: 0),
    145: (UNSIGNED, lambda _: 0),
    185: (UNSIGNED, lambda card: card.power * 1000),
    186: (UNSIGNED, lambda card: card.power * 1000),
    197: (UNSIGNED_LONG_LONG, lambda card: card.pcie_sent),
    198: (UNSIGNED_LONG_LONG, lambda card: card.pcie_received),
    230: (UNSIGNED, lambda _: 0),
}
_LINK_BYTES: dict[int, Callable[[Card], float]] = {
    138: lambda card: card.nvlink_sent,
    139: lambda card: card.nvlink_received,
}
_LINK_ERRORS: dict[int, Callable[[Card], int]] = {
    161: lambda card: card.nvlink_replays,
    162: lambda card: card.nvlink_recoveries,
    163: lambda card: card.nvlink_crc,
}


def read_field(card: Card, field: int, scope: int, driver: str) -> tuple[int, int] | None:
    """Give (value type, number) of a field, None where this card or driver does not have it."""
    if field in _FIELDS:
        kind, read = _FIELDS[field]
        return kind, int(read(card))
    if field in _LINK_BYTES or field in _LINK_ERRORS:
        return _link(card, field, scope)
    reasons = _reason_fields(driver)
    if field in reasons:
        seconds = card.thermal_seconds if field == reasons[0] else 0.0
        return UNSIGNED_LONG_LONG, int(seconds * 1e9)
    return None


def _reason_fields(driver: str) -> tuple[int, ...]:
    """Give the ids of the time in software thermal, hardware thermal and power brake slowdown."""
    version = tuple(int(part) for part in driver.split(".")[:2])
    if version < (575, 0):
        return ()
    first = 269 if version >= (580, 82) else 251
    return first, first + 1, first + 2


def _link(card: Card, field: int, scope: int) -> tuple[int, int] | None:
    """Read a link's bytes (in KiB; scope ``ALL_LINKS`` for the sum) or errors."""
    links = card.kind.nvlinks
    if field in _LINK_BYTES:
        total = int(_LINK_BYTES[field](card)) // 1024
        if links and scope == ALL_LINKS:
            return UNSIGNED_LONG_LONG, total
        return (UNSIGNED_LONG_LONG, total // links) if scope < links else None
    if scope >= links:
        return None
    return UNSIGNED_LONG_LONG, _LINK_ERRORS[field](card) if scope == card.fault_link else 0
