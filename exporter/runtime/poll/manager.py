"""The pollers of replicas, gateways, stores and GPU exporters: one for each target of the settings.

A target is identified by name, kind and URL.  When anything else about it changes, its poller goes on with what it
has read, so that a reload neither withdraws a healthy engine nor empties its windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from exporter.config import parsers
from exporter.config.settings import EngineSettings, GatewaySettings, GpuPageSettings, Settings, StoreSettings
from exporter.config.targets import TargetSettings
from exporter.derive.assignment import Endpoint
from exporter.http.client.client import HttpClient, Target
from exporter.model import COMMON_STAGES, LATENCIES, GatewayState
from exporter.model.gpu_page import GpuPageState
from exporter.model.store import StoreState
from exporter.runtime.poll.loop import staggered
from exporter.runtime.poll.target_poller import TargetPoller
from exporter.runtime.poll.targets import EngineClient, target
from exporter.runtime.replica import ReplicaConfig, ReplicaPoller, replica_poller
from exporter.sources.own_host import is_local_host

_Settings = TypeVar("_Settings", bound=TargetSettings)
_GatewayPoller = TargetPoller[Any, Any, GatewayState]
_StorePoller = TargetPoller[Any, Any, StoreState]
_GpuPagePoller = TargetPoller[Any, Any, GpuPageState]
_Poller = TypeVar("_Poller", bound=TargetPoller[Any, Any, Any])


class PollerManager:
    """The pollers that run now.  The mappings are replaced whole, so that a reader never sees half a change.

    Callers of ``use``, ``poll``, ``watch``, ``watch_stores``, ``watch_gpu_pages`` and ``stop`` take turns.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        notify: Callable[[], None],
        clock: Callable[[], float],
        unix_now: Callable[[], float],
    ) -> None:
        """``notify`` is called after each poll, in the poller's thread."""
        self.replicas: dict[EngineSettings, ReplicaPoller] = {}
        self.gateways: dict[GatewaySettings, _GatewayPoller] = {}
        self.stores: dict[StoreSettings, _StorePoller] = {}
        self.gpu_pages: dict[GpuPageSettings, _GpuPagePoller] = {}
        self._settings = settings
        self._notify = notify
        self._clock, self._unix_now = clock, unix_now

    def use(self, settings: Settings) -> None:
        """Follow these settings from the next ``poll`` and ``watch`` on."""
        self._settings = settings

    def stop(self) -> None:
        """Signal every poller to end, without waiting: one may be stuck in an exchange."""
        for poller in self.replicas.values():
            poller.stop()
        for gateway in self.gateways.values():
            gateway.stop()
        for store in self.stores.values():
            store.stop()
        for page in self.gpu_pages.values():
            page.stop()

    def endpoints(self) -> list[Endpoint]:
        """Return where replicas are polled."""
        return [_endpoint(engine) for engine in list(self.replicas)]

    # ------------------------------------------------------------------ replicas

    def poll(self, wanted: Sequence[EngineSettings], *, after: float = 0.0) -> None:
        """Poll these engines and no others; ``after``: seconds before the first poll of those that are new.

        An engine that is polled already keeps its poller, with all that it has read.
        """
        first = self._clock() + after
        self.replicas = self._replace(self.replicas, wanted, self.make_replica, self._config, first)

    def make_replica(self, engine: EngineSettings) -> ReplicaPoller:
        """Return a poller that is not started."""
        fetcher = EngineClient(_target(engine))
        return replica_poller(
            self._config(engine), fetcher, on_update=self._notify, clock=self._clock, unix_now=self._unix_now
        )

    def _config(self, engine: EngineSettings) -> ReplicaConfig:
        is_full = self._settings.series == "full"
        return ReplicaConfig(
            name=engine.name,
            kind=engine.kind,
            interval=engine.interval,
            timeout=engine.timeout,
            windows=self._settings.windows,
            quantiles=self._settings.quantiles,
            stages=LATENCIES if is_full else COMMON_STAGES,
            lengths=is_full,
            image=engine.image,
        )

    # ------------------------------------------------------------------ gateways

    def watch(self, wanted: Sequence[GatewaySettings]) -> None:
        """Poll these gateways and no others; one that is polled already keeps its poller."""
        if not (wanted or self.gateways):
            return
        # Few nodes have a gateway; the others do not load its parser.
        from exporter.runtime.gateway import GatewayConfig, gateway_poller  # noqa: PLC0415

        def config(gateway: GatewaySettings) -> Any:
            return GatewayConfig(
                name=gateway.name, kind=gateway.kind, interval=gateway.interval, windows=self._settings.windows
            )

        def make(gateway: GatewaySettings) -> _GatewayPoller:
            return gateway_poller(
                config(gateway),
                HttpClient(_target(gateway)),
                endpoints=self.endpoints,
                is_local=is_local_host,
                on_update=self._notify,
                clock=self._clock,
                unix_now=self._unix_now,
            )

        self.gateways = self._replace(self.gateways, wanted, make, config, self._clock())

    # ------------------------------------------------------------------ stores

    def watch_stores(self, wanted: Sequence[StoreSettings]) -> None:
        """Poll these stores and no others; one that is polled already keeps its poller."""
        if not (wanted or self.stores):
            return
        from exporter.runtime.store import StoreConfig, store_poller  # noqa: PLC0415 - most nodes have none

        def config(store: StoreSettings) -> Any:
            return StoreConfig(
                name=store.name, kind=store.kind, interval=store.interval, windows=self._settings.windows
            )

        def make(store: StoreSettings) -> _StorePoller:
            fetcher = HttpClient(_target(store))
            return store_poller(
                config(store), fetcher, on_update=self._notify, clock=self._clock, unix_now=self._unix_now
            )

        self.stores = self._replace(self.stores, wanted, make, config, self._clock())

    # ------------------------------------------------------------------ GPU exporters

    def watch_gpu_pages(self, wanted: Sequence[GpuPageSettings]) -> None:
        """Poll these GPU exporters and no others; one that is polled already keeps its poller."""
        if not (wanted or self.gpu_pages):
            return
        from exporter.runtime.gpu_page import GpuPageConfig, gpu_page_poller  # noqa: PLC0415 - most nodes have none

        def config(page: GpuPageSettings) -> Any:
            return GpuPageConfig(name=page.name, kind=page.kind, interval=page.interval)

        def make(page: GpuPageSettings) -> _GpuPagePoller:
            fetcher = HttpClient(_target(page))
            return gpu_page_poller(
                config(page), fetcher, on_update=self._notify, clock=self._clock, unix_now=self._unix_now
            )

        self.gpu_pages = self._replace(self.gpu_pages, wanted, make, config, self._clock())

    # ------------------------------------------------------------------ any

    def _replace(
        self,
        old: Mapping[_Settings, _Poller],
        wanted: Sequence[_Settings],
        make: Callable[[_Settings], _Poller],
        config: Callable[[_Settings], Any],
        first: float,
    ) -> dict[_Settings, _Poller]:
        """Return the pollers of these targets and no others: those that go on, and new ones, started.

        Pollers of other targets are stopped last: without a thread for the new ones, nothing changes.
        """
        kept = self._kept(old, wanted)
        made = _started([settings for settings in wanted if settings not in kept], make, first)
        now = {settings: made[settings] if settings in made else kept[settings][1] for settings in wanted}
        for (settings, (before, poller)), at in zip(kept.items(), staggered(len(kept), 1.0, first), strict=True):
            fetcher = (
                None
                if before is settings or _target(before) == _target(settings)
                else EngineClient(_target(settings))
            )
            if fetcher is not None or config(settings) != poller.config:
                poller.reconfigure(config(settings), fetcher, first=at)
        staying = {id(poller) for poller in now.values()}
        for poller in old.values():
            if id(poller) not in staying:
                poller.stop()
        return now

    def _kept(
        self, pollers: Mapping[_Settings, _Poller], wanted: Sequence[_Settings]
    ) -> dict[_Settings, tuple[_Settings, _Poller]]:
        """Return the wanted targets that are polled already, with the settings that their poller follows, and it.

        Without those whose exchange does not return: only another poller can read that page.
        """
        now = self._clock()
        known = {_identity(made_of): (made_of, poller) for made_of, poller in pollers.items()}
        pairs = {settings: known[_identity(settings)] for settings in wanted if _identity(settings) in known}
        return {settings: pair for settings, pair in pairs.items() if not pair[1].poll_loop.is_overdue(now)}


def _started(
    new: Sequence[_Settings], make: Callable[[_Settings], _Poller], first: float
) -> dict[_Settings, _Poller]:
    """Start new pollers: all of them, or none when there is no thread for one."""
    made: dict[_Settings, _Poller] = {}
    try:
        for settings, at in zip(new, staggered(len(new), 1.0, first), strict=True):
            made[settings] = make(settings)
            made[settings].start(at)
    except Exception:
        for poller in made.values():
            poller.stop()
        raise
    return made


def _identity(settings: TargetSettings) -> tuple[str, str, str]:
    return settings.name, settings.kind, settings.url


def _endpoint(engine: EngineSettings) -> Endpoint:
    parts = urlsplit(engine.url)
    return Endpoint(replica=engine.name, host=parts.hostname or "", port=parsers.port_of(parts), gpus=engine.gpus)


def _target(settings: TargetSettings) -> Target:
    return target(settings, settings.timeout)
