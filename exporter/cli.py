"""The command line: arguments to settings to a running daemon; the only place that prints and that ends the process.

Exit codes: 0 stopped cleanly, 1 failed, 2 bad usage or configuration.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from exporter import __version__
from exporter.command_line.parser import parser
from exporter.errors import ListenError, SettingsError

if TYPE_CHECKING:
    from exporter.app import App
    from exporter.service_manager import ServiceManager
    from exporter.settings import LogSettings, Settings

OK, FAILED, BAD_USAGE = 0, 1, 2
ONCE_PATIENCE = 35.0  # seconds; a driver without persistence mode takes up to thirty to initialise


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names; give the exit code."""
    arguments = _parser().parse_args(argv)
    gc.disable()  # until be_thrifty: nothing that is loaded is garbage
    try:
        code: int = arguments.run(arguments)
    except SettingsError as error:
        print(f"shardwatch: {error}", file=sys.stderr)
        return BAD_USAGE
    except ListenError as error:
        print(f"shardwatch: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return OK
    return code


def _parser() -> argparse.ArgumentParser:
    return parser(
        {"run": _run, "demo": _demo, "once": _once, "check-config": _check_config, "completion": _completion}
    )


# ---------------------------------------------------------------------- commands


def _completion(arguments: argparse.Namespace) -> int:
    from exporter.command_line.completion import script  # noqa: PLC0415 - no other command needs it

    print(script(arguments.shell), end="")
    return OK


def _check_config(arguments: argparse.Namespace) -> int:
    from exporter.advice import advice  # noqa: PLC0415

    settings = _read(arguments.file)
    print(f"{arguments.file}: good; {len(settings.engines)} engines, {len(settings.gateways)} gateways")
    for hint in advice(settings):
        print(f"{arguments.file}: hint: {hint}")
    return OK


def _run(arguments: argparse.Namespace) -> int:
    from exporter.app import App  # noqa: PLC0415 - --version and check-config stay quick
    from exporter.service_manager import ServiceManager  # noqa: PLC0415

    def read() -> Settings:
        return _with_listen(_read(arguments.config), arguments.listen)

    settings = read()
    _log_to_stderr(settings.log)
    manager = ServiceManager(os.environ)
    return _serve(App(settings, reread=read, alive=manager.alive), manager=manager)


def _demo(arguments: argparse.Namespace) -> int:
    from exporter.app import App  # noqa: PLC0415
    from exporter.simulate.scenarios import SCENARIOS  # noqa: PLC0415

    names = [scenario.name for scenario in SCENARIOS]
    if arguments.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:10} {scenario.summary}")
        return OK
    if arguments.scenario not in names:
        print(f"shardwatch demo: no scenario {arguments.scenario!r}; there are {', '.join(names)}", file=sys.stderr)
        return BAD_USAGE
    settings = _with_listen(_read(None), arguments.listen or "127.0.0.1:9853")
    _log_to_stderr(settings.log)
    return _on_simulated_node(arguments, settings, App)


def _on_simulated_node(arguments: argparse.Namespace, settings: Settings, app: type[App]) -> int:
    from exporter.app import Driver  # noqa: PLC0415
    from exporter.settings import EngineSettings, GatewaySettings  # noqa: PLC0415
    from exporter.simulate.node import SimulatedNode  # noqa: PLC0415

    node = SimulatedNode(
        arguments.scenario,
        seed=arguments.seed,
        node=arguments.node,
        fault_at=arguments.fault_at,
        fault_until=arguments.fault_until,
        gateway=True,
    )
    node.start()
    try:
        engines = tuple(
            EngineSettings(name=name, url=url, interval=1.0, timeout=0.8) for name, url in node.engine_urls
        )
        discovery = replace(settings.discovery, processes=False)
        edge = GatewaySettings(name="edge", url=node.gateway_url or "", interval=1.0, timeout=0.8)
        settings = replace(settings, engines=engines, gateways=(edge,), discovery=discovery)
        driver = Driver(module="exporter.simulate.cards", options=node.card_options)
        return _serve(app(settings, driver=driver), said=_urls)
    finally:
        node.stop()


def _once(arguments: argparse.Namespace) -> int:
    from exporter.app import App  # noqa: PLC0415

    settings = _read(arguments.config)
    _log_to_stderr(settings.log)
    app = App(settings)
    app.start()
    deadline = time.monotonic() + ONCE_PATIENCE
    while not _heard_everybody(app) and time.monotonic() < deadline:
        time.sleep(0.05)
    app.publisher.turn()
    page = app.pages.page(openmetrics=False, gzip=False)
    app.stop()
    print((page or b"").decode(), end="", flush=True)
    return _end(OK)


def _heard_everybody(app: App) -> bool:
    snapshot = app.publisher.snapshot
    heard = snapshot is not None and not any(status.reason == "starting" for status in snapshot.sources)
    return heard and app.placement.looked


# ---------------------------------------------------------------------- settings and the log


def _read(path: str | None) -> Settings:
    from exporter import settings  # noqa: PLC0415
    from exporter.app import check_supported  # noqa: PLC0415

    found = settings.load(path, os.environ) if path is not None else settings.default(os.environ)
    check_supported(found)
    return found


def _with_listen(found: Settings, listen: str | None) -> Settings:
    from exporter.settings import parse_listen  # noqa: PLC0415

    return found if listen is None else replace(found, listen=parse_listen(listen))


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name}
        message = record.getMessage()
        if record.exc_info:
            message = f"{message} {self.formatException(record.exc_info)}"
        return json.dumps({**fields, "message": message})


def _log_to_stderr(settings: LogSettings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(_Json())
    else:
        layout = "time=%(asctime)s.%(msecs)03d level=%(levelname)s logger=%(name)s %(message)s"
        handler.setFormatter(logging.Formatter(layout, datefmt="%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


# ---------------------------------------------------------------------- the running daemon


def _urls(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    print(f"metrics   http://{shown}:{port}/metrics", flush=True)
    print(f"ready     http://{shown}:{port}/-/ready", flush=True)
    print("stop with Ctrl-C", flush=True)


def _serve(app: App, *, said: Callable[[str, int], None] | None = None, manager: ServiceManager | None = None) -> int:
    """Run until SIGTERM or SIGINT; SIGHUP reloads, SIGUSR1 lets go of the cards until SIGUSR2."""
    from exporter.service_manager import ServiceManager  # noqa: PLC0415
    from exporter.sources.own_process import be_thrifty  # noqa: PLC0415

    manager = manager or ServiceManager({})
    events: queue.SimpleQueue[int] = queue.SimpleQueue()
    going_on = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    for number in (signal.SIGTERM, signal.SIGINT, *going_on):
        signal.signal(number, lambda received, _: events.put(received))
    be_thrifty()
    app.start()
    try:
        host, port = app.listen()
    except ListenError:
        app.stop()
        raise
    logging.getLogger(__name__).info("event=listening address=%s:%d version=%s", host, port, __version__)
    if said is not None:
        said(host, port)
    manager.ready(f"serving {host}:{port}")
    while (received := events.get()) in going_on:
        if received != signal.SIGHUP:
            app.release_cards(released=received == signal.SIGUSR1)
            continue
        manager.reloading()
        _, outcome = app.reload()
        manager.ready(f"serving {host}:{port}; {outcome.splitlines()[0]}")
    manager.stopping()
    app.stop()
    return _end(OK)


def _end(code: int) -> int:
    """End the process although a thread may be stuck in a call that never returns."""
    logging.shutdown()
    sys.stdout.flush()
    return code
