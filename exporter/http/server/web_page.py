"""The node web page: negotiation, language, and each form rendered at most once for a snapshot.

Rendering takes some milliseconds, so a thread of its own does it: no scrape waits for it, and viewers who ask for the
same form meanwhile share the result.
"""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs

from exporter.http.server.connection import DeferredResponse
from exporter.http.server.negotiation import accepts_html, is_unchanged, negotiate, preferred_language
from exporter.http.server.request import Request, Response, text_response
from exporter.logs import log_exception
from exporter.model import Snapshot
from exporter.model.text import Language
from exporter.threads import Thread
from exporter.web.history import NodeHistory

ASSETS = "/web/"
FILES = ("page.css", "page.js", "icon.svg")
TOO_OLD = 15.0  # seconds; as for the metrics endpoint
MAX_FIELDS = 8  # of the query
LANGUAGES = frozenset(language.value for language in Language)
HTML = "text/html; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_SECURITY = (("Content-Security-Policy", POLICY), ("Referrer-Policy", "no-referrer"))
_VARY = ("Vary", "Accept, Accept-Encoding, Accept-Language")
_log = logging.getLogger(__name__)


class _Form(NamedTuple):
    """What distinguishes the bodies of one snapshot; ``old`` is its age in seconds where that is too old."""

    language: Language
    html: bool
    curves: bool
    gzip: bool
    old: int


class WebPage:
    """Answers ``/`` and the files of the page.

    ``newest`` returns the newest snapshot, ``clock`` monotonic seconds, ``node`` the node's name.
    """

    def __init__(
        self,
        newest: Callable[[], Snapshot | None],
        history: NodeHistory,
        *,
        node: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._newest, self._history, self._clock, self._node = newest, history, clock, node
        self._lock = threading.Lock()  # what follows; held for microseconds
        self._rendered_of: Snapshot | None = None
        self._bodies: dict[_Form, bytes] = {}
        self._waiting: dict[_Form, list[DeferredResponse]] = {}
        self._rendering = threading.Lock()
        self._writer: object = None

    def answer(self, request: Request, links: Sequence[str] = ()) -> Response | DeferredResponse:
        """Return the page, as HTML to whoever accepts HTML, else as text; ``links``: paths that it links."""
        snapshot = self._newest()
        form = self._form(request, snapshot)
        headers = _headers(snapshot, form)
        etag = dict(headers).get("ETag")
        if etag is not None and is_unchanged(request.headers.get("if-none-match", ""), etag):
            return Response(status=304, content_type=HTML if form.html else PLAIN, body=b"", headers=headers)
        with self._lock:
            if self._rendered_of is not snapshot:
                self._rendered_of, self._bodies = snapshot, {}
            body = self._bodies.get(form)
            if body is not None:
                return _response(form, body, headers)
            deferred = DeferredResponse()
            waiting = self._waiting.setdefault(form, [])
            waiting.append(deferred)
            is_first = len(waiting) == 1
        if is_first:
            Thread(self._render, name="web-page", args=(snapshot, form, links)).start()
        return deferred

    def file(self, request: Request) -> Response:
        """Return the style sheet, the script or the icon."""
        from exporter.web.assets import asset  # noqa: PLC0415 - most nodes have no viewer

        found = asset(request.path.removeprefix(ASSETS))
        packed = negotiate("", request.headers.get("accept-encoding", "")).gzip
        headers = [("Vary", "Accept-Encoding"), ("ETag", found.etag), ("Cache-Control", "no-cache"), *_SECURITY]
        if is_unchanged(request.headers.get("if-none-match", ""), found.etag):
            return Response(status=304, content_type=found.content_type, body=b"", headers=tuple(headers))
        if packed:
            headers.append(("Content-Encoding", "gzip"))
        body = found.gzip if packed else found.plain
        return Response(status=200, content_type=found.content_type, body=body, headers=tuple(headers))

    def _form(self, request: Request, snapshot: Snapshot | None) -> _Form:
        try:
            query = parse_qs(request.query, max_num_fields=MAX_FIELDS)
        except ValueError:
            query = {}
        wanted = (query.get("lang", [""])[-1], request.headers.get("accept-language", ""))
        languages = (preferred_language(found, LANGUAGES) for found in wanted)
        age = self._clock() - snapshot.at if snapshot is not None else 0.0
        return _Form(
            language=Language(next(filter(None, languages), Language.ENGLISH.value)),
            html=accepts_html(request.headers.get("accept", "")),
            curves=query.get("curves", ["1"])[-1] != "0",
            gzip=negotiate("", request.headers.get("accept-encoding", "")).gzip,
            old=int(age) if age > TOO_OLD else 0,
        )

    def _render(self, snapshot: Snapshot | None, form: _Form, links: Sequence[str]) -> None:
        try:
            with self._rendering:
                body = self._body(snapshot, form, links)
            response = _response(form, body, _headers(snapshot, form))
            with self._lock:
                if self._rendered_of is snapshot:
                    self._bodies[form] = body
                waiting = self._waiting.pop(form)
        except Exception:
            log_exception(_log, "internal_error", "rendering the web page failed")
            response = text_response(500, "rendering the page failed; the log says why")
            with self._lock:
                waiting = self._waiting.pop(form, [])
        for deferred in waiting:
            deferred.set_response(response)

    def _body(self, snapshot: Snapshot | None, form: _Form, links: Sequence[str]) -> bytes:
        from exporter.web import plain  # noqa: PLC0415 - most nodes have no viewer
        from exporter.web.html import HtmlWriter  # noqa: PLC0415
        from exporter.web.page import build  # noqa: PLC0415

        if form.gzip:
            with self._lock:
                known = self._bodies.get(form._replace(gzip=False)) if self._rendered_of is snapshot else None
            # Level 1: higher levels cost several times the CPU for a fifth fewer bytes.
            plain_body = known or self._body(snapshot, form._replace(gzip=False), links)
            return gzip.compress(plain_body, compresslevel=1, mtime=0)
        age = self._clock() - snapshot.at if snapshot is not None else 0.0
        page = build(snapshot, self._history.events, form.language, node=self._node(), age=age)
        if not form.html:
            return plain.write(page).encode("utf-8", "replace")
        if not isinstance(self._writer, HtmlWriter):
            self._writer = HtmlWriter(self._history, links=links)
        return self._writer.write(page, curves=form.curves).encode("utf-8", "replace")


def _headers(snapshot: Snapshot | None, form: _Form) -> tuple[tuple[str, str], ...]:
    headers = [_VARY, *_SECURITY]
    if snapshot is not None:
        # Weak: coded or not, by this server or by a proxy, it says the same.
        parts = (form.language.value, "html" if form.html else "text", int(form.curves), form.old)
        headers.append(("ETag", f'W/"{snapshot.at:.6f}-{"-".join(map(str, parts))}"'))
    return tuple(headers)


def _response(form: _Form, body: bytes, headers: tuple[tuple[str, str], ...]) -> Response:
    packed = (("Content-Encoding", "gzip"),) if form.gzip else ()
    content_type = HTML if form.html else PLAIN
    return Response(status=200, content_type=content_type, body=body, headers=(*headers, *packed))
