"""``shardwatch once``: read everything once and print the metrics."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from exporter.cli import streams
from exporter.cli.exit_codes import FAILED, OK
from exporter.cli.setup import log_to_stderr, read_settings
from exporter.config.settings import Settings
from exporter.runtime.app import App
from exporter.runtime.memory import raise_descriptor_limit

PATIENCE = 35.0  # seconds; a driver without persistence mode takes up to thirty to initialise


def run(arguments: argparse.Namespace) -> int:
    """Print the metrics; fails if there is nothing to monitor."""
    settings = read_settings(arguments.config)
    log_to_stderr(settings.log)
    app = App(settings)
    raise_descriptor_limit()
    app.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while not _all_read(app) and time.monotonic() < deadline:
            time.sleep(0.05)
        app.publisher.stop()
        app.publisher.publish_once()  # here, now that its thread has stopped
        page = app.pages.page(openmetrics=False, gzip=False)
        missing = _nothing_found(app, settings)
    finally:
        app.stop()
    logging.shutdown()
    if page is None:
        print("shardwatch once: the metrics could not be rendered; the log above says why", file=sys.stderr)
        return FAILED
    streams.write(page)
    if missing:
        print(f"shardwatch once: {missing}", file=sys.stderr)
    return FAILED if missing else OK


def _all_read(app: App) -> bool:
    snapshot = app.publisher.snapshot
    read = snapshot is not None and not any(status.reason == "starting" for status in snapshot.sources)
    return read and app.assignments.has_refreshed


def _nothing_found(app: App, settings: Settings) -> str:
    """Return why there is nothing to monitor, "" if there is a GPU or an engine."""
    snapshot = app.publisher.snapshot
    if snapshot is None or snapshot.cards or snapshot.replicas or snapshot.gateways or snapshot.stores:
        return ""
    engines = "no engine was found; list engines in a configuration (shardwatch config --example)"
    if not settings.gpu.enabled:
        return engines
    reasons = [status.reason for status in snapshot.sources if status.source == "driver" and not status.up]
    gpus = f"no GPU driver ({reasons[0]})" if reasons else "no GPU"
    return f"{gpus}, and {engines}, and set gpu: {{enabled: false}} on a node without GPUs"
