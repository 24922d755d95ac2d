"""``shardwatch run``: the daemon from its settings to its end."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from exporter import __version__
from exporter.cli import signals, streams
from exporter.cli.exit_codes import OK
from exporter.cli.setup import log_to_stderr, read_settings
from exporter.config.settings import Settings
from exporter.errors import ListenError, OutputError, SettingsError
from exporter.logs import log_event
from exporter.runtime.app import App
from exporter.runtime.memory import raise_descriptor_limit, tune_memory
from exporter.runtime.service_manager import ServiceManager
from exporter.threads import Thread

if TYPE_CHECKING:
    import argparse

logger = logging.getLogger(__name__)

# Seconds.  A scrape waits so long for a thread that parses or composes; beside two busy processes a core that takes a
# fifth off p90 and p95 against Python's 5 ms, and 0.2 ms takes nothing more.
SWITCH_INTERVAL = 0.001


def run(arguments: argparse.Namespace) -> int:
    """Run the daemon until it is stopped."""

    def read() -> Settings:
        return read_settings(arguments.config, arguments.listen)

    settings = read()
    log_to_stderr(settings.log)
    manager = ServiceManager(os.environ)
    app = App(settings, reread=read, on_settings=lambda new: log_to_stderr(new.log), on_snapshot=manager.alive)
    return serve(app, manager=manager)


def print_urls(host: str, port: int, lines: tuple[str, ...] = ()) -> None:
    """Print where the metrics and the diagnosis are, then ``lines``."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with contextlib.suppress(OutputError):  # the log has it too, and nothing is served worse
        streams.print_lines(
            f"metrics    http://{address}/metrics",
            f"node page  http://{address}/",
            f"diagnosis  shardwatch check {address}",
            *lines,
            "stop with Ctrl-C",
        )


def serve(
    app: App, *, on_listening: Callable[[str, int], None] | None = None, manager: ServiceManager | None = None
) -> int:
    """Run until SIGTERM or SIGINT; SIGHUP reloads, SIGUSR1 releases the GPUs until SIGUSR2."""
    manager = manager or ServiceManager({})
    signals.install_handlers()
    tune_memory()
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL)
    app.start()
    try:
        host, port = app.listen()
    except (ListenError, SettingsError):
        app.stop()
        raise
    log_event(logger, logging.INFO, "listening", address=f"{host}:{port}", version=__version__)
    if on_listening is not None:
        on_listening(host, port)
    manager.ready(f"serving {host}:{port}")
    reloads = _Reloads(app, manager, f"serving {host}:{port}")
    try:
        received = signals.wait()
        while received not in signals.STOP:
            if received == signal.SIGHUP:
                reloads.request()
            else:
                app.release_cards(released=received == signal.SIGUSR1)
            received = signals.wait()
        manager.stopping()
    finally:
        app.stop()
    log_event(logger, logging.INFO, "stopped", signal=signal.Signals(received).name)
    logging.shutdown()  # threads that are stuck are daemon threads and delay nothing
    if sys.stdout is not None:  # it was closed; nothing was printed
        streams.flush()
    return OK


class _Reloads:
    """Reloads in a thread of its own, started for the first one: the configuration may be on a disk that hangs.

    The main thread stays free to be told to stop.
    """

    def __init__(self, app: App, manager: ServiceManager, serving: str) -> None:
        self._app, self._manager, self._serving = app, manager, serving
        self._requests: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: Thread | None = None

    def request(self) -> None:
        """Reload soon, once for each call."""
        self._requests.put(None)
        if self._thread is None:
            self._thread = Thread(self._run, name="reload")
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._requests.get()
            self._manager.reloading()
            outcome = self._app.reload().message
            self._manager.ready(f"{self._serving}; {outcome.splitlines()[0]}")
