"""The labels ``container``, ``namespace`` and ``pod`` of DCGM's exporter, where one pod uses a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from exporter.model import GpuOwner, Owner

PodLabels = Mapping[str, Sequence[tuple[str, str]]]  # uuid of a GPU → labels


def pod_labels(owners: Sequence[GpuOwner]) -> PodLabels:
    """Return the labels of each GPU that one pod alone uses; the container only where it is one."""
    by_gpu: defaultdict[str, list[Owner]] = defaultdict(list)
    for held in owners:
        if held.owner.pod:
            by_gpu[held.uuid].append(held.owner)
    return {
        uuid: _labels(found)
        for uuid, found in by_gpu.items()
        if len({(owner.namespace, owner.pod) for owner in found}) == 1
    }


def _labels(owners: Sequence[Owner]) -> list[tuple[str, str]]:
    containers = {owner.container for owner in owners}
    container = containers.pop() if len(containers) == 1 else ""
    return [("container", container), ("namespace", owners[0].namespace), ("pod", owners[0].pod)]
