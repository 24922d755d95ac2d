"""Engines that come and go without a restart: what the places of discovery say becomes replicas to poll.

Each place (lists in files and from servers, Ray's, this node's pods) is looked at in a thread of its own, so that a
hanging disk or API server delays nobody.  Whatever a place says, at most 32 engines are polled because of it, few
change at a look, and one that is no longer listed stays for a minute (see ``exporter.runtime.discovery.registry``).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from exporter.config.settings import DiscoverySettings, EngineSettings, KubernetesSettings
from exporter.engines.detect import recognise
from exporter.errors import SourceError
from exporter.http.client.client import HttpClient, Limits, Target
from exporter.logs import log_event
from exporter.model import SourceStatus
from exporter.model.process import ListeningEngine
from exporter.runtime.discovery.registry import PROCESSES, Book
from exporter.runtime.poll.loop import Polling
from exporter.runtime.poll.state_logger import QUIET_SECONDS
from exporter.runtime.poll.targets import JSON, target
from exporter.sources.discovery.found import FoundEngine, Place

if TYPE_CHECKING:
    from exporter.sources.discovery.kubernetes import Access

logger = logging.getLogger(__name__)

FILES_EVERY = 2.0  # seconds
LISTS_EVERY = 15.0  # seconds, of what is asked for over HTTP
MAX_PROBES = 16  # at one look
PROBE_AGAIN = 60.0  # seconds; an engine may take minutes to load before it answers
# Seconds, reached by doubling: most pods that ask to be scraped are no engines, and never will be.
PROBE_SELDOM = 600.0
PROBE_SECONDS = 1.0
PROBE_LIMITS = Limits(wire_bytes=2 << 20, body_bytes=2 << 20)  # what describes a whole cluster is larger


class Vetting:
    """Lets a tentative engine pass once its page is seen to be an engine's; owned by one thread."""

    def __init__(self, clock: Callable[[], float], probe: Callable[[str], bool | None]) -> None:
        """``probe`` says whether a page is an engine's, None without an answer."""
        self._clock = clock
        self._probe = probe
        self._passed: set[str] = set()
        self._due: dict[str, float] = {}
        self._wait: dict[str, float] = {}  # seconds until the time after that

    def passed(self, found: Sequence[FoundEngine]) -> list[FoundEngine]:
        """Give the engines that are certain; at most MAX_PROBES pages are looked at, the longest unseen first."""
        urls = {one.url for one in found if one.tentative}
        self._passed &= urls
        self._due = {url: due for url, due in self._due.items() if url in urls}
        self._wait = {url: wait for url, wait in self._wait.items() if url in urls}
        now = self._clock()
        waiting = sorted(urls - self._passed, key=lambda url: (self._due.get(url, float("-inf")), url))
        for url in [one for one in waiting if self._due.get(one, now) <= now][:MAX_PROBES]:
            verdict = self._probe(url)
            if verdict:
                self._passed.add(url)
            wait = PROBE_AGAIN if verdict is None else self._wait.get(url, PROBE_AGAIN)
            self._due[url], self._wait[url] = self._clock() + wait, min(2 * wait, PROBE_SELDOM)
        return [one for one in found if not one.tentative or one.url in self._passed]


def is_engines_page(url: str, *, unverified: bool = False) -> bool | None:
    """Read a page once, within a second, and say whether it is an engine's; None when there is none to read.

    ``unverified``: whatever certificate it shows.
    """
    target = Target(url=url, timeout=PROBE_SECONDS, insecure_skip_verify=unverified)
    endpoint = HttpClient(target, PROBE_LIMITS)
    try:
        return recognise(endpoint.fetch().body) is not None
    except SourceError as error:
        return False if error.reason == "too_large" else None
    finally:
        endpoint.close()


class _Watcher:
    """Looks at one place until stopped, and says what it lists."""

    def __init__(
        self,
        place: Place,
        interval: float,
        *,
        plan: object,
        report: Callable[[_Watcher, Sequence[FoundEngine]], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """``plan``: what it was made from; another plan needs another watcher."""
        self.place = place
        self.plan = plan
        self.polling = Polling(f"discovery:{place.name}", interval, logger=logger, clock=clock, wall=wall)
        self._report = report
        self._clock = clock
        self._vetting = Vetting(clock, is_engines_page)
        self._problem: SourceError | None = None
        self._remarked = ("", float("-inf"))

    def start(self) -> None:
        """Look from now on, in a thread of its own."""
        self.polling.start(self._clock(), self.look, self.place.close)

    def status(self, now: float) -> SourceStatus:
        """Give the place's health; one whose disk hangs is down."""
        return self.polling.shown(now)

    def look(self) -> None:
        """Look once; the engines come before the verdict, so that who waits for the verdict has them."""
        started = self.polling.begin()
        try:
            seen = self.place.look()
        finally:
            self.polling.end()
        self._report(self, self._vetting.passed(seen.found))
        if seen.problem is None:
            self.polling.succeeded(self._clock() - started)
        elif seen.problem is not self._problem:  # a file that is still as bad is not another failure
            self.polling.failed(seen.problem, started)
        self._problem = seen.problem
        said, at = self._remarked
        if seen.remark != said and self._clock() - at >= QUIET_SECONDS:
            self._remarked = seen.remark, self._clock()
            if seen.remark:
                log_event(logger, logging.WARNING, "discovery_warning", seen.remark, source=self.polling.source)


class Discovery:
    """The places that the settings name, and the engines they list."""

    def __init__(
        self,
        *,
        configured: Callable[[], Sequence[EngineSettings]],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Prepare only.  ``changed`` is called, with no lock held, when ``engines`` may have changed."""
        self._configured = configured
        self._changed = changed
        self._clock, self._wall = clock, wall
        self._environ = environ
        self._lock = threading.Lock()
        self._book = Book(clock=clock)
        self._watchers: dict[str, _Watcher] = {}
        self._vetting = Vetting(clock, partial(is_engines_page, unverified=True))  # of processes, by who sees them

    @property
    def statuses(self) -> list[SourceStatus]:
        """Give the health of every place that is looked at."""
        now = self._clock()
        return [watcher.status(now) for watcher in list(self._watchers.values())]

    @property
    def loop_restarts(self) -> Mapping[str, int]:
        """Count the unexpected errors that the looking survived; empty where nothing is looked at."""
        watchers = list(self._watchers.values())
        return {"discovery": sum(watcher.polling.loop_restarts for watcher in watchers)} if watchers else {}

    def adopt(self, settings: DiscoverySettings) -> None:
        """Look at the places of these settings from now on; one that stays as it was goes on."""
        plans: dict[str, object] = {}
        if settings.ray:
            plans["ray"] = (
                (settings.ray_url, settings.ray_bearer_token_file) if settings.ray_url else settings.ray_file
            )
        if settings.file_sd:
            plans["file_sd"] = settings.file_sd
        if settings.http_sd:
            plans["http_sd"] = settings.http_sd
        if settings.kubernetes.enabled:
            plans["kubernetes"] = settings.kubernetes
        old = self._watchers
        kept = {name: watcher for name, watcher in old.items() if plans.get(name) == watcher.plan}
        made = {name: self._watcher(name, plan, settings) for name, plan in plans.items() if name not in kept}
        with self._lock:
            self._watchers = {name: kept.get(name) or made[name] for name in plans}
            for name in old.keys() - plans.keys():
                self._book.drop(name)
            if not settings.processes:
                self._book.drop(PROCESSES)
        for name, watcher in old.items():
            if name not in kept:
                watcher.polling.stop()
        for watcher in made.values():
            watcher.start()

    def stop(self) -> None:
        """Ask the threads to end; one may be stuck in a read, so nobody waits for it."""
        with self._lock:
            watchers, self._watchers = self._watchers, {}
        for watcher in watchers.values():
            watcher.polling.stop()

    def engines(self) -> tuple[EngineSettings, ...]:
        """Give what to poll beside the configured engines."""
        with self._lock:
            return self._book.engines(self._configured())

    def saw_processes(self, candidates: Sequence[ListeningEngine]) -> None:
        """Note the engines that run on this node as its process table shows them.  Called by one thread.

        It may take a second for each that must be seen first and does not answer.
        """
        pages = {_found(candidate): candidate.kind for candidate in candidates}
        passed = self._vetting.passed(list(pages))
        if "dynamo_worker" in {pages[one] for one in passed}:
            # The frontend counts the same requests once more, and would pass for a busier replica of the same model.
            passed = [one for one in passed if pages[one] != "dynamo"]
        self._saw(PROCESSES, passed)

    def _saw(self, place: str, found: Sequence[FoundEngine], watcher: _Watcher | None = None) -> None:
        with self._lock:
            if watcher is not None and self._watchers.get(place) is not watcher:
                return  # replaced or stopped while it looked
            news = self._book.saw(place, found, self._configured())
        if news:
            self._changed()

    def _watcher(self, name: str, plan: object, settings: DiscoverySettings) -> _Watcher:
        """Make the place; what is not configured is not even loaded."""
        place: Place
        interval = FILES_EVERY
        if name == "ray":
            place, interval = _ray(settings)
        elif name == "file_sd":
            from exporter.sources.discovery.file_sd import FileSd  # noqa: PLC0415

            place = FileSd(settings.file_sd)
        elif name == "http_sd":
            from exporter.sources.discovery.http_sd import TIMEOUT, HttpSd  # noqa: PLC0415

            lists = [target(one, TIMEOUT, accept=JSON) for one in settings.http_sd]
            place, interval = HttpSd(lists), LISTS_EVERY
        else:
            from exporter.sources.discovery.kubernetes import Kubernetes  # noqa: PLC0415

            place = Kubernetes(_access(settings.kubernetes), self._environ)
            interval = settings.kubernetes.interval
        return _Watcher(
            place,
            interval,
            plan=plan,
            report=lambda watcher, found: self._saw(name, found, watcher),
            clock=self._clock,
            wall=self._wall,
        )


def _ray(settings: DiscoverySettings) -> tuple[Place, float]:
    from exporter.sources.discovery.http_sd import TIMEOUT, HttpList  # noqa: PLC0415
    from exporter.sources.discovery.ray import Ray  # noqa: PLC0415

    if settings.ray_url is None:
        return Ray(settings.ray_file), FILES_EVERY
    token = settings.ray_bearer_token_file
    asked = Target(url=settings.ray_url, timeout=TIMEOUT, bearer_token_file=token, accept=JSON)
    return Ray(HttpList(asked)), LISTS_EVERY


def _found(candidate: ListeningEngine) -> FoundEngine:
    host = f"[{candidate.host}]" if ":" in candidate.host else candidate.host
    return FoundEngine(
        url=f"{'https' if candidate.tls else 'http'}://{host}:{candidate.port}{candidate.path}",
        tentative=not candidate.certain,
        unverified=candidate.tls,
    )


def _access(settings: KubernetesSettings) -> Access:
    from exporter.sources.discovery.kubernetes import Access  # noqa: PLC0415

    tls = settings.tls
    return Access(
        url=settings.url,
        node_name=settings.node_name,
        bearer_token_file=settings.bearer_token_file,
        ca_file=tls.ca_file,
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        server_name=tls.server_name,
        insecure_skip_verify=tls.insecure_skip_verify,
    )
