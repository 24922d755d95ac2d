"""Decides what is answered: known paths only, in the format and coding that the client prefers.

Negotiation never fails a scrape.  Whoever asks for nothing that we have gets the text format 0.0.4, uncompressed
unless gzip is welcome; the scrape-timeout header is not even read: the answer is ready before it could matter.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from exporter import __version__
from exporter.http.server.listener import DeferredResponse, Handler, Request, Response
from exporter.http.server.request import plain
from exporter.model import Outcome
from exporter.threads import Thread

if TYPE_CHECKING:
    from exporter.render.dcgm.query import PageQuery

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_VARY = ("Vary", "Accept, Accept-Encoding")
_QUALITY = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_ITEMS = 32  # of one Accept header; Prometheus sends six
_CACHED_LENGTH = 512  # characters of a header worth remembering; a longer one is somebody's experiment
# Media type → the versions that we can give, where no version means "any".
_TEXT_RANGES: Mapping[str, tuple[str, ...]] = {"text/plain": ("", "0.0.4"), "text/*": ("",), "*/*": ("",)}
_OPENMETRICS_RANGES: Mapping[str, tuple[str, ...]] = {
    "application/openmetrics-text": ("", "1.0.0", "0.0.1"),  # 0.0.1 is a subset: its readers take 1.0.0
    "application/*": ("",),
    "*/*": ("",),
}


class Pages(Protocol):
    """Where ready pages come from."""

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes | None:
        """Give the newest page; None while there is none, or when it is too old to be shown."""


class DcgmForms(Protocol):
    """Where ready pages under DCGM's names come from."""

    def page(self, wanted: PageQuery, *, gzip: bool) -> bytes | None:
        """Give the newest page; None while there is none, or when it is too old to be shown."""


class Health(Protocol):
    """The daemon's own health."""

    def healthy(self) -> Outcome:
        """Return whether the poll loop runs, whatever the state of GPUs and engines."""

    def ready(self) -> Outcome:
        """Return whether fresh data is there."""


Reload = Callable[[], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    method: str  # GET answers HEAD too
    title: str
    answer: Handler


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One element of an Accept or Accept-Encoding header."""

    name: str
    parameters: Mapping[str, str]
    quality: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How one client wants the page."""

    openmetrics: bool
    gzip: bool


def routes(
    pages: Pages,
    health: Health,
    *,
    reload: Reload | None,
    may_reload: Callable[[], bool] = lambda: True,
    dcgm: DcgmForms | None = None,
) -> Handler:
    """Give the handler of all paths.

    ``reload`` is None where nothing can be reloaded, and must not raise; ``may_reload`` is asked each time, since a
    reload may forbid the next one.
    """
    table = {
        "/metrics": _Route(method="GET", title="metrics, for Prometheus", answer=lambda r: _metrics(r, pages)),
        "/-/healthy": _Route(method="GET", title="is the daemon alive?", answer=lambda _: _check(health.healthy())),
        "/-/ready": _Route(method="GET", title="is its data fresh?", answer=lambda _: _check(health.ready())),
        "/-/reload": _Route(
            method="POST",
            title="read the configuration",
            answer=lambda _: _reload(reload if may_reload() else None),
        ),
    }
    if dcgm is not None:
        title = "cards under DCGM's names; ?dialect=legacy or ?dialect=4.9"
        table["/metrics/dcgm"] = _Route(method="GET", title=title, answer=lambda r: _dcgm(r, dcgm))
    index = _index(table)
    table["/"] = _Route(method="GET", title="this page", answer=lambda _: index)
    return functools.partial(_answer, table)


def _answer(table: Mapping[str, _Route], request: Request) -> Response | DeferredResponse:
    route = table.get(request.path)
    if route is None:
        return plain(404, "nothing here; the paths are " + ", ".join(sorted(table)))
    allowed = ("GET", "HEAD") if route.method == "GET" else (route.method,)
    if request.method not in allowed:
        return plain(405, f"{request.path} answers {' and '.join(allowed)} only", ("Allow", ", ".join(allowed)))
    return route.answer(request)


def _metrics(request: Request, pages: Pages) -> Response:
    form = _form(request.headers.get("accept", ""), request.headers.get("accept-encoding", ""))
    body = pages.page(openmetrics=form.openmetrics, gzip=form.gzip)
    if body is None:
        return _no_page()
    return Response(
        status=200,
        content_type=OPENMETRICS if form.openmetrics else TEXT,
        body=body,
        headers=(_VARY, ("Content-Encoding", "gzip")) if form.gzip else (_VARY,),
    )


def _no_page() -> Response:
    return plain(503, "no page yet, or the newest is too old to be shown; /-/ready says more", _VARY)


def _dcgm(request: Request, pages: DcgmForms) -> Response:
    """Answer in text 0.0.4 whatever the client prefers: these names are not OpenMetrics'."""
    from exporter.render.dcgm.query import InvalidQueryError, parse_query  # noqa: PLC0415 - most nodes never need the tables

    try:
        wanted = parse_query(request.query)
    except InvalidQueryError as refused:
        return plain(400, str(refused))
    packed = _form("", request.headers.get("accept-encoding", "")).gzip
    body = pages.page(wanted, gzip=packed)
    if body is None:
        return _no_page()
    headers = (_VARY, ("Content-Encoding", "gzip")) if packed else (_VARY,)
    return Response(status=200, content_type=TEXT, body=body, headers=headers)


def _check(outcome: Outcome) -> Response:
    return plain(200 if outcome.ok else 503, outcome.message)


def _reload(reload: Reload | None) -> Response | DeferredResponse:
    """Reload in a thread of its own: files may lie on a disk that hangs, and scrapes are not to wait for it."""
    if reload is None:
        return plain(403, "reloading over HTTP is off; set reload_endpoint: true, or send SIGHUP to the daemon")
    later = DeferredResponse()

    def work() -> None:
        outcome = reload()
        later.give(plain(200 if outcome.ok else 500, outcome.message))

    Thread(work, name="reload").start()
    return later


def _index(table: Mapping[str, _Route]) -> Response:
    items = "".join(
        f'<li><a href="{path}">{path}</a>: {route.title}</li>\n' if route.method == "GET"
        else f"<li>{route.method} {path}: {route.title}</li>\n"
        for path, route in table.items()
    )  # fmt: skip
    body = (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>Shardwatch</title></head>\n'
        f"<body>\n<h1>Shardwatch {__version__}</h1>\n<ul>\n{items}</ul>\n</body>\n</html>\n"
    )
    return Response(status=200, content_type="text/html; charset=utf-8", body=body.encode())


def _form(accept: str, accept_encoding: str) -> _Form:
    if len(accept) + len(accept_encoding) > _CACHED_LENGTH:
        return _negotiate(accept, accept_encoding)
    return _remembered(accept, accept_encoding)


def _negotiate(accept: str, accept_encoding: str) -> _Form:
    ranges = _items(accept)
    text, openmetrics = _best(ranges, _TEXT_RANGES), _best(ranges, _OPENMETRICS_RANGES)
    return _Form(openmetrics=openmetrics[0] > 0 and openmetrics > text, gzip=_wants_gzip(accept_encoding))


_remembered = functools.lru_cache(maxsize=32)(_negotiate)


def _best(ranges: list[_Item], wanted: Mapping[str, tuple[str, ...]]) -> tuple[float, int, int]:
    """Tell how much a client wants one format; the greater tuple is wanted more, the first number is the quality.

    RFC 9110, 12.5.1: the most specific range that matches decides, so ``text/plain;q=0, */*`` refuses text.  Of equal
    qualities the one asked for by name wins, then the one asked for first.
    """
    for rank, (name, versions) in enumerate(wanted.items()):  # from specific to general
        found = [
            (item.quality, -rank, -place)
            for place, item in enumerate(ranges)
            if item.name == name and item.parameters.get("version", "") in versions
        ]
        if found:
            return max(found)
    return 0.0, -len(wanted), 0


def _wants_gzip(accept_encoding: str) -> bool:
    """Follow RFC 9110, 12.5.3, except that identity is sent when everything is refused: bytes that all can read."""
    qualities = {item.name: item.quality for item in reversed(_items(accept_encoding))}
    named = [qualities[name] for name in ("gzip", "x-gzip") if name in qualities]
    gzip = max(named, default=qualities.get("*", 0.0))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


def _items(header: str) -> list[_Item]:
    """Take a header of weighted items apart; an item whose weight is nonsense is left out."""
    items = []
    for text in header.lower().split(",", _ITEMS)[:_ITEMS]:
        name, *pairs = (part.strip() for part in text.split(";"))
        cut = (pair.partition("=") for pair in pairs)
        parameters = {key.strip(): value.strip().strip('"') for key, _, value in cut}
        quality = parameters.pop("q", "1")
        if name and _QUALITY.fullmatch(quality):
            items.append(_Item(name=name, parameters=parameters, quality=float(quality)))
    return items
