"""NVML to readings, in-process against a programmable driver: facts, units, utilisation, cards and drivers that go."""

from __future__ import annotations

import pytest

from exporter.driver.nvml import library
from exporter.driver.nvml.errors import DeviceCalls, DeviceUnavailable, DriverUnavailable, reason_of
from exporter.driver.nvml.gpm import SIGNALS as WORK
from exporter.model import GpuModes, Missing, Signal
from exporter.model.clock_events import CLOCK_EVENT_BITS
from tests.support.fake_nvml import FakeDriver, NVMLError, sample
from tests.support.nvml_reading import calls, error, make_reader, missing, read, refuse


def test_a_healthy_gpu_gives_every_signal_in_base_units():
    reading = read({})
    assert set(reading.signals) == set(Signal) - {
        Signal.CLOCK_EVENTS, Signal.CLOCK_EVENT_TIME, Signal.NVLINK_STATE, Signal.NVLINK_ERRORS, *WORK,
        Signal.FABRIC_STATUS, Signal.FABRIC_HEALTH, Signal.FABRIC_SUMMARY, Signal.C2C_LINKS, Signal.C2C_LINKS_ACTIVE,
        Signal.C2C_ERRORS, Signal.INSTANCES,
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


def test_facts_name_the_gpu_and_survive_a_driver_that_refuses_them():
    _, facts = library.open_card(FakeDriver({}), 1)
    assert (facts.index, facts.uuid, facts.name, facts.numa_node, facts.mig) == (1, "GPU-b", "Fake GPU", 1, False)
    plan = calls(
        **dict.fromkeys(["Name", "Serial", "PciInfo", "MigMode", "MemoryAffinity", "NumaNodeId"], error(999))
    )
    _, facts = library.open_card(FakeDriver(plan), 0)
    assert (facts.name, facts.serial, facts.pci_bus_id, facts.numa_node, facts.mig) == ("", "", "", None, False)


def test_a_near_node_is_not_made_up_when_the_machine_names_several():
    plan = calls(MemoryAffinity={"return": [0b11]}, NumaNodeId=error(3))
    assert library.open_card(FakeDriver(plan), 0)[1].numa_node is None
    plan = calls(MemoryAffinity={"return": [0, 1]})
    assert library.open_card(FakeDriver(plan), 0)[1].numa_node == 64


def test_facts_hold_how_the_driver_runs_the_gpu():
    assert library.open_card(FakeDriver({}), 0).facts.modes == GpuModes(
        persistence="enabled", compute="default", gsp_firmware="590.48"
    )
    odd = calls(PersistenceMode={"return": 7}, ComputeMode=error(3), GspFirmwareVersion={"return": None})
    assert library.open_card(FakeDriver(odd), 0).facts.modes == GpuModes()


def test_a_mode_that_cannot_be_read_now_is_what_it_was():
    driver = FakeDriver({})
    opened = library.open_card(driver, 0)
    driver.plan = calls(**dict.fromkeys(("PersistenceMode", "ComputeMode", "GspFirmwareVersion"), error(999)))
    assert library.read_facts(opened.calls, 0, opened.facts) == opened.facts


def test_texts_from_the_driver_are_cut_and_cleaned():
    plan = calls(Name={"return": "A\x00\x1b[31m" + "x" * 300}, Serial={"return": b"42\xff"})
    facts = library.open_card(FakeDriver(plan), 0)[1]
    assert facts.name.startswith("A[31mxx") and len(facts.name) <= 96
    assert facts.serial == "42\ufffd"


def test_versions_are_read_and_cuda_is_split():
    facts, count = library.initialise(FakeDriver({}))
    assert (facts.driver_version, facts.cuda_version, count) == ("590.48.01", "13.1", 2)


@pytest.mark.parametrize(
    "code,reason",
    [
        (12, "library"),
        (13, "library_invalid"),
        (9, "driver"),
        (18, "mismatch"),
        (4, "no_permission"),
        (999, "unknown"),
        (1, "uninitialized"),
    ],
)
def test_a_failed_initialisation_says_why(code, reason):
    with pytest.raises(DriverUnavailable) as caught:
        library.initialise(FakeDriver({"calls": {"nvmlInit": error(code)}}))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("libnvidia-ml.so.1: cannot open shared object file: No such file or directory", "library"),
        ("/usr/lib/libnvidia-ml.so.1: invalid ELF header", "library_invalid"),
        ("/usr/lib/libnvidia-ml.so.1: file too short", "library_invalid"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_not_one_that_is_absent(monkeypatch, text, reason):
    def load(name):
        raise OSError(text)

    monkeypatch.setattr(library.ctypes, "CDLL", load)
    with pytest.raises(DriverUnavailable) as caught:
        library.initialise(FakeDriver({"calls": {"nvmlInit": error(12)}}))
    assert caught.value.reason == reason and (reason == "library" or text in str(caught.value))


def test_an_absurd_number_of_gpus_is_refused():
    with pytest.raises(DriverUnavailable, match="at most"):
        library.initialise(FakeDriver({"calls": {"nvmlDeviceGetCount": {"return": 2**32 - 1}}}))


def test_a_driver_module_that_cannot_be_imported_is_a_missing_library():
    with pytest.raises(DriverUnavailable) as caught:
        library.load_driver("exporter.no_such_module")
    assert caught.value.reason == "library"


# ---- utilisation


def test_utilisation_is_the_mean_of_the_samples_since_the_previous_cycle():
    driver = FakeDriver({})
    answers = [
        (1, [sample(10_000_000 + place, 100) for place in range(3)]),
        (1, [sample(10_000_002, 100), sample(11_000_000, 10), sample(11_200_000, 30)]),
    ]
    driver._nvmlDeviceGetSamples = lambda _, kind, last: answers[min(driver.cycle, 1)] if kind == 1 else refuse(6)
    reader = make_reader(driver)
    driver.cycle = 0
    assert reader.read(slow=False).signals[Signal.UTILIZATION] == pytest.approx(1.0)
    driver.cycle = 1
    second = reader.read(slow=False)
    # The sample of the first cycle is not counted twice.
    assert second.signals[Signal.UTILIZATION] == pytest.approx(0.2)
    # No new samples of the other kinds: the rate call stands in, and is not a refusal to remember.
    assert second.signals[Signal.MEMORY_ACTIVITY] == pytest.approx(0.2)


def test_the_first_cycle_takes_a_second_of_history_not_all_the_buffer_holds():
    driver = FakeDriver({})
    old = [sample(1_000_000 + place, 100) for place in range(100)]
    driver._nvmlDeviceGetSamples = lambda *_: (1, [*old, sample(90_000_000, 40), sample(90_500_000, 60)])
    assert make_reader(driver).read(slow=False).signals[Signal.UTILIZATION] == pytest.approx(0.5)


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
    assert make_reader(driver).read(slow=False).signals[Signal.UTILIZATION] == pytest.approx(0.5)


# ---- MIG


def test_a_mig_enabled_gpu_reports_mig_instead_of_utilisation():
    driver = FakeDriver(
        {
            **calls(MigMode={"return": [1, 1]}, RemappedRows=error(3)),
            "fields": {str(n): {"code": 3} for n in (142, 143, 144, 145)},
        }
    )
    reading = make_reader(driver).read(slow=False)
    assert {signal for signal, why in reading.missing.items() if why is Missing.MIG} == {
        Signal.UTILIZATION, Signal.MEMORY_ACTIVITY, Signal.ENCODER_UTILIZATION, Signal.DECODER_UTILIZATION,
        Signal.REMAPPED_ROWS_CORRECTABLE, Signal.REMAPPED_ROWS_UNCORRECTABLE, Signal.ROW_REMAP_PENDING, Signal.ROW_REMAP_FAILED,
        *WORK, Signal.PROCESSES,
    }  # fmt: skip
    assert driver.counts["nvmlDeviceGetSamples"] == 0


# ---- the card or driver as a whole


@pytest.mark.parametrize("code,reason", [(15, "lost"), (16, "reset_required"), (28, "lost")])
def test_a_gpu_that_is_gone_stops_being_read_at_once(code, reason):
    driver = FakeDriver({"at": {"GPU-a": {"nvmlDeviceGetTemperatureV": error(code)}}})
    with pytest.raises(DeviceUnavailable) as caught:
        make_reader(driver).read(slow=False)
    assert caught.value.reason == reason
    assert driver.counts["nvmlDeviceGetClockInfo"] == 0


@pytest.mark.parametrize("code,reason", [(15, "lost"), (16, "reset_required")])
def test_a_single_field_can_say_that_the_gpu_is_gone(code, reason):
    with pytest.raises(DeviceUnavailable) as caught:
        read({"fields": {"185": {"code": code}}})
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "code,reason", [(999, "unknown"), (10, "timeout"), (4, "no_permission"), (17, "operating_system"), (20, "error")]
)
def test_a_gpu_that_answers_nothing_is_gone(code, reason):
    driver = FakeDriver({})
    reader = make_reader(driver)
    reader.read(slow=False)
    driver.plan = {"calls": {"*": error(code)}}
    with pytest.raises(DeviceUnavailable) as caught:
        reader.read(slow=False)
    assert caught.value.reason == reason


@pytest.mark.parametrize("code,reason", [(1, "uninitialized"), (18, "mismatch"), (9, "driver")])
def test_errors_of_the_driver_are_not_blamed_on_the_gpu(code, reason):
    with pytest.raises(DriverUnavailable) as caught:
        read(calls(TemperatureV=error(code)))
    assert caught.value.reason == reason


def test_a_gpu_without_a_handle_or_uuid_is_gone():
    with pytest.raises(DeviceUnavailable) as caught:
        library.open_card(FakeDriver({"calls": {"nvmlDeviceGetHandleByIndex": error(15)}}), 0)
    assert caught.value.reason == "lost"
    with pytest.raises(DeviceUnavailable):
        library.open_card(FakeDriver(calls(UUID={"return": ""})), 0)
    with pytest.raises(DriverUnavailable):
        library.open_card(FakeDriver({"calls": {"nvmlDeviceGetHandleByIndex": error(1)}}), 0)


def test_counting_again_distinguishes_a_passing_failure_from_the_end():
    assert library.card_count(FakeDriver({})) == 2
    assert library.card_count(FakeDriver({"calls": {"nvmlDeviceGetCount": error(999)}})) is None
    for number in (2**32 - 1, 65, -1):  # what cannot be is no reason to initialise anew
        assert library.card_count(FakeDriver({"calls": {"nvmlDeviceGetCount": {"return": number}}})) is None
    with pytest.raises(DriverUnavailable):
        library.card_count(FakeDriver({"calls": {"nvmlDeviceGetCount": error(18)}}))


def test_a_call_that_runs_can_be_seen_from_outside():
    driver = FakeDriver({})
    handle = DeviceCalls(driver, "GPU-a")
    running_calls = []
    driver._nvmlDeviceGetUUID = lambda _: running_calls.append(handle.call_started) or "GPU-a"
    handle.call("nvmlDeviceGetUUID")
    assert running_calls[0] is not None
    assert handle.call_started is None


def test_every_failure_has_a_closed_word():
    assert reason_of(ImportError("x")) == "library"
    assert reason_of(ValueError("x")) == "error"
    assert reason_of(NVMLError(15)) == "lost"
    assert reason_of(NVMLError(14)) == "error"


def test_slow_signals_are_kept_between_slow_reads_and_replaced_by_them():
    driver = FakeDriver({})
    reader = make_reader(driver)
    reader.read(slow=False)
    driver.plan = calls(EnforcedPowerLimit={"return": 300_000})
    assert reader.read(slow=False).signals[Signal.POWER_LIMIT] == pytest.approx(700)
    assert reader.read(slow=True).signals[Signal.POWER_LIMIT] == pytest.approx(300)


def test_the_real_binding_has_the_names_that_are_called():
    import pynvml

    documented = {
        token.split("(")[0] for token in library.__doc__.split() if token.startswith("nvml") and "(" in token
    }
    assert len(documented) > 40
    assert not [name for name in documented if not hasattr(pynvml, name)]
    assert pynvml.nvmlMemory_v2 == 0x02000028
    assert pynvml.c_nvmlGpuFabricInfo_v2_t().state == 0
