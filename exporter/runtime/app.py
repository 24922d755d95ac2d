"""The daemon: builds the parts from the settings, connects them, and replaces what a reload changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from exporter.catalog.spec import SeriesSet
from exporter.config.lint import access_hints, config_lint
from exporter.config.settings import EngineSettings, NicSettings, Settings
from exporter.derive.assignment import Assignment, Endpoint
from exporter.driver.daemon.source import CardSource
from exporter.errors import SettingsError
from exporter.http.server.agent_check import AgentCheckServer
from exporter.http.server.api import Api
from exporter.http.server.listener import HttpServer, ServerLimits
from exporter.http.server.routes import routes
from exporter.http.server.web_page import WebPage
from exporter.log_writer import stderr_writer
from exporter.logs import log_event, log_exception
from exporter.model import (
    EMPTY,
    AccessState,
    CardState,
    Economics,
    GpuAssignment,
    Outcome,
    Pod,
    ReplicaState,
    Snapshot,
    SourceStatus,
)
from exporter.render.dcgm_pages import DcgmPageStore, hostname
from exporter.render.pages import PageStore
from exporter.runtime.assignment import AssignmentWatcher
from exporter.runtime.costs import CostTracker
from exporter.runtime.diagnosis import Diagnosis
from exporter.runtime.discovery.manager import DiscoveryManager
from exporter.runtime.gpu_events import GpuEvents
from exporter.runtime.memory import max_connections
from exporter.runtime.nics import NicWatcher
from exporter.runtime.poll.manager import PollerManager
from exporter.runtime.publisher import GAP, Publisher
from exporter.runtime.reload import outcome, waiting
from exporter.runtime.software import SoftwareWatcher
from exporter.runtime.stragglers import StragglerTracker
from exporter.sources import process_metrics
from exporter.sources.processes.owners import OwnerReader
from exporter.web.history import NodeHistory

if TYPE_CHECKING:
    from exporter.http.server.access_control import AccessControl
    from exporter.http.server.web_config import WebConfigFile
    from exporter.runtime.push.manager import PushManager

logger = logging.getLogger(__name__)

FIRST_POLLS_AFTER = 0.06  # seconds; learning eight pages takes as long, and the first page is not to wait for that


class Driver(Struct, frozen=True, kw_only=True):
    """The module that answers for the driver, and its options: pynvml, or the simulated cards.

    ``cgroup``: returns the control groups of a simulated node's process; ``pods``: those that run there.
    """

    module: str = "pynvml"
    options: str = ""
    cgroup: Callable[[int], str] | None = None
    pods: tuple[Pod, ...] = ()


class App:
    """Everything between the settings and the metrics endpoint."""

    def __init__(
        self,
        settings: Settings,
        *,
        driver: Driver | None = None,
        reread: Callable[[], Settings] | None = None,
        on_settings: Callable[[Settings], None] = lambda _: None,
        on_snapshot: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        unix_now: Callable[[], float] = time.time,
    ) -> None:
        """``reread`` returns the settings for a reload; None where there is no file to read again.

        ``on_settings`` is called with the settings of a reload, ``on_snapshot`` after each snapshot is published.
        """
        self.settings = self._begun = settings
        self._on_settings = on_settings
        self._on_snapshot = on_snapshot
        self._reread = reread
        self._clock, self._unix_now = clock, unix_now
        self._lock = threading.Lock()  # who is polled; never held while the configuration is read
        self._reloading = threading.Lock()
        self._stopping = False
        self.pages = PageStore(
            series=SeriesSet(settings.series), process_metrics=process_metrics.exposition, clock=clock
        )
        self.dcgm = DcgmPageStore(with_pods=lambda: self.settings.owners.dcgm_labels, clock=clock)
        self.history = NodeHistory() if settings.web_page else None
        self._simulated = driver is not None and driver.module != Driver().module
        self.events = GpuEvents(driver=settings.gpu.enabled, on_change=self._notify, clock=clock, unix_now=unix_now)
        self.nics = NicWatcher(cards=self._known_cards, on_change=self._notify, clock=clock, unix_now=unix_now)
        self.software = SoftwareWatcher(
            cards=self._known_cards, on_change=self._notify, clock=clock, unix_now=unix_now
        )
        self.pollers = PollerManager(settings, notify=self._notify, clock=clock, unix_now=unix_now)
        self.cards = self._make_cards(driver or Driver())
        self._cost_tracker = CostTracker()
        self.discovery = DiscoveryManager(
            configured=lambda: self.settings.engines, on_change=self._on_discovery, clock=clock, unix_now=unix_now
        )
        self.publisher = self._make_publisher()
        cgroup, simulated_pods = (driver.cgroup, driver.pods) if driver is not None else (None, ())
        self.assignments = AssignmentWatcher(
            cards=self._known_cards,
            endpoints=self._gpu_endpoints,
            on_engines=self.discovery.on_processes if settings.discovery.processes else None,
            on_change=self._notify,
            names_owners=lambda: self.settings.owners.enabled,
            pods=lambda: (*self.discovery.pods, *simulated_pods),
            owner_reader=None if cgroup is None else OwnerReader(read_cgroup=lambda _, pid: cgroup(pid)),
            clock=self._clock,
        )
        self.listener: HttpServer | None = None
        self.web_config: WebConfigFile | None = None
        self.access: AccessControl | None = None
        self.agent_check: AgentCheckServer | None = None
        self.pushes: PushManager | None = None

    def _make_cards(self, driver: Driver) -> CardSource | None:
        gpu = self.settings.gpu
        if not gpu.enabled:
            return None
        return CardSource(
            module=driver.module,
            options=driver.options,
            interval=gpu.interval,
            deadline=gpu.deadline,
            on_update=self._notify,
            on_event=self.events.on_driver_event,
            clock=self._clock,
            unix_now=self._unix_now,
        )

    def _make_publisher(self) -> Publisher:
        return Publisher(
            cards=self.cards,
            replicas=lambda: list(self.pollers.replicas.values()),
            assignment=self._assignment,
            gateways=lambda: list(self.pollers.gateways.values()),
            stores=lambda: list(self.pollers.stores.values()),
            gpu_pages=lambda: list(self.pollers.gpu_pages.values()),
            others=self._other_statuses,
            xids=self.events.view,
            sxids=self.events.switches,
            nics=self.nics.states,
            nic_events=self.events.nic_events,
            software=lambda: self.software.software,
            publish=self._publish,
            judge=Diagnosis(gap=GAP).judge,
            on_cards=lambda cards: self.assignments.on_cards(cards),  # noqa: PLW0108 - made after it
            owners=lambda cards: self.assignments.owners(cards),  # noqa: PLW0108 - made after it
            economy=self._economy,
            stragglers=StragglerTracker().update,
            loop_restarts=self._loop_restarts,
            dropped_series=lambda: self.pages.dropped,
            dropped_log_lines=lambda: stderr_writer.dropped,
            discovery_limits=lambda: self.discovery.limits | self.assignments.limits,
            access=self._access_state,
            pushes=lambda: self.pushes.states() if self.pushes is not None else (),
            clock=self._clock,
            unix_now=self._unix_now,
        )

    # ------------------------------------------------------------------ life

    def listen(self) -> tuple[str, int]:
        """Bind and serve; return the address.

        Raise ListenError when it cannot be bound, and SettingsError when the web configuration is bad.
        """
        address = self.settings.listen
        if self.settings.web_config_file is None:
            _log_hints(access_hints(self.settings, ()))
        else:
            from exporter.http.server.access_control import AccessControl  # noqa: PLC0415 - most nodes have none
            from exporter.http.server.web_config import WebConfigFile  # noqa: PLC0415

            self.web_config = WebConfigFile(self.settings.web_config_file, notify=self._notify)
            _log_hints(access_hints(self.settings, self.web_config.current().protections))
            self.web_config.start()
            open_paths = ("/-/healthy", "/-/ready") if self.settings.unauthenticated_health else ()
            self.access = AccessControl(self.web_config.current, open_paths=open_paths)
        handler = routes(
            self.pages,
            self.publisher,
            reload=lambda: self.reload(wait=False),
            may_reload=lambda: self.settings.reload_endpoint,
            dcgm=self.dcgm,
            api=Api(lambda: self.publisher.snapshot, self._clock, hostname),
            web=self._web_page(),
        )
        self.listener = HttpServer(
            address.host,
            address.port,
            handler,
            ServerLimits(connections=max_connections(ServerLimits().connections)),
            access=self.access,
        )
        if agent := self.settings.agent_check:
            self.agent_check = AgentCheckServer(agent.host, agent.port, lambda: self.publisher.snapshot, self._clock)
            self.agent_check.start()
        self.listener.start()
        return self.listener.address

    def _web_page(self) -> WebPage | None:
        if self.history is None:
            return None
        return WebPage(lambda: self.publisher.snapshot, self.history, node=hostname, clock=self._clock)

    def start(self) -> None:
        """Start reading.  The driver's worker comes first, so that it inherits nothing of what follows."""
        _log_hints(config_lint(self.settings, listens=False))
        if self.cards is not None:
            self.cards.start()
            self.software.start()
        self._watch_kernel()
        self._watch_nics()
        with self._lock:
            self._apply_engines(self.settings.engines, after=FIRST_POLLS_AFTER)
            self._apply_gateways()
        self.discovery.configure(self.settings.discovery)
        self._apply_push()
        self.publisher.start()
        self.assignments.start()

    def stop(self) -> None:
        """Stop everything within two seconds; a thread that hangs is left behind, and the process ends anyway."""
        if self.pushes is not None:
            self.pushes.stop()
        if self.listener is not None:
            self.listener.stop(0.5)
        if self.web_config is not None:
            self.web_config.stop()
        if self.agent_check is not None:
            self.agent_check.stop()
        self.assignments.stop()
        self.discovery.stop()
        self.events.stop()
        self.nics.stop()
        self.software.stop()
        with self._lock:
            self._stopping = True
            self.pollers.stop()
        self.publisher.stop()
        if self.pushes is not None:
            self.pushes.join()
        if self.cards is not None:
            self.cards.stop(1.0)

    def release_cards(self, *, released: bool) -> None:
        """Close all driver files while ``released``, so that MIG can be switched or the driver replaced."""
        if self.cards is not None:
            self.cards.release(released=released)
            self.publisher.notify(at_once=True)  # whoever waits for the release looks at the metrics endpoint

    # ------------------------------------------------------------------ what the parts ask for

    def _notify(self) -> None:
        self.publisher.notify()

    def _publish(self, snapshot: Snapshot) -> None:
        self.pages.publish(snapshot)
        self.dcgm.publish(snapshot)
        if self.history is not None:
            self.history.update(snapshot)
        self._on_snapshot()

    def _known_cards(self) -> Sequence[CardState]:
        return self.publisher.snapshot.cards if self.publisher.snapshot else ()

    def _gpu_endpoints(self) -> list[Endpoint]:
        """Return the replicas whose GPUs are wanted: none where no GPU is read on purpose."""
        gpu = self.settings.gpu
        return self.pollers.endpoints() if gpu.enabled or gpu.pages else []

    def _other_statuses(self) -> Sequence[SourceStatus]:
        return [
            *self.discovery.statuses, *self.events.statuses, *self.assignments.statuses(), *self.nics.statuses(),
            *self.software.statuses(), *(self.pushes.statuses() if self.pushes is not None else ()),
        ]  # fmt: skip

    def _economy(
        self, cards: Sequence[CardState], replicas: Sequence[ReplicaState], assignments: Sequence[GpuAssignment]
    ) -> Economics:
        settings = self.settings
        return self._cost_tracker.update(cards, replicas, assignments, windows=settings.windows, costs=settings.costs)

    def _assignment(self) -> Assignment:
        """Return the assignment without replicas that have gone since the last refresh, which may itself hang."""
        return self.assignments.assignment.among({engine.name for engine in self.pollers.replicas})

    def _access_state(self) -> AccessState:
        accept_failures = self.listener.exhausted if self.listener is not None else 0
        if self.web_config is None or self.access is None:
            return AccessState(accept_failures=accept_failures)
        access = self.web_config.current()
        return AccessState(
            last_load_successful=self.web_config.last_load_successful,
            certificate_expires=access.certificate_expires,
            accept_failures=accept_failures,
            handshake_failures=self.access.handshake_failures if access.context is not None else None,
            authentication_failures=dict(self.access.authentication_failures) if access.users else EMPTY,
        )

    def _loop_restarts(self) -> Mapping[str, int]:
        served = self.listener.loop_restarts if self.listener is not None else 0
        cards = self.cards.loop_restarts if self.cards is not None else 0
        loops = {"listener": served, "placement": self.assignments.loop_restarts, "cards": cards}
        if self.pushes is not None:
            loops["push"] = self.pushes.loop_restarts
        return {**loops, **self.discovery.loop_restarts, **self.events.loop_restarts, **self.nics.loop_restarts}

    def _watch_kernel(self) -> None:
        """Follow the kernel log for XIDs; simulated cards have none in the log of the machine they run on."""
        log = self.settings.kernel_log
        nvidia = self.cards is not None or any(page.kind in ("auto", "dcgm") for page in self.settings.gpu.pages)
        ours = nvidia and (log.path is not None or not self._simulated)
        self.events.watch(enabled=log.enabled and ours, path=log.path)

    def _watch_nics(self) -> None:
        """Follow the adapters; simulated GPUs have none beside them on the machine they run on."""
        nics = self.settings.nics
        ours = not self._simulated or nics.sysfs != NicSettings().sysfs
        self.nics.watch(enabled=nics.enabled and ours, root=nics.sysfs)

    def _apply_push(self) -> None:
        """Push to the settings' receivers from now on.  Where there are none, nothing of it is even loaded."""
        if self.pushes is None and self.settings.push:
            from exporter.render.push import push_format  # noqa: PLC0415 - most nodes are scraped
            from exporter.runtime.push.manager import PushManager  # noqa: PLC0415 - as above

            self.pushes = PushManager(
                lambda push, series: push_format(push.protocol, push.labels, series, process_metrics.families),
                identity={"job": "shardwatch", "instance": f"{hostname()}:{self.settings.listen.port}"},
                snapshot=lambda: self.publisher.snapshot,
                clock=self._clock,
                unix_now=self._unix_now,
            )
        if self.pushes is not None:
            self.pushes.push(self.settings.push, self.settings.series)

    # ------------------------------------------------------------------ replicas come and go

    def _apply_engines(self, wanted: Sequence[EngineSettings], *, after: float = 0.0) -> None:
        """Poll these engines from now on.  Called with the lock held."""
        self.pollers.poll(wanted, after=after)
        others = (*self.settings.gateways, *self.settings.stores, *self.settings.gpu.pages)
        intervals = [target.interval for target in (*wanted, *others)]
        shortest = intervals + ([self.settings.gpu.interval] if self.cards else [])
        self.publisher.interval = min([1.0, *shortest]) if shortest else 1.0
        self.publisher.notify()
        self.assignments.refresh_now()

    def _apply_gateways(self) -> None:
        """Poll the settings' gateways, stores and GPU exporters from now on.  Called with the lock held."""
        self.pollers.watch(self.settings.gateways)
        self.pollers.watch_stores(self.settings.stores)
        self.pollers.watch_gpu_pages(self.settings.gpu.pages)
        self.publisher.notify()

    def _on_discovery(self) -> None:
        """Poll the discovered engines beside the configured ones."""
        with self._lock:
            wanted = (*self.settings.engines, *self.discovery.engines())
            if set(wanted) != set(self.pollers.replicas) and not self._stopping:
                self._apply_engines(wanted)

    # ------------------------------------------------------------------ reload

    def reload(self, *, wait: bool = True) -> Outcome:
        """Read the configuration anew; refused whole when it is bad, and then nothing changes.  Raises nothing.

        ``wait``: for another reload, which may hang in a file; else this one is refused.
        """
        if not self._reloading.acquire(blocking=wait):
            return Outcome(False, "refused, another reload is under way; ask again when it has ended")
        try:
            settings = self._reread() if self._reread is not None else self.settings
            if self.web_config is not None:
                self.web_config.refresh()
            return Outcome(True, self._replace(settings))
        except SettingsError as error:
            problems = "; ".join(map(str, error.problems))
            msg = "the configuration is invalid; the previous one stays in use"
            log_event(logger, logging.ERROR, "reload_refused", msg, error=problems)
            return self._refused(error)
        except Exception as error:
            log_exception(logger, "reload_failed", "the previous configuration stays in use")
            return self._refused(error)
        finally:
            self._reloading.release()

    def _refused(self, error: Exception) -> Outcome:
        self.publisher.reload_successful = False
        self.publisher.notify()
        return Outcome(False, f"refused, the old configuration goes on: {error}")

    def _replace(self, settings: Settings) -> str:
        """Use these settings from now on and say what became of them; all the old ones again if that fails."""
        old = self.settings
        with self._lock:
            if self._stopping:
                return "the daemon is stopping"
            try:
                self._apply(settings)
            except Exception:  # no thread to be had, say
                self._apply(old)
                raise
        self.publisher.reload_successful = True
        self.publisher.reload_unix_time = self._unix_now()
        waits = waiting(self._begun, settings)
        sentence = outcome(old, settings, waits)
        log_event(logger, logging.INFO, "reloaded", sentence, engines=len(settings.engines))
        if waits:
            msg = "these keys take effect at the next start"
            log_event(logger, logging.WARNING, "restart_required", msg, keys=",".join(waits))
        return sentence

    def _apply(self, settings: Settings) -> None:
        """Apply these settings to every part.  Called with the lock held."""
        old, self.settings = self.settings, settings
        self._on_settings(settings)
        known = config_lint(old)
        _log_hints([hint for hint in config_lint(settings) if hint not in known])
        if self.cards is not None:
            self.cards.reconfigure(settings.gpu.interval, settings.gpu.deadline)
        if settings.series != old.series:
            self.pages.use(SeriesSet(settings.series))
        self._watch_kernel()
        self._watch_nics()
        self._apply_push()
        self.discovery.configure(settings.discovery)
        self.assignments.discover(self.discovery.on_processes if settings.discovery.processes else None)
        self.pollers.use(settings)
        self._apply_engines((*settings.engines, *self.discovery.engines()))
        self._apply_gateways()


def _log_hints(hints: Sequence[str]) -> None:
    for hint in hints:
        log_event(logger, logging.WARNING, "hint", hint)
