"""The series of a page in their order, and their numbers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from exporter.engines.parse.line import Series, series_and_end
from exporter.model import EMPTY


class Layout(Struct, frozen=True, eq=False, weakref=True):
    """The wanted series of a page in page order.  Two are equal only if they are the same object: see ``text``."""

    texts: tuple[bytes, ...]  # name and labels as on the page, every one of them readable

    def series(self) -> list[Series]:
        """Return the parsed series; not kept, since they are needed once and take 1.3 MiB at eight replicas."""
        return [found[0] for text in self.texts if (found := series_and_end(text)) is not None]


class Values(Struct, frozen=True, kw_only=True):
    """One page's numbers: ``numbers[i]`` belongs to ``layout.texts[i]``."""

    layout: Layout
    numbers: list[float]
    complete: bool = True  # False: the page ends in the middle of a line
    parse_warnings: Mapping[str, int] = EMPTY
