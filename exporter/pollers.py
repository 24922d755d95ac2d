"""The pollers of replicas and gateways: made as the settings ask, and kept as long as nothing about them changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from exporter.derive.replicas import Endpoint as Place
from exporter.model import COMMON_STAGES, Stage
from exporter.polling import staggered
from exporter.replica import ReplicaPlan, ReplicaPoller, replica_poller
from exporter.settings import EngineSettings, GatewaySettings, Settings
from exporter.sources.endpoint.exchange import Endpoint, Target

if TYPE_CHECKING:
    from exporter.gateway import GatewayPoller


class Pollers:
    """Who is polled now.  Both mappings are replaced whole, so that whoever reads them never sees half a change.

    Whoever calls ``use``, ``poll``, ``watch`` or ``stop`` sees to it that nobody else does meanwhile.
    """

    def __init__(
        self, settings: Settings, *, news: Callable[[], None], clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        """``news`` is called after each poll, in the poller's thread."""
        self.replicas: dict[EngineSettings, ReplicaPoller] = {}
        self.gateways: dict[GatewaySettings, GatewayPoller] = {}
        self._settings = settings
        self._news = news
        self._clock, self._wall = clock, wall

    def use(self, settings: Settings) -> None:
        """Make pollers as these settings ask from now on; none goes on that computes other figures."""
        old, self._settings = self._settings, settings
        if (settings.windows, settings.quantiles, settings.series) != (old.windows, old.quantiles, old.series):
            self.stop()
            self.replicas, self.gateways = {}, {}

    def stop(self) -> None:
        """Ask every poller to end; one may be stuck in an exchange, so nobody waits for it."""
        for poller in self.replicas.values():
            poller.stop()
        for watcher in self.gateways.values():
            watcher.stop()

    def places(self) -> list[Place]:
        """Give where replicas are polled."""
        return [_place(engine) for engine in list(self.replicas)]

    # ------------------------------------------------------------------ replicas

    def poll(self, wanted: Sequence[EngineSettings], *, after: float = 0.0) -> None:
        """Poll these engines and no others; ``after``: seconds before the first poll of those that are new."""
        kept = {engine: self.replicas[engine] for engine in wanted if engine in self.replicas}
        made = self._make_replicas([engine for engine in wanted if engine not in kept], self._clock() + after)
        gone = [poller for engine, poller in self.replicas.items() if engine not in kept]
        self.replicas = {engine: kept[engine] if engine in kept else made[engine] for engine in wanted}
        for poller in gone:
            poller.stop()

    def _make_replicas(self, new: Sequence[EngineSettings], first: float) -> dict[EngineSettings, ReplicaPoller]:
        """Make and start pollers: all of them, or none when there is no thread to be had for one."""
        made: dict[EngineSettings, ReplicaPoller] = {}
        try:
            for engine, at in zip(new, staggered(len(new), 1.0, first), strict=True):
                made[engine] = self.make_replica(engine)
                made[engine].start(at)
        except Exception:
            for poller in made.values():
                poller.stop()
            raise
        return made

    def make_replica(self, engine: EngineSettings) -> ReplicaPoller:
        """Make a poller that is not started."""
        plan = ReplicaPlan(
            name=engine.name,
            kind=engine.kind,
            interval=engine.interval,
            windows=self._windows(),
            quantiles=self._settings.quantiles,
            stages=tuple(Stage) if self._settings.series == "full" else COMMON_STAGES,
            image=engine.image,
        )
        fetcher = Endpoint(_target(engine))
        return replica_poller(plan, fetcher, on_update=self._news, clock=self._clock, wall=self._wall)

    def _windows(self) -> tuple[tuple[str, float], ...]:
        return tuple((window.label, window.seconds) for window in self._settings.windows)

    # ------------------------------------------------------------------ gateways

    def watch(self, wanted: Sequence[GatewaySettings]) -> None:
        """Poll these gateways and no others."""
        new = [gateway for gateway in wanted if gateway not in self.gateways]
        made = self._make_gateways(new) if new else {}
        old = self.gateways
        self.gateways = {gateway: made.get(gateway) or old[gateway] for gateway in wanted}
        for gateway, poller in old.items():
            if gateway not in wanted:
                poller.stop()

    def _make_gateways(self, new: Sequence[GatewaySettings]) -> dict[GatewaySettings, GatewayPoller]:
        """Make and start pollers.  Few nodes have a gateway; the others need not load what reads them."""
        from exporter.gateway import GatewayPlan, gateway_poller  # noqa: PLC0415

        made = {}
        for gateway, first in zip(new, staggered(len(new), 1.0, self._clock()), strict=True):
            plan = GatewayPlan(
                name=gateway.name, kind=gateway.kind, interval=gateway.interval, windows=self._windows()
            )
            fetcher = Endpoint(_target(gateway))
            made[gateway] = gateway_poller(
                plan, fetcher, places=self.places, on_update=self._news, clock=self._clock, wall=self._wall
            )
            made[gateway].start(first)
        return made


def _place(engine: EngineSettings) -> Place:
    parts = urlsplit(engine.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Place(replica=engine.name, host=parts.hostname or "", port=port, gpus=engine.gpus)


def _target(engine: EngineSettings | GatewaySettings) -> Target:
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
