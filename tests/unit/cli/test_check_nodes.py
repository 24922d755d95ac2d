"""How ``shardwatch check`` asks many nodes at once."""

from __future__ import annotations

import subprocess
import sys

# A new interpreter, for msgspec reads the fields of a type once a process.
_ASKS_TWO_NODES = """
import threading
from types import SimpleNamespace

from exporter.cli import check_nodes
from exporter.http.client import client
from exporter.model.text import Language

client.SessionClient = lambda _: SimpleNamespace(fetch=lambda: SimpleNamespace(body=b"{}"), close=lambda: None)
calls = set()
threading.setprofile(lambda frame, *_: calls.add((frame.f_globals.get("__name__"), frame.f_code.co_name)))
credentials = check_nodes.DaemonCredentials(
    ca_file=None, cert_file=None, key_file=None, username=None, password_file=None
)
check_nodes.ask_all(["a:1", "b:1"], Language.ENGLISH, 5.0, credentials)
assert any(module == "exporter.cli.check_nodes" for module, _ in calls), calls
print(*sorted(name for module, name in calls if module == "msgspec._utils"))
"""


def test_no_thread_builds_the_decoder_of_a_document():
    # Two threads that build the same one at once end the process with SIGSEGV, in about 1 of 30 runs.
    done = subprocess.run([sys.executable, "-c", _ASKS_TWO_NODES], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
