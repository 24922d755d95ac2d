"""What the control groups of a process say about its owner: every runtime's names, and names that lie."""

from __future__ import annotations

import pytest

from exporter.model.owner import ProcessOwner
from exporter.sources.processes.cgroup import parse_cgroup

ID = "0123456789abcdef" * 4
OTHER_ID = "f" * 64
UID = "8f1c2d3e-4a5b-6c7d-8e9f-0a1b2c3d4e5f"
UID_ = UID.replace("-", "_")
STATIC_UID = "a" * 32
KUBEPODS = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"
POD = ProcessOwner(pod_uid=UID, container_id=ID)

PATHS = {
    "kubelet, systemd driver, containerd": (f"{KUBEPODS}/cri-containerd-{ID}.scope", POD),
    "kubelet, systemd driver, CRI-O": (f"{KUBEPODS}/crio-{ID}.scope/container", POD),
    "kubelet, systemd driver, Docker": (f"{KUBEPODS}/docker-{ID}.scope", POD),
    "guaranteed": (f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope", POD),
    "cgroupfs driver": (f"/kubepods/besteffort/pod{UID}/{ID}", POD),
    "guaranteed, cgroupfs driver": (f"/kubepods/pod{UID}/{ID}", POD),
    "drivers that disagree": (
        f"/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}",
        POD,
    ),
    "under a root of its own": (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_}.slice/{ID}", POD),
    "seen from another pod": (f"/../../kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope", POD),
    "seen from a container of the same pod": (f"/../cri-containerd-{ID}.scope", ProcessOwner(container_id=ID)),
    "static pod": (f"/kubepods/burstable/pod{STATIC_UID}/{ID}", ProcessOwner(pod_uid=STATIC_UID, container_id=ID)),
    "a pod's own process": (KUBEPODS, ProcessOwner(pod_uid=UID)),
    "Docker, systemd driver": (f"/system.slice/docker-{ID}.scope", ProcessOwner(container_id=ID)),
    "Docker, cgroupfs driver": (f"/docker/{ID}", ProcessOwner(container_id=ID)),
    "containerd, nerdctl": (f"/default/{ID}", ProcessOwner(container_id=ID)),
    "Podman": (f"/machine.slice/libpod-{ID}.scope/container", ProcessOwner(container_id=ID)),
    "Podman under systemd": (
        f"/system.slice/vllm.service/libpod-payload-{ID}",
        ProcessOwner(container_id=ID, unit="vllm.service"),
    ),
    "Podman without root": (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        ProcessOwner(container_id=ID, session=True),
    ),
    "conmon": (f"/machine.slice/libpod-conmon-{ID}.scope", ProcessOwner(unit=f"libpod-conmon-{ID}.scope")),
    "ECS": (f"/ecs/{'0' * 32}/{'1' * 32}-265", ProcessOwner(container_id="1" * 32)),
    "LXC": ("/lxc.payload.train-1/system.slice/x.service", ProcessOwner(container_id="train-1")),
    "systemd service": ("/system.slice/vllm.service", ProcessOwner(unit="vllm.service")),
    "template": ("/system.slice/system-vllm.slice/vllm@a.service", ProcessOwner(unit="vllm@a.service")),
    "session": (
        "/user.slice/user-1000.slice/session-3.scope",
        ProcessOwner(unit="session-3.scope", session=True),
    ),
    "user service": (
        "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service",
        ProcessOwner(unit="train.service", session=True),
    ),
    "user manager": (
        "/user.slice/user-1000.slice/user@1000.service/init.scope",
        ProcessOwner(session=True),
    ),
    "Slurm": (
        "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3",
        ProcessOwner(slurm_job="4711"),
    ),
    "Slurm, batch script": ("/system.slice/slurmstepd.scope/job_4711/step_batch", ProcessOwner(slurm_job="4711")),
    "Slurm, several slurmd on a node": (
        "/system.slice/n1_slurmstepd.scope/job_4711/step_0/user/task_0",
        ProcessOwner(slurm_job="4711"),
    ),
    "Slurm in a pod": (
        f"{KUBEPODS}/cri-containerd-{ID}.scope/system.slice/slurmstepd.scope/job_7/step_0",
        ProcessOwner(pod_uid=UID, container_id=ID, slurm_job="7"),
    ),
    "no group": ("/", ProcessOwner()),
    "removed group": (f"/docker/{ID} (deleted)", ProcessOwner(container_id=ID)),
}


@pytest.mark.parametrize("path, owner", PATHS.values(), ids=PATHS)
def test_a_path_of_the_unified_hierarchy(path, owner):
    assert parse_cgroup(f"0::{path}\n") == owner


@pytest.mark.parametrize("path, owner", [(path, owner) for path, owner in PATHS.values() if "job_" not in path])
def test_the_same_path_of_version_1(path, owner):
    lines = f"12:cpuset:/\n4:memory:{path}\n1:name=systemd:{path}\n0::/\n"
    assert parse_cgroup(lines) == owner


def test_slurm_of_version_1_counts_although_systemd_knows_the_service_only():
    lines = (
        "11:freezer:/slurm/uid_1000/job_4711/step_0\n10:memory:/slurm/uid_1000/job_4711/step_0/task_0\n"
        "1:name=systemd:/system.slice/slurmd.service\n0::/system.slice/slurmd.service\n"
    )
    assert parse_cgroup(lines) == ProcessOwner(slurm_job="4711")
    assert parse_cgroup("4:memory:/slurm_n1/uid_0/job_12/step_batch\n") == ProcessOwner(slurm_job="12")


def test_the_groups_of_a_job_of_slurm_22_05_as_they_were_recorded():
    """Of ``srun sleep`` with proctrack/cgroup on version 1, where only the freezer is Slurm's."""
    lines = (
        "9:name=systemd:/\n8:pids:/\n7:blkio:/\n6:freezer:/slurm_vm/uid_0/job_2/step_0\n5:devices:/\n"
        "4:memory:/machine/0123456789abcdef0123456789abcdef\n3:cpuset:/\n2:cpuacct:/\n1:cpu:/\n0::/\n"
    )
    assert parse_cgroup(lines) == ProcessOwner(slurm_job="2")


LIES = {
    "a user's own group named after a pod": (
        f"/user.slice/user-1000.slice/user@1000.service/kubepods-pod{UID_}.slice/x",
        ProcessOwner(session=True),
    ),
    "a user's own group named after a job": (
        "/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_1",
        ProcessOwner(session=True, unit="slurmstepd.scope"),
    ),
    "a container that names a pod below its own group": (
        f"/docker/{ID}/kubepods/pod{UID}/{OTHER_ID}",
        ProcessOwner(container_id=ID),
    ),
    "a container that names a job below its own group": (
        f"/docker/{ID}/system.slice/slurmstepd.scope/job_1/step_0",
        ProcessOwner(container_id=ID),
    ),
    "a pod below a pod": (
        f"{KUBEPODS}/cri-containerd-{ID}.scope/kubepods/pod{STATIC_UID}/{OTHER_ID}",
        POD,
    ),
    "a job that slurmstepd did not make": ("/system.slice/x.service/job_7", ProcessOwner(unit="x.service")),
    "a unit with spaces": ("/system.slice/job 4711.service", ProcessOwner()),
    "a unit with control characters": ("/system.slice/\x1b[31mx.service", ProcessOwner()),
    "a long name": (f"/system.slice/{'x' * 300}.service", ProcessOwner()),
    "half an id": (f"/docker/{ID[:-1]}", ProcessOwner()),
    "an id in capitals": (f"/docker/{ID.upper()}", ProcessOwner()),
}


@pytest.mark.parametrize("path, owner", LIES.values(), ids=LIES)
def test_names_that_lie(path, owner):
    assert parse_cgroup(f"0::{path}\n") == owner


@pytest.mark.parametrize(
    "text", ["", "\n", "0", "0:", "0::", ":::", "a:b:c", "0::" + "/x" * 100_000, "0::/\n" * 100_000]
)
def test_lines_that_are_none_say_nothing(text):
    assert parse_cgroup(text) == ProcessOwner()
