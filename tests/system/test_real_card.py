"""The command for owners of a card, run whole against the library that stands for a driver (tests/nvml).

Beside it stands an nvidia-smi that tells the same cards, or one figure otherwise; the runs go side by side.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import queue
import re
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.bench.real_card import recording, smi
from tests.bench.real_card.disguise import Disguise
from tests.support import nvml_replay
from tests.support.nvml_node import build
from tests.support.tools import tool

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
UUIDS = tuple(f"GPU-5ec2e7aa-1111-2222-3333-44444444444{number}" for number in range(2))
INSTANCE = "MIG-5ec2e7aa-9999-8888-7777-666666666660"
PID = 424242
PAGES = ("page.prom", "page.full.prom", "dcgm-legacy.prom", "dcgm-4.9.prom")
MADE_UP = "GPU-00000000-0000-0000-0000-00000000000"

NVIDIA_SMI = r"""#!{python}
import json, sys, time
told = json.load(open({told!r}))
if sys.argv[1] == "topo":
    print("\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\x1b[0m\nGPU0\t X \tNV18\t0-3\t0\nGPU1\tNV18\t X \t0-3\t0\n\nLegend:")
elif sys.argv[1] == "dmon":
    print("# gpu    sm   mem  smutil  smocc  mmaact  drama\n# Idx     %     %   GPM:%   GPM:%  GPM:%  GPM:%")
    print("    0    50    20       -       -      -      -\n    1    51    20       -       -      -      -")
    print("    0    50    20       2       3      5     10\n    1    51    20       2       3      5     10")
else:
    fields = sys.argv[1].partition("=")[2].split(",")
    for field in fields:
        if field not in told[0]:
            print(f'Field "{{field}}" is not a valid field to query.')
            sys.exit(2)
    for card in told:
        print(", ".join(str(int(time.monotonic() * 1e6)) if card[f] == "running" else card[f] for f in fields))
"""


def card(number):
    """Return what nvidia-smi says of a card of the library; "running" is a counter that runs with the clock."""
    mib = {name: f"{size / 2**20:.0f}" for name, size in
           {"total": 141e9, "reserved": 1e9, "used": (30 + number) * 1e9, "free": (110 - number) * 1e9}.items()}  # fmt: skip
    clocks = {"gr": "1000", "sm": "1100", "mem": "1200", "video": "1300"}
    ecc = {("corrected", "volatile"): 3, ("uncorrected", "volatile"): 4}
    ecc |= {("corrected", "aggregate"): 5, ("uncorrected", "aggregate"): 6}
    times = {"sw_power_cap": "running", "sw_thermal_slowdown": "running"}
    times |= dict.fromkeys(("sync_boost", "hw_thermal_slowdown", "hw_power_brake_slowdown"), "0")
    return (
        {"uuid": UUIDS[number], "name": "Fake H200", "pci.bus_id": f"00000000:{number:02X}:00.0"}
        | {"serial": f"165{number:010d}", "vbios_version": "96.00.BC.00.01", "driver_version": "590.48.01"}
        | {f"memory.{name}": size for name, size in mib.items()}
        | {"temperature.gpu": str(40 + number), "temperature.memory": str(60 + number), "fan.speed": "[N/A]"}
        | {"power.draw.average": f"{300 + number}.00", "power.draw": "1", "enforced.power.limit": "700.00"}
        | {f"clocks.{name}": clock for name, clock in clocks.items()}
        | {f"clocks.max.{name}": str(int(clock) + 1000) for name, clock in clocks.items()}
        | {"pcie.link.gen.current": "5", "pcie.link.gen.max": "5"}
        | {"pcie.link.width.current": "16", "pcie.link.width.max": "16", "pstate": "P0", "fabric.state": "Completed"}
        | {f"ecc.errors.{error}.{scope}.total": str(count) for (error, scope), count in ecc.items()}
        | {"clocks_event_reasons.active": "0x0000000000000024"}
        | {f"clocks_event_reasons_counters.{reason}": time for reason, time in times.items()}
    )


TORCH = """
from types import SimpleNamespace
import time
class Matrix:
    def __matmul__(self, other): time.sleep(0.01)
    def to(self, card, non_blocking): time.sleep(0.01)
cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, synchronize=lambda card: None)
device = lambda kind, number: number
rand = lambda *size, device, dtype: Matrix()
empty = lambda size, dtype, pin_memory: Matrix()
float16 = uint8 = None
"""


@dataclass
class Outcome:
    """One run of the command."""

    code: int
    said: str
    folder: pathlib.Path

    def read(self, name):
        return (self.folder / name).read_text()

    def calls(self):
        return json.loads(self.read("calls.json"))

    def section(self, title):
        return self.read("report.md").partition(f"## {title}\n")[2].partition("\n## ")[0]


class Lab:
    """Makes runs in folders of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.library = build(tool("cc"), folder / "lib")

    def run(self, name, *arguments, told=None, plan=(), driver=True, torch=False):
        folder = self.folder / name
        folder.mkdir()
        control = [f"cards {' '.join(UUIDS)}", f"value * nvmlDeviceGetComputeRunningProcesses_v3 {PID}", *plan]
        (folder / "control").write_text("\n".join(control) + "\n")
        programs, packages = folder / "bin", folder / "packages"
        programs.mkdir()
        packages.mkdir()
        if told is not None:
            (folder / "told").write_text(json.dumps(told))
            program = programs / "nvidia-smi"
            program.write_text(NVIDIA_SMI.format(python=sys.executable, told=str(folder / "told")))
            program.chmod(0o755)
        if torch:
            (packages / "torch.py").write_text(TORCH)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SHARDWATCH_")} | {
            "PATH": f"{programs}:/nowhere",  # a real nvidia-smi would speak of other cards
            "PYTHONPATH": str(packages),
            "LD_LIBRARY_PATH": str(self.library if driver else folder),
            "FAKE_NVML_CONTROL": str(folder / "control"),
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [sys.executable, "-m", "tests.bench.real_card", "--output", str(folder / "out"), *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
        return Outcome(done.returncode, done.stdout + done.stderr, folder / "out")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("real_card"))


@pytest.fixture(scope="module")
def runs(lab):
    """Yield what became of a run by its name; all begin together."""
    other = [card(0), card(1) | {"temperature.gpu": "47"}]
    divided = ["value " + UUIDS[0] + " nvmlDeviceGetMigMode 1", f"mig {UUIDS[0]} 0 1 0 1g.18gb {INSTANCE}"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = {
            "agrees": pool.submit(lab.run, "agrees", "--seconds", "3", "--load", told=[card(0), card(1)]),
            "differs": pool.submit(lab.run, "differs", "--seconds", "1", told=other, plan=["unit 1000000"]),
            "lost": pool.submit(
                lab.run, "lost", "--seconds", "1", plan=[f"on {UUIDS[1]} nvmlDeviceGetMemoryInfo_v2 code 15"]
            ),
            "divided": pool.submit(lab.run, "divided", "--seconds", "1", "--load", plan=divided, torch=True),
        }
        yield lambda name: futures[name].result()


def test_a_gpu_that_agrees_with_nvidia_smi_is_a_success(runs):
    run = runs("agrees")
    assert run.code == 0, run.said + run.read("report.md")
    assert "Everything that was compared agrees" in run.read("report.md")
    compared = run.section("Against nvidia-smi")
    for title in ("gpu_memory_used_bytes", "gpu_power_watts", "gpu_pcie_link_generation", "gpu_performance_state",
                  'gpu_clock_hertz{domain="sm"}', 'gpu_clock_event_seconds_total{reason="sw_power_cap"}',
                  "gpu_driver_info driver_version", "uuid", 'gpu_ecc_errors_total{error="corrected",scope="volatile"}'):  # fmt: skip
        assert f"| 1 | {title} |" in compared
    assert "**differs**" not in run.read("report.md")
    assert "| 0 and 1 | NV18 | NV18 | agrees |" in run.section("Paths")
    assert run.section("Work, against nvidia-smi dmon").count("agrees") == 8


def test_one_figure_that_differs_from_nvidia_smi_is_named_with_its_tolerance(runs):
    run = runs("differs")
    assert run.code == 1
    report = run.read("report.md")
    assert "**1 difference.**" in report
    line = 'card 1: gpu_temperature_celsius{sensor="gpu"} is 41 here, 47 in nvidia-smi (tolerance: ±2)'
    assert line in report and line in run.said
    assert report.count("**differs**") == 1


def test_the_report_has_the_cost_of_calls_groups_cycles_and_processes(runs):
    run = runs("agrees")
    assert "| card | nvmlDeviceGetClockInfo | 1 |" in run.section("What each call costs")
    assert "| batched fields |" in run.section("What the calls cost, by group")
    for number in range(2):
        assert f"| {number} | slow batch alone |" in run.section("What a cycle costs")
    assert "| worker | " in run.section("The daemon")
    assert run.section("Absent").count("| fan_speed | unsupported | nvmlDeviceGetNumFans: 0 |") == 2
    assert "code 3: " in run.section("Absent")


def test_the_report_shows_the_disputed_counters_raw_beside_nvidia_smis(runs):
    rows = [line.split(" | ") for line in runs("agrees").section("Time that clocks were held down").splitlines()]
    by_field = {row[1]: row for row in rows if row[0] == "| 0"}
    assert by_field["74"][3] == "read" and by_field["269"][3] == "read" and by_field["251"][3] == "not read"
    assert 0.9e9 < float(by_field["74"][5]) < 1.1e9  # steps a second: nanoseconds
    assert 900 < float(by_field["269"][7].strip(" |")) < 1100
    assert by_field["253"][4] == "code 3"


def test_a_driver_that_counts_in_microseconds_is_seen_to(runs):
    run = runs("differs")
    rows = [line.split(" | ") for line in run.section("Time that clocks were held down").splitlines()]
    steps = [float(row[7].strip(" |")) for row in rows if len(row) > 7 and row[1] in {"74", "269"}]
    assert len(steps) == 4 and all(0.9 < step < 1.1 for step in steps)
    assert 'gpu_clock_event_seconds_total{reason="sw_power_cap"}' in run.section("Against nvidia-smi")


def test_load_without_torch_and_cupy_is_said_and_no_failure(runs):
    run = runs("agrees")
    assert run.code == 0 and "No work was put on the cards" in run.read("report.md")


def test_work_that_the_gpu_does_not_show_is_a_difference(runs):
    run = runs("divided")
    assert run.code == 1
    assert "card 1 multiplied matrices, and gpu_sm_active_ratio was 0.020 at most" in run.said
    assert "| 1 | gpu_power_watts | 301 | 301 |" in run.section("Under load")
    assert "Not compared with nvidia-smi: nvidia-smi is not installed" in run.read("report.md")


def test_an_instance_of_a_mig_enabled_gpu_is_measured_and_named(runs):
    run = runs("divided")
    asked = {(call["card"], call["call"]) for call in run.calls()["calls"]}
    assert {("0:0", "nvmlDeviceGetMemoryInfo"), ("0", "nvmlGpmMigSampleGet"), ("0:gi1", "nvmlGpmMetricsGet")} <= asked
    assert "| instance | nvmlDeviceGetUUID |" in run.section("What each call costs")
    assert "| 0 | utilization | mig |" in run.section("Absent")
    assert 'gpu="0:0"' in run.read("page.prom")


def test_a_lost_gpu_is_a_difference_and_the_others_are_measured(runs):
    run = runs("lost")
    assert run.code == 1
    assert "card 1 is gone: lost: the driver answered 15" in run.said and "gpu_up of card 1 is 0" in run.said
    assert "| 0 | slow batch alone |" in run.section("What a cycle costs")
    assert "nvmlDeviceGetMemoryInfo | 33554472 |" in run.section("What each call costs") and "15" in run.said
    assert MADE_UP + "0" in run.read("page.prom")


@pytest.mark.parametrize("name", ["agrees", "divided"])
def test_nothing_that_is_written_names_gpus_processes_host_or_person(runs, name):
    run = runs(name)
    assert sorted(path.name for path in run.folder.iterdir()) == sorted([*PAGES, "calls.json", "report.md"])
    host = socket.gethostname()
    secrets = [
        *UUIDS,
        INSTANCE,
        "5ec2e7aa",
        *(card(number)["serial"] for number in range(2)),
        f'"pid": {PID}',
        f'"{host}"',
    ]
    for path in run.folder.iterdir():
        text = path.read_text()
        for secret in secrets:
            assert secret not in text, (path.name, secret)
    again = Disguise()
    assert again.text(UUIDS[0]) == again.text(again.text(UUIDS[0]))
    for page in PAGES:
        assert MADE_UP + "0" in run.read(page) and MADE_UP + "1" in run.read(page)
    assert 'serial="1000000000001"' in run.read("page.full.prom")


@pytest.mark.parametrize("page", PAGES)
def test_every_captured_page_parses_and_shows_both_gpus(runs, page):
    families = list(text_string_to_metric_families(runs("agrees").read(page)))
    shown = {sample.labels.get("gpu") for family in families for sample in family.samples}
    assert {"0", "1"} <= shown


def test_the_two_captured_pages_are_of_the_two_sets_of_series(runs):
    small, full = ({line.split()[2] for line in runs("agrees").read(page).splitlines() if line.startswith("# TYPE")}
                   for page in ("page.prom", "page.full.prom"))  # fmt: skip
    assert small < full and "gpu_memory_used_bytes" in small


def test_every_call_is_written_down_with_code_time_and_answer(runs):
    calls = runs("agrees").calls()
    assert calls["driver"]["version"] == "590.48.01" and calls["cards"] == ["Fake H200"] * 2
    calls_by_key = {(call["card"], call["call"], str(call["arguments"])): call for call in calls["calls"]}
    clock = calls_by_key["1", "nvmlDeviceGetClockInfo", "[1]"]
    assert clock["answer"] == 1100 and set(clock["codes"]) == {"0"} and clock["microseconds"]["median"] > 0
    assert calls_by_key["1", "nvmlDeviceGetUUID", "[]"]["answer"] == MADE_UP + "1"
    running = calls_by_key["0", "nvmlDeviceGetComputeRunningProcesses", "[]"]["answer"]
    assert [process["pid"] for process in running] == [1001]
    fields = [row for call in calls["calls"] if call["call"] == "nvmlDeviceGetFieldValues" for row in call["answer"]]
    assert [82, 0, 0, 1, 60] in fields and [206, 0, 3] in [row[:3] for row in fields]  # temperature; refused
    assert [10, 0, 10.0] in calls_by_key["0", "nvmlGpmMetricsGet", "[]"]["answer"]


# What the daemon knows from elsewhere than calls, or only after it has watched for a while.
BESIDE = {
    *("gpu_xid_events_total", "gpu_data_age_seconds", "gpu_idle_seconds_total"),
    *("gpu_owner_info", "gpu_owner_memory_bytes", "gpu_orphan_processes", "gpu_mps_active"),  # from /proc
}
LATER = {
    "gpu_clock_event_seconds_total",
    "gpu_signal_missing_info",
    "gpu_pcie_link_degraded",
    "gpu_pipe_active_ratio",
}
COUNTS_ON = re.compile(r"_(?:joules|bytes)_total$")


@pytest.mark.parametrize("name", ["agrees", "divided"])
def test_what_was_written_down_replays_through_the_daemons_reading_to_the_same_page(runs, name):
    captured, replayed = (
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "uuid" in sample.labels and sample.name not in BESIDE | LATER
        }
        for text in (runs(name).read("page.full.prom"), nvml_replay.page(runs(name).calls()))
    )
    assert captured.keys() == replayed.keys()
    different = {key for key in captured if captured[key] != replayed[key] and not COUNTS_ON.search(key[0])}
    assert not different and len(captured) > 150


def test_each_capture_of_a_real_gpu_gives_the_same_page_as_ever(golden):
    captures = {path.parent.name: path for path in (ROOT / "tests/captures/nvml").glob("*/calls.json")}
    for name, path in captures.items():
        golden(f"nvml/{name}.prom", nvml_replay.page(json.loads(path.read_text())))
    assert {path.stem for path in (ROOT / "tests/golden/nvml").glob("*.prom")} == captures.keys()


def test_without_a_driver_it_says_what_to_do_and_writes_nothing(lab):
    run = lab.run("nothing", driver=False)
    assert run.code == 2
    assert "no driver" in run.said and "Is NVIDIA's driver installed?" in run.said and "Traceback" not in run.said
    assert not run.folder.exists()


def test_no_gpu_is_distinguished_from_no_driver_and_ends_alike(lab):
    run = lab.run("empty", plan=["value * nvmlDeviceGetCount_v2 0"])
    assert run.code == 2 and "counts no card" in run.said


def test_a_call_that_does_not_return_is_named(monkeypatch):
    monkeypatch.setattr(recording, "PATIENCE", 0.5)
    begun, let_go, results = threading.Event(), threading.Event(), queue.Queue()
    driver = SimpleNamespace(nvmlInit=lambda: (begun.set(), let_go.wait(20)))
    recorder = recording.Recorder(driver)
    over = recording.watch(recorder, lambda call, seconds: results.put((call, seconds)))
    assert recorder.stuck() is None
    caller = threading.Thread(target=recorder.nvmlInit)
    caller.start()
    try:
        assert begun.wait(20)
        call, seconds = results.get(timeout=20)
    finally:
        let_go.set()
        over.set()
        caller.join()
    assert call == "nvmlInit" and seconds > 0.5 and recorder.stuck() is None


def test_a_made_up_name_is_the_same_everywhere_and_never_that_of_another():
    disguise = Disguise()
    disguise.meet(UUIDS[1], "1650000000001")
    disguise.meet(UUIDS[0], "1650000000000")
    text = disguise.text(f'{UUIDS[0]} {UUIDS[1]} {UUIDS[0]} MIG-{UUIDS[1]}/3/0 {INSTANCE} serial="1650000000001"')
    first, second, again, old, instance, serial = text.split()
    assert (first, second, again) == (MADE_UP + "1", MADE_UP + "0", first)
    assert old == f"MIG-{second}/3/0" and instance.startswith("MIG-00000000") and serial == 'serial="1000000000000"'
    tree = {"pid": 7, "processes": [{"pid": 9}, {"pid": 7}], "clusterUuid": [1, 2], "at": (UUIDS[0], 7)}
    assert disguise.tree(tree) == {
        "pid": 1001, "processes": [{"pid": 1002}, {"pid": 1001}], "clusterUuid": None, "at": [first, 7],
    }  # fmt: skip


def test_dcgmi_is_asked_where_nvidia_smi_has_no_work_signals(tmp_path, monkeypatch):
    rows = "#Entity   SMACT  SMOCC  TENSO  DRAMA\nID\nGPU 0     N/A    N/A    N/A    N/A\nGPU 0     0.125  0.500  N/A  0.031"
    for name, text in (("nvidia-smi", "echo refused; exit 3"), ("dcgmi", f"cat <<'E'\n{rows}\nE")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert smi.work() == (
        "dcgmi dmon",
        {0: {"gpu_sm_active_ratio": 0.125, "gpu_sm_occupancy_ratio": 0.5, "gpu_dram_active_ratio": 0.031}},
    )
