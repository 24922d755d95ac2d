"""What NVML refuses, and what stands in for it: absent and asked once, asked again, or read by an older call."""

from __future__ import annotations

import ctypes

import pytest

from exporter.model import Missing, Signal
from tests.support.fake_nvml import FakeDriver
from tests.support.nvml_reading import calls, error, make_reader, missing, read, refuse


def test_what_is_not_supported_is_absent_and_asked_once_for_each_initialisation():
    driver = FakeDriver(
        {**calls(MarginTemperature=error(3), TemperatureThreshold=error(3)), "fields": {"82": {"code": 3}}}
    )
    reader = make_reader(driver)
    for _ in range(5):
        reading = reader.read(slow=True)
    for signal in (Signal.TEMPERATURE_MEMORY, Signal.TEMPERATURE_MARGIN, Signal.TEMPERATURE_LIMIT_SHUTDOWN):
        assert reading.missing[signal] is Missing.UNSUPPORTED
        assert signal not in reading.signals
    assert driver.asked_fields[82] == 1
    assert driver.counts["nvmlDeviceGetMarginTemperature"] == 1
    assert driver.counts["nvmlDeviceGetTemperatureThreshold"] == 4  # four kinds, once each
    assert driver.counts["nvmlDeviceGetSamples"] == 2
    assert driver.counts["nvmlDeviceGetFieldValues"] == 1 + 5 * 2  # link count, then one for each tier
    make_reader(driver).read(slow=False)
    assert driver.asked_fields[82] == 2


@pytest.mark.parametrize("code", [13, 25])
def test_missing_symbols_and_struct_versions_count_as_unsupported(code):
    driver = FakeDriver(calls(PerformanceState=error(code)))
    reader = make_reader(driver)
    for _ in range(3):
        assert reader.read(slow=False).missing[Signal.PERFORMANCE_STATE] is Missing.UNSUPPORTED
    assert driver.counts["nvmlDeviceGetPerformanceState"] == 1


def test_a_binding_without_the_function_counts_as_unsupported():
    reading = read({"missing": ["nvmlDeviceGetPerformanceState", "nvmlDeviceGetMarginTemperature"]})
    assert reading.missing[Signal.PERFORMANCE_STATE] is Missing.UNSUPPORTED
    # 87 - 55: the slowdown limit stands in for the margin call.
    assert reading.signals[Signal.TEMPERATURE_MARGIN] == pytest.approx(32)


def test_a_binding_that_objects_to_its_own_constant_costs_one_signal():
    driver = FakeDriver({})

    def objects(*_):
        raise ctypes.ArgumentError("argument 2: wrong type")

    driver._nvmlDeviceGetPerformanceState = objects
    reading = make_reader(driver).read(slow=False)
    assert missing(reading) == {Signal.PERFORMANCE_STATE: Missing.UNSUPPORTED}


def test_an_argument_error_after_a_good_answer_is_a_passing_failure():
    driver = FakeDriver({})
    reader = make_reader(driver)
    reader.read(slow=False)
    driver.plan = calls(PerformanceState=error(2))
    assert reader.read(slow=False).missing[Signal.PERFORMANCE_STATE] is Missing.ERROR
    driver.plan = {}
    assert reader.read(slow=False).signals[Signal.PERFORMANCE_STATE] == 0


def test_no_permission_is_said_and_tried_again():
    driver = FakeDriver(calls(PerformanceState=error(4)))
    reader = make_reader(driver)
    assert missing(reader.read(slow=False)) == {Signal.PERFORMANCE_STATE: Missing.NO_PERMISSION}
    driver.plan = {}
    assert Signal.PERFORMANCE_STATE in reader.read(slow=False).signals


def test_one_failed_call_loses_only_its_signal_and_only_this_time():
    driver = FakeDriver(calls(EnforcedPowerLimit=error(999), CurrPcieLinkWidth={"error": 999, "every": 2}))
    reader = make_reader(driver)
    first, second = reader.read(slow=True), reader.read(slow=True)
    assert missing(first) == {Signal.POWER_LIMIT: Missing.ERROR}
    assert missing(second) == {Signal.POWER_LIMIT: Missing.ERROR, Signal.PCIE_LINK_WIDTH: Missing.ERROR}


def test_fields_that_are_refused_fall_back_to_calls():
    refused = {str(number): {"code": 3} for number in (3, 4, 5, 6, 83, 94, 142, 143, 144, 145, 185, 186, 29, 30)}
    reading = read({"fields": refused})
    expected = {
        Signal.POWER: 400, Signal.ENERGY: 8000, Signal.PCIE_REPLAYS: 9, Signal.ECC_CORRECTED_VOLATILE: 11,
        Signal.REMAPPED_ROWS_CORRECTABLE: 5, Signal.REMAPPED_ROWS_UNCORRECTABLE: 6, Signal.ROW_REMAP_PENDING: 1,
        Signal.ROW_REMAP_FAILED: 0, Signal.RETIRED_PAGES_SINGLE_BIT: 2,
    }  # fmt: skip
    for signal, value in expected.items():
        assert reading.signals[signal] == pytest.approx(value), signal


def test_instant_power_is_the_last_resort():
    plan = {**calls(PowerUsage=error(3)), "fields": {"185": {"code": 3}, "186": 390_000}}
    assert read(plan).signals[Signal.POWER] == pytest.approx(390)


def test_a_driver_without_field_values_still_gives_what_calls_give():
    reading = read(calls(FieldValues=error(13)))
    assert reading.signals[Signal.POWER] == pytest.approx(400)
    assert reading.missing[Signal.PCIE_TRANSMIT] is Missing.UNSUPPORTED
    assert reading.missing[Signal.CLOCK_EVENT_TIME] is Missing.UNSUPPORTED


def test_old_memory_call_gives_no_reserve():
    driver = FakeDriver({})
    plain = driver._nvmlDeviceGetMemoryInfo
    driver._nvmlDeviceGetMemoryInfo = lambda uuid, *version: refuse(25) if version else plain(uuid)
    reading = make_reader(driver).read(slow=False)
    assert reading.signals[Signal.MEMORY_USED] == 30 * 2**30
    assert missing(reading) == {Signal.MEMORY_RESERVED: Missing.UNSUPPORTED}


def test_old_names_of_calls_are_tried():
    driver = FakeDriver({
        "missing": ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFanSpeed_v2"],
        **calls(Temperature={"return": 44}, CurrentClocksThrottleReasons={"return": 0x21 | 0x400}, FanSpeed={"return": 105}),
    })  # fmt: skip
    reading = make_reader(driver).read(slow=False)
    assert reading.signals[Signal.TEMPERATURE_GPU] == 44
    assert reading.signals[Signal.FAN_SPEED] == pytest.approx(1.05)
    assert {reason for reason, active in reading.clock_events.items() if active} == {
        "gpu_idle",
        "sw_thermal_slowdown",
    }
