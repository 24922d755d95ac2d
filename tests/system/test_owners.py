"""Owners of GPUs: real processes in control groups that the kernel keeps, and the job of a real slurmstepd."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import time

import pytest

from tests.support.kubelet import kubelet, pod
from tests.support.nvml_node import Node, uuid
from tests.support.slurm import slurm

ID = "0123456789abcdef" * 4
UID = "8f1c2d3e-4a5b-6c7d-8e9f-0a1b2c3d4e5f"
POD = f"pod {UID}"
SLICE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
SLEEP = ["sh", "-c", "echo $$ $SLURM_JOB_ID; exec sleep 600"]
# Groups as those who create them name them, one for each GPU → the owner.
GROUPS = {
    f"kubepods.slice/{SLICE}/cri-containerd-{ID}.scope": POD,
    f"kubepods.slice/{SLICE}/crio-{ID}.scope": POD,
    f"kubepods/burstable/pod{UID}/{ID}": POD,
    f"system.slice/docker-{ID}.scope": f"container {ID[:12]}",
    f"machine.slice/libpod-{ID}.scope/container": f"container {ID[:12]}",
    "system.slice/vllm@chat.service": "vllm@chat.service",
    "system.slice/slurmstepd.scope/job_4711/step_0/user/task_0": "job 4711",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory, nvml_library):
    """A node with one GPU more than groups, which kubelet has allocated to a pod without a process on it."""
    folder = tmp_path_factory.mktemp("owners")
    discovery = {"processes": False, "pod_resources": f"{folder}/kubelet.sock"}
    with kubelet(discovery["pod_resources"], lambda _: pod("chat-0", "ml", vllm=[uuid(len(GROUPS))])):
        daemon = Node(folder / "node", nvml_library, cards=len(GROUPS) + 1, config={"discovery": discovery})
        yield daemon
        daemon.stop()


@pytest.fixture
def version_1():
    """Return the root of a hierarchy of control groups of version 1 that other programs move processes in."""
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "freezer" in options.split(","):
            return pathlib.Path(place)
    return pytest.skip("the machine has no control groups of version 1")


@pytest.fixture
def version_2(tmp_path):
    """Return the root of the hierarchy of version 2, mounted once more."""
    if subprocess.run(["mount", "-t", "cgroup2", "none", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("control groups of version 2 cannot be mounted")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@contextlib.contextmanager
def processes_in(root, paths):
    """Start a process in each of these control groups, which are created below one of the test's own."""
    own = root / f"shardwatch-test-{os.getpid()}"
    children = []
    try:
        for path in paths:
            try:
                (own / path).mkdir(parents=True)
            except OSError as error:
                pytest.skip(f"control groups cannot be created: {error}")
            children.append(subprocess.Popen(["sleep", "600"]))
            (own / path / "cgroup.procs").write_text(str(children[-1].pid))
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
        _remove(own)


def _remove(own):
    """Remove a control group and those below; one that a process has just left is busy for a moment."""
    end = time.monotonic() + 10
    while own.exists():
        for folder, _, _ in os.walk(own, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        assert time.monotonic() < end, f"{own} cannot be removed"


def on_gpus(node, pids):
    """Put a process on each GPU; it holds as many bytes as its pid, as the library writes the same in all fields."""
    node.plan(*(f"value {uuid(n)} nvmlDeviceGetComputeRunningProcesses_v3 {pid}" for n, pid in enumerate(pids)))


def test_a_pod_owns_the_gpu_that_kubelet_has_allocated_to_it(node):
    labels = {"owner": "ml/chat-0/vllm", "namespace": "ml", "pod": "chat-0", "container": "vllm"}
    page = node.until(lambda page: page.all("gpu_owner_info", uuid=uuid(len(GROUPS)), **labels))
    assert page.get("shardwatch_source_up", source="discovery:pod_resources") == 1
    assert page.all("gpu_owner_memory_bytes", owner=labels["owner"]) == []


@pytest.mark.parametrize("version", ["version_1", "version_2"])
def test_processes_in_real_control_groups_have_their_owners(node, request, version):
    with processes_in(request.getfixturevalue(version), GROUPS) as pids:
        on_gpus(node, pids)
        found = {(uuid(number), owner, float(pid)) for number, (owner, pid) in enumerate(zip(GROUPS.values(), pids))}
        node.until(
            lambda page: (
                {
                    (sample.labels["uuid"], sample.labels["owner"], sample.value)
                    for sample in page.all("gpu_owner_memory_bytes")
                    if sample.labels["uuid"] != uuid(len(GROUPS))
                }
                == found
            )
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd has to be root")
def test_a_job_of_slurm_owns_the_gpu_that_its_process_holds(node, version_1, tmp_path):
    if not os.access(version_1, os.W_OK):
        pytest.skip("slurmd cannot create control groups")
    with slurm(tmp_path) as cluster, cluster.job(*SLEEP) as step:
        pid, job = step.stdout.readline().split()
        on_gpus(node, [pid])
        labels = {"uuid": uuid(0), "owner": f"job {job}", "slurm_job": job, "user": "root"}
        page = node.until(lambda page: page.all("gpu_owner_info", **labels))
        assert len(page.all("gpu_owner_info", uuid=uuid(0))) == 1
