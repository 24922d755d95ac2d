"""What an engine tells beside its metrics: version, parallel layout, and model where the metrics do not name it.

Each request runs in a thread of its own, so that an engine that is slow to answer delays no poll; whoever must know
before it goes on waits for a bounded time.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from exporter.engines.engine import ServerInfo, clean
from exporter.errors import PageError, SourceError, ThreadLimitError
from exporter.logs import log_event
from exporter.model import ParallelSizes
from exporter.runtime.poll.loop import Fetcher
from exporter.threads import Thread

logger = logging.getLogger(__name__)

PERIOD = 600.0  # seconds
RETRY_PERIOD = 60.0  # seconds, after a request that failed
_MAX_PARALLEL = 10_000  # GPUs; more is no answer
_MAX_BYTES = 512 * 1024  # some engines answer with their whole configuration


class EngineInfo(Struct, frozen=True, kw_only=True):
    """What the engine answered; "" is what it did not tell."""

    version: str = ""
    model: str = ""
    same_model: str = ""  # what the page must name too
    parallel_sizes: ParallelSizes | None = None

    def about(self, model: str) -> EngineInfo:
        """Return what counts beside a page that names this model: nothing if it contradicts."""
        return EngineInfo() if model and self.same_model not in ("", model) else self


class _Request:
    """One request; ``info`` is None until ``done``, and after a failure."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.info: EngineInfo | None = None


class EngineInfoReader:
    """Requests an engine's version and model.  Owned by the thread that polls the engine."""

    def __init__(self, fetcher: Fetcher, source: str, clock: Callable[[], float]) -> None:
        """``fetcher`` must not make a poll wait for an exchange with another path."""
        self.fetcher = fetcher
        self.info = EngineInfo()
        self._source = source
        self._clock = clock
        self._due = float("-inf")
        self._request: _Request | None = None

    def reset(self) -> None:
        """Discard what was answered, and what a request under way will answer: another process may answer now."""
        self.info, self._request = EngineInfo(), None
        self.expire()

    def expire(self) -> None:
        """Request again at the next ``refresh``; what is known stands until then."""
        self._due = float("-inf")

    def refresh(self, server_info: ServerInfo) -> None:
        """Accept an answer that has come, and start a request where one is due.  Returns at once."""
        self._collect()
        if self._request is None and self._clock() >= self._due:
            request = _Request()
            try:
                Thread(self._run, name=f"info-{self._source}", args=(request, self.fetcher, server_info)).start()
            except ThreadLimitError:
                self._due = self._clock() + RETRY_PERIOD
            else:
                self._request = request

    def wait(self, seconds: float) -> None:
        """Wait for the request under way, if there is one, at most ``seconds``."""
        if self._request is not None:
            self._request.done.wait(max(0.0, seconds))
        self._collect()

    def _collect(self) -> None:
        request = self._request
        if request is None or not request.done.is_set():
            return
        self._request = None
        self._due = self._clock() + (RETRY_PERIOD if request.info is None else PERIOD)
        self.info = request.info or self.info

    def _run(self, request: _Request, fetcher: Fetcher, server_info: ServerInfo) -> None:
        try:
            request.info = _parse(fetcher.fetch(server_info.path).body, server_info)
        except SourceError as error:
            log_event(logger, logging.DEBUG, "version_unknown", source=self._source, error=str(error))
        finally:
            request.done.set()


def _parse(body: bytes, server_info: ServerInfo) -> EngineInfo:
    """Parse an answer; what it lacks is "".  Raises PageError."""
    if len(body) > _MAX_BYTES:
        raise PageError("too_large", "the answer with the version is too large")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise PageError("not_json", "the answer with the version is not JSON") from None
    facts: Mapping[str, object] = answer if isinstance(answer, dict) else {}
    return EngineInfo(
        version=_text(facts, server_info.version_keys),
        model=_text(facts, server_info.model_keys),
        same_model=_text(facts, server_info.same_model_keys),
        parallel_sizes=_parallel_sizes(facts, server_info.parallel_keys),
    )


def _parallel_sizes(answer: Mapping[str, object], keys: Sequence[str]) -> ParallelSizes | None:
    """Return the sizes, 1 for one that the answer lacks (an old version without it); None where one is no count."""
    sizes = [answer.get(key, 1) for key in keys if keys[0] in answer]
    counts = [size for size in sizes if type(size) is int and 0 < size < _MAX_PARALLEL]
    return ParallelSizes(tensor=counts[0], pipeline=counts[1]) if counts and counts == sizes else None


def _text(answer: Mapping[str, object], keys: Sequence[str]) -> str:
    """Return the first text among these keys; of a path the file's name, since a label shows no directories."""
    for key in keys:
        text = answer.get(key)
        if isinstance(text, str) and text:
            return clean(text.rpartition("/")[2] if key.endswith("_path") else text)
    return ""
