"""Content negotiation (RFC 9110, 12.5): format, coding, language of a page; whether a client has it already."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping

from msgspec import Struct

_QUALITY = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_ENTITY_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_MAX_ITEMS = 32  # of one Accept header; Prometheus sends six
_CACHED_LENGTH = 512  # characters of headers worth caching; longer ones are no scraper's
# Media type → the versions that are served; no version means any.
_TEXT_RANGES: Mapping[str, tuple[str, ...]] = {"text/plain": ("", "0.0.4"), "text/*": ("",), "*/*": ("",)}
_OPENMETRICS_RANGES: Mapping[str, tuple[str, ...]] = {
    "application/openmetrics-text": ("", "1.0.0", "0.0.1"),  # 0.0.1 is a subset: its readers take 1.0.0
    "application/*": ("",),
    "*/*": ("",),
}


class _Item(Struct, frozen=True, kw_only=True):
    """One element of an Accept or Accept-Encoding header."""

    name: str
    parameters: Mapping[str, str]
    quality: float


class Representation(Struct, frozen=True, kw_only=True):
    """Format and coding of a page."""

    openmetrics: bool
    gzip: bool


def negotiate(accept: str, accept_encoding: str) -> Representation:
    """Return what the client prefers, given the values of its headers.  Never fails.

    A client that accepts nothing that there is gets the text format 0.0.4, uncompressed unless gzip is accepted.
    """
    if len(accept) + len(accept_encoding) > _CACHED_LENGTH:
        return _negotiate(accept, accept_encoding)
    return _cached(accept, accept_encoding)


def accepts_html(accept: str) -> bool:
    """Return whether a client names HTML, as browsers do, and likes it as well as plain text.

    One that accepts anything, as curl does, gets text.
    """
    qualities = {item.name: item.quality for item in reversed(_items(accept))}
    html = max(qualities.get("text/html", 0.0), qualities.get("application/xhtml+xml", 0.0))
    return html > 0 and html >= qualities.get("text/plain", 0.0)


def preferred_language(accept_language: str, known: Collection[str]) -> str:
    """Return the language of ``known`` that the client prefers, "" without one; regions (zh-CN) do not count."""
    items = [
        (item.quality, -place, item.name.partition("-")[0]) for place, item in enumerate(_items(accept_language))
    ]
    return max((found for found in items if found[2] in known and found[0] > 0), default=(0.0, 0, ""))[2]


def is_unchanged(if_none_match: str, etag: str) -> bool:
    """Return whether a client has this entity already: 304.

    If-None-Match compares weakly, W/ does not count (RFC 9110, 13.1.2): a proxy that compresses, such as nginx, makes
    tags weak.
    """
    return if_none_match.strip() == "*" or etag.removeprefix("W/") in _ENTITY_TAG.findall(if_none_match)


def _negotiate(accept: str, accept_encoding: str) -> Representation:
    ranges = _items(accept)
    text, openmetrics = _best(ranges, _TEXT_RANGES), _best(ranges, _OPENMETRICS_RANGES)
    return Representation(openmetrics=openmetrics[0] > 0 and openmetrics > text, gzip=_wants_gzip(accept_encoding))


_cached = functools.lru_cache(maxsize=32)(_negotiate)


def _best(ranges: list[_Item], wanted: Mapping[str, tuple[str, ...]]) -> tuple[float, int, int]:
    """Return how much a client prefers one format: the greater tuple is preferred, its first number is the quality.

    RFC 9110, 12.5.1: the most specific range that matches decides, so ``text/plain;q=0, */*`` refuses text.  Of equal
    qualities the one asked for by name wins, then the one asked for first.
    """
    for rank, (name, versions) in enumerate(wanted.items()):  # from specific to general
        matches = [
            (item.quality, -rank, -place)
            for place, item in enumerate(ranges)
            if item.name == name and item.parameters.get("version", "") in versions
        ]
        if matches:
            return max(matches)
    return 0.0, -len(wanted), 0


def _wants_gzip(accept_encoding: str) -> bool:
    """Return RFC 9110, 12.5.3's choice, but False where everything is refused: identity is what all can read."""
    qualities = {item.name: item.quality for item in reversed(_items(accept_encoding))}
    named = [qualities[name] for name in ("gzip", "x-gzip") if name in qualities]
    gzip = max(named, default=qualities.get("*", 0.0))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


def _items(header: str) -> list[_Item]:
    """Return the items of a header with weights, without those whose weight is malformed."""
    items = []
    for text in header.lower().split(",", _MAX_ITEMS)[:_MAX_ITEMS]:
        name, *pairs = (part.strip() for part in text.split(";"))
        cut = (pair.partition("=") for pair in pairs)
        parameters = {key.strip(): value.strip().strip('"') for key, _, value in cut}
        quality = parameters.pop("q", "1")
        if name and _QUALITY.fullmatch(quality):
            items.append(_Item(name=name, parameters=parameters, quality=float(quality)))
    return items
