"""Reading processes with the classifier of all engines, as the daemon does."""

from __future__ import annotations

import contextlib
import functools
from unittest import mock

from msgspec.structs import replace

from exporter.engines.tables import SERVERS
from exporter.sources.processes import listening, procfs, table
from exporter.sources.processes.classifier import ServerClassifier

CLASSIFIER = ServerClassifier(SERVERS)
read_processes = functools.partial(table.read_processes, classifier=CLASSIFIER)


_OWN_USER_NAMESPACE = 4026531837


def listening_engines(*, unprivileged=(), **options):
    """Return the engines by port; whose they are depends on who runs the test.

    ``unprivileged``: the network namespaces of a fake /proc that a user namespace of their own owns.
    """

    def user_namespace(root, pid, kind):
        known = procfs.bracketed(procfs.namespace(root, pid, kind), f"{kind}:")
        return 77_777 if known in unprivileged else _OWN_USER_NAMESPACE

    with contextlib.ExitStack() as stack:
        if "root" in options:
            stack.enter_context(mock.patch.object(procfs, "user_namespace", user_namespace))
        engines = listening.listening_engines(classifier=CLASSIFIER, **options).engines
    return tuple(sorted((replace(engine, owner="") for engine in engines), key=lambda engine: engine.port))
