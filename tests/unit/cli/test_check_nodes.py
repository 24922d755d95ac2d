"""How ``shardwatch check`` asks many nodes at once."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from exporter.cli import check_nodes
from exporter.errors import EndpointError
from exporter.http.client import client
from exporter.model.text import Language

NOBODY = check_nodes.DaemonCredentials(ca_file=None, cert_file=None, key_file=None, username=None, password_file=None)
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


@pytest.mark.parametrize(
    ("path", "hint"), [("", "older Shardwatch"), ("/", "older Shardwatch"), ("/api", "this path")]
)
def test_a_path_that_is_wrong_is_no_older_version(monkeypatch, path, hint):
    def refuse(_):
        raise EndpointError("http_404", "HTTP status 404", detail=404)

    monkeypatch.setattr(client.SessionClient, "fetch", refuse)
    assert hint in check_nodes.ask(f"h:1{path}", Language.ENGLISH, 1.0, NOBODY).problem


def test_a_timeout_is_said_as_it_was_given_whatever_the_preparation_took(monkeypatch):
    make = client.SessionClient._make_connection

    def slowly(self, origin):
        time.sleep(0.15)
        return make(self, origin)

    monkeypatch.setattr(client.SessionClient, "_make_connection", slowly)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        assert "not done within 0.5 s" in check_nodes.ask(url, Language.ENGLISH, 0.5, NOBODY).problem


def test_an_address_that_is_given_twice_is_one_node():
    given = ["b:1", "http://a:1", "a:1/", "a:1", "b:1", "https://a:1"]
    assert check_nodes.distinct(given) == ["b:1", "http://a:1", "https://a:1"]
