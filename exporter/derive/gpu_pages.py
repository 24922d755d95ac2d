"""GPUs of the driver and of other exporters as one list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exporter.model import CardState, DriverFacts
from exporter.model.gpu_page import GpuPageState


def all_cards(driver: Sequence[CardState], pages: Sequence[GpuPageState]) -> tuple[CardState, ...]:
    """Return every GPU once, sorted by index: from the driver where it knows the GPU, else from the first page.

    Of two pages that show one GPU, one with a fresh reading counts first.
    """
    if not pages:
        return tuple(driver)
    found = {card.facts.uuid: card for card in driver}
    shown = [card for page in pages for card in page.cards]
    for card in sorted(shown, key=lambda card: card.reading is None):
        found.setdefault(card.facts.uuid, card)
    return tuple(sorted(found.values(), key=_order))


def driver_of(driver: DriverFacts | None, pages: Iterable[GpuPageState]) -> DriverFacts | None:
    """Return the driver's facts, from a page where NVML tells none."""
    of_pages = (page.reading.driver for page in pages if page.reading is not None)
    return driver or next((facts for facts in of_pages if facts is not None), None)


def xid_cards(cards: Sequence[CardState], pages: Iterable[GpuPageState]) -> Sequence[CardState]:
    """Return the GPUs that may report XIDs: not those of other vendors."""
    others = {card.facts.uuid for page in pages if not page.xids for card in page.cards}
    return [card for card in cards if card.facts.uuid not in others] if others else cards


def _order(card: CardState) -> tuple[int, int, str]:
    instance = card.facts.instance
    return card.facts.index, -1 if instance is None else instance.number, card.facts.uuid
