"""Engines in this node's pods: those whose annotations ask to be scraped, as Prometheus set-ups read them.

``prometheus.io/scrape``, ``/port``, ``/path`` and ``/scheme`` say where a pod's page is, not what it is of, so all
are tentative.  The list comes from the API server, or from a kubelet (a URL that ends in ``/pods``), in one bounded
exchange; no other request is made, and the token goes nowhere else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from exporter.errors import EndpointError, SourceError
from exporter.http.client.client import SessionClient, Target
from exporter.sources.discovery.found import MAX_TARGETS, DiscoveryResult, FoundEngine, engine_at
from exporter.sources.discovery.target_file import Unusable, parse_json

TIMEOUT = 5.0  # seconds, for the whole exchange
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_MAX_VALUES = 500_000  # commas and brackets; 250 full pods have a third of it
_PREFIX = "prometheus.io/"
_KEPT = frozenset(
    {
        "kind",
        "items",
        "metadata",
        "name",
        "annotations",
        "spec",
        "nodeName",
        "containers",
        "ports",
        "containerPort",
        "protocol",
    }
    | {"status", "podIP", "phase", "image", "containerStatuses", "imageID"}
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the pods of a node are asked for; None: as every pod finds it, from its environment and account."""

    url: str | None = None
    node_name: str | None = None
    bearer_token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False


class Kubernetes:
    """Asks for the pods of one node."""

    name = "kubernetes"

    def __init__(self, access: Access, environ: Mapping[str, str]) -> None:
        """``environ``: where NODE_NAME and the API server's address stand in a pod."""
        self._node = access.node_name or environ.get("NODE_NAME", "")
        self._problem: SourceError | None = None
        self._endpoint: SessionClient | None = None
        self._found: tuple[FoundEngine, ...] = ()
        base = access.url or _server(environ)
        if not self._node:
            message = "give the node's name: discovery.kubernetes.node_name, or NODE_NAME from spec.nodeName"
            self._problem = SourceError("no_node_name", message)
        elif not base:
            message = "not in a pod: KUBERNETES_SERVICE_HOST is not set; give discovery.kubernetes.url"
            self._problem = SourceError("no_api_server", message)
        else:
            self._endpoint = SessionClient(_target(access, base, self._node))

    def refresh(self) -> DiscoveryResult:
        """Ask once; without a usable answer the last good list goes on."""
        if self._endpoint is None:
            return DiscoveryResult(problem=self._problem)
        try:
            body = self._endpoint.fetch().body
            pods = _pods(body)
        except EndpointError as error:
            return DiscoveryResult(found=self._found, problem=error)
        except Unusable as unusable:
            return DiscoveryResult(
                found=self._found, problem=SourceError(unusable.reason, f"the list of pods {unusable}")
            )
        asking = [pod for pod in pods if _asks(pod, self._node)]
        engines = [_engine(pod) for pod in asking[:MAX_TARGETS]]
        self._found = tuple(engine for engine in engines if engine is not None)
        ignored = len(asking) - len(self._found)
        warning = f"ignored={ignored}: pods without an address, or without one usable port" if ignored else ""
        return DiscoveryResult(found=self._found, warning=warning)

    def close(self) -> None:
        """Set up the connection."""
        if self._endpoint is not None:
            self._endpoint.close()


def _server(environ: Mapping[str, str]) -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}" if host else ""


def _target(access: Access, base: str, node: str) -> Target:
    if urlsplit(base).path.rstrip("/").endswith("/pods"):
        url = base
    else:
        # Version 0 is answered from the server's cache: a daemon on each node must not weigh on the cluster's store.
        selector = quote(f"spec.nodeName={node}", safe="")
        url = f"{base.rstrip('/')}/api/v1/pods?fieldSelector={selector}&resourceVersion=0"
    plain = url.startswith("http://")
    return Target(
        url=url,
        timeout=TIMEOUT,
        bearer_token_file=access.bearer_token_file or (None if plain else f"{_ACCOUNT}/token"),
        ca_file=access.ca_file or (None if plain or access.insecure_skip_verify else f"{_ACCOUNT}/ca.crt"),
        cert_file=access.cert_file,
        key_file=access.key_file,
        server_name=access.server_name,
        insecure_skip_verify=access.insecure_skip_verify,
        accept="application/json",
    )


def _pods(body: bytes) -> list[Mapping[str, object]]:
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > _MAX_VALUES:
        raise Unusable("too_large", "holds more values than a node's pods have; the last good list goes on")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Unusable("malformed", "is not UTF-8 text; the last good list goes on") from None
    document = parse_json(text, keep=_thinned)
    if _at(document, "kind") != "PodList":
        raise Unusable("malformed", "is no PodList; the last good list goes on")
    return [item for item in _listed(_at(document, "items")) if isinstance(item, Mapping)]


def _thinned(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Drop at once what is not needed, which is nearly all of a pod: the rest decides what a look takes in memory."""
    return {key: value for key, value in pairs if key in _KEPT or key.startswith(_PREFIX)}


def _asks(pod: Mapping[str, object], node: str) -> bool:
    here = _at(pod, "spec", "nodeName") == node and _at(pod, "status", "phase") == "Running"
    return here and _at(pod, "metadata", "annotations", f"{_PREFIX}scrape") == "true"


def _engine(pod: Mapping[str, object]) -> FoundEngine | None:
    annotations = _at(pod, "metadata", "annotations")
    assert isinstance(annotations, Mapping)  # it asked
    host, port = _host(_at(pod, "status", "podIP")), annotations.get(f"{_PREFIX}port") or _only_port(pod)
    if not host or not isinstance(port, str) or not _PORT.fullmatch(port):
        return None
    labels: dict[object, object] = {
        "__scheme__": annotations.get(f"{_PREFIX}scheme"),
        "__metrics_path__": annotations.get(f"{_PREFIX}path"),
        "replica": _at(pod, "metadata", "name"),
        "image": _image(pod, port),
    }
    return engine_at(f"{host}:{port}", labels, tentative=True)


def _image(pod: Mapping[str, object], port: str) -> str:
    """Name the image of the container that declares the port, or of the only one, with the digest that really runs.

    A tag may mean other bytes on the next node; the digest is what tells two nodes apart.
    """
    containers = _listed(_at(pod, "spec", "containers"))
    declaring = [one for one in containers if port in _ports(one)]
    chosen = declaring if len(declaring) == 1 else containers
    image, name = (_at(chosen[0], "image"), _at(chosen[0], "name")) if len(chosen) == 1 else (None, None)
    if not isinstance(image, str):
        return ""
    running = [one for one in _listed(_at(pod, "status", "containerStatuses")) if _at(one, "name") == name]
    identity = _at(running[0], "imageID") if running else None
    digest = _DIGEST.search(identity) if isinstance(identity, str) else None
    return f"{image.partition('@')[0]}@{digest[0]}" if digest else image


def _ports(container: object) -> list[object]:
    return [_at(port, "containerPort") for port in _listed(_at(container, "ports"))]


def _host(address: object) -> str:
    """Return a pod's address as it stands in a URL; "" for what no pod has."""
    try:
        parsed = ipaddress.ip_address(address if isinstance(address, str) else "")
    except ValueError:
        return ""
    if parsed.is_unspecified or parsed.is_multicast or parsed.is_link_local:
        return ""
    return f"[{parsed}]" if parsed.version == 6 else str(parsed)


def _only_port(pod: Mapping[str, object]) -> object:
    """Return the one TCP port that a pod declares; None where there are several, or none."""
    containers = _at(pod, "spec", "containers")
    ports = [
        _at(port, "containerPort")
        for container in (containers if isinstance(containers, list) else [])
        for port in _listed(_at(container, "ports"))
        if _at(port, "protocol") in (None, "TCP")
    ]
    return ports[0] if len(ports) == 1 else None


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _at(value: object, *keys: str) -> object:
    """Walk down mappings; None where a step is missing or no mapping."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
