"""Where engines are looked for that the configuration does not name: the records of ``discovery``."""

from __future__ import annotations

from exporter.config import fields, parsers
from exporter.config.endpoint import BASIC_AUTH, ENDPOINT_URL, TLS, BasicAuth, TlsSettings, finish_credentials
from exporter.config.reader import ListOf
from exporter.config.section import Record, SectionResult, key, section

MAX_PATTERNS = 16
MAX_LISTS = 8  # that are asked for over HTTP, one after the other
RAY_FILE = "/tmp/ray/prom_metrics_service_discovery.json"  # noqa: S108 - it is Ray that chose the place


class KubernetesSettings(Record):
    """How this node's pods are listed; what is None is taken from the pod's environment and service account."""

    enabled: bool = key(
        fields.boolean(), "Find engines in the pods of this node.", default=False, aliases=("enable",)
    )
    url: str | None = key(
        fields.url("an https:// URL", parsers.pod_list),
        "API server, or a kubelet's https://NODE:10250/pods.",
        default=None,
        shown=False,
        default_text="the API server, as any pod finds it",
        example="https://10.96.0.1:443",
    )
    node_name: str | None = key(
        fields.text("a node name"),
        "Kubernetes node whose pods are listed.",
        default=None,
        default_text="$NODE_NAME",
        example="gpu-node-7",
    )
    interval: float = key(fields.duration(1, 600), "How often the pods are listed.", default=15.0)
    bearer_token_file: str | None = key(
        fields.file(secret=True),
        "File that holds the token; read again when it changes.",
        default=None,
        default_text="the service account's",
        example="/etc/shardwatch/token",
    )
    tls: TlsSettings = key(
        TLS, "TLS towards the API server. ca_file defaults to the service account's.", default=TlsSettings()
    )


class HttpSdSettings(Record):
    """A list of engines that a server returns in Prometheus' http_sd format, and how the server is asked."""

    url: str = key(ENDPOINT_URL, "URL of the list.", shown=False, example="https://inventory.example/engines")
    bearer_token_file: str | None = key(
        fields.file(secret=True),
        "File that holds the token; read again when it changes.",
        default=None,
        example="/etc/shardwatch/token",
    )
    basic_auth: BasicAuth | None = key(
        BASIC_AUTH, "Basic authentication. Not beside bearer_token_file.", default=None
    )
    tls: TlsSettings = key(TLS, "TLS towards the server, for https:// URLs.", default=TlsSettings())


class DiscoverySettings(Record):
    """Where engines are looked for; processes are not if engines are configured, unless it is enabled explicitly.

    ``ray_url``: the dashboard that is asked instead of reading ``ray_file``.
    """

    processes: bool = key(
        fields.boolean(),
        "Find engines among the processes of this node.",
        default=True,
        default_text="true without `engines`, else false",
    )
    ray: bool = key(
        fields.boolean(),
        "Find the metrics endpoint of this node of a Ray cluster.",
        default=False,
        default_text="true if ray_file or ray_url is set, else false",
    )
    ray_file: str = key(
        fields.path("a file name"),
        "File in which Ray lists its metrics endpoints. It need not exist yet.",
        default=RAY_FILE,
    )
    ray_users: tuple[str, ...] = key(
        ListOf(
            item=fields.text("a user name or id"),
            what="users",
            max_items=MAX_PATTERNS,
            distinct={"": str},
        ),
        "Users that run Ray. ray_file is read only if it belongs to one of them, to root or to the daemon's user.",
        default=(),
        example="[ray]",
    )
    ray_url: str | None = key(
        fields.url("the URL of Ray's dashboard, such as http://head:8265", parsers.ray_list),
        "Ray's dashboard, which is asked for that list instead of reading ray_file.",
        default=None,
        shown=False,
        example="http://ray-head:8265",
    )
    ray_bearer_token_file: str | None = key(
        fields.file(secret=True),
        "File that holds a token for the dashboard, if it requires one (Ray 2.5x and newer).",
        default=None,
        example="/etc/shardwatch/token",
    )
    file_sd: tuple[str, ...] = key(
        ListOf(
            item=fields.path("a file name", parsers.target_files),
            what="file names",
            max_items=MAX_PATTERNS,
            distinct={"": str},
        ),
        "Files in Prometheus' file_sd format (.json, .yml, .yaml) that list engines; the last part may hold "
        "wildcards. Files are followed as they change. Labels that count: __scheme__, __metrics_path__, replica "
        "or name, engine or kind, image.",
        default=(),
        example="[targets/*.yaml, targets/chat.json]",
    )
    http_sd: tuple[HttpSdSettings, ...] = key(
        ListOf(
            item=section(HttpSdSettings, finish_credentials),
            what="servers",
            max_items=MAX_LISTS,
            distinct={"url": lambda server: parsers.identity(server.url)},
        ),
        "Servers that return such lists in Prometheus' http_sd format, asked every 15s.",
        default=(),
    )
    pod_resources: str | None = key(
        fields.path("the path of a socket"),
        "Kubelet's socket that lists which pod each GPU is allocated to, asked every 15s: names of pods for the "
        "owners of GPUs.",
        default=None,
        example="/var/lib/kubelet/pod-resources/kubelet.sock",
    )
    kubernetes: KubernetesSettings = key(
        section(KubernetesSettings),
        "Engines in this node's pods, by their annotations prometheus.io/scrape, /port, /path and /scheme. A pod "
        "counts once its metrics endpoint is recognised as an engine's.",
        default=KubernetesSettings(),
        aliases=("k8s",),
    )


def finish_discovery(found: SectionResult) -> None:
    """Enable Ray if a place to find it is given; refuse a token that nobody is asked with."""
    if (found.given("ray_file") or found.given("ray_url")) and not found.given("ray"):
        found.values["ray"] = True
    if found.given("ray_bearer_token_file") and not found.given("ray_url"):
        found.refuse("ray_bearer_token_file", "has no effect without ray_url; set ray_url, or remove the key")
