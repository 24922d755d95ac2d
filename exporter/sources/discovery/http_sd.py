"""Engines in lists that servers return over HTTP, in Prometheus' ``http_sd`` format.

Each list is asked for in one bounded exchange and read like a file; a server that does not answer, or not with a
list, keeps its last good one and costs the others nothing but its deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from exporter.errors import EndpointError, SourceError
from exporter.http.client.client import Limits, SessionClient, Target
from exporter.sources.discovery.provider import MAX_TARGETS, DiscoveredEngine, DiscoveryResult
from exporter.sources.discovery.target_file import MAX_BYTES, Unusable, parse_list, targets_of

TIMEOUT = 3.0  # seconds, for the whole exchange
LIMITS = Limits(wire_bytes=MAX_BYTES, body_bytes=MAX_BYTES)


class HttpList:
    """The engines of one list; ``refresh`` brings ``engines``, ``problem`` and ``ignored`` up to date."""

    def __init__(self, target: Target) -> None:
        """``target``: where it is, and as whom to ask."""
        self.engines: tuple[DiscoveredEngine, ...] = ()
        self.ignored = 0  # targets that are no HOST:PORT, or beyond the first thousand
        self.problem: SourceError | None = None
        self._endpoint = SessionClient(target, LIMITS)
        self._shown = target.url.partition("?")[0]

    def refresh(self) -> None:
        """Request the list."""
        try:
            text = self._endpoint.fetch().body.decode("utf-8-sig")
            engines, self.ignored = targets_of(parse_list(text, ".json"))
            self.engines, self.problem = tuple(engines), None
        except EndpointError as error:
            self.problem = error  # a failure at every look, for each was an attempt
        except UnicodeDecodeError:
            self._note("malformed", "is not UTF-8 text; the last good list goes on")
        except Unusable as bad:
            self._note(bad.reason, str(bad))

    def close(self) -> None:
        """Close the connection."""
        self._endpoint.close()

    def _note(self, reason: str, message: str) -> None:
        self.problem = SourceError(reason, f"{self._shown}: {message}")


class HttpSd:
    """Requests every list that the settings name."""

    name = "http_sd"

    def __init__(self, targets: Sequence[Target]) -> None:
        self._lists = [HttpList(target) for target in targets]

    def refresh(self) -> DiscoveryResult:
        """Request the lists, one after the other; an engine on several counts as on the first."""
        by_url: dict[str, DiscoveredEngine] = {}
        for target_list in self._lists:
            target_list.refresh()
            for engine in target_list.engines:
                by_url.setdefault(engine.url, engine)
        problems = [target_list.problem for target_list in self._lists if target_list.problem is not None]
        ignored = sum(target_list.ignored for target_list in self._lists)
        return DiscoveryResult(
            engines=tuple(islice(by_url.values(), MAX_TARGETS)),
            problem=problems[0] if problems else None,
            warning=f"ignored={ignored}: targets that are no HOST:PORT, or too many" if ignored else "",
        )

    def close(self) -> None:
        """Close the connections."""
        for target_list in self._lists:
            target_list.close()
