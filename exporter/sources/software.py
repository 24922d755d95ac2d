"""What processes on the GPUs have loaded, from their mapped libraries and the names of installed distributions.

The processes are not trusted: nothing of them is opened but folders, through their own root, part by part and without
following links, and what is kept are versions of known names.  A file system of theirs may block for ever, so callers
bound the time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from exporter.model.software import ComponentVersion, ProcessSoftware, SharedMemory
from exporter.sources.processes import procfs
from exporter.sources.processes.program import is_mps

_FABRIC_MANAGER = "nv-fabricmanage"  # nv-fabricmanager, in the 15 bytes that the kernel keeps
_MAX_FOLDERS = 4  # with installed distributions, of one process
_MAX_ENTRIES = 16_384  # of such a folder
_MAX_DEPTH = 32  # of a path
_VERSION = r"([0-9][0-9A-Za-z.+!_]{0,31})"

# Libraries that carry their version in the name of the file.
_LIBRARIES = (
    (re.compile(rf"libnccl\.so\.{_VERSION}"), "nccl"),
    (re.compile(rf"libcudart\.so\.{_VERSION}"), "cuda_runtime"),
    (re.compile(rf"libcuda\.so\.{_VERSION}"), "cuda_driver"),
)
# Installed distributions that engines build on, by the name that their metadata's folder begins with.
_DISTRIBUTIONS = {
    "nvidia_nccl": "nccl",
    "nvidia_cuda_runtime": "cuda_runtime",
    "torch": "torch",
    "ray": "ray",
}
_METADATA = re.compile(rf"([a-z_]{{2,40}}?)(?:_cu[0-9]{{2}})?-{_VERSION}\.dist-info")
_PACKAGES = re.compile(r"(/(?:[^/]+/){1,30}(?:site|dist)-packages)/")


def read_software(root: str, pid: int, engines: Mapping[str, str]) -> ProcessSoftware:
    """Return what a process has loaded; ``root`` is ``/proc``.  May block for as long as a file system of it does.

    ``engines``: the component of each distribution that is an engine, by how its metadata's folder begins.
    """
    stat = procfs.stat(root, pid)
    if stat is None or stat.state == "D":
        return ProcessSoftware()
    libraries = procfs.libraries(root, pid)
    components = {**_DISTRIBUTIONS, **engines}
    found = {version for name in libraries if (version := _of_library(name)) is not None}
    found |= {version for folder in _folders(libraries) for version in _installed(root, pid, folder, components)}
    # libnccl.so.2 says less than the distribution that it came from.
    whole = {version.component for version in found if version.is_whole}
    return ProcessSoftware(
        versions=frozenset(each for each in found if each.is_whole or each.component not in whole),
        shared_memory=_shared_memory(root, pid),
        is_mps=is_mps(stat.title),
    )


def fabric_manager_runs(root: str) -> bool | None:
    """Return whether NVIDIA's fabric manager runs, as root; None where the host's processes are not visible."""
    kernel = procfs.stat(root, 2)
    if kernel is None or kernel.title != "kthreadd":
        return None
    return any(_is_fabric_manager(root, pid) for pid in procfs.pids(root))


def _is_fabric_manager(root: str, pid: int) -> bool:
    found = procfs.stat(root, pid)
    if found is None or found.title != _FABRIC_MANAGER:
        return False
    try:
        return os.stat(f"{root}/{pid}").st_uid == 0  # anybody may have a process of that name
    except OSError:
        return False


def _of_library(path: str) -> ComponentVersion | None:
    name = path.rpartition("/")[2]
    for pattern, component in _LIBRARIES:
        if match := pattern.fullmatch(name):
            return ComponentVersion(component, match[1])
    return None


def _folders(libraries: Sequence[str]) -> list[str]:
    folders = dict.fromkeys(match[1] for path in libraries if (match := _PACKAGES.match(path)) is not None)
    return list(folders)[:_MAX_FOLDERS]


def _installed(root: str, pid: int, folder: str, components: Mapping[str, str]) -> Iterator[ComponentVersion]:
    """Yield the versions of the known distributions in a folder of a process's own tree."""
    descriptor = _open_folder(root, pid, folder)
    if descriptor is None:
        return
    try:
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, _MAX_ENTRIES):
                match = _METADATA.fullmatch(entry.name)
                if match is not None and (component := components.get(match[1])) is not None:
                    yield ComponentVersion(component, match[2])
    except OSError:
        return
    finally:
        os.close(descriptor)


def _shared_memory(root: str, pid: int) -> SharedMemory | None:
    descriptor = _open_folder(root, pid, "/dev/shm")  # noqa: S108 - nothing is written
    if descriptor is None:
        return None
    try:
        found = os.fstatvfs(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    unit = found.f_frsize or found.f_bsize
    return SharedMemory(float(found.f_blocks * unit), float((found.f_blocks - found.f_bfree) * unit))


def _open_folder(root: str, pid: int, path: str) -> int | None:
    """Open a folder in a process's own tree, part by part: a link in it would lead into the daemon's."""
    parts = [part for part in path.split("/") if part]
    if len(parts) > _MAX_DEPTH or ".." in parts:
        return None
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        descriptor = os.open(f"{root}/{pid}/root", flags)
    except OSError:
        return None
    for part in parts:
        parent = descriptor
        try:
            descriptor = os.open(part, flags | os.O_NOFOLLOW, dir_fd=parent)
        except (OSError, ValueError):
            return None
        finally:
            os.close(parent)
    return descriptor
