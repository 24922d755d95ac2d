"""Signals of a GPU that an independent NVML implementation has and few exporters read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from exporter.model import Missing, Signal
from tests.support.fake_nvml import FakeDriver
from tests.support.nvml_reading import calls, error, make_reader, read

SRAM = {
    Signal.SRAM_CORRECTED_VOLATILE, Signal.SRAM_UNCORRECTED_VOLATILE, Signal.SRAM_CORRECTED_AGGREGATE,
    Signal.SRAM_UNCORRECTED_AGGREGATE, Signal.SRAM_THRESHOLD_EXCEEDED,
}  # fmt: skip
ECC = {
    Signal.ECC_CORRECTED_VOLATILE, Signal.ECC_UNCORRECTED_VOLATILE, Signal.ECC_CORRECTED_AGGREGATE,
    Signal.ECC_UNCORRECTED_AGGREGATE,
}  # fmt: skip
NO_PCIE_BYTES = {"197": {"code": 3}, "198": {"code": 3}}


# ---- ECC


def test_errors_of_sram_are_summed_over_their_kinds_and_say_when_they_are_too_many():
    counted = {
        "volatileCor": 1, "volatileUncParity": 2, "volatileUncSecDed": 3, "aggregateCor": 10,
        "aggregateUncParity": 20, "aggregateUncSecDed": 30, "bThresholdExceeded": 1,
    }  # fmt: skip
    signals = read({"sram": counted}).signals
    assert signals[Signal.SRAM_CORRECTED_VOLATILE] == 1.0
    assert signals[Signal.SRAM_UNCORRECTED_VOLATILE] == 5.0
    assert signals[Signal.SRAM_CORRECTED_AGGREGATE] == 10.0
    assert signals[Signal.SRAM_UNCORRECTED_AGGREGATE] == 50.0
    assert signals[Signal.SRAM_THRESHOLD_EXCEEDED] == 1.0


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (calls(SramEccErrorStatus=error(3)), Missing.UNSUPPORTED),
        (calls(SramEccErrorStatus=error(999)), Missing.ERROR),
        ({"missing": ["c_nvmlEccSramErrorStatus_v1_t"]}, Missing.UNSUPPORTED),
    ],
)
def test_a_driver_that_does_not_tell_errors_of_sram_says_why(plan, why):
    reading = read(plan)
    assert {reading.missing.get(signal) for signal in SRAM} == {why}


def test_an_impossible_answer_about_sram_is_invalid():
    reading = read({"sram": {"bThresholdExceeded": 7, "aggregateUncParity": 2**64 - 1}})
    assert reading.missing[Signal.SRAM_THRESHOLD_EXCEEDED] is Missing.INVALID
    assert reading.missing[Signal.SRAM_UNCORRECTED_AGGREGATE] is Missing.INVALID
    assert reading.signals[Signal.SRAM_CORRECTED_VOLATILE] == 0.0


def test_ecc_that_is_off_is_not_a_gpu_without_errors():
    reading = read(calls(EccMode={"return": [0, 1]}))
    assert (reading.signals[Signal.ECC_MODE], reading.signals[Signal.ECC_MODE_PENDING]) == (0.0, 1.0)
    volatile = {Signal.ECC_CORRECTED_VOLATILE, Signal.ECC_UNCORRECTED_VOLATILE}
    assert {reading.missing.get(signal) for signal in volatile} == {Missing.DISABLED}
    assert reading.signals[Signal.ECC_CORRECTED_AGGREGATE] == 7.0, "what was counted while it was on"


def test_counters_that_the_driver_refuses_while_ecc_is_off_are_disabled_not_unsupported():
    plan = calls(EccMode={"return": [0, 0]}, TotalEccErrors=error(3), SramEccErrorStatus=error(3))
    reading = read({**plan, "fields": {str(number): {"code": 3} for number in (3, 4, 5, 6)}})
    assert {reading.missing.get(signal) for signal in ECC | SRAM} == {Missing.DISABLED}


def test_ecc_that_is_on_or_unknown_changes_nothing():
    for mode in ({"return": [1, 0]}, error(3), error(999)):
        assert read(calls(EccMode=mode)).signals.keys() >= ECC


# ---- PCIe before Hopper


def test_gpus_that_count_no_pcie_bytes_are_asked_for_their_throughput():
    reading = read({"fields": NO_PCIE_BYTES})
    assert reading.traffic == {("pcie", "transmit"): 4e6, ("pcie", "receive"): 9e6}


def test_the_throughput_blocks_and_is_asked_with_the_slow_tier_only():
    driver = FakeDriver({"fields": NO_PCIE_BYTES})
    reader = make_reader(driver)
    reader.read(slow=True)
    again = reader.read(slow=False)
    assert driver.counts["nvmlDeviceGetPcieThroughput"] == 2
    assert again.traffic["pcie", "receive"] == 9e6


def test_gpus_that_count_pcie_bytes_are_never_asked_for_their_throughput():
    driver = FakeDriver({})
    assert make_reader(driver).read(slow=True).traffic == {}
    assert driver.counts["nvmlDeviceGetPcieThroughput"] == 0


def test_one_direction_that_fails_leaves_the_other():
    plan = {"fields": NO_PCIE_BYTES, **calls(PcieThroughput={"error": 999, "every": 2})}
    assert read(plan).traffic == {("pcie", "transmit"): 4e6}


# ---- NVLink


def nothing_over_nvlink(**plan):
    none = {str(number): 0 for number in (138, 139, 202, 204)}
    return {**plan, "fields": none | plan.get("fields", {})}


@pytest.mark.parametrize(
    "plan",
    [
        nothing_over_nvlink(fields={"91": 0}),
        nothing_over_nvlink(fields={"91": {"code": 3}}, **calls(NvLinkState=error(3))),
        nothing_over_nvlink(**calls(NvLinkState={"return": 0})),
    ],
    ids=["no links", "links unknown", "no link is active"],
)
def test_a_gpu_without_nvlink_has_no_bytes_over_nvlink(plan):
    reading = read(plan)
    assert reading.missing[Signal.NVLINK_TRANSMIT] is Missing.UNSUPPORTED
    assert reading.missing[Signal.NVLINK_RECEIVE] is Missing.UNSUPPORTED
    assert reading.nvlink_bytes == {}


def test_links_that_went_down_keep_what_they_counted_and_idle_ones_count_zero():
    assert read(calls(NvLinkState={"return": 0})).signals[Signal.NVLINK_TRANSMIT] == 1024.0 * 1024.0
    assert read(nothing_over_nvlink()).signals[Signal.NVLINK_TRANSMIT] == 0.0


def test_bytes_of_each_active_link_are_counted_in_bytes_whatever_the_driver_counts_in():
    assert read({}).nvlink_bytes == dict.fromkeys((0, 1), (1024.0 * 1024, 2048.0 * 1024))
    assert read({"fields": {"202": 7, "204": 8}}).nvlink_bytes == dict.fromkeys((0, 1), (7.0, 8.0))


def test_a_link_that_comes_up_later_is_counted_from_then_on():
    driver = FakeDriver(calls(NvLinkState={"return": 0}))
    reader = make_reader(driver)
    assert reader.read(slow=True).nvlink_bytes == {}
    driver.plan["calls"] = {}
    reader.read(slow=True)
    assert set(reader.read(slow=True).nvlink_bytes) == {0, 1}


# ---- the rest of the board


def test_engines_clocks_and_banks_are_in_base_units():
    signals = read({}).signals
    assert (signals[Signal.JPEG_UTILIZATION], signals[Signal.OFA_UTILIZATION]) == (0.05, 0.06)
    assert signals[Signal.ENCODER_SESSIONS] == 2.0
    assert signals[Signal.CLOCK_APPLICATION_SM] == 1830e6
    assert signals[Signal.CLOCK_APPLICATION_MEMORY] == 2619e6
    assert signals[Signal.C2C_MODE] == 1.0
    banks = [signals[Signal[f"ROW_REMAP_BANKS_{name}"]] for name in ("MAX", "HIGH", "PARTIAL", "LOW", "NONE")]
    assert banks == [640.0, 3.0, 2.0, 1.0, 0.0]


def test_banks_of_an_odd_answer_are_invalid():
    reading = read(calls(RowRemapperHistogram={"return": SimpleNamespace(max=2**32 - 1)}))
    assert reading.missing[Signal.ROW_REMAP_BANKS_MAX] is Missing.INVALID
    assert reading.missing[Signal.ROW_REMAP_BANKS_NONE] is Missing.INVALID


# ---- time for which heat has reduced the clocks


def heat_read_for(seconds, version="550.54"):
    """Return the policy's time after some seconds of heat, read twice a second, with a driver of no other counter."""
    driver = FakeDriver({"fields": {"75": 0}, **calls(CurrentClocksEventReasons={"return": 0x20})})
    reader = make_reader(driver, version)
    for step in range(2 * seconds + 1):
        at = 100.0 + step / 2
        driver.plan["fields"]["75"] = 7_000_000_000 + step * 500_000_000
        reading = reader.read(slow=False, clock=lambda at=at: at)
    return reading.policy_seconds.get("thermal")


def test_heat_shows_the_unit_of_its_own_counter_without_a_power_cap():
    assert heat_read_for(1) is None
    assert heat_read_for(4) == pytest.approx(11.0)
