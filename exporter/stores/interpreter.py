"""Interpret pages of any store by its table."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple
from weakref import ReferenceType, ref

from exporter.engines.engine import clean
from exporter.engines.parse.layout import Layout
from exporter.engines.parse.text import PageReader
from exporter.errors import PageError
from exporter.model.store import StoreQuantity, StoreReading
from exporter.stores.store import Store

MAX_WORDS = 16  # tiers that a store names itself


class _Key(NamedTuple):
    quantity: StoreQuantity
    word: str


class StoreInterpreter:
    """Turns pages of one store into readings; keeps what was compiled for the last layout."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._reader = PageReader(store.wanted_names().__contains__)
        self._layout: ReferenceType[Layout] = ref(Layout(()))
        self._positions: dict[_Key, list[int]] = {}
        self._dropped = 0  # series beyond ``MAX_WORDS``

    def read(self, body: bytes, at: float) -> StoreReading:
        """Interpret one page read at ``at``; raise PageError when nothing on it is of this kind of store."""
        page = self._reader.read(body)
        if page.layout is not self._layout():
            self._compile(page.layout)
        if not self._positions:
            raise PageError(
                "no_store_metrics", f"the page has no {self.store.marks[0]}* series. {self.store.hint}".strip()
            )
        warnings = Counter(page.parse_warnings)
        warnings.update({"too_many_label_sets": self._dropped} if self._dropped else {})
        quantities: dict[StoreQuantity, dict[str, float]] = {}
        for key, positions in self._positions.items():
            number = math.fsum(page.numbers[p] for p in positions) if _all_finite(page.numbers, positions) else -1.0
            if number < 0.0 or (key.quantity is StoreQuantity.USAGE and number > 1.0):
                warnings["bad_number"] += 1
            else:
                quantities.setdefault(key.quantity, {})[key.word] = number
        return StoreReading(
            at=at,
            kind=self.store.kind,
            quantities=_configured(quantities),
            complete=page.complete,
            parse_warnings=dict(warnings),
        )

    def _compile(self, layout: Layout) -> None:
        self._layout, self._positions, self._dropped = ref(layout), {}, 0
        series = list(enumerate(layout.series()))
        present = {one.name for _, one in series}
        words: set[str] = {row.word for row in self.store.fields}
        room = MAX_WORDS + len(words)
        for row in self.store.fields:
            name = next((name for name in row.names if name in present), None)
            for position, one in series:
                if one.name != name:
                    continue
                word = clean(one.labels.get(row.label, "")) or row.word
                if word not in words and len(words) >= room:
                    self._dropped += 1
                    continue
                words.add(word)
                self._positions.setdefault(_Key(row.quantity, word), []).append(position)


def _configured(quantities: dict[StoreQuantity, dict[str, float]]) -> dict[StoreQuantity, dict[str, float]]:
    """Return the quantities without tiers that have no capacity: the store lists them all, configured or not."""
    absent = {tier for tier, size in quantities.get(StoreQuantity.CAPACITY, {}).items() if not size}
    by_tier = (StoreQuantity.USED, StoreQuantity.CAPACITY, StoreQuantity.TIER_HITS)
    return {
        quantity: {word: n for word, n in words.items() if n or quantity not in by_tier or word not in absent}
        for quantity, words in quantities.items()
    }


def _all_finite(numbers: list[float], positions: list[int]) -> bool:
    return all(0.0 <= numbers[p] < math.inf for p in positions)
