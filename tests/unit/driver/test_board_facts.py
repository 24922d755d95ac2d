"""What a card says of its board: the window onto its memory, its power limits, its licence, the older policy counters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from exporter.driver.nvml.fields import POLICIES
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import open_card
from exporter.driver.nvml.shared import SharedState
from exporter.model import Missing, Signal
from tests.support.fake_nvml import FakeDriver
from tests.support.nvml_reading import calls, error, make_reader, read

VGPU, WORKSTATION = 1, 2  # codes of licensable features


def licences(*features, supported=1):
    """Answer as the driver does, with room for three features of which some are filled in."""
    room = [SimpleNamespace(featureCode=code, featureState=state) for code, state in features]
    room += [SimpleNamespace(featureCode=VGPU, featureState=1)] * (3 - len(room))
    return {
        "return": SimpleNamespace(
            isGridLicenseSupported=supported, licensableFeaturesCount=len(features), gridLicensableFeatures=room
        )
    }


def test_the_window_onto_the_memory_and_the_limits_of_power_are_in_base_units():
    signals = read({}).signals
    assert (signals[Signal.BAR1_TOTAL], signals[Signal.BAR1_USED]) == (2.0**37, 2.0**22)
    assert signals[Signal.BAR1_FREE] == 2.0**37 - 2.0**22
    assert (signals[Signal.POWER_LIMIT_REQUESTED], signals[Signal.POWER_LIMIT_DEFAULT]) == (650.0, 700.0)
    assert (signals[Signal.POWER_LIMIT_MIN], signals[Signal.POWER_LIMIT_MAX]) == (200.0, 710.0)
    assert (signals[Signal.POWER], signals[Signal.POWER_INSTANT]) == (412.0, 405.0)
    assert (signals[Signal.NVLINK_CRC_FLIT], signals[Signal.NVLINK_CRC_DATA]) == (8.0, 9.0)


def test_a_pending_retirement_is_a_field_or_a_call():
    assert read({"fields": {"31": 1}}).signals[Signal.RETIRED_PAGES_PENDING] == 1.0
    asked = {**calls(RetiredPagesPendingStatus={"return": 1}), "fields": {"31": {"code": 3}}}
    assert read(asked).signals[Signal.RETIRED_PAGES_PENDING] == 1.0


@pytest.mark.parametrize(
    ("answer", "licensed"),
    [
        (licences((VGPU, 1)), 1.0),
        (licences((WORKSTATION, 0), (VGPU, 1)), 1.0),
        (licences((VGPU, 0)), 0.0),
        (licences((WORKSTATION, 1)), 0.0),
        (licences((VGPU, 1), supported=0), 0.0),
        (licences(supported=0), 0.0),
        (licences(), 0.0),
    ],
)
def test_a_gpu_is_licensed_when_its_vgpu_is(answer, licensed):
    assert read(calls(GridLicensableFeatures=answer)).signals[Signal.VGPU_LICENSED] == licensed


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (error(3), Missing.UNSUPPORTED),
        (error(999), Missing.ERROR),
        ({"return": 7}, Missing.INVALID),
        ({"return": SimpleNamespace(gridLicensableFeatures=None)}, Missing.INVALID),
    ],
)
def test_a_driver_that_does_not_say_whether_a_gpu_is_licensed_is_not_answered_for(answer, why):
    reading = read(calls(GridLicensableFeatures=answer))
    assert reading.missing[Signal.VGPU_LICENSED] is why
    assert Signal.VGPU_LICENSED not in reading.signals


def policies(fields, units=None, **plan):
    driver = FakeDriver({"fields": fields, **plan})
    asked, facts = open_card(driver, 0)
    shared = SharedState(units=dict(units or {}))
    return GpuReader(driver, asked, facts, "590.48.01", shared).read(slow=True).policy_seconds


RAW = {"75": 3_000_000_000, "77": 0, "78": 5_000_000_000, "79": {"code": 3}, "80": {"code": 3}, "81": {"code": 3}}


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ({}, {"board_limit": 0.0}),  # the rest may be anything yet
        ({"sw_power_cap": 1e-9}, {"thermal": 3.0, "board_limit": 0.0, "low_utilization": 5.0}),
        ({"hw_thermal_slowdown": 1e-6}, {"thermal": 3000.0, "board_limit": 0.0, "low_utilization": 5000.0}),
    ],
)
def test_policies_are_counted_in_the_unit_that_a_counter_of_the_driver_has_shown(units, expected):
    assert policies(RAW, units) == pytest.approx(expected)


@pytest.mark.parametrize("raw", [2**64 - 1, {"value": -1, "type": 4}, {"value": float("nan"), "type": 0}])
def test_a_policy_that_cannot_be_is_left_out(raw):
    assert policies(dict.fromkeys(map(str, range(75, 82)), raw), {"sw_power_cap": 1e-9}) == {}


def test_policies_that_a_gpu_does_not_count_are_no_missing_signal():
    reader = make_reader(FakeDriver({"fields": {str(field): {"code": 3} for field, _ in POLICIES.values()}}))
    reading = reader.read(slow=True)
    assert reading.policy_seconds == {}
    assert Signal.CLOCK_EVENT_TIME not in reading.missing


SLOW_CALLS = [
    f"nvmlDeviceGet{name}"
    for name in ("BAR1MemoryInfo", "EccMode", "SramEccErrorStatus", "RowRemapperHistogram", "EncoderStats")
]


def test_all_of_it_is_asked_with_the_slow_tier_only():
    driver = FakeDriver({})
    reader = make_reader(driver)
    reader.read(slow=True)
    asked = [driver.counts[name] for name in SLOW_CALLS]
    assert asked == [1] * len(SLOW_CALLS), "one call for all parts of an answer"
    again = reader.read(slow=False)
    assert [driver.counts[name] for name in SLOW_CALLS] == asked
    assert driver.asked_fields[75] == 2, "what reduces the clocks is counted each cycle"
    assert again.policy_seconds == dict.fromkeys(POLICIES, 0.0)
    assert again.signals[Signal.BAR1_TOTAL] == 2.0**37
