"""The pods that GPUs are allocated to, as kubelet's pod-resources socket lists them, processes or none.

Kubelet's PodResourcesLister, version 1.  Pods have no UID here, and devices are named by their plugin: NVIDIA's by
UUID, and by UUID::N where several pods share a GPU.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice

from exporter.errors import EndpointError, SourceError
from exporter.http.client.grpc import call
from exporter.model import Pod
from exporter.sources.discovery.pods import MAX_PODS, is_name
from exporter.sources.discovery.provider import DiscoveryResult

METHOD = "/v1.PodResourcesLister/List"
TIMEOUT = 5.0  # seconds, for the whole exchange
MAX_DEVICES = 64  # of one pod: NVIDIA's, and as many others
MAX_FIELDS = 200_000  # of an answer; a full node has a tenth
LAST_LIST_SECONDS = 600.0  # for which the last good list goes on
_NVIDIA = ("GPU-", "MIG-")
_MAX_ID = 128  # characters
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Numbers of fields in kubelet's messages.
_PODS, _NAME, _NAMESPACE, _CONTAINERS, _CONTAINER_NAME, _DEVICES, _DEVICE_IDS = 1, 1, 2, 3, 1, 2, 2


class PodResources:
    """Lists what kubelet has allocated."""

    name = "pod_resources"

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``path``: of the socket."""
        self._path = path
        self._clock = clock
        self._pods: tuple[Pod, ...] = ()
        self._listed_at = clock()

    def refresh(self) -> DiscoveryResult:
        """List the pods once; without a usable answer the last good list goes on for ten minutes."""
        try:
            self._pods = allocated_pods(call(self._path, METHOD, TIMEOUT))
        except EndpointError as error:
            return self._without_answer(error)
        except ValueError:
            return self._without_answer(SourceError("malformed", "the answer is no list of pods, or one too large"))
        self._listed_at = self._clock()
        return DiscoveryResult(pods=self._pods)

    def _without_answer(self, problem: SourceError) -> DiscoveryResult:
        if self._clock() - self._listed_at > LAST_LIST_SECONDS:
            self._pods = ()  # who has the GPUs now is not known
        return DiscoveryResult(pods=self._pods, problem=problem)

    def close(self) -> None:
        """Do nothing: no connection is kept."""


def allocated_pods(message: bytes) -> tuple[Pod, ...]:
    """Return the pods of a ListPodResourcesResponse to which a device is allocated.  Raises ValueError."""
    reader = _Reader()
    found = (reader.pod(value) for value in islice(reader.each(message, _PODS), MAX_PODS))
    return tuple(pod for pod in found if pod is not None)


class _Reader:
    """Reads one answer, and no more of it than ``MAX_FIELDS``: an answer of two bytes a field has millions."""

    def __init__(self) -> None:
        self.left = MAX_FIELDS

    def pod(self, message: bytes) -> Pod | None:
        """Return a pod, None for one to which no device is allocated."""
        name, namespace = self._text(message, _NAME), self._text(message, _NAMESPACE)
        if not (is_name(name) and is_name(namespace)):
            return None
        of_nvidia: defaultdict[str, set[str]] = defaultdict(set)
        others: defaultdict[str, set[str]] = defaultdict(set)
        for container in self.each(message, _CONTAINERS):
            of_container = self._text(container, _CONTAINER_NAME)
            for device in self._device_ids(container):
                devices = of_nvidia if device.startswith(_NVIDIA) else others
                if len(devices) < MAX_DEVICES or device in devices:
                    devices[device].add(of_container if is_name(of_container) else "")
        found = {**of_nvidia, **others}
        if not found:
            return None
        allocated = {device: next(iter(names)) if len(names) == 1 else "" for device, names in found.items()}
        return Pod(uid="", namespace=namespace, name=name, devices=allocated)

    def each(self, message: bytes, wanted: int) -> Iterator[bytes]:
        """Yield the texts and messages in a field of a protobuf message; raise ValueError for what is none."""
        at = 0
        while at < len(message):
            self.left -= 1
            if self.left < 0:
                raise ValueError("more fields than allowed")
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

    def _device_ids(self, container: bytes) -> Iterator[str]:
        for devices in self.each(container, _DEVICES):
            for raw in self.each(devices, _DEVICE_IDS):
                device = raw.decode("utf-8").partition("::")[0]  # UnicodeDecodeError is a ValueError
                if device and len(device) <= _MAX_ID and device.isprintable():
                    yield device

    def _text(self, message: bytes, number: int) -> str:
        return next((raw.decode("utf-8") for raw in self.each(message, number)), "")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = 0
    for index, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("not a protobuf message")
