"""The command line: arguments to settings to a running daemon, and an exit code.

Exit codes: 0 stopped cleanly, 1 failed, 2 bad usage or configuration.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from exporter import __version__
from exporter.cli import signals, streams
from exporter.cli.parser import parser
from exporter.errors import ListenError, OutputError, SettingsError, ShardwatchError
from exporter.logs import formatter, log_event

if TYPE_CHECKING:
    from exporter.config.settings import LogSettings, Settings
    from exporter.runtime.app import App
    from exporter.runtime.service_manager import ServiceManager

logger = logging.getLogger(__name__)

OK, FAILED, BAD_USAGE = 0, 1, 2
ONCE_PATIENCE = 35.0  # seconds; a driver without persistence mode takes up to thirty to initialise


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names, None for this process's own; give the exit code."""
    if argv is None:
        signals.install_early_handlers(sys.argv[1:])
    streams.ensure_fds_open()
    try:
        return _main(argv)
    except SettingsError as error:
        print(f"shardwatch: {error}", file=sys.stderr)
        return BAD_USAGE
    except ShardwatchError as error:
        print(f"shardwatch: {error}", file=sys.stderr)
        return FAILED
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        cure = "raise the limit of processes (ulimit -u, TasksMax, the container's pids limit)"
        print(f"shardwatch: no more threads may be started; {cure}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("shardwatch: interrupted", file=sys.stderr)
        return FAILED


def _main(argv: Sequence[str] | None) -> int:
    try:
        arguments, strange = _parser().parse_known_args(argv)
        if strange:
            arguments.refuse(f"unrecognized arguments: {' '.join(strange)}")
    except SystemExit as ended:
        if not ended.code:  # --help or --version
            streams.flush()
        raise
    gc.disable()  # until tune_memory: nothing that is loaded is garbage
    code: int = arguments.run(arguments)
    return code


def _parser() -> argparse.ArgumentParser:
    return parser(
        {"run": _run, "demo": _demo, "once": _once, "check-config": _check_config, "completion": _completion}
    )


# ---------------------------------------------------------------------- commands


def _completion(arguments: argparse.Namespace) -> int:
    from exporter.cli.completion import script  # noqa: PLC0415 - no other command needs it

    streams.write(script(arguments.shell).encode())
    return OK


def _check_config(arguments: argparse.Namespace) -> int:
    from exporter.config.lint import config_lint  # noqa: PLC0415

    settings = _read(arguments.file)
    good = f"good; {len(settings.engines)} engines, {len(settings.gateways)} gateways"
    streams.print_lines(
        *(f"{arguments.file}: {text}" for text in (good, *(f"hint: {hint}" for hint in config_lint(settings))))
    )
    return OK


def _run(arguments: argparse.Namespace) -> int:
    from exporter.runtime.app import App  # noqa: PLC0415 - --version and check-config stay quick
    from exporter.runtime.service_manager import ServiceManager  # noqa: PLC0415

    def read() -> Settings:
        return _with_listen(_read(arguments.config), arguments.listen)

    settings = read()
    _log_to_stderr(settings.log)
    manager = ServiceManager(os.environ)
    app = App(settings, reread=read, on_settings=lambda found: _log_to_stderr(found.log), on_snapshot=manager.alive)
    return _serve(app, manager=manager)


def _demo(arguments: argparse.Namespace) -> int:
    from exporter.runtime.app import App  # noqa: PLC0415
    from exporter.simulate.scenarios import SCENARIOS  # noqa: PLC0415

    if arguments.list:
        streams.print_lines(*(f"{scenario.name:10} {scenario.summary}" for scenario in SCENARIOS))
        return OK
    scenario = next((one for one in SCENARIOS if one.name == arguments.scenario), None)
    if scenario is None:
        names = ", ".join(one.name for one in SCENARIOS)
        print(f"shardwatch demo: no scenario {arguments.scenario!r}; there are {names}", file=sys.stderr)
        return BAD_USAGE
    begins = [fault.at if arguments.fault_at is None else arguments.fault_at for fault in scenario.faults]
    if begins and arguments.fault_until is not None and arguments.fault_until <= min(begins):
        arguments.refuse("argument --fault-until: the fault would end before it begins, and nothing would happen")
    listen = "127.0.0.1:9853" if arguments.listen is None else arguments.listen
    settings = _with_listen(_read(None), listen)
    _log_to_stderr(settings.log)
    return _on_simulated_node(arguments, settings, App)


def _on_simulated_node(arguments: argparse.Namespace, settings: Settings, app: type[App]) -> int:
    from exporter.config.settings import EngineSettings, GatewaySettings  # noqa: PLC0415
    from exporter.runtime.app import Driver  # noqa: PLC0415
    from exporter.simulate.node import NVML_MODULE, SimulatedNode  # noqa: PLC0415

    node = SimulatedNode(
        arguments.scenario,
        seed=arguments.seed,
        node=arguments.node,
        fault_at=arguments.fault_at,
        fault_until=arguments.fault_until,
        gateway=True,
    )
    signals.install_handlers()  # what is started from here on is put away in order, so a request to stop has to wait
    node.start()
    try:
        engines = tuple(
            EngineSettings(name=name, url=url, interval=1.0, timeout=0.8) for name, url in node.engine_urls
        )
        discovery = replace(settings.discovery, processes=False)
        edge = GatewaySettings(name="edge", url=node.gateway_url or "", interval=1.0, timeout=0.8)
        settings = replace(settings, engines=engines, gateways=(edge,), discovery=discovery)
        driver = Driver(module=NVML_MODULE, options=node.driver_options)
        return _serve(app(settings, driver=driver), said=_urls)
    finally:
        node.stop()


def _once(arguments: argparse.Namespace) -> int:
    from exporter.runtime.app import App  # noqa: PLC0415

    settings = _read(arguments.config)
    _log_to_stderr(settings.log)
    app = App(settings)
    app.start()
    try:
        deadline = time.monotonic() + ONCE_PATIENCE
        while not _heard_everybody(app) and time.monotonic() < deadline:
            time.sleep(0.05)
        app.publisher.stop()
        app.publisher.publish_once()  # ourselves, now that nobody else does
        page = app.pages.page(openmetrics=False, gzip=False)
    finally:
        app.stop()
    if page is None:
        print("shardwatch: no page could be made; the log above says why", file=sys.stderr)
        return _end(FAILED)
    streams.write(page)
    return _end(OK)


def _heard_everybody(app: App) -> bool:
    snapshot = app.publisher.snapshot
    heard = snapshot is not None and not any(status.reason == "starting" for status in snapshot.sources)
    return heard and app.assignments.has_refreshed


# ---------------------------------------------------------------------- settings and the log


def _read(path: str | None) -> Settings:
    from exporter.config import settings  # noqa: PLC0415

    return settings.load(path, os.environ) if path is not None else settings.default(os.environ)


def _with_listen(found: Settings, listen: str | None) -> Settings:
    from exporter.config.settings import parse_listen  # noqa: PLC0415

    return found if listen is None else replace(found, listen=parse_listen(listen))


def _log_to_stderr(settings: LogSettings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(settings.format))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


# ---------------------------------------------------------------------- the running daemon


def _urls(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    with contextlib.suppress(OutputError):  # the log says it too, and nobody is served worse
        streams.print_lines(
            f"metrics   http://{shown}:{port}/metrics", f"ready     http://{shown}:{port}/-/ready", "stop with Ctrl-C"
        )


def _serve(app: App, *, said: Callable[[str, int], None] | None = None, manager: ServiceManager | None = None) -> int:
    """Run until SIGTERM or SIGINT; SIGHUP reloads, SIGUSR1 lets go of the cards until SIGUSR2."""
    from exporter.runtime.memory import tune_memory  # noqa: PLC0415
    from exporter.runtime.service_manager import ServiceManager  # noqa: PLC0415

    manager = manager or ServiceManager({})
    signals.install_handlers()
    tune_memory()
    app.start()
    try:
        host, port = app.listen()
    except ListenError:
        app.stop()
        raise
    log_event(logger, logging.INFO, "listening", address=f"{host}:{port}", version=__version__)
    if said is not None:
        said(host, port)
    manager.ready(f"serving {host}:{port}")
    reloads = _Reloads(app, manager, f"serving {host}:{port}")
    try:
        while (received := signals.wait()) not in signals.STOP:
            if received == signal.SIGHUP:
                reloads.ask()
            else:
                app.release_cards(released=received == signal.SIGUSR1)
        manager.stopping()
    finally:
        app.stop()
    return _end(OK)


class _Reloads:
    """Reloads in a thread of its own, made for the first: the configuration may lie on a disk that hangs.

    The main thread stays free to be told to stop.
    """

    def __init__(self, app: App, manager: ServiceManager, serving: str) -> None:
        self._app, self._manager, self._serving = app, manager, serving
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Reload soon, once for each time that this is called."""
        self._asked.put(None)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="reload", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._asked.get()
            self._manager.reloading()
            outcome = self._app.reload().message
            self._manager.ready(f"{self._serving}; {outcome.splitlines()[0]}")


def _end(code: int) -> int:
    """Write out what was said, and hand on the exit code; threads that are stuck are daemons and hold up nobody."""
    logging.shutdown()
    if sys.stdout is not None:  # it was closed; nothing was printed
        streams.flush()
    return code
