"""Which path gets which response, in the format and coding that the client prefers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from exporter.http.server.api import PREFIX, Api
from exporter.http.server.listener import DeferredResponse, Request, RequestHandler, Response
from exporter.http.server.negotiation import negotiate
from exporter.http.server.request import text_response
from exporter.http.server.web_page import ASSETS, FILES, WebPage
from exporter.model import Outcome
from exporter.render.dcgm_pages import DcgmPageStore
from exporter.threads import Thread

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_VARY = ("Vary", "Accept, Accept-Encoding")


class Pages(Protocol):
    """Where the metrics page comes from."""

    def page(self, *, openmetrics: bool, gzip: bool) -> bytes | None:
        """Return the newest page; None while there is none, and when it is too old."""


class Health(Protocol):
    """The daemon's own health."""

    def healthy(self) -> Outcome:
        """Return whether the poll loop runs, whatever the state of GPUs and engines."""

    def ready(self) -> Outcome:
        """Return whether fresh data is there."""


Reload = Callable[[], Outcome]

_API_PATHS = ("node", "findings", "verdicts", "schema")


class _Route(Struct, frozen=True, kw_only=True):
    handle: RequestHandler
    method: str = "GET"  # includes HEAD


def routes(
    pages: Pages,
    health: Health,
    *,
    reload: Reload | None,
    may_reload: Callable[[], bool] = lambda: True,
    dcgm: DcgmPageStore | None = None,
    api: Api | None = None,
    web: WebPage | None = None,
) -> RequestHandler:
    """Return the handler of all paths.

    ``reload`` is None where nothing can be reloaded, and must not raise; ``may_reload`` is called each time, since a
    reload may forbid the next one.
    """
    table = {
        "/metrics": _Route(handle=lambda r: _metrics(r, pages)),
        "/-/healthy": _Route(handle=lambda _: _check(health.healthy())),
        "/-/ready": _Route(handle=lambda _: _check(health.ready())),
        "/-/reload": _Route(
            method="POST",
            handle=lambda request: _reload(request, reload if may_reload() else None),
        ),
    }
    if dcgm is not None:
        table["/metrics/dcgm"] = _Route(handle=lambda r: _dcgm(r, dcgm))
    if api is not None:
        for name in _API_PATHS:
            table[f"{PREFIX}{name}"] = _Route(handle=api.answer)
    if web is not None:
        links = tuple(path for path, route in table.items() if route.method == "GET")
        table["/"] = _Route(handle=lambda request: web.answer(request, links))
        for name in FILES:
            table[f"{ASSETS}{name}"] = _Route(handle=web.file)
    return functools.partial(_handle, table, api)


def _handle(table: Mapping[str, _Route], api: Api | None, request: Request) -> Response | DeferredResponse:
    route = table.get(request.path)
    if route is None and api is not None and request.path.startswith(PREFIX):
        route = _Route(handle=api.answer)
    if route is None:
        return text_response(404, "not found; the paths are " + ", ".join(sorted(table)))
    allowed = ("GET", "HEAD") if route.method == "GET" else (route.method,)
    if request.method not in allowed:
        return text_response(
            405, f"{request.path} supports {' and '.join(allowed)} only", ("Allow", ", ".join(allowed))
        )
    return route.handle(request)


def _metrics(request: Request, pages: Pages) -> Response:
    chosen = negotiate(request.headers.get("accept", ""), request.headers.get("accept-encoding", ""))
    body = pages.page(openmetrics=chosen.openmetrics, gzip=chosen.gzip)
    if body is None:
        return _no_page()
    return Response(
        status=200,
        content_type=OPENMETRICS if chosen.openmetrics else TEXT,
        body=body,
        headers=_page_headers(gzip=chosen.gzip),
    )


def _page_headers(*, gzip: bool) -> tuple[tuple[str, str], ...]:
    return (_VARY, ("Content-Encoding", "gzip")) if gzip else (_VARY,)


def _no_page() -> Response:
    return text_response(503, "no page yet, or the newest is too old; see /-/ready", _VARY)


def _dcgm(request: Request, pages: DcgmPageStore) -> Response:
    """Respond in text 0.0.4 whatever the client prefers: these names are not OpenMetrics'."""
    from exporter.render.dcgm.query import InvalidQueryError, parse_query  # noqa: PLC0415 - most nodes never need the tables

    try:
        query = parse_query(request.query)
    except InvalidQueryError as error:
        return text_response(400, str(error))
    gzip = negotiate("", request.headers.get("accept-encoding", "")).gzip
    body = pages.page(query, gzip=gzip)
    if body is None:
        return _no_page()
    return Response(status=200, content_type=TEXT, body=body, headers=_page_headers(gzip=gzip))


def _check(outcome: Outcome) -> Response:
    return text_response(200 if outcome.ok else 503, outcome.message)


def _reload(request: Request, reload: Reload | None) -> Response | DeferredResponse:
    """Reload in a thread of its own: the disk with the files may hang, and no scrape is to wait for it."""
    origin = request.headers.get("origin")
    # A browser sends the user's password along with what a page of another site asks for.
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        return text_response(403, "reloads are not accepted from pages of another origin")
    if reload is None:
        return text_response(
            403, "reload over HTTP is disabled; set reload_endpoint: true, or send SIGHUP to the daemon"
        )
    deferred = DeferredResponse()

    def work() -> None:
        outcome = reload()
        deferred.set_response(text_response(200 if outcome.ok else 500, outcome.message))

    Thread(work, name="reload").start()
    return deferred
