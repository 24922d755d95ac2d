"""The pollers of replicas and gateways: made as the settings ask, and kept while they are about the same page.

A poller is known by name, kind and URL.  When anything else about it changes, it goes on with what it has read, so
that a reload neither takes a healthy engine off the page nor empties its windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from exporter.derive.replicas import Endpoint as Place
from exporter.hold.page_poller import PagePoller, PlanT
from exporter.hold.polling import staggered
from exporter.hold.replica import ReplicaPlan, ReplicaPoller, replica_poller
from exporter.model import COMMON_STAGES, Stage
from exporter.settings import EngineSettings, GatewaySettings, Settings
from exporter.sources.endpoint.exchange import Endpoint, Target
from exporter.sources.own_host import HERE

if TYPE_CHECKING:
    from exporter.hold.gateway import GatewayPlan, GatewayPoller

_Settings = TypeVar("_Settings", EngineSettings, GatewaySettings)
_Poller = TypeVar("_Poller", bound=PagePoller[Any, Any, Any])


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
        """Go by these settings from the next ``poll`` and ``watch`` on."""
        self._settings = settings

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
        """Poll these engines and no others; ``after``: seconds before the first poll of those that are new.

        Where an engine is known by name, kind and page, its poller goes on, with all that it has read.
        """
        first = self._clock() + after
        kept = self._kept(self.replicas, wanted)
        made = self._make_replicas([engine for engine in wanted if engine not in kept], first)
        old = self.replicas
        self.replicas = {engine: made[engine] if engine in made else kept[engine][1] for engine in wanted}
        for (engine, (before, poller)), at in zip(kept.items(), staggered(len(kept), 1.0, first), strict=True):
            _follow(poller, self._plan(engine), _fetcher(before, engine), at)
        _stop_others(old.values(), self.replicas.values())

    def _kept(
        self, pollers: Mapping[_Settings, _Poller], wanted: Sequence[_Settings]
    ) -> dict[_Settings, tuple[_Settings, _Poller]]:
        """Give, for those of the wanted that are polled already, what their poller was told last, and the poller.

        Not where an exchange does not come back: only another poller can read that page.
        """
        now = self._clock()
        known = {_identity(made_of): (made_of, poller) for made_of, poller in pollers.items()}
        found = {one: known[_identity(one)] for one in wanted if _identity(one) in known}
        return {one: pair for one, pair in found.items() if not pair[1].polling.late(now)}

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
        fetcher = Endpoint(_target(engine))
        return replica_poller(self._plan(engine), fetcher, on_update=self._news, clock=self._clock, wall=self._wall)

    def _plan(self, engine: EngineSettings) -> ReplicaPlan:
        return ReplicaPlan(
            name=engine.name,
            kind=engine.kind,
            interval=engine.interval,
            windows=self._windows(),
            quantiles=self._settings.quantiles,
            stages=tuple(Stage) if self._settings.series == "full" else COMMON_STAGES,
            image=engine.image,
        )

    def _windows(self) -> tuple[tuple[str, float], ...]:
        return tuple((window.label, window.seconds) for window in self._settings.windows)

    # ------------------------------------------------------------------ gateways

    def watch(self, wanted: Sequence[GatewaySettings]) -> None:
        """Poll these gateways and no others; whom it knows by name, kind and page goes on."""
        if not (wanted or self.gateways):
            return
        from exporter.hold.gateway import GatewayPlan  # noqa: PLC0415 - few nodes have a gateway; the others need not load it

        plans = {
            gateway: GatewayPlan(
                name=gateway.name, kind=gateway.kind, interval=gateway.interval, windows=self._windows()
            )
            for gateway in wanted
        }
        kept, first = self._kept(self.gateways, wanted), self._clock()
        made = self._make_gateways({gateway: plan for gateway, plan in plans.items() if gateway not in kept}, first)
        old = self.gateways
        self.gateways = {gateway: made[gateway] if gateway in made else kept[gateway][1] for gateway in wanted}
        for gateway, (before, poller) in kept.items():
            _follow(poller, plans[gateway], _fetcher(before, gateway), first)
        _stop_others(old.values(), self.gateways.values())

    def _make_gateways(
        self, plans: Mapping[GatewaySettings, GatewayPlan], first: float
    ) -> dict[GatewaySettings, GatewayPoller]:
        """Make and start pollers."""
        from exporter.hold.gateway import gateway_poller  # noqa: PLC0415 - as above

        made = {}
        for (gateway, plan), at in zip(plans.items(), staggered(len(plans), 1.0, first), strict=True):
            fetcher = Endpoint(_target(gateway))
            made[gateway] = gateway_poller(
                plan,
                fetcher,
                places=self.places,
                here=HERE,
                on_update=self._news,
                clock=self._clock,
                wall=self._wall,
            )
            made[gateway].start(at)
        return made


def _identity(one: EngineSettings | GatewaySettings) -> tuple[str, str, str]:
    return one.name, one.kind, one.url


def _fetcher(before: EngineSettings | GatewaySettings, now: EngineSettings | GatewaySettings) -> Endpoint | None:
    """Make what asks for the same page with other credentials or another timeout; None where those are as before."""
    return None if before is now or _target(before) == _target(now) else Endpoint(_target(now))


def _follow(poller: PagePoller[PlanT, Any, Any], plan: PlanT, fetcher: Endpoint | None, first: float) -> None:
    if fetcher is not None or plan != poller.plan:
        poller.follow(plan, fetcher, first)


def _stop_others(old: Iterable[PagePoller[Any, Any, Any]], kept: Iterable[PagePoller[Any, Any, Any]]) -> None:
    """Stop who is polled no more.  After the others were made: without a thread for them, nothing changes."""
    staying = {id(poller) for poller in kept}
    for poller in old:
        if id(poller) not in staying:
            poller.stop()


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
