"""Reads who the pods of a node are from a list of them: names, workload, container ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from exporter.model import Pod
from exporter.model.owner import PodGroup

MAX_PODS = 1024  # of one node; a kubelet runs 110 by default
_MAX_CONTAINERS = 64  # of one pod
_LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
_LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
_LWS_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
_LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
_TEMPLATE_HASH = "pod-template-hash"
KEPT_OF_PODS = frozenset(
    {"uid", "ownerReferences", "controller", "labels", "subdomain", _TEMPLATE_HASH}
    | {_LWS_NAME, _LWS_GROUP, _LWS_INDEX, _LWS_SIZE}
    | {"containerID", "initContainerStatuses"}
)
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z", re.ASCII)  # of everything that Kubernetes names
_UID = re.compile(r"[0-9a-f-]{32,36}\Z", re.ASCII)
_KIND = re.compile(r"[A-Za-z]{1,63}\Z", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,4}\Z", re.ASCII)
_CONTAINER_ID = re.compile(r"[a-z0-9.+-]{1,32}://([0-9a-f]{64})\Z", re.ASCII)


def pods_of_node(pods: Iterable[object], node: str) -> tuple[Pod, ...]:
    """Return the pods that run on a node, as far as their names are what Kubernetes allows."""
    on_node = (pod for pod in pods if at(pod, "spec", "nodeName") == node)
    return tuple(islice((read for pod in on_node if (read := _pod(pod)) is not None), MAX_PODS))


def _pod(pod: object) -> Pod | None:
    uid, name, namespace = (_matching(at(pod, "metadata", key), pattern) for key, pattern in _IDENTITY)
    if not (uid and name and namespace):
        return None
    workload, workload_type = _workload(pod)
    return Pod(
        uid=uid,
        namespace=namespace,
        name=name,
        workload=workload,
        workload_type=workload_type,
        containers=dict(islice(_containers(pod), _MAX_CONTAINERS)),
        group=_group(pod, namespace),
    )


_IDENTITY = (("uid", _UID), ("name", _NAME), ("namespace", _NAME))


def _workload(pod: object) -> tuple[str, str]:
    """Return the name and kind of what created the pod; a Deployment for a ReplicaSet that a Deployment created."""
    labels = at(pod, "metadata", "labels")
    if group := _matching(at(labels, _LWS_NAME), _NAME):
        return group, "leaderworkerset"
    owners = [owner for owner in listed(at(pod, "metadata", "ownerReferences")) if at(owner, "controller") is True]
    name = _matching(at(owners[0], "name"), _NAME) if owners else ""
    kind = _matching(at(owners[0], "kind"), _KIND).lower() if name else ""
    template_hash = at(labels, _TEMPLATE_HASH)
    if kind == "replicaset" and isinstance(template_hash, str) and name.endswith(f"-{template_hash}"):
        return name[: -len(template_hash) - 1], "deployment"
    return (name, kind) if kind else ("", "")


def _group(pod: object, namespace: str) -> PodGroup | None:
    """Return the pod's group of a LeaderWorkerSet; None outside of one.

    The first pod's host name is the one that the set gives its pods in LWS_LEADER_ADDRESS.
    """
    labels = at(pod, "metadata", "labels")
    name, subdomain = _matching(at(labels, _LWS_NAME), _NAME), _matching(at(pod, "spec", "subdomain"), _NAME)
    group = _matching(at(labels, _LWS_GROUP), _NUMBER)
    if not (name and subdomain and group):
        return None
    index, size = at(labels, _LWS_INDEX), at(pod, "metadata", "annotations", _LWS_SIZE)
    return PodGroup(leader=f"{name}-{group}.{subdomain}.{namespace}", size=_number(size), index=_number(index))


def _number(value: object) -> int | None:
    text = _matching(value, _NUMBER)
    return int(text) if text else None


def _containers(pod: object) -> Iterator[tuple[str, str]]:
    for field in ("containerStatuses", "initContainerStatuses"):
        for status in listed(at(pod, "status", field)):
            identity, name = at(status, "containerID"), _matching(at(status, "name"), _NAME)
            match = _CONTAINER_ID.match(identity) if isinstance(identity, str) else None
            if match is not None and name:
                yield match[1], name


def is_name(text: str) -> bool:
    """Return whether Kubernetes may have named something so."""
    return _NAME.match(text) is not None


def _matching(value: object, pattern: re.Pattern[str]) -> str:
    return value if isinstance(value, str) and pattern.match(value) else ""


def listed(value: object) -> list[object]:
    """Return a list as it is, and nothing for any other value."""
    return value if isinstance(value, list) else []


def at(value: object, *keys: str) -> object:
    """Return the value below these keys; None where a step is missing or no mapping."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
