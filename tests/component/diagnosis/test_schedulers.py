"""What schedulers are told: the scripts for Slurm and the node-problem-detector, with programs that stand in."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

import kubernetes_validate
import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[3]
HEALTH = ROOT / "compose" / "health"
CRITICAL = """CRITICAL  http://127.0.0.1:9853  7/8 GPUs
  verdict drain: GPU 6 is lost (gpu_lost)
  CRITICAL chat-b makes no progress: 24 running
      do: x"""


@pytest.fixture
def run(tmp_path):
    """Run a script with a check that ends with a code, on a node with a reason; return (done, what scontrol was asked)."""

    def program(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def started(script, code, reason=""):
        program(
            "shardwatch",
            f"cat <<'END'\n{CRITICAL if code == 2 else 'OK  node'}\nEND\necho \"$@\" > {tmp_path}/checked; exit {code}",
        )
        shown = f"echo 'NodeName=n1 Arch=x86_64'; echo '   Reason={reason} [root@2026-11-22T10:00:00]'"
        program(
            "scontrol", f'if [ "$1" = show ]; then {shown if reason else ":"}; else echo "$@" >> {tmp_path}/asked; fi'
        )
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1"}
        done = subprocess.run([HEALTH / script], env=environment, capture_output=True, text=True, timeout=60)
        asked = tmp_path / "asked"
        return done, asked.read_text().splitlines() if asked.exists() else []

    return started


def test_slurm_drains_a_node_by_its_verdict_with_the_verdict_as_reason(run):
    assert run("slurm-health-check", 2)[1] == [
        "update NodeName=n1 State=DRAIN Reason=shardwatch: GPU 6 is lost (gpu_lost)"
    ]


@pytest.mark.parametrize("script", ["slurm-health-check", "node-problem-detector-plugin"])
def test_engines_alone_drain_no_node(run, tmp_path, script):
    """The verdict of the node decides, which no engine's finding changes; see the tests of check."""
    run(script, 0)
    assert "--fail-on verdict" in (tmp_path / "checked").read_text()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (2, "shardwatch: GPU 6 is lost"),
        (0, ""),
        (0, "disk is full"),
        (1, ""),
        (3, ""),
        (3, "shardwatch: GPU 6 is lost"),
    ],
)
def test_slurm_leaves_a_node_that_is_drained_already_or_by_another_user_or_not_known(run, code, reason):
    assert run("slurm-health-check", code, reason)[1] == []


def test_slurm_resumes_the_node_that_shardwatch_drained(run):
    assert run("slurm-health-check", 0, "shardwatch: GPU 6 is lost")[1] == ["update NodeName=n1 State=RESUME"]


@pytest.mark.parametrize(
    ("code", "ends", "says"),
    [
        (0, 0, "the GPUs can take work"),
        (2, 1, "GPU 6 is lost (gpu_lost)"),
        (1, 2, "not known"),
        (3, 2, "not known"),
    ],
)
def test_the_node_problem_detector_has_exit_codes_of_its_own(run, code, ends, says):
    done, _ = run("node-problem-detector-plugin", code)
    assert (done.returncode, done.stdout.strip()) == (ends, says)


def test_the_node_problem_detectors_configuration_names_a_condition_and_the_script():
    """The keys are those of its custom plugin monitor; a condition that no rule names would stay for ever."""
    config = json.loads((HEALTH / "node-problem-detector.json").read_text())
    assert config.keys() == {"plugin", "pluginConfig", "source", "metricsReporting", "conditions", "rules"}
    assert {rule["condition"] for rule in config["rules"]} == {
        condition["type"] for condition in config["conditions"]
    }
    for rule in config["rules"]:
        assert (HEALTH / pathlib.Path(rule["path"]).name).is_file()
        assert rule["type"] == "permanent"


def test_the_probe_of_the_documentation_fits_kubernetes_schema_and_fails_on_503_only(tmp_path):
    (block,) = re.findall(
        r"```yaml\n(readinessProbe:.*?)```", (ROOT / "docs" / "diagnosis.md").read_text(), re.DOTALL
    )
    probe = yaml.safe_load(block)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-a"}}
    kubernetes_validate.validate(
        {**pod, "spec": {"containers": [{"name": "vllm", "image": "vllm", **probe}]}}, "1.37", strict=True
    )
    command = probe["readinessProbe"]["exec"]["command"]
    for status, fails in (("200", False), ("503", True), ("000", False), ("404", False)):
        (tmp_path / "curl").write_text(f"#!/bin/sh\nprintf {status}\n")
        (tmp_path / "curl").chmod(0o755)
        done = subprocess.run(command, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, timeout=60)
        assert (done.returncode != 0) is fails, status
