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
    parser = argparse.ArgumentParser(
        prog="shardwatch",
        description="One exporter per node that joins GPU telemetry with what the LLM engines say.",
    )
    parser.add_argument("--version", action="version", version=f"shardwatch {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="the daemon; without a configuration it finds cards and engines by itself")
    run.add_argument("--config", metavar="FILE", help="YAML configuration; SHARDWATCH_* variables override scalars")
    run.add_argument("--listen", metavar="HOST:PORT", help="address to serve on (default 0.0.0.0:9853)")
    run.set_defaults(run=_run)

    demo = commands.add_parser("demo", help="the daemon on a simulated node with eight cards and real HTTP engines")
    demo.add_argument(
        "--scenario", metavar="NAME", default="healthy", help="what happens on the node (default healthy)"
    )
    demo.add_argument("--listen", metavar="HOST:PORT", help="address to serve on (default 127.0.0.1:9853)")
    demo.add_argument("--seed", type=int, default=0, help="another seed is another day (default 0)")
    demo.add_argument("--fault-at", type=float, metavar="SECONDS", help="when the scenario's fault begins")
    demo.add_argument("--fault-until", type=float, metavar="SECONDS", help="when it is mended (default never)")
    demo.add_argument("--node", type=int, default=0, help="which node of the service, where they differ (default 0)")
    demo.add_argument("--list", action="store_true", help="list the scenarios and end")
    demo.set_defaults(run=_demo)

    once = commands.add_parser("once", help="one cycle; the metrics page goes to standard output")
    once.add_argument("--config", metavar="FILE", help="YAML configuration")
    once.set_defaults(run=_once)

    check = commands.add_parser("check-config", help="name every problem of a configuration, with path and line")
    check.add_argument("file", metavar="FILE")
    check.set_defaults(run=_check_config)
    return parser


# ---------------------------------------------------------------------- commands


def _check_config(arguments: argparse.Namespace) -> int:
    settings = _read(arguments.file)
    print(f"{arguments.file}: good; {len(settings.engines)} engines, {len(settings.gateways)} gateways")
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
