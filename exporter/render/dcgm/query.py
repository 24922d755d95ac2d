"""The question after ``/metrics/dcgm?``: which dialect, which spelling of the host's label, which rows.

Whatever is not understood is refused with the words that are: a misspelt parameter that is passed over would show
the wrong names to a dashboard, and nobody would know why it is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from msgspec import Struct

from exporter.render.dcgm.legacy import LEGACY
from exporter.render.dcgm.modern import MODERN
from exporter.render.dcgm.row import DcgmRow, Dialect

DIALECTS: Mapping[str, Dialect] = {"legacy": LEGACY, "4.9": MODERN}
_WORDS: Mapping[str, tuple[str, ...]] = {  # the first one is taken where nothing is said
    "dialect": tuple(DIALECTS),
    "hostname": ("default", "Hostname", "hostname", "both"),
    "fields": ("default", "all"),
}


class InvalidQueryError(ValueError):
    """A question that cannot be answered; the message names what can, and repeats nothing of the question."""


class PageQuery(Struct, frozen=True, kw_only=True):
    """One page as somebody wants it."""

    dialect: str
    hostname: str
    fields: str

    @property
    def names(self) -> Dialect:
        """The dialect's tables."""
        return DIALECTS[self.dialect]

    @property
    def rows(self) -> tuple[DcgmRow, ...]:
        """The rows of the page."""
        return self.names.default + (self.names.more if self.fields == "all" else ())

    @property
    def hostname_labels(self) -> tuple[str, ...]:
        """The spellings of the label that names the host."""
        if self.hostname == "both":
            return ("Hostname", "hostname")
        return (self.names.hostname_label if self.hostname == "default" else self.hostname,)


def parse_query(query: str) -> PageQuery:
    """Read a query string.  Raises QueryRefusedError."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=len(_WORDS))
    except ValueError:
        pairs = [("", "")]  # more parameters than there are: refused below
    given = dict(pairs)
    if len(given) != len(pairs) or not given.keys() <= _WORDS.keys():
        known = ", ".join(f"{name}={'|'.join(words)}" for name, words in _WORDS.items())
        raise InvalidQueryError(f"the parameters of this page are, each at most once: {known}")
    for name, word in given.items():
        if word not in _WORDS[name]:
            raise InvalidQueryError(f"{name} is one of: {', '.join(_WORDS[name])}")
    chosen = {name: given.get(name, words[0]) for name, words in _WORDS.items()}
    return PageQuery(dialect=chosen["dialect"], hostname=chosen["hostname"], fields=chosen["fields"])
