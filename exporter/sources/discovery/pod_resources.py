"""The pods that GPUs are allocated to, as kubelet's pod-resources socket lists them, processes or none.

Kubelet's PodResourcesLister, version 1.  Pods have no UID here, and devices are named by their plugin: NVIDIA's by
UUID, and by UUID::N where several pods share a GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from exporter.errors import EndpointError, SourceError
from exporter.http.client.grpc import call
from exporter.model import Pod
from exporter.sources.discovery.pods import MAX_PODS, is_name
from exporter.sources.discovery.provider import DiscoveryResult

METHOD = "/v1.PodResourcesLister/List"
TIMEOUT = 5.0  # seconds, for the whole exchange
MAX_DEVICES = 64  # of one pod
_MAX_ID = 128  # characters
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Numbers of fields in kubelet's messages.
_PODS, _NAME, _NAMESPACE, _CONTAINERS, _CONTAINER_NAME, _DEVICES, _DEVICE_IDS = 1, 1, 2, 3, 1, 2, 2


class PodResources:
    """Lists what kubelet has allocated."""

    name = "pod_resources"

    def __init__(self, path: str) -> None:
        """``path``: of the socket."""
        self._path = path
        self._pods: tuple[Pod, ...] = ()

    def refresh(self) -> DiscoveryResult:
        """List the pods once; without a usable answer the last good list goes on."""
        try:
            self._pods = allocated_pods(call(self._path, METHOD, TIMEOUT))
        except EndpointError as error:
            return DiscoveryResult(pods=self._pods, problem=error)
        except ValueError:
            problem = SourceError("malformed", "the answer is no list of pods; the last good list goes on")
            return DiscoveryResult(pods=self._pods, problem=problem)
        return DiscoveryResult(pods=self._pods)

    def close(self) -> None:
        """Do nothing: no connection is kept."""


def allocated_pods(message: bytes) -> tuple[Pod, ...]:
    """Return the pods of a ListPodResourcesResponse to which a device is allocated.  Raises ValueError."""
    found = (pod for value in _each(message, _PODS) if (pod := _pod(value)) is not None)
    return tuple(islice(found, MAX_PODS))


def _pod(message: bytes) -> Pod | None:
    name, namespace = _text(message, _NAME), _text(message, _NAMESPACE)
    if not (is_name(name) and is_name(namespace)):
        return None
    devices: defaultdict[str, set[str]] = defaultdict(set)
    for container in _each(message, _CONTAINERS):
        of_container = _text(container, _CONTAINER_NAME)
        for device in _device_ids(container):
            if len(devices) < MAX_DEVICES or device in devices:
                devices[device].add(of_container if is_name(of_container) else "")
    if not devices:
        return None
    allocated = {device: next(iter(names)) if len(names) == 1 else "" for device, names in devices.items()}
    return Pod(uid="", namespace=namespace, name=name, devices=allocated)


def _device_ids(container: bytes) -> Iterator[str]:
    for devices in _each(container, _DEVICES):
        for raw in _each(devices, _DEVICE_IDS):
            device = raw.decode("utf-8").partition("::")[0]  # UnicodeDecodeError is a ValueError
            if device and len(device) <= _MAX_ID and device.isprintable():
                yield device


def _text(message: bytes, number: int) -> str:
    return next((raw.decode("utf-8") for raw in _each(message, number)), "")


def _each(message: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the texts and messages in a field of a protobuf message; raise ValueError for what is none."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind, number = key & 7, key >> 3
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError("not a protobuf message")
        if kind == _BYTES and number == wanted:
            yield message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = 0
    for index, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("not a protobuf message")
