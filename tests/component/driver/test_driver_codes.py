"""Return codes of the driver on every call that is made of it, and every number that cannot be.

tests/support/nvml_codes.py tries them one by one in a process of its own, with the real binding over the library built from
tests/support/fake_nvml.c; here is asked what came of it.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.nvml_codes import CODES, NAMED
from tests.support.nvml_node import build
from tests.support.tools import tool

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codes")
    library = build(tool("cc"), folder / "lib")
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML_CONTROL": str(folder / "control"),
        "FAKE_NVML_COUNTS": str(folder / "counts"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.support.nvml_codes", str(folder / "control")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_named_code_was_put_on_every_call_and_every_other_on_some(tried):
    functions = set(tried["functions"])
    assert tried["pairs"] == (len(NAMED) + 1) * len(functions) > 700
    assert set(tried["codes"]) == set(CODES)
    assert {"nvmlDeviceGetFieldValues", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlGpmSampleGet", "nvmlInitWithFlags",
            "nvmlDeviceGetP2PStatus", "nvmlEventSetWait_v2", "nvmlDeviceGetSamples", "nvmlGpmMetricsGet"} <= functions  # fmt: skip


def test_no_code_affects_another_gpu_or_more_than_its_signals_and_each_absence_has_a_reason(tried):
    assert tried["wrongs"] == 0, "\n".join(tried["wrong"])


def test_each_class_of_codes_had_its_outcome(tried):
    outcomes = tried["outcomes"]
    for reason in ("lost", "reset_required", "uninitialized", "driver", "library", "mismatch", "read", "not opened",
                   "no topology", "driver mismatch", "initialised", "heard", "deaf"):  # fmt: skip
        assert outcomes.get(reason, 0) > 0, reason
