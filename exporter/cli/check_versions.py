"""In which versions and modes the nodes that ``shardwatch check`` looks at differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from exporter.cli.check_nodes import Answer
from exporter.cli.terminal import printable
from exporter.model.text import Language, Text
from exporter.render import api
from exporter.web.values import gibibytes

_MAX_NODES = 4  # that are named for one version
_NAMES = {
    "driver_version": Text("driver", "驱动"),
    "cuda_version": Text("CUDA of the driver", "驱动的 CUDA"),
    "nccl": Text("NCCL", "NCCL"),
    "cuda_runtime": Text("CUDA runtime", "CUDA 运行时"),
    "cuda_driver": Text("CUDA driver library of the engines", "引擎使用的 CUDA 驱动库"),
    "gsp_firmware_version": Text("GSP firmware", "GSP 固件"),
    "persistence_mode": Text("persistence mode", "持久模式"),
    "compute_mode": Text("compute mode", "计算模式"),
    "ecc_mode": Text("ECC", "ECC"),
    "mps": Text("MPS", "MPS"),
    "fabric_manager": Text("fabric manager", "Fabric Manager"),
    "shared_memory": Text("/dev/shm of the engines", "引擎看到的 /dev/shm"),  # noqa: S108 - a name
}


def differences(answers: Sequence[Answer], language: Language) -> Iterator[str]:
    """Yield a line for each component or mode that is known on two nodes at least and not the same on all."""
    by_component: dict[str, dict[str, list[str]]] = {}  # component → versions → nodes
    for answer in answers:
        if answer.document is not None and not answer.problem:
            for component, version in _versions(answer.document).items():
                by_component.setdefault(component, {}).setdefault(version, []).append(answer.url)
    for component, nodes in by_component.items():
        if len(nodes) > 1:
            name = _NAMES[component].in_(language) if component in _NAMES else printable(component)
            # The version of most nodes first: the others are those to look at.
            ordered = sorted(nodes.items(), key=lambda pair: (-len(pair[1]), pair[0]))
            yield f"{name}: " + ", ".join(
                f"{printable(version)} ({_urls(urls, language)})" for version, urls in ordered
            )


def _versions(node: api.NodeDocument) -> Mapping[str, str]:
    """Return the versions of a node by component, and its modes; several of one as one text."""
    found: dict[str, set[str]] = {}
    for name in ("driver_version", "cuda_version"):
        if node.driver.get(name):
            found[name] = {node.driver[name]}
    for component, versions in node.software.items():
        found.setdefault(component, set()).update(versions)
    for replica in node.replicas:  # what the engine says of itself
        if replica.version and replica.engine not in node.software:
            found.setdefault(replica.engine, set()).add(replica.version)
    for name, value in _settings(node):
        if value:
            found.setdefault(name, set()).add(value)
    return {component: " + ".join(sorted(versions)) for component, versions in found.items() if versions}


def _settings(node: api.NodeDocument) -> Iterator[tuple[str, str]]:
    """Yield how the driver runs the node's GPUs, and what of the host decides over their processes."""
    if node.fabric_manager is not None:
        yield "fabric_manager", "running" if node.fabric_manager else "not running"
    for gpu in node.gpus:
        yield "gsp_firmware_version", gpu.gsp_firmware_version
        if gpu.shared_memory is not None:
            yield "shared_memory", gibibytes(gpu.shared_memory)
        yield from gpu.modes.items()


def _urls(urls: Sequence[str], language: Language) -> str:
    more = len(urls) - _MAX_NODES
    rest = Text(f" and {more} more", f" 等另外 {more} 个").in_(language) if more > 0 else ""
    return ", ".join(urls[:_MAX_NODES]) + rest
