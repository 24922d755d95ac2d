"""Replicas that span nodes: two daemons, whose GPUs are held by real processes, behind one real Prometheus.

Each GPU of the one node has its counterpart on the other, down to the UUID.  Rules run at 30 times their pace.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from alerts.tuning import Tuning
from tests.support import compressed, servers
from tests.support.multi_node import CLUSTER, engines
from tests.support.nvml_node import Node, uuid
from tests.support.waiting import until

PACE = 30
pytestmark = pytest.mark.slow
VLLM = ("--nnodes", "2", "--master-addr", "10.0.0.1")
SGLANG = ("--nnodes", "2", "--dist-init-addr", "Head.example.:20000")
LWS = {"LWS_LEADER_ADDRESS": "chat-3.chat.ml", "LWS_GROUP_SIZE": "2"}
KEYS = {
    "vllm://10.0.0.1:29501": {"0", "1"},
    "sglang://head.example:20000": {"2"},
    f"ray://{CLUSTER[:16]}": {"3"},
    "lws://chat-3.chat.ml": {"4"},
}


def _hold(node, workers, *faults):
    """Let each of these processes hold a GPU, in the order of their numbers."""
    held = (f"value {uuid(n)} nvmlDeviceGetComputeRunningProcesses_v3 {pid}" for n, pid in enumerate(workers))
    node.plan(*faults, *held)


class Field:
    """Two nodes, what runs on them, and Prometheus."""

    def __init__(self, folder, library, stack):
        run = stack.enter_context(engines(folder))
        head = run.vllm(*VLLM, "--port", "0", title="VLLM::Worker_PP0_TP1")
        worker = run.vllm(*VLLM, "--node-rank=1", "--headless", title="VLLM::Worker_PP1_TP0")
        self.on_a, self.on_b = (
            [vllm.worker, vllm.worker, run.sglang(*SGLANG, "--node-rank", rank).worker, run.ray().worker,
             run.vllm(environment=LWS | {"LWS_WORKER_INDEX": rank}).worker]
            for vllm, rank in ((head, "0"), (worker, "1"))
        )  # fmt: skip
        self.a = Node(folder / "a", library, cards=5, engine=f"http://127.0.0.1:{head.port}/metrics")
        stack.callback(self.a.stop)
        self.b = Node(folder / "b", library, cards=5)
        stack.callback(self.b.stop)
        _hold(self.a, self.on_a)
        _hold(self.b, self.on_b)
        (folder / "rules.yaml").write_text(compressed.rules(Tuning(), PACE))
        self.targets = [f"127.0.0.1:{node.port}" for node in (self.a, self.b)]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [{"job_name": "gpus", "static_configs": [{"targets": self.targets}]}],
        }
        self.prometheus = stack.enter_context(servers.prometheus(config, folder=folder))

    def query(self, text):
        return self.prometheus.get("/api/v1/query", query=text)["data"]["result"]

    def alert(self, name):
        """Return the firing alert of this name, None for none."""
        known = self.prometheus.get("/api/v1/alerts")["data"]["alerts"]
        return next((a for a in known if a["labels"]["alertname"] == name and a["state"] == "firing"), None)


@pytest.fixture(scope="module")
def field(tmp_path_factory, nvml_library):
    with contextlib.ExitStack() as stack:
        yield Field(tmp_path_factory.mktemp("multi_node"), nvml_library, stack)


def _await(find):
    """Return what ``find`` finds, once that is something."""
    found = []
    until(lambda: found.append(find()) or found[-1])
    return found[-1]


def _check(field, *more):
    command = [sys.executable, "-m", "exporter", "check", *field.targets, *more]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=60, check=False)
    return done.stdout


def test_the_nodes_of_each_replica_have_one_key(field):
    def places():
        series = [found["metric"] for found in field.query("gpu_multi_node_replica_info")]
        return {
            (labels["replica_key"], labels["instance"], labels["role"], labels["gpu"], labels["replica"])
            for labels in series
        }

    a, b = field.targets
    ray, vllm = f"ray://{CLUSTER[:16]}", "vllm://10.0.0.1:29501"
    expected = {
        (
            key,
            instance,
            "head" if instance == a and key != ray else "worker",
            gpu,
            "e" if (key, instance) == (vllm, a) else key,
        )
        for key, gpus in KEYS.items()
        for gpu in gpus
        for instance in field.targets
    }
    with contextlib.suppress(AssertionError):
        until(lambda: places() == expected, 20)
    assert places() == expected
    ranks = field.query(f'gpu_multi_node_replica_info{{replica_key="{vllm}",gpu="0"}}')
    assert {(r["metric"]["pipeline_rank"], r["metric"]["tensor_rank"]) for r in ranks} == {("0", "1"), ("1", "0")}
    assert not field.query(f'shardwatch_source_up{{instance="{b}",source=~"engine:.*"}}'), "a worker is no target"


def test_a_worker_that_loses_a_gpu_is_an_alert_about_the_head_and_a_line_of_check(field):
    _await(lambda: field.query('gpu_multi_node_replica_info{replica="e"}'))
    _hold(field.b, field.on_b, f"on {uuid(1)} * code 15")
    lost = _await(lambda: field.alert("ReplicaPeerLost"))
    a, b = field.targets
    assert {name: lost["labels"][name] for name in ("instance", "replica", "severity")} == {
        "instance": a, "replica": "e", "severity": "critical",
    }  # fmt: skip
    assert f"GPU 1 on {b} is lost" in lost["annotations"]["description"]
    own = _await(lambda: field.alert("GpuLost"))
    assert (own["labels"]["instance"], own["labels"]["replica"]) == (b, "vllm://10.0.0.1:29501")
    said = _check(field)
    (line,) = (line for line in said.splitlines() if line.startswith("  e (vllm://10.0.0.1:29501): "))
    assert line.endswith(f"{a} head, GPU 0 1; {b} worker, GPU 0 1: GPU 1 lost")
    _hold(field.b, field.on_b)


def test_a_worker_that_ends_is_a_missing_node(field):
    _await(lambda: field.query('job_replica_key:gpu_multi_node_replica_nodes:count{replica_key=~"sglang.*"} == 2'))
    _await(lambda: field.alert("ReplicaNodeMissing") is None)
    _hold(field.b, [*field.on_b[:2], 999_999_999, *field.on_b[3:]])
    _await(lambda: field.alert("ReplicaNodeMissing"))
    _hold(field.b, field.on_b)
