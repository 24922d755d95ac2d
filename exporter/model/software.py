"""Software of the processes on the GPUs, as far as it decides whether nodes of one service are alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from exporter.model.source import EMPTY


class SharedMemory(Struct, frozen=True):
    """``/dev/shm`` as a process sees it, bytes."""

    size: float
    used: float


class ComponentVersion(NamedTuple):
    """A component ("nccl", "torch", "cuda_runtime", "vllm") and its version."""

    component: str
    version: str

    @property
    def is_whole(self) -> bool:
        """Whether it names a release, not only a major version."""
        return "." in self.version


class ProcessSoftware(Struct, frozen=True, kw_only=True):
    """What one process has loaded; empty and None: not readable, or not there."""

    versions: frozenset[ComponentVersion] = frozenset()
    shared_memory: SharedMemory | None = None
    is_mps: bool = False  # CUDA's multi-process service, which holds the GPU for its clients


class NodeSoftware(Struct, frozen=True, kw_only=True):
    """The software of all processes on the node's GPUs.  GPUs are keyed by uuid."""

    versions: tuple[ComponentVersion, ...] = ()  # each once, in order
    shared_memory: Mapping[str, SharedMemory] = EMPTY  # the smallest that a process of the GPU sees
    mps: Mapping[str, bool] = EMPTY  # an MPS server holds the GPU; GPUs without processes are left out
    fabric_manager: bool | None = None  # it runs; None: the host's processes are not visible
