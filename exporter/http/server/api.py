"""/api/v1: findings, verdicts and the whole node as JSON, for programs, probes and load balancers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from urllib.parse import parse_qs, unquote

import msgspec

from exporter.http.server.request import Request, Response
from exporter.model import Snapshot
from exporter.model.finding import Verdict, VerdictState
from exporter.model.text import Language
from exporter.render import api

PREFIX = "/api/v1/"
JSON = "application/json; charset=utf-8"
TOO_OLD = 15.0  # seconds; as for the metrics endpoint
MAX_FIELDS = 8  # of the query
HEADER = "X-Shardwatch-Verdict"
_BAD = frozenset({VerdictState.DRAIN, VerdictState.EJECT})
_ENCODER = msgspec.json.Encoder()


class Api:
    """Answers GET below ``/api/v1/``.  ``newest`` returns the newest snapshot, ``clock`` monotonic seconds."""

    def __init__(self, newest: Callable[[], Snapshot | None], clock: Callable[[], float]) -> None:
        self._newest, self._clock = newest, clock
        self._documents: dict[tuple[str, str], bytes] = {}  # of one snapshot
        self._documents_of: Snapshot | None = None
        self._schema = b""

    def answer(self, request: Request) -> Response:
        """Return the document, or the verdict with 200 (serve, unknown) or 503 (drain, eject)."""
        path = request.path.removeprefix(PREFIX)
        if path == "schema":
            self._schema = self._schema or _ENCODER.encode(api.schema())
            return Response(status=200, content_type=JSON, body=self._schema)
        snapshot = self._newest()
        stale = snapshot is None or self._clock() - snapshot.at > TOO_OLD
        head, _, rest = path.partition("/")
        if head == "verdicts" and rest:
            return self._verdict(None if stale else snapshot, rest)
        if path not in {"node", "findings", "verdicts"}:
            known = "node, findings, verdicts, verdicts/node, verdicts/replica/NAME, verdicts/gpu/UUID, schema"
            return _problem(404, f"nothing here; below {PREFIX} there are {known}")
        if snapshot is None or stale:
            return _problem(503, "no snapshot yet, or the newest is too old; /-/ready says more")
        return self._document(request, snapshot, path)

    def _document(self, request: Request, snapshot: Snapshot, path: str) -> Response:
        try:
            words = parse_qs(request.query, keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            return _problem(400, f"more than {MAX_FIELDS} fields in the query")
        language = words.get("lang", ["en"])[-1]
        if language not in {known.value for known in Language}:
            return _problem(400, "lang is en or zh")
        etag = f'"{snapshot.at:.6f}-{language}"'
        headers = (("ETag", etag),)
        if request.headers.get("if-none-match", "") == etag:
            return Response(status=304, content_type=JSON, body=b"", headers=headers)
        if self._documents_of is not snapshot:
            self._documents_of, self._documents = snapshot, {}
        body = self._documents.get((path, language))
        if body is None:
            body = self._documents[path, language] = _ENCODER.encode(_make(path, snapshot, Language(language)))
        return Response(status=200, content_type=JSON, body=body, headers=headers)

    def _verdict(self, snapshot: Snapshot | None, rest: str) -> Response:
        kind, _, name = rest.partition("/")
        name = unquote(name, errors="replace")
        if snapshot is None:  # the monitor is blind, which says nothing about the node
            return _verdict_response(Verdict(VerdictState.UNKNOWN, "no_data", "no fresh snapshot"))
        if kind == "node" and not name:
            return _verdict_response(snapshot.verdicts.node)
        table: Mapping[str, Mapping[str, Verdict]] = {
            "replica": snapshot.verdicts.replicas,
            "gpu": snapshot.verdicts.gpus,
        }
        if kind not in table:
            return _problem(404, "there are verdicts/node, verdicts/replica/NAME and verdicts/gpu/UUID")
        verdict = table[kind].get(name)
        if verdict is None:
            return _problem(404, f"no such {kind}", known=sorted(table[kind]))
        return _verdict_response(verdict)


def _make(path: str, snapshot: Snapshot, language: Language) -> object:
    if path == "node":
        return api.node(snapshot, language)
    return api.findings(snapshot, language) if path == "findings" else api.verdicts(snapshot)


def _verdict_response(verdict: Verdict) -> Response:
    return Response(
        status=503 if verdict.state in _BAD else 200,
        content_type=JSON,
        body=_ENCODER.encode(api.verdict(verdict)),
        headers=((HEADER, verdict.state.value),),
    )


def _problem(status: int, sentence: str, known: Iterable[str] = ()) -> Response:
    document = api.ErrorDocument(error=sentence, known=tuple(known))
    return Response(status=status, content_type=JSON, body=_ENCODER.encode(document))
