"""Reading processes with the classifier of all engines, as the daemon does."""

from __future__ import annotations

import functools

from exporter.engines.tables import SERVERS
from exporter.sources.processes import table
from exporter.sources.processes.classifier import ServerClassifier

CLASSIFIER = ServerClassifier(SERVERS)
read_processes = functools.partial(table.read_processes, classifier=CLASSIFIER)
listening_engines = functools.partial(table.listening_engines, classifier=CLASSIFIER)
