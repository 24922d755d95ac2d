"""A Slurm cluster of one node: Debian's munged, slurmctld and slurmd, in a folder and on ports of its own."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import socket
import subprocess
from collections.abc import Iterator

from tests.support.tools import tool
from tests.support.waiting import until

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/cgroup
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Slurm:
    """A running cluster."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def write_configuration(self) -> None:
        """Write the cluster's files and folders."""
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        text = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            controller_port=_free_port(),
            node_port=_free_port(),
            folder=self.folder,
            cpus=os.cpu_count(),
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)

    def is_up(self) -> bool:
        """Return whether the node takes jobs."""
        command = [tool("sinfo"), "--noheader", "--format=%t"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout.strip() in ("idle", "mix", "alloc")

    @contextlib.contextmanager
    def job(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command as a job step; its standard output is that of the step."""
        arguments = [tool("srun"), "--ntasks=1", *command]
        with subprocess.Popen(arguments, env=self.environment, stdout=subprocess.PIPE, text=True) as step:
            try:
                yield step
            finally:
                step.terminate()


@contextlib.contextmanager
def slurm(folder: pathlib.Path) -> Iterator[Slurm]:
    """Run a cluster of this machine alone; needs root and a writable hierarchy of control groups of version 1."""
    cluster = Slurm(folder)
    munge, controller, node = tool("munged"), tool("slurmctld"), tool("slurmd")
    cluster.write_configuration()
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(folder / "log", "wb"))
        for command in ([munge, "--force", "--foreground", *options], [controller, "-D", "-c"], [node, "-D"]):
            process = subprocess.Popen(command, env=cluster.environment, stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            if command[0] == munge:
                until((folder / "munge.socket").exists)
        until(cluster.is_up)
        yield cluster
