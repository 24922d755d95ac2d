"""The software of a node from that of its GPU processes; bounded, for a process may claim any version."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.model.software import ComponentVersion, NodeSoftware, ProcessSoftware, SharedMemory

MAX_VERSIONS = 4  # of one component


def node_software(
    processes: Mapping[str, frozenset[int]], read: Mapping[int, ProcessSoftware], *, fabric_manager: bool | None
) -> NodeSoftware:
    """Return the software of the node; ``processes``: pids of each GPU by uuid, ``read``: what is known of them."""
    by_component: dict[str, set[str]] = {}
    for process in read.values():
        for component, version in process.versions:
            by_component.setdefault(component, set()).add(version)
    of_gpu = {uuid: [read[pid] for pid in pids if pid in read] for uuid, pids in processes.items()}
    shared_memory: dict[str, SharedMemory] = {}
    for uuid, found in of_gpu.items():
        sizes = [process.shared_memory for process in found if process.shared_memory is not None]
        if sizes:
            shared_memory[uuid] = min(sizes, key=lambda memory: memory.size)
    return NodeSoftware(
        versions=tuple(
            ComponentVersion(component, version)
            for component, versions in sorted(by_component.items())
            for version in sorted(versions)[:MAX_VERSIONS]
        ),
        shared_memory=shared_memory,
        mps={uuid: any(process.is_mps for process in found) for uuid, found in of_gpu.items() if found},
        fabric_manager=fabric_manager,
    )
