"""A listener under a web configuration, certificates for it, and clients."""

from __future__ import annotations

import base64
import contextlib
import http.client
import ssl

import bcrypt

from exporter.http.server.access_control import AccessControl
from exporter.http.server.listener import HttpServer, ServerLimits
from exporter.http.server.web_config import WebConfigFile
from tests.support.certificates import CONFIGURATION, Keys
from tests.support.raw_http import page

HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
USERS = f"basic_auth_users:\n  prometheus: {HASH}\n"


def make_keys(folder):
    made = Keys(folder)
    made.folder.joinpath("conf").write_text(CONFIGURATION)
    made.folder.joinpath("index").touch()
    made.authority("ca")
    made.authority("foreign")
    valid = ("20200101000000Z", "20480102030405Z")
    for name in ("server", "renewed", "client"):
        made.certificate(name, "ca", "here", *valid)
    made.certificate("of-foreign", "foreign", "here", *valid)
    made.certificate("every", "ca", "every", *valid)
    made.certificate("expired", "ca", "here", "20200101000000Z", "20210101000000Z")
    return made


def tls(keys, name="server", more=""):
    return f"tls_server_config:\n  cert_file: {keys.path(name)}.pem\n  key_file: {keys.path(name)}.key\n{more}"


def mutual(keys, more=""):
    return tls(
        keys,
        more=f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {keys.path('ca.pem')}\n{more}",
    )


@contextlib.contextmanager
def protected(text, tmp_path, handler=page, open_paths=(), **limits):
    path = tmp_path / "web.yml"
    path.write_text(text)
    config = WebConfigFile(str(path), interval=0.02)
    access = AccessControl(config.current, open_paths=open_paths)
    server = HttpServer("127.0.0.1", 0, handler, ServerLimits(**limits), access=access)
    server.access, server.config = access, config
    config.start()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        config.stop()


def client_context(keys, name=None):
    context = ssl.create_default_context(cafile=keys.path("ca.pem"))
    if name:
        context.load_cert_chain(keys.path(f"{name}.pem"), keys.path(f"{name}.key"))
    return context


def connection_to(server, context=None):
    host, port = server.address
    if context is None:
        return contextlib.closing(http.client.HTTPConnection(host, port, timeout=10))
    return contextlib.closing(http.client.HTTPSConnection(host, port, timeout=10, context=context))


def fetch(server, context=None, user=None, path="/metrics"):
    with connection_to(server, context) as connection:
        return ask(connection, user, path)


def ask(connection, user=None, path="/metrics"):
    """Return the response of one GET, its body read."""
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.body = response.read()
    return response


REFUSED = (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)  # in the handshake
