"""Engines that come and go without a restart: targets of the discovery providers become replicas to poll.

Each provider (lists in files and from servers, Ray's, this node's pods) is refreshed in a thread of its own, so that
a hung disk or API server delays no other.  Whatever they list, at most 32 engines are polled because of it, few
change at a refresh, and one that is no longer listed stays for a minute: ``exporter.runtime.discovery.registry``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from exporter.config.settings import DiscoverySettings, EngineSettings
from exporter.engines.detect import recognise
from exporter.errors import SourceError
from exporter.http.client.client import HttpClient, Limits, Target
from exporter.logs import log_event
from exporter.model import Pod, SourceStatus
from exporter.model.process import ListeningEngine
from exporter.model.server import ServerRole
from exporter.runtime.discovery.registry import PROCESSES, TargetRegistry
from exporter.runtime.poll.loop import PollLoop
from exporter.runtime.poll.state_logger import LOG_PERIOD_SECONDS
from exporter.runtime.poll.targets import JSON, target
from exporter.sources.discovery.provider import DiscoveredEngine, DiscoveryProvider
from exporter.sources.processes.turns import in_turns

logger = logging.getLogger(__name__)

FILES_PERIOD = 2.0  # seconds
LISTS_PERIOD = 15.0  # seconds, of what is asked for over HTTP
MAX_PROBES = 16  # at one refresh
PROBE_PERIOD = 60.0  # seconds; an engine may take minutes to load before it answers
# Seconds, reached by doubling: most pods that ask to be scraped are no engines, and never will be.
MAX_PROBE_PERIOD = 600.0
PROBE_TIMEOUT = 1.0
PROBE_LIMITS = Limits(wire_bytes=2 << 20, body_bytes=2 << 20)  # what describes a whole cluster is larger


class ProbeFilter:
    """Confirms a tentative engine once its page is found to be an engine's; owned by one thread."""

    def __init__(self, clock: Callable[[], float], probe: Callable[[str], bool | None]) -> None:
        """``probe`` returns whether a page is an engine's, None without an answer."""
        self._clock = clock
        self._probe = probe
        self._confirmed: set[str] = set()
        self._due: dict[str, float] = {}
        # Seconds until the time after that.  Not driver.cooldown's: a page that does not answer starts anew.
        self._wait: dict[str, float] = {}

    def confirmed(self, engines: Sequence[DiscoveredEngine]) -> list[DiscoveredEngine]:
        """Return the engines that are certain; at most MAX_PROBES pages are requested.

        Those of processes that hold a GPU come first, then the owners in turns, the longest due first: whoever lists
        other ports at every refresh delays nobody else.
        """
        tentative = {engine.url: engine for engine in engines if engine.tentative}
        urls = tentative.keys()
        self._confirmed &= urls
        self._due = {url: due for url, due in self._due.items() if url in urls}
        self._wait = {url: wait for url, wait in self._wait.items() if url in urls}
        now = self._clock()
        for url in urls - self._confirmed:
            self._due.setdefault(url, now)
        due = sorted(
            (url for url in urls - self._confirmed if self._due[url] <= now), key=lambda url: (self._due[url], url)
        )
        due = in_turns(due, lambda url: tentative[url].owner)
        due.sort(key=lambda url: not tentative[url].uses_gpu)
        for url in due[:MAX_PROBES]:
            verdict = self._probe(url)
            if verdict:
                self._confirmed.add(url)
            wait = PROBE_PERIOD if verdict is None else self._wait.get(url, PROBE_PERIOD)
            self._due[url], self._wait[url] = self._clock() + wait, min(2 * wait, MAX_PROBE_PERIOD)
        return [engine for engine in engines if not engine.tentative or engine.url in self._confirmed]


def probe_engine(url: str, *, unverified: bool = False) -> bool | None:
    """Read a page once, within a second, and return whether it is an engine's; None when there is none to read.

    ``unverified``: whatever certificate it shows.
    """
    target = Target(url=url, timeout=PROBE_TIMEOUT, insecure_skip_verify=unverified)
    endpoint = HttpClient(target, PROBE_LIMITS)
    try:
        return recognise(endpoint.fetch().body) is not None
    except SourceError as error:
        return False if error.reason == "too_large" else None
    finally:
        endpoint.close()


class _ProviderLoop:
    """Refreshes one provider until stopped, and reports what it lists."""

    def __init__(
        self,
        provider: DiscoveryProvider,
        interval: float,
        *,
        config: object,
        report: Callable[[_ProviderLoop, Sequence[DiscoveredEngine]], None],
        clock: Callable[[], float],
        unix_now: Callable[[], float],
    ) -> None:
        """``config``: what it was made from; another config needs another loop."""
        self.provider = provider
        self.config = config
        self.poll_loop = PollLoop(
            f"discovery:{provider.name}", interval, logger=logger, clock=clock, unix_now=unix_now
        )
        self._report = report
        self._clock = clock
        self._probe_filter = ProbeFilter(clock, probe_engine)
        self.pods: tuple[Pod, ...] = ()
        self._problem: SourceError | None = None
        self._last_warning = ("", float("-inf"))

    def start(self) -> None:
        """Refresh from now on, in a thread of its own."""
        self.poll_loop.start(self._clock(), self.refresh, self.provider.close)

    def status(self, now: float) -> SourceStatus:
        """Return the provider's health; one whose disk hangs is down."""
        return self.poll_loop.status_at(now)

    def refresh(self) -> None:
        """Refresh once; the engines come before the verdict, so that who waits for the verdict has them."""
        started = self.poll_loop.begin()
        try:
            result = self.provider.refresh()
        finally:
            self.poll_loop.end()
        self.pods = result.pods
        self._report(self, self._probe_filter.confirmed(result.engines))
        if result.problem is None:
            self.poll_loop.succeeded(self._clock() - started)
        elif result.problem is not self._problem:  # a file that is still as bad is not another failure
            self.poll_loop.failed(result.problem, started)
        self._problem = result.problem
        logged, logged_at = self._last_warning
        if result.warning != logged and self._clock() - logged_at >= LOG_PERIOD_SECONDS:
            self._last_warning = result.warning, self._clock()
            if result.warning:
                log_event(logger, logging.WARNING, "discovery_warning", result.warning, source=self.poll_loop.source)


class DiscoveryManager:
    """The providers that the settings name, and the engines they list."""

    def __init__(
        self,
        *,
        configured: Callable[[], Sequence[EngineSettings]],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        unix_now: Callable[[], float] = time.time,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Prepare only.  ``on_change`` is called, with no lock held, when ``engines`` may have changed."""
        self._configured = configured
        self._on_change = on_change
        self._clock, self._unix_now = clock, unix_now
        self._environ = environ
        self._lock = threading.Lock()
        self._registry = TargetRegistry(clock=clock)
        self._loops: dict[str, _ProviderLoop] = {}
        self._probe_filter = ProbeFilter(
            clock, partial(probe_engine, unverified=True)
        )  # of processes, by who sees them

    @property
    def statuses(self) -> list[SourceStatus]:
        """Return the health of every provider."""
        now = self._clock()
        return [loop.status(now) for loop in list(self._loops.values())]

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Return this node's pods, as far as a provider lists them."""
        return tuple(pod for loop in list(self._loops.values()) for pod in loop.pods)

    @property
    def loop_restarts(self) -> Mapping[str, int]:
        """Count the unexpected errors that the loops survived; empty without a provider."""
        loops = list(self._loops.values())
        return {"discovery": sum(loop.poll_loop.loop_restarts for loop in loops)} if loops else {}

    @property
    def limits(self) -> frozenset[str]:
        """Return which limits are reached: ``targets`` or none."""
        return frozenset({"targets"} if self._registry.limit_reached else ())

    def configure(self, settings: DiscoverySettings) -> None:
        """Refresh the providers of these settings from now on; one that stays as it was goes on."""
        configs = _configs(settings)
        old = self._loops
        kept = {name: loop for name, loop in old.items() if configs.get(name) == loop.config}
        new = configs.keys() - kept.keys()
        made = {name: self._provider_loop(name, configs[name], settings) for name in new}
        with self._lock:
            self._loops = {name: kept.get(name) or made[name] for name in configs}
            for name in old.keys() - configs.keys():
                self._registry.remove(name)
            if not settings.processes:
                self._registry.remove(PROCESSES)
        for name, loop in old.items():
            if name not in kept:
                loop.poll_loop.stop()
        for loop in made.values():
            loop.start()

    def stop(self) -> None:
        """Signal the threads to end; one may be stuck in a read, so this does not wait."""
        with self._lock:
            loops, self._loops = self._loops, {}
        for loop in loops.values():
            loop.poll_loop.stop()

    def engines(self) -> tuple[EngineSettings, ...]:
        """Return what to poll beside the configured engines."""
        with self._lock:
            return self._registry.engines(self._configured())

    def on_processes(self, engines: Sequence[ListeningEngine]) -> None:
        """Record the engines that run on this node as its process table shows them.  Called by one thread.

        It may take a second for each that must be probed first and does not answer.
        """
        servers = {_discovered(engine): engine for engine in engines}
        confirmed = self._probe_filter.confirmed(list(servers))
        with_workers = {servers[engine].kind for engine in confirmed if servers[engine].role is ServerRole.WORKER}

        def repeats(engine: ListeningEngine) -> bool:
            # A frontend counts the same requests again, and would pass for a busier replica of the same model.
            return engine.role is ServerRole.FRONTEND and engine.kind in with_workers

        self._update(PROCESSES, [engine for engine in confirmed if not repeats(servers[engine])])

    def _update(self, provider: str, engines: Sequence[DiscoveredEngine], loop: _ProviderLoop | None = None) -> None:
        with self._lock:
            if loop is not None and self._loops.get(provider) is not loop:
                return  # replaced or stopped meanwhile
            changed = self._registry.update(provider, engines, self._configured())
        if changed:
            self._on_change()

    def _provider_loop(self, name: str, config: object, settings: DiscoverySettings) -> _ProviderLoop:
        """Return the provider; what is not configured is not even loaded."""
        provider: DiscoveryProvider
        interval = FILES_PERIOD
        if name == "ray":
            provider, interval = _ray(settings)
        elif name == "file_sd":
            from exporter.sources.discovery.file_sd import FileSd  # noqa: PLC0415

            provider = FileSd(settings.file_sd)
        elif name == "http_sd":
            from exporter.sources.discovery.http_sd import TIMEOUT, HttpSd  # noqa: PLC0415

            lists = [target(http_sd, TIMEOUT, accept=JSON) for http_sd in settings.http_sd]
            provider, interval = HttpSd(lists), LISTS_PERIOD
        elif name == "pod_resources":
            from exporter.sources.discovery.pod_resources import PodResources  # noqa: PLC0415

            provider, interval = PodResources(str(settings.pod_resources)), LISTS_PERIOD
        else:
            from exporter.sources.discovery.kubernetes import Kubernetes  # noqa: PLC0415

            provider = Kubernetes(settings.kubernetes, self._environ)
            interval = settings.kubernetes.interval
        return _ProviderLoop(
            provider,
            interval,
            config=config,
            report=lambda loop, engines: self._update(name, engines, loop),
            clock=self._clock,
            unix_now=self._unix_now,
        )


def _configs(settings: DiscoverySettings) -> dict[str, object]:
    """Return what each provider that is enabled is made from."""
    configs: dict[str, object] = {}
    if settings.ray:
        configs["ray"] = (
            (settings.ray_url, settings.ray_bearer_token_file)
            if settings.ray_url
            else (settings.ray_file, settings.ray_users)
        )
    if settings.file_sd:
        configs["file_sd"] = settings.file_sd
    if settings.http_sd:
        configs["http_sd"] = settings.http_sd
    if settings.pod_resources is not None:
        configs["pod_resources"] = settings.pod_resources
    if settings.kubernetes.enabled:
        configs["kubernetes"] = settings.kubernetes
    return configs


def _ray(settings: DiscoverySettings) -> tuple[DiscoveryProvider, float]:
    from exporter.sources.discovery.http_sd import TIMEOUT, HttpList  # noqa: PLC0415
    from exporter.sources.discovery.ray import Ray  # noqa: PLC0415

    if settings.ray_url is None:
        return Ray(settings.ray_file, users=settings.ray_users), FILES_PERIOD
    token = settings.ray_bearer_token_file
    asked = Target(url=settings.ray_url, timeout=TIMEOUT, bearer_token_file=token, accept=JSON)
    return Ray(HttpList(asked)), LISTS_PERIOD


def _discovered(candidate: ListeningEngine) -> DiscoveredEngine:
    host = f"[{candidate.host}]" if ":" in candidate.host else candidate.host
    return DiscoveredEngine(
        url=f"{'https' if candidate.tls else 'http'}://{host}:{candidate.port}{candidate.path}",
        tentative=candidate.probe,
        unverified=candidate.tls,
        owner=candidate.owner,
        uses_gpu=candidate.uses_gpu,
    )
