"""What NVML answers oddly: NVLink's generations, field ids that moved, counters that lie, garbage."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from exporter.driver.nvml.arrays import decoded
from exporter.driver.nvml.errors import DeviceCalls
from exporter.driver.nvml.fields import FieldBatch, checked, event_time_fields
from exporter.driver.nvml.gpm import GpmRead
from exporter.model import Missing, Signal
from tests.support.fake_nvml import FakeDriver, item
from tests.support.nvml_reading import calls, make_reader, read, refuse

# ---- NVLink


def test_nvlink_five_is_read_in_bytes_and_by_its_own_errors():
    five = {
        "202": 111,
        "204": 222,
        "138": 5,
        "139": 5,
        "206": 1,
        "208": 2,
        "214": 3,
        "161": {"code": 3},
        "162": {"code": 3},
        "163": {"code": 3},
    }
    reading = read({"fields": five})
    assert (reading.signals[Signal.NVLINK_TRANSMIT], reading.signals[Signal.NVLINK_RECEIVE]) == (111, 222)
    assert reading.nvlink_errors == {"malformed_packet": 2, "rx_error": 4, "recovery_failed": 6}


def test_nvlink_bytes_are_summed_over_links_where_all_links_is_refused():
    driver = FakeDriver({"fields": {"138": {"code": 3}, "139": {"code": 3}}})
    plain = driver.field

    def field(question):
        number, scope = question if isinstance(question, tuple) else (question, 0)
        if number in (202, 204):
            return item(code=2) if scope == 0xFFFFFFFF else item(1000 + scope)
        return plain(question)

    driver.field = field
    reader = make_reader(driver)
    assert reader.read(slow=False).signals[Signal.NVLINK_TRANSMIT] == 2001
    assert reader.read(slow=False).signals[Signal.NVLINK_RECEIVE] == 2001


def test_links_are_counted_by_asking_where_the_driver_does_not_say():
    driver = FakeDriver({"fields": {"91": {"code": 3}}})
    driver._nvmlDeviceGetNvLinkState = lambda _, link: (link != 1) * 1 if link < 3 else refuse(2)
    assert make_reader(driver).read(slow=False).nvlink_up == {0: True, 1: False, 2: True}


def test_a_link_whose_state_cannot_be_read_is_missed_and_the_others_are_shown():
    driver = FakeDriver({"fields": {"91": 4}})
    driver._nvmlDeviceGetNvLinkState = lambda _, link: {0: 1, 1: 7, 2: 0}[link] if link < 3 else refuse(3)
    reading = make_reader(driver).read(slow=False)
    assert reading.nvlink_up == {0: True, 2: False}
    assert reading.missing[Signal.NVLINK_STATE] is Missing.INVALID, "link 1; link 3 is not fitted"
    driver._nvmlDeviceGetNvLinkState = lambda _, link: 1 if link < 3 else refuse(3)
    assert Signal.NVLINK_STATE not in make_reader(driver).read(slow=False).missing


def test_errors_on_links_say_when_they_were_read():
    driver = FakeDriver({"fields": {"161": 5}})
    reader = make_reader(driver)
    readings = [reader.read(slow=at == 3, clock=lambda at=at: 100.0 + at) for at in range(5)]
    assert [reading.nvlink_errors_at for reading in readings] == [100.0, 100.0, 100.0, 103.0, 103.0]
    assert all(reading.nvlink_errors["replay"] == 10 for reading in readings)


def test_a_gpu_without_nvlink_has_no_link_signals():
    reading = read({"fields": {"91": 0, "138": {"code": 3}, "139": {"code": 3}}})
    assert reading.nvlink_up == {}
    for signal in (Signal.NVLINK_STATE, Signal.NVLINK_ERRORS, Signal.NVLINK_TRANSMIT):
        assert reading.missing[signal] is Missing.UNSUPPORTED


def test_an_error_sum_with_a_failed_link_is_left_out():
    driver = FakeDriver({})
    plain = driver.field
    driver.field = lambda question: item(code=999) if question == (162, 1) else plain(question)
    assert make_reader(driver).read(slow=False).nvlink_errors == {"replay": 2, "crc": 6}


# ---- field ids that moved, counters that lie


@pytest.mark.parametrize(
    "version,first",
    [
        ("570.172.08", Missing.UNSUPPORTED),
        ("575.51.03", 251),
        ("580.65.06", 251),
        ("580.81", 251),
        ("580.82.07", 269),
        ("590.48.01", 269),
        ("615.71", 269),
        ("", Missing.UNVERIFIED),
        ("x.y", Missing.UNVERIFIED),
    ],
)
def test_the_driver_build_decides_which_fields_hold_thermal_time(version, first):
    fields = event_time_fields(version)
    assert fields["sw_power_cap"] == (74, 0)
    moved = [fields[reason] for reason in ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")]
    assert moved == ([first] * 3 if isinstance(first, Missing) else [(first + place, 0) for place in range(3)])


@pytest.mark.parametrize(
    "version,why",
    [
        ("470.256.02", Missing.UNSUPPORTED),
        ("570.172.08", Missing.UNSUPPORTED),
        ("a build without numbers", Missing.UNVERIFIED),
        ("580.65.06", None),
        ("590.48.01", None),
    ],
)
def test_thermal_time_that_a_driver_does_not_count_is_absent_with_a_reason(version, why):
    fields = {str(number): 0 for number in (74, 76, 251, 252, 253, 269, 270, 271)}
    reading = read({"fields": fields}, version=version)
    thermal = {"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
    assert set(reading.clock_event_seconds) == {"sw_power_cap", "sync_boost"} | (set() if why else thermal)
    assert reading.missing.get(Signal.CLOCK_EVENT_TIME) is why


def test_what_may_pass_is_said_before_what_the_driver_does_not_have():
    reading = read({"fields": {"74": 123_456_789, "76": 0}}, version="570.172.08")
    assert set(reading.clock_event_seconds) == {"sync_boost"}
    assert reading.missing[Signal.CLOCK_EVENT_TIME] is Missing.UNVERIFIED


def test_thermal_time_of_an_older_build_is_read_from_its_own_fields():
    driver = FakeDriver({})
    reader = make_reader(driver, version="580.65.06")
    for second in range(4):
        driver.plan = {
            **calls(CurrentClocksEventReasons={"return": 0x20}),
            "fields": {"251": (7 + second) * 10**9, "252": 0, "253": 0},
        }
        reading = reader.read(slow=False, clock=lambda at=second: 100.0 + at)
    assert reading.clock_event_seconds["sw_thermal_slowdown"] == pytest.approx(10)


@pytest.mark.parametrize("later", [3_000_000_000, 5_000_000_000 + 9_000_000_000])
def test_event_time_that_falls_or_outruns_the_clock_is_left_out_once(later):
    driver = FakeDriver({"fields": {"74": 5_000_000_000}})
    reader, now = make_reader(driver), [100.0]

    def again(value, step):
        now[0] += step
        driver.plan = {"fields": {"74": value}}
        return reader.read(slow=False, clock=lambda: now[0])

    for second in (2, 3, 4):
        again(second * 1_000_000_000, 1)
    again(5_000_000_000, 1)
    assert again(6_000_000_000, 1).clock_event_seconds["sw_power_cap"] == pytest.approx(6)
    reading = again(later + 1_000_000_000, 1)
    assert "sw_power_cap" not in reading.clock_event_seconds
    assert reading.missing[Signal.CLOCK_EVENT_TIME] is Missing.INVALID
    assert "sw_power_cap" in again(later + 1_500_000_000, 1).clock_event_seconds


def test_byte_counters_of_32_bits_go_on_through_their_wraps_and_wider_ones_are_shown_as_they_are():
    driver = FakeDriver({})
    reader = make_reader(driver)
    numbers = ((2**32 - 100, None), (50, 2**32 + 50), (60, 2**32 + 60), (60, 2**32 + 60))
    for place, (raw, sent) in enumerate(numbers):
        driver.plan = {"fields": {"197": {"value": raw, "type": 1}, "198": {"value": raw, "type": 3}}}
        reading = reader.read(slow=False, clock=lambda place=place: 100.0 + 0.01 * place)
        assert reading.signals.get(Signal.PCIE_TRANSMIT) == sent and reading.signals[Signal.PCIE_RECEIVE] == raw
        assert reading.missing.get(Signal.PCIE_TRANSMIT) is (Missing.STARTING if sent is None else None)


def test_a_narrow_byte_counter_is_followed_by_the_rate_that_the_gpu_measures_itself():
    driver = FakeDriver({})
    reader = make_reader(driver)
    reader._work = SimpleNamespace(read=lambda _: GpmRead(values={}, traffic={("pcie", "transmit"): 6.2e9}))
    for second in range(5):
        driver.plan = {"fields": {"197": {"value": (5 + second * 6 * 10**9) % 2**32, "type": 5}}}
        reading = reader.read(slow=False, clock=lambda second=second: 100.0 + second)
    assert reading.signals[Signal.PCIE_TRANSMIT] == 5 + 24 * 10**9


def test_a_narrow_byte_counter_that_may_have_started_over_unseen_is_absent():
    driver = FakeDriver({})
    reader = make_reader(driver)
    for second in range(5):
        driver.plan = {"fields": {"197": {"value": second * 6 * 10**9 % 2**32, "type": 1}, "198": second * 6 * 10**9}}
        reading = reader.read(slow=False, clock=lambda second=second: 100.0 + second)
        assert Signal.PCIE_TRANSMIT not in reading.signals
        assert reading.missing[Signal.PCIE_TRANSMIT] is (Missing.UNVERIFIED if second else Missing.STARTING)
        assert reading.signals[Signal.PCIE_RECEIVE] == second * 6 * 10**9


# ---- garbage


ALL_ONES = {"return": 0xFFFFFFFF}


def test_numbers_that_cannot_be_are_never_exposed():
    plan = calls(
        UtilizationRates={"return": SimpleNamespace(gpu=255, memory=-1)}, TemperatureV={"return": 4095},
        MarginTemperature={"return": float("nan")}, PerformanceState={"return": 32}, ClockInfo=ALL_ONES,
        CurrPcieLinkGeneration={"return": 0}, CurrPcieLinkWidth=ALL_ONES, EnforcedPowerLimit=ALL_ONES,
        CurrentClocksEventReasons={"return": 2**64 - 1}, EncoderUtilization={"return": 7}, NumFans={"return": 2**31},
        MemoryInfo={"return": SimpleNamespace(total=100, used=101, free=2**64 - 1, reserved=-5)},
        NvLinkState={"return": 255}, TemperatureThreshold={"return": 2**31},
        ComputeRunningProcesses={"return": [SimpleNamespace(pid=None)]},
    )  # fmt: skip
    plan["fields"] = {
        "82": {"value": 255, "type": 1}, "83": 2**64 - 1, "197": {"value": -3, "type": 4}, "198": {"value": 1.0, "type": 99},
        "3": {"value": float("nan"), "type": 0}, "230": {"value": 2**32 - 1, "type": 1}, "94": {"value": float("inf"), "type": 0},
        "185": 2**62, "29": 2**40, "144": 7, "161": 2**64 - 1,
    }  # fmt: skip
    reading = read(plan)
    invalid = {signal for signal, why in reading.missing.items() if why is Missing.INVALID}
    assert invalid == {
        Signal.UTILIZATION, Signal.MEMORY_ACTIVITY, Signal.ENCODER_UTILIZATION, Signal.TEMPERATURE_GPU, Signal.TEMPERATURE_MARGIN,
        Signal.PERFORMANCE_STATE, Signal.CLOCK_SM, Signal.CLOCK_GRAPHICS, Signal.CLOCK_MEMORY, Signal.CLOCK_VIDEO,
        Signal.PCIE_LINK_GENERATION, Signal.PCIE_LINK_WIDTH, Signal.POWER_LIMIT, Signal.CLOCK_EVENTS, Signal.MEMORY_USED,
        Signal.MEMORY_FREE, Signal.MEMORY_RESERVED, Signal.NVLINK_STATE, Signal.TEMPERATURE_LIMIT_SHUTDOWN,
        Signal.TEMPERATURE_LIMIT_SLOWDOWN, Signal.TEMPERATURE_LIMIT_MEMORY_MAX, Signal.TEMPERATURE_LIMIT_GPU_MAX,
        Signal.PROCESSES, Signal.TEMPERATURE_MEMORY, Signal.ENERGY, Signal.PCIE_TRANSMIT, Signal.PCIE_RECEIVE,
        Signal.ECC_CORRECTED_VOLATILE, Signal.RECOVERY_ACTION, Signal.PCIE_REPLAYS, Signal.POWER,
        Signal.RETIRED_PAGES_SINGLE_BIT, Signal.ROW_REMAP_PENDING, Signal.FAN_SPEED,
    }  # fmt: skip
    assert not invalid & set(reading.signals)
    assert "replay" not in reading.nvlink_errors
    assert reading.processes is None


@pytest.mark.parametrize(
    "raw", [None, "7", b"7", [], 2**64, -(2**70), 10**400, float("nan"), float("-inf"), 0xFFFFFFFF]
)
def test_only_numbers_that_can_be_pass_the_check(raw):
    assert checked(raw, low=-1e30) is Missing.INVALID


@pytest.mark.parametrize(
    "thing",
    [object(), SimpleNamespace(valueType=1, value=None), SimpleNamespace(valueType=None, value=1), item(5, type_=7)],
)
def test_a_value_of_no_known_type_is_invalid(thing):
    assert decoded(thing) is Missing.INVALID


def test_a_short_answer_to_a_batch_loses_only_what_it_left_out():
    driver = FakeDriver({})
    driver._nvmlDeviceGetFieldValues = lambda _, wanted: [item(7)]
    batch = FieldBatch(DeviceCalls(driver, "GPU-a"), [(1, 0), (2, 0)])
    batch.read()
    assert (batch.get((1, 0)), batch.get((2, 0))) == (7, Missing.ERROR)


def test_memory_of_a_process_may_be_unknown():
    running = [
        SimpleNamespace(pid=1, usedGpuMemory=None),
        SimpleNamespace(pid=2, usedGpuMemory=2**64 - 1),
        SimpleNamespace(pid=3, usedGpuMemory=5),
        SimpleNamespace(pid=3, usedGpuMemory=6),
        SimpleNamespace(pid=2**33, usedGpuMemory=1),
    ]
    reading = read(calls(ComputeRunningProcesses={"return": running}))
    assert [(process.pid, process.memory) for process in reading.processes] == [(1, None), (2, None), (3, 11)]
