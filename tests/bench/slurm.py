"""Whether slurmctld and slurmd drain and resume a node by Shardwatch's verdict, and after how many seconds.

    python -m tests.bench.slurm

A cluster of this machine alone, in a temporary folder and on free ports, with ``compose/health/slurm-health-check`` as
HealthCheckProgram every ``INTERVAL`` seconds, before the daemon on a simulated node.  Needs slurmctld and slurmd (Debian's
slurm-wlm) and root, as slurmd does.  Ends with 1 if the node is ever in another state than it should be.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compose.native.child import running
from tests.bench.load import free_port

ROOT = Path(__file__).parents[2]
INTERVAL = 5  # seconds between two health checks
WITHIN = 90.0  # seconds for what must happen
KEPT = 4 * INTERVAL  # seconds for what must not
NODE = socket.gethostname().partition(".")[0]
HEALTH_CHECK = """#!/bin/sh
export SHARDWATCH={program} SLURM_CONF={folder}/slurm.conf
exec {script} 127.0.0.1:{daemon}
"""
CONFIGURATION = """
ClusterName=shardwatch
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={worker}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
HealthCheckProgram={folder}/health-check
HealthCheckInterval={interval}
HealthCheckNodeState=ANY
NodeName={node} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=all Nodes={node} Default=YES State=UP
"""


class Slurm:
    """The node as slurmctld has it."""

    def __init__(self, folder: Path) -> None:
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def control(self, *arguments: str) -> str:
        """Return what scontrol prints, "" where it fails."""
        done = subprocess.run(
            ["scontrol", *arguments], env=self._environment, capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    def state(self) -> tuple[str, str]:
        """Return the node's state and reason."""
        found = {"State": "", "Reason": ""}
        for line in self.control("show", "node", NODE).splitlines():
            for name in found:
                if line.strip().startswith(f"{name}="):
                    text = line.strip().partition("=")[2]
                    found[name] = text.split()[0] if name == "State" else text.rpartition(" [")[0]
        return found["State"], found["Reason"]

    def wait(self, case: str, state: str) -> bool:
        """Print after how many seconds the node has this state; return whether it came."""
        begun = time.monotonic()
        while time.monotonic() - begun < WITHIN:
            now, reason = self.state()
            if now == state:
                print(f"{case:48} {state:12} after {time.monotonic() - begun:4.1f} s  {reason}", flush=True)
                return True
            time.sleep(0.5)
        print(f"{case:48} not {state} but {self.state()}", flush=True)
        return False

    def keep(self, case: str, state: str, *, seconds: float = KEPT) -> bool:
        """Print whether the node keeps this state."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            now, reason = self.state()
            if now != state:
                print(f"{case:48} not {state} but {now}: {reason}", flush=True)
                return False
            time.sleep(0.5)
        print(f"{case:48} {state:12} for {seconds:g} s", flush=True)
        return True


def write(folder: Path, daemon: int) -> None:
    """Write the configuration and the health check."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    values = {"folder": folder, "node": NODE, "daemon": daemon, "interval": INTERVAL}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(controller=free_port(), worker=free_port(), **values))
    script, program = ROOT / "compose" / "health" / "slurm-health-check", Path(sys.executable).with_name("shardwatch")
    (folder / "health-check").write_text(HEALTH_CHECK.format(script=script, program=program, **values))
    (folder / "health-check").chmod(0o755)


@contextlib.contextmanager
def demo(folder: Path, port: int, scenario: str, *options: str):
    """Run the daemon on a simulated node."""
    command = [
        sys.executable, "-m", "exporter", "demo", "--scenario", scenario, "--listen", f"127.0.0.1:{port}", *options
    ]  # fmt: skip
    with running("shardwatch", command, folder, {"PYTHONPATH": str(ROOT)}):
        yield


def judge(folder: Path, slurm: Slurm, port: int):
    """Yield for each case whether the node was in the state that it should be in."""
    with demo(folder, port, "nic", "--fault-at", "0"):
        yield slurm.wait("start", "IDLE")
        yield slurm.keep("an engine makes no progress from 60 s on", "IDLE", seconds=100.0)
    with demo(folder, port, "hang", "--fault-at", "5"):
        yield slurm.wait("an XID 5 s after the start, then a GPU is lost", "IDLE+DRAIN")
        yield slurm.keep("the GPU is still lost", "IDLE+DRAIN")
    yield slurm.keep("the daemon is stopped", "IDLE+DRAIN")
    with demo(folder, port, "healthy"):
        yield slurm.wait("the GPU is back", "IDLE")
        slurm.control("update", f"NodeName={NODE}", "State=DRAIN", "Reason=disk")
        yield slurm.keep("an operator drains it", "IDLE+DRAIN")


def main() -> int:
    """Print a line for each case."""
    missing = [name for name in ("slurmctld", "slurmd", "scontrol") if shutil.which(name) is None]
    if missing:
        sys.exit(f"{', '.join(missing)} is missing: apt-get install slurm-wlm")
    with tempfile.TemporaryDirectory(prefix="shardwatch-slurm-") as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port()
        write(folder, port)
        for program in ("slurmctld", "slurmd"):
            command = [program, "-D", "-f", str(folder / "slurm.conf")]
            stack.enter_context(running(program, command, folder, {}))
        slurm = Slurm(folder)
        return 0 if all(list(judge(folder, slurm, port))) else 1


if __name__ == "__main__":
    sys.exit(main())
