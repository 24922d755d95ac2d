"""What a process has loaded, from an invented /proc and from this one; and what a hostile process gains by it."""

from __future__ import annotations

import mmap
import os

import pytest

from exporter.engines.tables import DISTRIBUTIONS
from exporter.model.software import ComponentVersion
from exporter.sources.software import fabric_manager_runs, read_software

PACKAGES = "/usr/local/lib/python3.12/site-packages"
STAT = "{pid} ({title}) {state} 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 1 1"


class Proc:
    def __init__(self, root):
        self.root = root

    def process(self, pid=7, *mapped, title="VLLM::Worker", state="S"):
        folder = self.root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(STAT.format(pid=pid, title=title, state=state))
        lines = [
            f"7f00{number:08x}-7f01{number:08x} r-xp 00000000 00:1f 12345  {path}"
            for number, path in enumerate(mapped)
        ]
        (folder / "maps").write_text("\n".join(["7ffc-7ffd rw-p 00000000 00:00 0  [stack]", *lines, ""]))
        (folder / "root").mkdir(exist_ok=True)
        return folder / "root"

    def read(self, pid=7):
        return read_software(str(self.root), pid, DISTRIBUTIONS)

    def versions(self, pid=7):
        return dict(self.read(pid).versions)


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path / "proc")


def install(root, *names, folder=PACKAGES):
    for name in names:
        (root / folder[1:] / name).mkdir(parents=True)


def test_libraries_and_the_distributions_beside_them_give_the_versions(proc):
    root = proc.process(
        7,
        f"{PACKAGES}/torch/lib/libtorch_cuda.so",
        f"{PACKAGES}/nvidia/nccl/lib/libnccl.so.2",
        f"{PACKAGES}/nvidia/cuda_runtime/lib/libcudart.so.12",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
    )
    install(
        root, "torch-2.8.0+cu128.dist-info", "nvidia_nccl_cu12-2.27.3.dist-info",
        "nvidia_cuda_runtime_cu12-12.8.90.dist-info", "vllm-0.11.0.dist-info", "numpy-2.3.1.dist-info", "torch",
    )  # fmt: skip
    assert proc.versions() == {
        "torch": "2.8.0+cu128", "nccl": "2.27.3", "cuda_runtime": "12.8.90", "cuda_driver": "580.95.05",
        "vllm": "0.11.0",
    }  # fmt: skip


def test_the_version_of_a_library_alone_is_better_than_none(proc):
    proc.process(7, "/opt/lib/libnccl.so.2.29.1", "/opt/lib/libcudart.so.13")
    assert proc.versions() == {"nccl": "2.29.1", "cuda_runtime": "13"}


def test_a_library_that_replaces_the_installed_one_is_shown_beside_it(proc):
    root = proc.process(7, "/opt/lib/libnccl.so.2.29.1", f"{PACKAGES}/torch/lib/libtorch_cuda.so")
    install(root, "nvidia_nccl_cu12-2.27.3.dist-info")
    assert proc.read().versions == {ComponentVersion("nccl", "2.27.3"), ComponentVersion("nccl", "2.29.1")}


def test_the_shared_memory_is_that_of_the_processs_own_tree(proc):
    root = proc.process(7)
    assert proc.read().shared_memory is None
    (root / "dev/shm").mkdir(parents=True)
    found, expected = proc.read().shared_memory, os.statvfs(root / "dev/shm")
    assert found.size == expected.f_blocks * expected.f_frsize
    assert 0 <= found.used <= found.size


@pytest.mark.parametrize("where", ["usr", "usr/local/lib", "usr/local/lib/python3.12/site-packages"])
def test_a_link_in_the_tree_of_a_process_is_not_followed(proc, tmp_path, where):
    elsewhere = tmp_path / "elsewhere"
    rest = f"{PACKAGES[1:]}/"[len(where) :].strip("/")
    install(elsewhere, "torch-9.9.9.dist-info", folder=f"/{rest}" if rest else "/")
    root = proc.process(7, f"{PACKAGES}/torch/lib/libtorch_cuda.so")
    (root / where).parent.mkdir(parents=True, exist_ok=True)
    os.symlink(elsewhere, root / where)
    assert proc.versions() == {}


def test_the_shared_memory_behind_a_link_is_not_measured(proc, tmp_path):
    root = proc.process(7)
    (root / "dev").mkdir()
    os.symlink(tmp_path, root / "dev/shm")
    assert proc.read().shared_memory is None


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/../../../../etc/site-packages/x.so",
        "/" + "a/" * 200 + "site-packages/x.so",
        "/a" * 4000 + ".so",
        "/memfd:libnccl.so.2 (deleted)",
        "/x/libnccl.so.2\x1b[2J",
        "/x/libnccl.so." + "9" * 100,
    ],
    ids=["up", "deep", "long", "memfd", "terminal", "version"],
)
def test_a_hostile_path_gives_nothing(proc, path):
    proc.process(7, path)
    assert proc.versions() == {}


def test_hostile_names_of_distributions_give_nothing(proc):
    root = proc.process(7, f"{PACKAGES}/torch/lib/libtorch_cuda.so")
    install(
        root, "torch-9\x1b[2J.dist-info", 'torch-1"} 1.dist-info', f"torch-{'9' * 40}.dist-info", "torch-.dist-info",
        "evil-1.0.dist-info", "torch-1.0\n.dist-info",
    )  # fmt: skip
    assert proc.versions() == {}


def test_a_process_that_is_stuck_in_the_kernel_is_not_looked_into(proc):
    proc.process(7, "/opt/lib/libnccl.so.2.29.1", state="D")
    assert proc.versions() == {}


def test_a_process_that_is_gone_has_no_software(proc):
    assert proc.read(99).versions == frozenset()


def test_megabytes_of_maps_are_read_so_far_and_no_further(proc):
    proc.process(7, "/opt/lib/libnccl.so.2.29.1")
    with open(proc.root / "7/maps", "a", encoding="ascii") as maps:
        maps.truncate(1 << 30)  # nothing but zeros, as far as anybody looks
    assert proc.versions() == {"nccl": "2.29.1"}


def test_no_descriptor_stays_open(proc):
    root = proc.process(7, f"{PACKAGES}/torch/lib/libtorch_cuda.so")
    install(root, "torch-2.8.0.dist-info")
    (root / "dev/shm").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        proc.read()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_real_process_is_read(tmp_path):
    library = tmp_path / "libnccl.so.2.29.1"
    library.write_bytes(b"\0" * 4096)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        found = read_software("/proc", os.getpid(), DISTRIBUTIONS)
    assert ("nccl", "2.29.1") in found.versions
    assert (found.shared_memory is not None) == os.path.isdir("/dev/shm")


def test_mps_is_known_by_its_title(proc):
    proc.process(7, title="nvidia-cuda-mps")
    proc.process(8)
    assert (proc.read(7).is_mps, proc.read(8).is_mps) == (True, False)


def test_the_fabric_manager_runs_as_root_where_the_hosts_processes_are_visible(proc, monkeypatch):
    proc.process(7)
    assert fabric_manager_runs(str(proc.root)) is None
    proc.process(2, title="kthreadd")
    assert fabric_manager_runs(str(proc.root)) is False
    proc.process(9, title="nv-fabricmanage")
    real = os.stat

    def owned_by(user):
        return lambda path, **more: os.stat_result([*real(path, **more)[:4], user, *real(path, **more)[5:10]])

    monkeypatch.setattr(os, "stat", owned_by(1000))
    assert fabric_manager_runs(str(proc.root)) is False
    monkeypatch.setattr(os, "stat", owned_by(0))
    assert fabric_manager_runs(str(proc.root)) is True
