"""Reading processes with the classifier of all engines, as the daemon does."""

from __future__ import annotations

import functools

from msgspec.structs import replace

from exporter.engines.tables import SERVERS
from exporter.sources.processes import listening, table
from exporter.sources.processes.classifier import ServerClassifier

CLASSIFIER = ServerClassifier(SERVERS)
read_processes = functools.partial(table.read_processes, classifier=CLASSIFIER)


def listening_engines(**options):
    """Return the engines by port; whose they are depends on who runs the test."""
    engines = listening.listening_engines(classifier=CLASSIFIER, **options)
    return tuple(sorted((replace(engine, user=-1) for engine in engines), key=lambda engine: engine.port))
