"""NVML to readings, in-process against a programmable driver: units, fallbacks, refusals, garbage, ids that moved."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from exporter.model import Missing, Signal
from exporter.sources.driver import nvml
from exporter.sources.driver.nvml_arrays import decoded
from exporter.sources.driver.nvml_card import CardReader
from exporter.sources.driver.nvml_errors import CardCalls, CardGone, DriverGone, word_of
from exporter.sources.driver.nvml_fields import FieldBatch, checked, event_time_fields
from exporter.sources.driver.nvml_gpm import SIGNALS as WORK
from exporter.sources.driver.nvml_signals import CLOCK_EVENT_BITS
from tests.fake_nvml import FakeDriver, NVMLError, item, sample


def reader(driver, version="590.48.01", index=0):
    calls, facts = nvml.open_card(driver, index)
    return CardReader(driver, calls, facts, version)


def read(plan, version="590.48.01"):
    return reader(FakeDriver(plan), version).read(slow=False)


def calls(**actions):
    return {"calls": {f"nvmlDeviceGet{name}": action for name, action in actions.items()}}


def error(code):
    return {"error": code}


def missing(reading):
    """Give what is absent beside the work signals, which this driver does not have; see test_work_signals.py."""
    return {signal: why for signal, why in reading.missing.items() if signal not in WORK}


def test_a_healthy_card_gives_every_signal_in_base_units():
    reading = read({})
    assert set(reading.signals) == set(Signal) - {
        Signal.CLOCK_EVENTS, Signal.CLOCK_EVENT_TIME, Signal.NVLINK_STATE, Signal.NVLINK_ERRORS, *WORK,
        Signal.FABRIC_STATUS, Signal.FABRIC_HEALTH, Signal.FABRIC_SUMMARY, Signal.C2C_LINKS, Signal.C2C_LINKS_ACTIVE,
        Signal.INSTANCES,
    }  # fmt: skip
    assert missing(reading) == {}
    expected = {
        Signal.UTILIZATION: 0.5, Signal.DECODER_UTILIZATION: 0.04, Signal.MEMORY_RESERVED: 2**30,
        Signal.TEMPERATURE_MEMORY: 61, Signal.TEMPERATURE_MARGIN: 32, Signal.POWER: 412, Signal.POWER_LIMIT: 700,
        Signal.ENERGY: 9000, Signal.CLOCK_SM: 1980e6, Signal.CLOCK_GRAPHICS: 1410e6, Signal.CLOCK_MAX_VIDEO: 1545e6,
        Signal.PCIE_TRANSMIT: 1e6, Signal.PCIE_RECEIVE: 2e6, Signal.NVLINK_TRANSMIT: 1024 * 1024,
        Signal.NVLINK_RECEIVE: 2048 * 1024, Signal.ECC_CORRECTED_AGGREGATE: 7, Signal.ECC_UNCORRECTED_VOLATILE: 0,
        Signal.FAN_SPEED: 0.5, Signal.FABRIC_STATE: 3, Signal.RETIRED_PAGES_DOUBLE_BIT: 5, Signal.PROCESSES: 1,
        Signal.TEMPERATURE_LIMIT_SHUTDOWN: 92, Signal.TEMPERATURE_LIMIT_SLOWDOWN: 87,
    }  # fmt: skip
    for signal, value in expected.items():
        assert reading.signals[signal] == pytest.approx(value), signal
    assert reading.clock_events == {reason: reason == "sw_power_cap" for reason in CLOCK_EVENT_BITS}
    assert reading.clock_event_seconds["sw_power_cap"] == 0.0
    assert reading.nvlink_up == {0: True, 1: True}
    assert reading.nvlink_errors == {"replay": 2, "recovery": 4, "crc": 6}
    assert [(process.pid, process.memory) for process in reading.processes] == [(100, 2**30)]


def test_facts_name_the_card_and_survive_a_driver_that_refuses_them():
    _, facts = nvml.open_card(FakeDriver({}), 1)
    assert (facts.index, facts.uuid, facts.name, facts.numa_node, facts.mig) == (1, "GPU-b", "Fake GPU", 1, False)
    plan = calls(
        **dict.fromkeys(["Name", "Serial", "PciInfo", "MigMode", "MemoryAffinity", "NumaNodeId"], error(999))
    )
    _, facts = nvml.open_card(FakeDriver(plan), 0)
    assert (facts.name, facts.serial, facts.pci_bus_id, facts.numa_node, facts.mig) == ("", "", "", None, False)


def test_a_near_node_is_not_made_up_when_the_machine_names_several():
    plan = calls(MemoryAffinity={"return": [0b11]}, NumaNodeId=error(3))
    assert nvml.open_card(FakeDriver(plan), 0)[1].numa_node is None
    plan = calls(MemoryAffinity={"return": [0, 1]})
    assert nvml.open_card(FakeDriver(plan), 0)[1].numa_node == 64


def test_texts_from_the_driver_are_cut_and_cleaned():
    plan = calls(Name={"return": "A\x00\x1b[31m" + "x" * 300}, Serial={"return": b"42\xff"})
    facts = nvml.open_card(FakeDriver(plan), 0)[1]
    assert facts.name.startswith("A[31mxx") and len(facts.name) <= 96
    assert facts.serial == "42\ufffd"


def test_versions_are_read_and_cuda_is_split():
    facts, count = nvml.initialise(FakeDriver({}))
    assert (facts.driver_version, facts.cuda_version, count) == ("590.48.01", "13.1", 2)


@pytest.mark.parametrize(
    "code,reason",
    [
        (12, "library"),
        (13, "library"),
        (9, "driver"),
        (18, "mismatch"),
        (4, "no_permission"),
        (999, "unknown"),
        (1, "uninitialized"),
    ],
)
def test_a_failed_initialisation_says_why(code, reason):
    with pytest.raises(DriverGone) as caught:
        nvml.initialise(FakeDriver({"calls": {"nvmlInit": error(code)}}))
    assert caught.value.reason == reason


def test_an_absurd_number_of_cards_is_refused():
    with pytest.raises(DriverGone, match="at most"):
        nvml.initialise(FakeDriver({"calls": {"nvmlDeviceGetCount": {"return": 2**32 - 1}}}))


def test_a_driver_module_that_cannot_be_imported_is_a_missing_library():
    with pytest.raises(DriverGone) as caught:
        nvml.load_driver("exporter.no_such_module")
    assert caught.value.reason == "library"


# ---- utilisation


def test_utilisation_is_the_mean_of_the_samples_since_the_previous_cycle():
    driver = FakeDriver({})
    answers = [
        (1, [sample(10_000_000 + place, 100) for place in range(3)]),
        (1, [sample(10_000_002, 100), sample(11_000_000, 10), sample(11_200_000, 30)]),
    ]
    driver._nvmlDeviceGetSamples = lambda _, kind, last: answers[min(driver.cycle, 1)] if kind == 1 else refuse(6)
    one = reader(driver)
    driver.cycle = 0
    assert one.read(slow=False).signals[Signal.UTILIZATION] == pytest.approx(1.0)
    driver.cycle = 1
    second = one.read(slow=False)
    # The sample of the first cycle is not counted twice.
    assert second.signals[Signal.UTILIZATION] == pytest.approx(0.2)
    # No new samples of the other kinds: the rate call stands in, and is not a refusal to remember.
    assert second.signals[Signal.MEMORY_ACTIVITY] == pytest.approx(0.2)


def refuse(code):
    raise NVMLError(code)


def test_the_first_cycle_takes_a_second_of_history_not_all_the_buffer_holds():
    driver = FakeDriver({})
    old = [sample(1_000_000 + place, 100) for place in range(100)]
    driver._nvmlDeviceGetSamples = lambda *_: (1, [*old, sample(90_000_000, 40), sample(90_500_000, 60)])
    assert reader(driver).read(slow=False).signals[Signal.UTILIZATION] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "answer",
    [
        (1, []),
        (99, [sample(5, 50)]),
        (1, [sample(2**64 - 1, 50)]),
        (1, [sample(5, 255)]),
        (1, [object()]),
        None,
        (1,),
    ],
)
def test_garbage_samples_fall_back_to_the_rate_call(answer):
    driver = FakeDriver({})
    driver._nvmlDeviceGetSamples = lambda *_: answer
    assert reader(driver).read(slow=False).signals[Signal.UTILIZATION] == pytest.approx(0.5)


# ---- refusals


def test_what_is_not_supported_is_absent_and_asked_once_for_each_initialisation():
    driver = FakeDriver(
        {**calls(MarginTemperature=error(3), TemperatureThreshold=error(3)), "fields": {"82": {"code": 3}}}
    )
    one = reader(driver)
    for _ in range(5):
        reading = one.read(slow=True)
    for signal in (Signal.TEMPERATURE_MEMORY, Signal.TEMPERATURE_MARGIN, Signal.TEMPERATURE_LIMIT_SHUTDOWN):
        assert reading.missing[signal] is Missing.UNSUPPORTED
        assert signal not in reading.signals
    assert driver.asked_fields[82] == 1
    assert driver.counts["nvmlDeviceGetMarginTemperature"] == 1
    assert driver.counts["nvmlDeviceGetTemperatureThreshold"] == 4  # four kinds, once each
    assert driver.counts["nvmlDeviceGetSamples"] == 2
    assert driver.counts["nvmlDeviceGetFieldValues"] == 1 + 5 * 2  # link count, then one for each tier
    reader(driver).read(slow=False)
    assert driver.asked_fields[82] == 2


@pytest.mark.parametrize("code", [13, 25])
def test_missing_symbols_and_struct_versions_count_as_unsupported(code):
    driver = FakeDriver(calls(PerformanceState=error(code)))
    one = reader(driver)
    for _ in range(3):
        assert one.read(slow=False).missing[Signal.PERFORMANCE_STATE] is Missing.UNSUPPORTED
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
    reading = reader(driver).read(slow=False)
    assert missing(reading) == {Signal.PERFORMANCE_STATE: Missing.UNSUPPORTED}


def test_an_argument_error_after_a_good_answer_is_a_passing_failure():
    driver = FakeDriver({})
    one = reader(driver)
    one.read(slow=False)
    driver.plan = calls(PerformanceState=error(2))
    assert one.read(slow=False).missing[Signal.PERFORMANCE_STATE] is Missing.ERROR
    driver.plan = {}
    assert one.read(slow=False).signals[Signal.PERFORMANCE_STATE] == 0


def test_no_permission_is_said_and_tried_again():
    driver = FakeDriver(calls(PerformanceState=error(4)))
    one = reader(driver)
    assert missing(one.read(slow=False)) == {Signal.PERFORMANCE_STATE: Missing.NO_PERMISSION}
    driver.plan = {}
    assert Signal.PERFORMANCE_STATE in one.read(slow=False).signals


def test_one_failed_call_loses_only_its_signal_and_only_this_time():
    driver = FakeDriver(calls(EnforcedPowerLimit=error(999), CurrPcieLinkWidth={"error": 999, "every": 2}))
    one = reader(driver)
    first, second = one.read(slow=True), one.read(slow=True)
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
    reading = reader(driver).read(slow=False)
    assert reading.signals[Signal.MEMORY_USED] == 30 * 2**30
    assert missing(reading) == {Signal.MEMORY_RESERVED: Missing.UNSUPPORTED}


def test_old_names_of_calls_are_tried():
    driver = FakeDriver({
        "missing": ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFanSpeed_v2"],
        **calls(Temperature={"return": 44}, CurrentClocksThrottleReasons={"return": 0x21 | 0x400}, FanSpeed={"return": 105}),
    })  # fmt: skip
    reading = reader(driver).read(slow=False)
    assert reading.signals[Signal.TEMPERATURE_GPU] == 44
    assert reading.signals[Signal.FAN_SPEED] == pytest.approx(1.05)
    assert {reason for reason, active in reading.clock_events.items() if active} == {
        "gpu_idle",
        "sw_thermal_slowdown",
    }


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
    one = reader(driver)
    assert one.read(slow=False).signals[Signal.NVLINK_TRANSMIT] == 2001
    assert one.read(slow=False).signals[Signal.NVLINK_RECEIVE] == 2001


def test_links_are_counted_by_asking_where_the_driver_does_not_say():
    driver = FakeDriver({"fields": {"91": {"code": 3}}})
    driver._nvmlDeviceGetNvLinkState = lambda _, link: (link != 1) * 1 if link < 3 else refuse(2)
    assert reader(driver).read(slow=False).nvlink_up == {0: True, 1: False, 2: True}


def test_a_card_without_nvlink_has_no_link_signals():
    reading = read({"fields": {"91": 0, "138": {"code": 3}, "139": {"code": 3}}})
    assert reading.nvlink_up == {}
    for signal in (Signal.NVLINK_STATE, Signal.NVLINK_ERRORS, Signal.NVLINK_TRANSMIT):
        assert reading.missing[signal] is Missing.UNSUPPORTED


def test_an_error_sum_with_a_failed_link_is_left_out():
    driver = FakeDriver({})
    plain = driver.field
    driver.field = lambda question: item(code=999) if question == (162, 1) else plain(question)
    assert reader(driver).read(slow=False).nvlink_errors == {"replay": 2, "crc": 6}


# ---- field ids that moved, counters that lie


@pytest.mark.parametrize(
    "version,first",
    [
        ("570.172.08", None),
        ("575.51.03", 251),
        ("580.65.06", 251),
        ("580.81", 251),
        ("580.82.07", 269),
        ("590.48.01", 269),
        ("615.71", 269),
        ("", None),
        ("x.y", None),
    ],
)
def test_the_driver_build_decides_which_fields_hold_thermal_time(version, first):
    fields = event_time_fields(version)
    assert fields["sw_power_cap"] == (74, 0)
    moved = [
        fields[reason][0]
        for reason in ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
        if reason in fields
    ]
    assert moved == ([] if first is None else [first, first + 1, first + 2])


def test_thermal_time_of_an_older_build_is_read_from_its_own_fields():
    driver = FakeDriver({})
    one = reader(driver, version="580.65.06")
    for second in range(4):
        driver.plan = {
            **calls(CurrentClocksEventReasons={"return": 0x20}),
            "fields": {"251": (7 + second) * 10**9, "252": 0, "253": 0},
        }
        found = one.read(slow=False, clock=lambda at=second: 100.0 + at)
    assert found.clock_event_seconds["sw_thermal_slowdown"] == pytest.approx(10)


@pytest.mark.parametrize("later", [3_000_000_000, 5_000_000_000 + 9_000_000_000])
def test_event_time_that_falls_or_outruns_the_clock_is_left_out_once(later):
    driver = FakeDriver({"fields": {"74": 5_000_000_000}})
    one, now = reader(driver), [100.0]

    def again(value, step):
        now[0] += step
        driver.plan = {"fields": {"74": value}}
        return one.read(slow=False, clock=lambda: now[0])

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
    one = reader(driver)
    for raw, sent in ((2**32 - 100, 2**32 - 100), (50, 2**32 + 50), (60, 2**32 + 60)):
        driver.plan = {"fields": {"197": {"value": raw, "type": 1}, "198": {"value": raw, "type": 3}}}
        signals = one.read(slow=False).signals
        assert signals[Signal.PCIE_TRANSMIT] == sent and signals[Signal.PCIE_RECEIVE] == raw


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
    batch = FieldBatch(CardCalls(driver, "GPU-a"), [(1, 0), (2, 0)])
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


# ---- MIG


def test_a_divided_card_says_mig_instead_of_utilisation():
    driver = FakeDriver(
        {
            **calls(MigMode={"return": [1, 1]}, RemappedRows=error(3)),
            "fields": {str(n): {"code": 3} for n in (142, 143, 144, 145)},
        }
    )
    reading = reader(driver).read(slow=False)
    assert {signal for signal, why in reading.missing.items() if why is Missing.MIG} == {
        Signal.UTILIZATION, Signal.MEMORY_ACTIVITY, Signal.ENCODER_UTILIZATION, Signal.DECODER_UTILIZATION,
        Signal.REMAPPED_ROWS_CORRECTABLE, Signal.REMAPPED_ROWS_UNCORRECTABLE, Signal.ROW_REMAP_PENDING, Signal.ROW_REMAP_FAILED,
        *WORK, Signal.PROCESSES,
    }  # fmt: skip
    assert driver.counts["nvmlDeviceGetSamples"] == 0


# ---- the card or driver as a whole


@pytest.mark.parametrize("code,reason", [(15, "lost"), (16, "reset_required"), (28, "lost")])
def test_a_card_that_is_gone_stops_being_asked_at_once(code, reason):
    driver = FakeDriver({"at": {"GPU-a": {"nvmlDeviceGetTemperatureV": error(code)}}})
    with pytest.raises(CardGone) as caught:
        reader(driver).read(slow=False)
    assert caught.value.reason == reason
    assert driver.counts["nvmlDeviceGetClockInfo"] == 0


@pytest.mark.parametrize("code,reason", [(15, "lost"), (16, "reset_required")])
def test_a_single_field_can_say_that_the_card_is_gone(code, reason):
    with pytest.raises(CardGone) as caught:
        read({"fields": {"185": {"code": code}}})
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "code,reason", [(999, "unknown"), (10, "timeout"), (4, "no_permission"), (17, "operating_system"), (20, "error")]
)
def test_a_card_that_answers_nothing_is_gone(code, reason):
    driver = FakeDriver({})
    one = reader(driver)
    one.read(slow=False)
    driver.plan = {"calls": {"*": error(code)}}
    with pytest.raises(CardGone) as caught:
        one.read(slow=False)
    assert caught.value.reason == reason


@pytest.mark.parametrize("code,reason", [(1, "uninitialized"), (18, "mismatch"), (9, "driver")])
def test_errors_of_the_driver_are_not_blamed_on_the_card(code, reason):
    with pytest.raises(DriverGone) as caught:
        read(calls(TemperatureV=error(code)))
    assert caught.value.reason == reason


def test_a_card_without_a_handle_or_uuid_is_gone():
    with pytest.raises(CardGone) as caught:
        nvml.open_card(FakeDriver({"calls": {"nvmlDeviceGetHandleByIndex": error(15)}}), 0)
    assert caught.value.reason == "lost"
    with pytest.raises(CardGone):
        nvml.open_card(FakeDriver(calls(UUID={"return": ""})), 0)
    with pytest.raises(DriverGone):
        nvml.open_card(FakeDriver({"calls": {"nvmlDeviceGetHandleByIndex": error(1)}}), 0)


def test_counting_again_tells_a_passing_failure_from_the_end():
    assert nvml.card_count(FakeDriver({})) == 2
    assert nvml.card_count(FakeDriver({"calls": {"nvmlDeviceGetCount": error(999)}})) is None
    with pytest.raises(DriverGone):
        nvml.card_count(FakeDriver({"calls": {"nvmlDeviceGetCount": error(18)}}))


def test_a_call_that_runs_can_be_seen_from_outside():
    driver = FakeDriver({})
    handle = CardCalls(driver, "GPU-a")
    seen = []
    driver._nvmlDeviceGetUUID = lambda _: seen.append(handle.since) or "GPU-a"
    handle.call("nvmlDeviceGetUUID")
    assert seen[0] is not None
    assert handle.since is None


def test_every_failure_has_a_closed_word():
    assert word_of(ImportError("x")) == "library"
    assert word_of(ValueError("x")) == "error"
    assert word_of(NVMLError(15)) == "lost"
    assert word_of(NVMLError(14)) == "error"


def test_slow_signals_are_kept_between_slow_reads_and_replaced_by_them():
    driver = FakeDriver({})
    one = reader(driver)
    one.read(slow=False)
    driver.plan = calls(EnforcedPowerLimit={"return": 300_000})
    assert one.read(slow=False).signals[Signal.POWER_LIMIT] == pytest.approx(700)
    assert one.read(slow=True).signals[Signal.POWER_LIMIT] == pytest.approx(300)


def test_the_real_binding_has_the_names_that_are_called():
    import pynvml

    documented = {word.split("(")[0] for word in nvml.__doc__.split() if word.startswith("nvml") and "(" in word}
    assert len(documented) > 40
    assert not [name for name in documented if not hasattr(pynvml, name)]
    assert pynvml.nvmlMemory_v2 == 0x02000028
    assert pynvml.c_nvmlGpuFabricInfo_v2_t().state == 0
