"""The daemon: builds the parts from the settings, joins them, and replaces what a reload changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from exporter.catalog.spec import Series
from exporter.derive.replicas import Endpoint as Place
from exporter.errors import SettingsError
from exporter.listener.loop import Listener
from exporter.model import Snapshot
from exporter.pages import PageStore
from exporter.placement import Placement
from exporter.poller import Publisher
from exporter.replica import ReplicaPlan, ReplicaPoller, staggered
from exporter.server import routes
from exporter.settings import EngineSettings, Settings
from exporter.sources import own_process
from exporter.sources.cards import CardSource
from exporter.sources.endpoint.exchange import Endpoint, Target
from exporter.sources.processes.table import Candidate

logger = logging.getLogger(__name__)

MAX_DISCOVERED = 32  # engines found on the node by themselves
FORGET_DISCOVERED = 60.0  # seconds since an engine's process was last seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The module that answers for the driver, and its options: pynvml, or the simulated cards."""

    module: str = "pynvml"
    options: str = ""


class App:
    """Everything between the settings and the page."""

    def __init__(
        self,
        settings: Settings,
        *,
        driver: Driver | None = None,
        reread: Callable[[], Settings] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``reread`` gives the settings anew for a reload, None where they came from nowhere that could change."""
        self.settings = settings
        self._reread = reread
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._replicas: dict[EngineSettings, ReplicaPoller] = {}
        self._discovered: dict[EngineSettings, float] = {}  # → when its process was last seen
        self.pages = PageStore(series=Series(settings.series), clock=clock)
        self.cards = self._make_cards(driver or Driver())
        self.publisher = Publisher(
            cards=self.cards,
            replicas=lambda: list(self._replicas.values()),
            assignment=lambda: self.placement.assignment,
            publish=self._publish,
            notice=lambda cards: self.placement.notice(cards),  # noqa: PLW0108 - made below
            loop_restarts=self._loop_restarts,
            dropped=lambda: self.pages.dropped,
            clock=clock,
            wall=wall,
        )
        self.placement = Placement(
            cards=lambda: self.publisher.snapshot.cards if self.publisher.snapshot else (),
            endpoints=self._places,
            found=self._found if settings.discovery.processes else None,
            changed=self.publisher.news,
        )
        self.listener: Listener | None = None

    def _make_cards(self, driver: Driver) -> CardSource | None:
        gpu = self.settings.gpu
        if not gpu.enabled:
            return None
        return CardSource(
            module=driver.module,
            options=driver.options,
            interval=gpu.interval,
            deadline=gpu.deadline,
            on_update=lambda: self.publisher.news(),  # noqa: PLW0108 - made after the cards
            clock=self._clock,
            wall=self._wall,
        )

    # ------------------------------------------------------------------ life

    def listen(self) -> tuple[str, int]:
        """Bind and serve; give the address.  Raise ListenError when it cannot be had."""
        address = self.settings.listen
        reload = self.reload if self.settings.reload_endpoint else None
        self.listener = Listener(address.host, address.port, routes(self.pages, self.publisher, reload=reload))
        self.listener.start()
        return self.listener.address

    def start(self) -> None:
        """Start reading.  The driver's worker comes first, so that it inherits nothing of what follows."""
        if self.cards is not None:
            self.cards.start()
        self._warn_of_what_is_not_used()
        with self._lock:
            self._apply_engines(self.settings.engines)
        self.publisher.start()
        self.placement.start()

    def stop(self) -> None:
        """Stop everything within about a second; what hangs is left behind, the process ends anyway."""
        if self.listener is not None:
            self.listener.stop(0.5)
        self.placement.stop()
        with self._lock:
            for poller in self._replicas.values():
                poller.stop()
        self.publisher.stop()
        if self.cards is not None:
            self.cards.stop(1.0)

    # ------------------------------------------------------------------ what the parts ask for

    def _publish(self, snapshot: Snapshot) -> None:
        own = own_process.exposition()
        self.pages.publish(snapshot, own.__getitem__)

    def _loop_restarts(self) -> Mapping[str, int]:
        served = self.listener.loop_restarts if self.listener is not None else 0
        return {"listener": served, "placement": self.placement.loop_restarts}

    def _places(self) -> list[Place]:
        return [_place(engine) for engine in list(self._replicas)]

    # ------------------------------------------------------------------ replicas come and go

    def _apply_engines(self, wanted: Sequence[EngineSettings]) -> None:
        """Make the pollers those of ``wanted``; unchanged ones go on untouched.  Called with the lock held."""
        kept = {engine: self._replicas[engine] for engine in wanted if engine in self._replicas}
        gone = [poller for engine, poller in self._replicas.items() if engine not in kept]
        new = [engine for engine in wanted if engine not in kept]
        for poller in gone:
            poller.stop()
        now = self._clock()
        made = {}
        for engine, first in zip(new, staggered(len(new), 1.0, now), strict=True):
            made[engine] = self._make_replica(engine)
            made[engine].start(first)
        # Replaced whole, in the order wanted, so that the publisher never sees half a change.
        self._replicas = {engine: kept[engine] if engine in kept else made[engine] for engine in wanted}
        shortest = [engine.interval for engine in wanted] + ([self.settings.gpu.interval] if self.cards else [])
        self.publisher.interval = min([1.0, *shortest]) if shortest else 1.0
        self.publisher.news()
        self.placement.look_now()

    def _make_replica(self, engine: EngineSettings) -> ReplicaPoller:
        plan = ReplicaPlan(
            name=engine.name,
            kind=engine.kind,
            interval=engine.interval,
            windows=tuple((window.label, window.seconds) for window in self.settings.windows),
            quantiles=self.settings.quantiles,
        )
        return ReplicaPoller(
            plan,
            Endpoint(_target(engine)),
            on_update=self.publisher.news,
            clock=self._clock,
            wall=self._wall,
        )

    def _found(self, candidates: Sequence[Candidate]) -> None:
        """Poll the engines that were found on this node, beside those that are configured."""
        now = self._clock()
        with self._lock:
            configured = {_spot(place.host, place.port) for place in map(_place, self.settings.engines)}
            for candidate in candidates:
                engine = _settings_for(candidate)
                known = engine in self._discovered
                if _spot(candidate.host, candidate.port) not in configured and (
                    known or len(self._discovered) < MAX_DISCOVERED
                ):
                    self._discovered[engine] = now
            for engine, seen in list(self._discovered.items()):
                if now - seen > FORGET_DISCOVERED:
                    logger.info("source=engine:%s event=forgotten: its process is gone", engine.name)
                    del self._discovered[engine]
            wanted = (*self.settings.engines, *self._discovered)
            if set(wanted) != set(self._replicas):
                self._apply_engines(wanted)

    # ------------------------------------------------------------------ reload

    def reload(self) -> tuple[bool, str]:
        """Read the configuration anew; refused whole when it is bad, and then nothing changes."""
        with self._lock:
            try:
                settings = self._reread() if self._reread is not None else self.settings
                check_supported(settings)
            except SettingsError as error:
                self.publisher.reload_successful = False
                logger.exception("event=reload_refused: the old configuration goes on")
                self.publisher.news()
                return False, f"refused, the old configuration goes on: {error}"
            self._adopt(settings)
            self.publisher.reload_successful = True
            self.publisher.reload_wall = self._wall()
            logger.info("event=reloaded engines=%d", len(settings.engines))
            return True, "the new configuration is in use"

    def _adopt(self, settings: Settings) -> None:
        old, self.settings = self.settings, settings
        if settings.listen != old.listen:
            logger.warning(
                "event=restart_needed: listen changed to %s and takes effect at the next start", settings.listen
            )
        if settings.gpu.enabled != old.gpu.enabled:
            logger.warning("event=restart_needed: gpu.enabled changed and takes effect at the next start")
        if self.cards is not None:
            self.cards.reconfigure(settings.gpu.interval, settings.gpu.deadline)
        if settings.series != old.series:
            self.pages.use(Series(settings.series))
        if not settings.discovery.processes:
            self._discovered.clear()
        self.placement.discover(self._found if settings.discovery.processes else None)
        if (settings.windows, settings.quantiles) != (old.windows, old.quantiles):
            for poller in self._replicas.values():
                poller.stop()
            self._replicas = {}
        self._warn_of_what_is_not_used()
        self._apply_engines((*settings.engines, *self._discovered))

    def _warn_of_what_is_not_used(self) -> None:
        if self.settings.gateways:
            logger.warning("event=ignored key=gateways: this version does not poll gateways yet")


def check_supported(settings: Settings) -> None:
    """Refuse what this version would silently not do although somebody's safety may rest on it."""
    if settings.web_config_file is not None:
        from exporter.errors import Problem  # noqa: PLC0415 - only on the way out

        message = "this version serves plain HTTP only; remove the key and put a TLS proxy in front"
        raise SettingsError([Problem("web_config_file", message)])


def _place(engine: EngineSettings) -> Place:
    parts = urlsplit(engine.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Place(replica=engine.name, host=parts.hostname or "", port=port, gpus=engine.gpus)


def _spot(host: str, port: int) -> tuple[str, int]:
    """Make the ways to write this machine equal, so that an engine is not polled twice."""
    return ("localhost" if host in ("127.0.0.1", "::1") else host, port)


def _settings_for(candidate: Candidate) -> EngineSettings:
    host = f"[{candidate.host}]" if ":" in candidate.host else candidate.host
    place = f"{host}:{candidate.port}"
    return EngineSettings(name=place, kind="auto", url=f"http://{place}/metrics")


def _target(engine: EngineSettings) -> Target:
    basic, tls = engine.basic_auth, engine.tls
    return Target(
        url=engine.url,
        timeout=engine.timeout,
        bearer_token_file=engine.bearer_token_file,
        username=basic.username if basic else None,
        password_file=basic.password_file if basic else None,
        ca_file=tls.ca_file,
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        server_name=tls.server_name,
        insecure_skip_verify=tls.insecure_skip_verify,
    )
