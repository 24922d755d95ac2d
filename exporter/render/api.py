"""The documents of /api/v1, JSON for programs.  Base units, ratios 0 to 1; what is not known is absent.

The structs are the contract: ``schema`` turns them into the JSON Schema that is served, committed and proved.  Fields
are added, never renamed or removed, within v1; one that is at its default is left out.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from exporter.model.finding import Severity, SubjectKind, VerdictState


class VerdictDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether something should get work."""

    state: VerdictState
    reason: str = ""
    detail: str = ""


class ErrorDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was not answered: with 400, 404 and 503."""

    error: str
    known: tuple[str, ...] = ()  # the names that exist, where one was not found


class EvidenceDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One named value."""

    name: str
    value: float | str
    unit: str = ""
    label: str = ""  # the name for people


class FindingDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One problem; ``causes`` explain it."""

    id: str
    severity: Severity
    subject_kind: SubjectKind
    subject: str
    label: str
    summary: str
    action: str  # the steps as one text
    runbook: str
    steps: tuple[str, ...] = ()  # what to do, in order
    cause: str = ""
    replica: str = ""
    since: float | None = None  # Unix time
    evidence: tuple[EvidenceDocument, ...] = ()
    causes: tuple[FindingDocument, ...] = ()


class HealthDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One source."""

    source: str
    up: bool
    reason: str = ""
    age: float | None = None  # seconds since the last success
    duration: float | None = None  # seconds of the last attempt


class XidDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One XID code of one GPU."""

    xid: str
    count: int
    last: float | None = None  # Unix time


class OwnerDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who runs processes on a GPU; the labels of gpu_owner_info."""

    owner: str = ""  # the name; absent where it is not known
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    container: str = ""
    container_id: str = ""
    workload: str = ""
    workload_type: str = ""
    slurm_job: str = ""
    unit: str = ""
    user: str = ""
    memory: float | None = None  # bytes
    pids: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()  # those of pids that an engine left behind


class GpuDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU or MIG instance."""

    gpu: str
    uuid: str
    up: bool
    verdict: VerdictDocument
    reason: str = ""
    name: str = ""
    pci_bus_id: str = ""
    mig_parent: str = ""
    modes: dict[str, str] = {}  # persistence_mode, compute_mode, ecc_mode, mps → enabled, disabled, default …
    gsp_firmware_version: str = ""
    shared_memory: float | None = None  # bytes of /dev/shm, the smallest that a process of the GPU sees
    signals: dict[str, float] = {}
    missing: dict[str, str] = {}  # signal → reason
    clock_events: tuple[str, ...] = ()  # reasons that are active
    replicas: tuple[str, ...] = ()
    processes: dict[str, float] = {}  # pid → bytes, where known
    owners: tuple[OwnerDocument, ...] = ()  # the most memory first
    nvlinks: int | None = None
    nvlinks_up: int | None = None
    xids: tuple[XidDocument, ...] = ()
    straggler: str = ""  # cause
    slowdown: float | None = None


class WindowDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What changed at a replica during one window."""

    seconds: float
    hit_ratio: float | None = None
    error_ratio: float | None = None
    request_rate: float | None = None
    rejected_rate: float | None = None
    generation_token_rate: float | None = None
    latency: dict[str, dict[str, float]] = {}  # stage → quantile → seconds


class ReplicaDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica."""

    replica: str
    engine: str
    model: str
    up: bool
    verdict: VerdictDocument
    version: str = ""
    reason: str = ""
    progress: bool | None = None  # absent: not known
    ranks: dict[str, dict[str, float]] = {}  # rank → quantity → value
    windows: dict[str, WindowDocument] = {}
    gpus: tuple[str, ...] = ()  # UUIDs
    slowest_path: str = ""


class BackendDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One backend of a gateway."""

    pool: str
    backend: str
    replica: str = ""
    up: bool | None = None
    active: float | None = None
    queued: float | None = None
    share: float | None = None  # of the pool's requests over the shortest window
    error_ratio: float | None = None  # failed ÷ sent over the window that findings judge by


class GatewayDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One gateway."""

    gateway: str
    kind: str
    up: bool
    reason: str = ""
    backends: tuple[BackendDocument, ...] = ()


class StoreDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One KV-cache store."""

    store: str
    kind: str
    up: bool
    reason: str = ""
    hit_ratio: dict[str, float] = {}  # window → hits over queries
    usage: dict[str, float] = {}  # tier → ratio
    used: dict[str, float] = {}  # tier → bytes
    capacity: dict[str, float] = {}  # tier → bytes
    errors: dict[str, float] = {}  # operation → failures since the store's start


class AdapterDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One port of a network adapter."""

    device: str
    port: str
    up: bool | None = None
    down: bool | None = None  # not up although it should be
    state: str = ""  # "active", "down", …
    physical_state: str = ""  # "link_up", "polling", …
    link_layer: str = ""
    interface: str = ""
    pci_bus_id: str = ""
    rate: float | None = None  # bytes per second, of a port that is up
    max_rate: float | None = None  # bytes per second, the best since the daemon's start
    link_downs: float | None = None
    errors: dict[str, float] = {}  # type → count since the driver was loaded
    gpus: tuple[str, ...] = ()  # UUIDs of the nearest


class ReplicaPartDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What this node contributes to a replica that spans nodes."""

    replica_key: str  # the same on all nodes
    replica: str  # its name here: the key where its metrics endpoint is on another node
    engine: str
    role: Literal["head", "worker"]
    node_rank: int | None = None
    nodes: int | None = None  # in all
    gpus: tuple[str, ...] = ()  # UUIDs


class NodeDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about the node at one instant."""

    api: Literal["v1"]
    version: str
    time: float  # Unix time of the snapshot
    verdict: VerdictDocument
    findings: tuple[FindingDocument, ...]  # also where there are none: whoever reads no list knows nothing
    driver: dict[str, str] = {}
    software: dict[str, tuple[str, ...]] = {}  # component → versions that processes on the GPUs have loaded
    fabric_manager: bool | None = None  # it runs; absent where the host's processes are not visible
    gpus: tuple[GpuDocument, ...] = ()
    replicas: tuple[ReplicaDocument, ...] = ()
    gateways: tuple[GatewayDocument, ...] = ()
    stores: tuple[StoreDocument, ...] = ()
    sources: tuple[HealthDocument, ...] = ()
    node: str = ""  # its name
    adapters: tuple[AdapterDocument, ...] = ()
    replica_parts: tuple[ReplicaPartDocument, ...] = ()  # of replicas that span nodes


class FindingsDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The findings alone."""

    api: Literal["v1"]
    time: float
    findings: tuple[FindingDocument, ...]


class VerdictsDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdicts alone."""

    api: Literal["v1"]
    time: float
    node: VerdictDocument
    replicas: dict[str, VerdictDocument]
    gpus: dict[str, VerdictDocument]


DOCUMENTS = (NodeDocument, FindingsDocument, VerdictsDocument, VerdictDocument, ErrorDocument)


_ENCODER = msgspec.json.Encoder()


def encode(document: object) -> bytes:
    """Return a document as JSON; lone surrogates in names, which UTF-8 cannot encode, are replaced."""
    try:
        return _ENCODER.encode(document)
    except UnicodeEncodeError:
        return _ENCODER.encode(_encodable(msgspec.to_builtins(document)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(found) for key, found in value.items()}
    return [_encodable(found) for found in value] if isinstance(value, (list, tuple)) else value


def schema() -> dict[str, Any]:
    """Return the JSON Schema of every document, by name, with shared definitions."""
    schemas, components = msgspec.json.schema_components(DOCUMENTS, ref_template="#/$defs/{name}")
    names = [document.__name__ for document in DOCUMENTS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Shardwatch API v1",
        "anyOf": list(schemas),  # the node's document has all fields of the findings' as well
        "$defs": dict(sorted(components.items())),
        "documents": names,
    }
