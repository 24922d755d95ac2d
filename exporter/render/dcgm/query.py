"""The query string of ``/metrics/dcgm``: dialect, spelling of the host's label, rows.

Unknown parameters and values are rejected with the known ones: a dashboard would stay empty for no visible reason if
a misspelt parameter were ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from msgspec import Struct

from exporter.render.dcgm.legacy import LEGACY
from exporter.render.dcgm.modern import MODERN
from exporter.render.dcgm.row import DcgmRow, Dialect

DIALECTS: Mapping[str, Dialect] = {"legacy": LEGACY, "4.9": MODERN}
_WORDS: Mapping[str, tuple[str, ...]] = {  # the first is the default
    "dialect": tuple(DIALECTS),
    "hostname": ("default", "Hostname", "hostname", "both"),
    "fields": ("default", "all"),
}


class InvalidQueryError(ValueError):
    """A query that cannot be answered; the message names what can, and repeats nothing of the query."""


class PageQuery(Struct, frozen=True, kw_only=True):
    """A parsed query string."""

    dialect: str
    hostname: str
    fields: str

    @property
    def names(self) -> Dialect:
        """The dialect's tables."""
        return DIALECTS[self.dialect]

    @property
    def rows(self) -> tuple[DcgmRow, ...]:
        """The selected rows."""
        return self.names.default + (self.names.more if self.fields == "all" else ())

    @property
    def hostname_labels(self) -> tuple[str, ...]:
        """The spellings of the host's label."""
        if self.hostname == "both":
            return ("Hostname", "hostname")
        return (self.names.hostname_label if self.hostname == "default" else self.hostname,)


def parse_query(query: str) -> PageQuery:
    """Parse a query string.  Raises InvalidQueryError."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=len(_WORDS))
    except ValueError:
        pairs = [("", "")]  # too many parameters: rejected below
    given = dict(pairs)
    if len(given) != len(pairs) or not given.keys() <= _WORDS.keys():
        known = ", ".join(f"{name}={'|'.join(words)}" for name, words in _WORDS.items())
        raise InvalidQueryError(f"the parameters of this page are, each at most once: {known}")
    for name, word in given.items():
        if word not in _WORDS[name]:
            raise InvalidQueryError(f"{name} is one of: {', '.join(_WORDS[name])}")
    chosen = {name: given.get(name, words[0]) for name, words in _WORDS.items()}
    return PageQuery(dialect=chosen["dialect"], hostname=chosen["hostname"], fields=chosen["fields"])
