"""/api/v1: findings, verdicts and the whole node as JSON, for programs, probes and load balancers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import parse_qs, unquote

from exporter.http.server.negotiation import is_unchanged, preferred_language
from exporter.http.server.request import Request, Response
from exporter.model import Snapshot
from exporter.model.finding import Verdict, VerdictState
from exporter.model.text import Language, Text
from exporter.render import api, api_documents

PREFIX = "/api/v1/"
JSON = "application/json; charset=utf-8"
TOO_OLD = 15.0  # seconds; as for the metrics endpoint
MAX_FIELDS = 8  # of the query
STATE_HEADER = "X-Shardwatch-Verdict"
REASON_HEADER = "X-Shardwatch-Reason"
LANGUAGES = frozenset(language.value for language in Language)
_BAD = frozenset({VerdictState.DRAIN, VerdictState.EJECT})
_NOT_IN_REASON = re.compile(r"[^a-z0-9_]+")  # a closed word; nothing else may become a header
_NO_SNAPSHOT = Verdict(VerdictState.UNKNOWN, "no_data", Text("no fresh snapshot", "没有最新快照"))


class Api:
    """Answers GET below ``/api/v1/``.

    ``newest`` returns the newest snapshot, ``clock`` monotonic seconds, ``node`` the node's name.
    """

    def __init__(
        self, newest: Callable[[], Snapshot | None], clock: Callable[[], float], node: Callable[[], str] = lambda: ""
    ) -> None:
        self._newest, self._clock, self._node = newest, clock, node
        self._documents: dict[tuple[str, str], bytes] = {}  # of one snapshot
        self._documents_of: Snapshot | None = None
        self._schema = b""

    def answer(self, request: Request) -> Response:
        """Return the document, or the verdict with 200 (serve, unknown) or 503 (drain, eject)."""
        path = request.path.removeprefix(PREFIX)
        if path == "schema":
            self._schema = self._schema or api.encode(api.schema())
            return _tagged(request, f'"{zlib.crc32(self._schema):08x}"', lambda: self._schema)
        language = Language.ENGLISH
        if request.query:  # fifty probes a second have none
            asked = _language(request.query)
            if isinstance(asked, Response):
                return asked
            language = asked
        snapshot = self._newest()
        stale = snapshot is None or self._clock() - snapshot.at > TOO_OLD
        head, _, rest = path.partition("/")
        if head == "verdicts" and rest:
            return _verdict(None if stale else snapshot, rest, language)
        if path not in {"node", "findings", "verdicts"}:
            known = "node, findings, verdicts, verdicts/node, verdicts/replica/NAME, verdicts/gpu/UUID, schema"
            return _problem(404, f"nothing here; below {PREFIX} there are {known}")
        if snapshot is None or stale:
            return _problem(503, "no snapshot yet, or the newest is too old; /-/ready says more")
        etag = f'"{snapshot.at:.6f}-{language.value}"'
        return _tagged(request, etag, lambda: self._body(snapshot, path, language))

    def _body(self, snapshot: Snapshot, path: str, language: Language) -> bytes:
        if self._documents_of is not snapshot:
            self._documents_of, self._documents = snapshot, {}
        body = self._documents.get((path, language))
        if body is None:
            body = self._documents[path, language] = api.encode(self._make(path, snapshot, language))
        return body

    def _make(self, path: str, snapshot: Snapshot, language: Language) -> object:
        if path == "node":
            return api_documents.node(snapshot, language, self._node())
        if path == "findings":
            return api_documents.findings(snapshot, language)
        return api_documents.verdicts(snapshot, language)


def _language(query: str) -> Language | Response:
    try:
        fields = parse_qs(query, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        return _problem(400, f"more than {MAX_FIELDS} fields in the query")
    found = preferred_language(fields.get("lang", ["en"])[-1], LANGUAGES)
    return Language(found) if found else _problem(400, "lang is en or zh")


def _tagged(request: Request, etag: str, body: Callable[[], bytes]) -> Response:
    """Return 304 where the client has this entity already, else the body, which is made only then."""
    headers = (("ETag", etag),)
    if is_unchanged(request.headers.get("if-none-match", ""), etag):
        return Response(status=304, content_type=JSON, body=b"", headers=headers)
    return Response(status=200, content_type=JSON, body=body(), headers=headers)


def _verdict(snapshot: Snapshot | None, rest: str, language: Language) -> Response:
    kind, _, name = rest.partition("/")
    name = unquote(name, errors="replace")
    if snapshot is None:  # the monitor is blind, which says nothing about the node
        return _verdict_response(_NO_SNAPSHOT, language)
    if kind == "node" and not name:
        return _verdict_response(snapshot.verdicts.node, language)
    table: Mapping[str, Mapping[str, Verdict]] = {
        "replica": snapshot.verdicts.replicas,
        "gpu": snapshot.verdicts.gpus,
    }
    if kind not in table:
        return _problem(404, "there are verdicts/node, verdicts/replica/NAME and verdicts/gpu/UUID")
    verdict = table[kind].get(name)
    if verdict is None:
        return _problem(404, f"no such {kind}", known=sorted(table[kind]))
    return _verdict_response(verdict, language)


def _verdict_response(verdict: Verdict, language: Language) -> Response:
    state, reason = (STATE_HEADER, verdict.state.value), _NOT_IN_REASON.sub("_", verdict.reason)
    return Response(
        status=503 if verdict.state in _BAD else 200,
        content_type=JSON,
        body=api.encode(api_documents.verdict(verdict, language)),
        headers=(state, (REASON_HEADER, reason)) if reason else (state,),
    )


def _problem(status: int, sentence: str, known: Iterable[str] = ()) -> Response:
    document = api.ErrorDocument(error=sentence, known=tuple(known))
    return Response(status=status, content_type=JSON, body=api.encode(document))
