"""Engines in this node's pods: those whose annotations ask to be scraped, as Prometheus set-ups read them.

``prometheus.io/scrape``, ``/port``, ``/path`` and ``/scheme`` say where a pod's page is, not what it is of, so all
are tentative.  The list comes from the API server, or from a kubelet (a URL that ends in ``/pods``), in one bounded
exchange; no other request is made, and the token goes nowhere else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, urlsplit

from exporter.config.discovery import KubernetesSettings
from exporter.errors import EndpointError, SourceError
from exporter.http.client.client import SessionClient, Target
from exporter.model import Pod
from exporter.sources.discovery.pods import KEPT_OF_PODS, at, listed, pods_of_node
from exporter.sources.discovery.provider import MAX_TARGETS, DiscoveredEngine, DiscoveryResult, engine_at
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
        "namespace",
        "annotations",
        "spec",
        "nodeName",
        "containers",
        "ports",
        "containerPort",
        "protocol",
    }
    | {"status", "podIP", "phase", "image", "containerStatuses", "imageID"}
    | KEPT_OF_PODS
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class Kubernetes:
    """Lists the pods of one node."""

    name = "kubernetes"

    def __init__(self, settings: KubernetesSettings, environ: Mapping[str, str]) -> None:
        """``environ``: where NODE_NAME and the API server's address stand in a pod."""
        self._node = settings.node_name or environ.get("NODE_NAME", "")
        self._problem: SourceError | None = None
        self._endpoint: SessionClient | None = None
        self._engines: tuple[DiscoveredEngine, ...] = ()
        self._pods: tuple[Pod, ...] = ()
        base = settings.url or _server(environ)
        if not self._node:
            message = "give the node's name: discovery.kubernetes.node_name, or NODE_NAME from spec.nodeName"
            self._problem = SourceError("no_node_name", message)
        elif not base:
            message = "not in a pod: KUBERNETES_SERVICE_HOST is not set; give discovery.kubernetes.url"
            self._problem = SourceError("no_api_server", message)
        else:
            self._endpoint = SessionClient(_target(settings, base, self._node))

    def refresh(self) -> DiscoveryResult:
        """List the pods once; without a usable answer the last good list goes on."""
        if self._endpoint is None:
            return DiscoveryResult(problem=self._problem)
        try:
            body = self._endpoint.fetch().body
            pods = _pods(body)
        except EndpointError as error:
            return DiscoveryResult(engines=self._engines, pods=self._pods, problem=error)
        except Unusable as unusable:
            problem = SourceError(unusable.reason, f"the list of pods {unusable}")
            return DiscoveryResult(engines=self._engines, pods=self._pods, problem=problem)
        asking = [pod for pod in pods if _asks(pod, self._node)]
        engines = [_engine(pod) for pod in asking[:MAX_TARGETS]]
        self._pods = pods_of_node(pods, self._node)
        self._engines = tuple(engine for engine in engines if engine is not None)
        ignored = len(asking) - len(self._engines)
        warning = f"ignored={ignored}: pods without an address, or without one usable port" if ignored else ""
        return DiscoveryResult(engines=self._engines, pods=self._pods, warning=warning)

    def close(self) -> None:
        """Close the connection."""
        if self._endpoint is not None:
            self._endpoint.close()


def _server(environ: Mapping[str, str]) -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}" if host else ""


def _target(settings: KubernetesSettings, base: str, node: str) -> Target:
    if urlsplit(base).path.rstrip("/").endswith("/pods"):
        url = base
    else:
        # Version 0 is answered from the server's cache: a daemon on each node must not weigh on the cluster's store.
        selector = quote(f"spec.nodeName={node}", safe="")
        url = f"{base.rstrip('/')}/api/v1/pods?fieldSelector={selector}&resourceVersion=0"
    plain, tls = url.startswith("http://"), settings.tls
    return Target(
        url=url,
        timeout=TIMEOUT,
        bearer_token_file=settings.bearer_token_file or (None if plain else f"{_ACCOUNT}/token"),
        ca_file=tls.ca_file or (None if plain or tls.insecure_skip_verify else f"{_ACCOUNT}/ca.crt"),
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        server_name=tls.server_name,
        insecure_skip_verify=tls.insecure_skip_verify,
        accept="application/json",
    )


def _pods(body: bytes) -> list[Mapping[str, object]]:
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > _MAX_VALUES:
        raise Unusable("too_large", "holds more values than a node's pods have; the last good list goes on")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Unusable("malformed", "is not UTF-8 text; the last good list goes on") from None
    document = parse_json(text, keep=_relevant)
    if at(document, "kind") != "PodList":
        raise Unusable("malformed", "is no PodList; the last good list goes on")
    return [item for item in listed(at(document, "items")) if isinstance(item, Mapping)]


def _relevant(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Return only what is needed, which is nearly all of a pod: the rest decides what a look takes in memory."""
    return {key: value for key, value in pairs if key in _KEPT or key.startswith(_PREFIX)}


def _asks(pod: Mapping[str, object], node: str) -> bool:
    is_on_node = at(pod, "spec", "nodeName") == node and at(pod, "status", "phase") == "Running"
    return is_on_node and at(pod, "metadata", "annotations", f"{_PREFIX}scrape") == "true"


def _engine(pod: Mapping[str, object]) -> DiscoveredEngine | None:
    annotations = at(pod, "metadata", "annotations")
    assert isinstance(annotations, Mapping)  # it asked
    host, port = _host(at(pod, "status", "podIP")), annotations.get(f"{_PREFIX}port") or _only_port(pod)
    if not host or not isinstance(port, str) or not _PORT.fullmatch(port):
        return None
    labels: dict[object, object] = {
        "__scheme__": annotations.get(f"{_PREFIX}scheme"),
        "__metrics_path__": annotations.get(f"{_PREFIX}path"),
        "replica": at(pod, "metadata", "name"),
        "image": _image(pod, port),
    }
    owner = f"namespace {at(pod, 'metadata', 'namespace')}"
    return engine_at(f"{host}:{port}", labels, tentative=True, owner=owner)


def _image(pod: Mapping[str, object], port: str) -> str:
    """Return the image of the container that declares the port, or of the only one, with the digest that really runs.

    A tag may mean other bytes on the next node; the digest is what tells two nodes apart.
    """
    containers = listed(at(pod, "spec", "containers"))
    declaring = [container for container in containers if port in _ports(container)]
    chosen = declaring if len(declaring) == 1 else containers
    image, name = (at(chosen[0], "image"), at(chosen[0], "name")) if len(chosen) == 1 else (None, None)
    if not isinstance(image, str):
        return ""
    running = [status for status in listed(at(pod, "status", "containerStatuses")) if at(status, "name") == name]
    identity = at(running[0], "imageID") if running else None
    digest = _DIGEST.search(identity) if isinstance(identity, str) else None
    return f"{image.partition('@')[0]}@{digest[0]}" if digest else image


def _ports(container: object) -> list[object]:
    return [at(port, "containerPort") for port in listed(at(container, "ports"))]


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
    containers = at(pod, "spec", "containers")
    ports = [
        at(port, "containerPort")
        for container in (containers if isinstance(containers, list) else [])
        for port in listed(at(container, "ports"))
        if at(port, "protocol") in (None, "TCP")
    ]
    return ports[0] if len(ports) == 1 else None
