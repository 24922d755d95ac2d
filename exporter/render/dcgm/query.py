"""The query string of ``/metrics/dcgm``: dialect, spelling of the host's label, rows.

Unknown parameters and values are rejected with the known ones: a dashboard would stay empty for no visible reason if
a misspelt parameter were ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from exporter.render.dcgm.legacy import LEGACY
from exporter.render.dcgm.modern import MODERN
from exporter.render.dcgm.page_query import PageQuery
from exporter.render.dcgm.row import DcgmRow, Dialect

DIALECTS: Mapping[str, Dialect] = {"legacy": LEGACY, "4.9": MODERN}
_WORDS: Mapping[str, tuple[str, ...]] = {  # the first is the default
    "dialect": tuple(DIALECTS),
    "hostname": ("default", "Hostname", "hostname", "both"),
    "fields": ("default", "all"),
}


class InvalidQueryError(ValueError):
    """A query that cannot be answered; the message names what can, and repeats nothing of the query."""


def dialect_of(query: PageQuery) -> Dialect:
    """Return the dialect's tables."""
    return DIALECTS[query.dialect]


def rows(query: PageQuery) -> tuple[DcgmRow, ...]:
    """Return the selected rows."""
    dialect = dialect_of(query)
    return dialect.default + (dialect.more if query.fields == "all" else ())


def hostname_labels(query: PageQuery) -> tuple[str, ...]:
    """Return the spellings of the host's label."""
    if query.hostname == "both":
        return ("Hostname", "hostname")
    return (dialect_of(query).hostname_label if query.hostname == "default" else query.hostname,)


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
