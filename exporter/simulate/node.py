"""A simulated node for the daemon to watch: one process for each engine server, and options for the GPUs.

The daemon reads it exactly as it would read a real one: engines over HTTP, GPUs through a module with pynvml's
names in the driver's worker process, ownership through the pids of real processes.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from types import TracebackType
from typing import Any

from exporter.errors import ShardwatchError
from exporter.model import Pod
from exporter.simulate import owners
from exporter.simulate.node_spec import NodeSpec
from exporter.simulate.records import ReplicaSpec
from exporter.simulate.scenarios import SCENARIOS, find

START_SECONDS = 20.0  # for all engines together; a loaded machine imports slowly
STOP_SECONDS = 2.0
NVML_MODULE = "exporter.simulate.nvml"
NAMES = tuple(scenario.name for scenario in SCENARIOS)


class SimulatedNode:
    """Use it as a context, or call ``start`` and ``stop``.

    ``engine_urls`` holds (replica name, metrics URL); ``driver_options`` what the GPUs' module is configured with.
    ``node`` chooses the variant of a scenario whose nodes differ, and gives other GPUs; ``fault_at`` and
    ``fault_until`` move the scenario's faults, in simulated seconds after the start.  With ``gateway`` there is an
    HAProxy before the engines, whose page is at ``gateway_url``.  ``sysfs`` is a folder that shows its network
    adapters, None for a scenario without any.
    """

    def __init__(
        self,
        scenario: str = "healthy",
        *,
        seed: int = 0,
        speed: float = 1.0,
        node: int = 0,
        fault_at: float | None = None,
        fault_until: float | None = None,
        gateway: bool = False,
    ) -> None:
        self.scenario = find(scenario)
        self.node_spec = NodeSpec(
            scenario=scenario, seed=seed, node=node, speed=speed, fault_at=fault_at, fault_until=fault_until
        )
        self.engine_urls: tuple[tuple[str, str], ...] = ()
        self.gateway_url: str | None = None
        self.sysfs: str | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.pids: tuple[int, ...] = ()  # of the engine servers
        self._with_gateway = gateway
        self._engines: list[subprocess.Popen[bytes]] = []

    @property
    def driver_options(self) -> str:
        """The node specification with the pids of all ranks, as JSON; complete once ``start`` has returned."""
        return self.node_spec.dumps()

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods of the replicas."""
        return owners.pods(spec.name for spec in self.scenario.replicas)

    def cgroup(self, pid: int) -> str:
        """Return the control groups of a process on a GPU; complete once ``start`` has returned."""
        return owners.cgroups(self.node_spec.pids).get(pid) or owners.other_cgroup()

    def start(self) -> SimulatedNode:
        """Start the engines and wait until they serve; ShardwatchError when one does not within the deadline."""
        if self._engines:
            raise RuntimeError("a simulated node starts once")
        self.node_spec = replace(self.node_spec, start=time.monotonic(), started_unix=time.time())
        deadline = time.monotonic() + START_SECONDS
        try:
            for spec in self.scenario.replicas:
                self._engines.append(self._launch(spec))
            hellos = [
                self._hello(engine, spec.name, deadline)
                for engine, spec in zip(self._engines, self.scenario.replicas, strict=True)
            ]
            if self._with_gateway:
                self._engines.append(self._spawn("exporter.simulate.gateway", "--options", self.node_spec.dumps()))
                hello = self._hello(self._engines[-1], "gateway", deadline)
                self.gateway_url = f"http://127.0.0.1:{hello['port']}/metrics"
            if self.scenario.has_nics:
                self._start_sysfs(deadline)
        except BaseException:
            self.stop()
            raise
        names = [spec.name for spec in self.scenario.replicas]
        self.engine_urls = tuple(
            (name, f"http://127.0.0.1:{hello['port']}/metrics") for name, hello in zip(names, hellos, strict=True)
        )
        self.pids = tuple(engine.pid for engine in self._engines[: len(names)])
        ranks = {name: tuple(hello["ranks"]) for name, hello in zip(names, hellos, strict=True)}
        self.node_spec = replace(self.node_spec, pids=ranks)
        return self

    def stop(self) -> None:
        """Stop every process that ``start`` began, within a few seconds; may be called again."""
        for engine in self._engines:
            if engine.stdin:
                engine.stdin.close()
        deadline = time.monotonic() + STOP_SECONDS
        for engine in self._engines:
            try:
                engine.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                engine.kill()
                engine.wait()
            if engine.stdout:
                engine.stdout.close()
        self._engines.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> SimulatedNode:  # noqa: PYI034 - typing.Self is younger than the oldest Python we serve
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_sysfs(self, deadline: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shardwatch-demo-")
        options = ("--folder", self._folder.name, "--options", self.node_spec.dumps())
        self._engines.append(self._spawn("exporter.simulate.sysfs", *options))
        self._hello(self._engines[-1], "sysfs", deadline)
        self.sysfs = self._folder.name

    def _launch(self, spec: ReplicaSpec) -> subprocess.Popen[bytes]:
        options = ("--kind", spec.engine, "--replica", spec.name, "--options", self.node_spec.dumps())
        return self._spawn("exporter.simulate.engine", *options)

    @staticmethod
    def _spawn(module: str, *options: str) -> subprocess.Popen[bytes]:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.Popen(
            [sys.executable, "-m", module, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the daemon, which then ends their input
        )

    @staticmethod
    def _hello(engine: subprocess.Popen[bytes], name: str, deadline: float) -> dict[str, Any]:
        """Read the line in which an engine says where it serves."""
        assert engine.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([engine.stdout], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(engine.stdout.fileno(), 4096) if ready else b""
            if not part:
                why = "ended" if ready else f"was not ready within {START_SECONDS:g} s"
                raise ShardwatchError(f"the simulated engine {name} {why}; its own message stands above")
            line += part
        hello: dict[str, Any] = json.loads(line)
        return hello
