"""What the next worker leaves out after a crash, from the last words of the one that died."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from exporter.driver.calls import is_disabled
from exporter.driver.daemon.crashes import FIRST, LAST, MAX_CALLS, Crashes, CrashingCall, crashing_call
from exporter.driver.nvml.errors import DeviceCalls, DeviceUnavailable
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import open_card
from exporter.model import CardFacts, Missing, Signal
from tests.support.fake_nvml import FakeDriver


def words(*functions, card=0):
    """Return what the fault handler writes; innermost function first, and no card for another thread."""
    thread = [] if card is None else [f"gpu_{card}"]
    frames = [f'  File "/x/some.py", line 7 in {name}' for name in (*functions, "call", *thread, "run")]
    return "\n".join(["Fatal Python error: Aborted", "", "Stack (most recent call first):", *frames, ""])


def crashes(uuid="", index=0):
    known = Crashes()
    known.on_initialising()
    if uuid:
        known.on_found(CardFacts(index=index, uuid=uuid))
    return known


def test_a_real_fault_handler_names_the_gpus_thread_and_the_outermost_function_of_the_binding():
    script = textwrap.dedent("""
        import os
        from types import SimpleNamespace
        from exporter.driver.worker import main
        from exporter.driver.worker.gpu_thread import GpuThread
        from exporter.driver.nvml.shared import SharedState
        main._take_pipes()
        def nvmlInner(): os.abort()
        def nvmlDeviceGetHandleByIndex(index): nvmlInner()
        driver = SimpleNamespace(nvmlDeviceGetHandleByIndex=nvmlDeviceGetHandleByIndex)
        thread = GpuThread(driver, 3, "590", sender=None, on_driver_unavailable=None, shared=SharedState())
        thread.start()
        thread.join()
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.PIPE
    )
    assert crashing_call(done.stderr) == CrashingCall(3, "nvmlDeviceGetHandleByIndex")


@pytest.mark.parametrize(
    "crash_trace",
    ["", "Killed", words(), words("call", "ask"), "\0" * 70000],
)
def test_without_a_function_no_gpu_is_blamed(crash_trace):
    known = crashes("GPU-a")
    assert known.on_death(crash_trace, 100.0) == "" and known.remaining(100.0) == {}


def test_that_call_to_the_gpu_of_the_thread_backs_off_longer_each_time():
    known = crashes("GPU-a")
    assert known.on_death(words("nvmlDeviceGetTemperatureV", "call", "ask"), 100.0) == "nvmlDeviceGetTemperatureV"
    assert known.remaining(100.0) == {"GPU-a/nvmlDeviceGetTemperatureV": FIRST}
    now, lengths = 100.0, []
    for _ in range(12):
        now += known.remaining(now)["GPU-a/nvmlDeviceGetTemperatureV"] + 1.0
        assert known.remaining(now) == {}
        known.on_death(words("nvmlDeviceGetTemperatureV"), now)
        lengths.append(known.remaining(now)["GPU-a/nvmlDeviceGetTemperatureV"])
    assert lengths[:2] == [2 * FIRST, 4 * FIRST] and lengths[-1] == LAST


def test_profiling_is_left_out_as_a_whole():
    known = crashes("GPU-a")
    known.on_death(words("nvmlGpmMetricsGet"), 100.0)
    assert known.remaining(100.0).keys() == {"GPU-a/nvmlGpm"}
    disabled = {"nvmlGpm": 1e12}
    assert is_disabled("nvmlGpmSampleGet", disabled) and not is_disabled("nvmlDeviceGetName", disabled)


def test_a_gpu_that_crashes_in_more_and_more_calls_is_left_alone_as_a_whole():
    known = crashes("GPU-a")
    for number in range(MAX_CALLS + 1):
        known.on_death(words(f"nvmlCall{number}"), 100.0)
    assert "GPU-a/" in known.remaining(100.0) and len(known.remaining(100.0)) == MAX_CALLS + 1
    other = crashes("GPU-b")
    other.on_death(words("nvmlCall0"), 100.0)
    assert other.remaining(100.0).keys() == {"GPU-b/nvmlCall0"}


def test_a_gpu_without_a_name_is_blamed_by_its_index_and_another_thread_for_all_gpus():
    known = crashes(index=3)
    known.on_death(words("nvmlDeviceGetHandleByIndex", card=3), 100.0)
    known.on_death(words("nvmlEventSetWait_v2", card=None), 100.0)
    assert known.remaining(100.0).keys() == {"#3/nvmlDeviceGetHandleByIndex", "/nvmlEventSetWait_v2"}


def test_a_gpu_that_is_opened_again_is_blamed_by_its_index_too():
    known = crashes("GPU-a", index=3)
    known.on_death(words("nvmlDeviceGetHandleByIndex", card=3), 100.0)
    assert known.remaining(100.0).keys() == {"#3/nvmlDeviceGetHandleByIndex"}


def test_what_a_worker_cannot_be_without_is_never_left_out():
    known = crashes("GPU-a")
    for function in ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlSystemGetDriverVersion"):
        assert known.on_death(words(function, card=None), 100.0) == function
    assert known.remaining(100.0) == {}


def test_after_an_initialisation_any_gpu_may_stand_at_an_index():
    known = crashes("GPU-a")
    known.on_initialising()
    known.on_death(words("nvmlX"), 100.0)
    assert known.remaining(100.0).keys() == {"#0/nvmlX"}


def test_what_is_left_out_is_not_read_until_its_time_is_over():
    driver = FakeDriver({})
    calls = DeviceCalls(driver, "GPU-a", {"nvmlDeviceGetPowerUsage": 1e12, "nvmlDeviceGetSerial": 1.0})
    assert calls.call("nvmlDeviceGetPowerUsage") is Missing.CRASHED and driver.counts["nvmlDeviceGetPowerUsage"] == 0
    assert calls.call("nvmlDeviceGetSerial") == "1234"


def test_where_one_way_to_a_number_crashes_another_is_taken():
    driver = FakeDriver({"calls": {"nvmlDeviceGetTemperature": {"return": 44}}})
    calls, facts = open_card(
        driver, 0, {"GPU-a": dict.fromkeys(["nvmlDeviceGetTemperatureV", "nvmlDeviceGetFieldValues"], 1e12)}
    )
    reading = GpuReader(driver, calls, facts, "590.48.01").read(slow=False)
    assert reading.signals[Signal.TEMPERATURE_GPU] == 44 and reading.signals[Signal.POWER] == 400
    assert reading.missing[Signal.RECOVERY_ACTION] is Missing.CRASHED
    assert driver.counts["nvmlDeviceGetTemperatureV"] == driver.counts["nvmlDeviceGetFieldValues"] == 0


def test_a_gpu_is_not_opened_where_that_crashes_and_nothing_is_asked_of_one_left_alone():
    driver = FakeDriver({})
    for disabled in (
        {"#1": {"nvmlDeviceGetHandleByIndex": 1e12}},
        {"GPU-b": {"": 1e12}},
        {"#1": {"nvmlDeviceGetUUID": 1e12}},
    ):
        with pytest.raises(DeviceUnavailable) as caught:
            open_card(driver, 1, disabled)
        assert caught.value.reason == "crashed"
        open_card(driver, 0, disabled)
    calls, _ = open_card(driver, 1, {"GPU-b": {"nvmlDeviceGetName": 1e12}})
    assert calls.call("nvmlDeviceGetName") is Missing.CRASHED
