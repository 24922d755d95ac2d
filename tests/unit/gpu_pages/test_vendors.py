"""GPUs of AMD, Huawei and Intel: how each is identified, and what is peculiar about its numbers."""

from __future__ import annotations

import pytest

from exporter.derive.gpu_processes import gpu_processes
from exporter.model import CardProcess, Missing, Signal
from tests.support.gpu_page_probe import capture, cards_of, played

MIB = 2.0**20


def amd(name="gpu_gfx_activity", value="50", **labels):
    written = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{written}}} {value}\n".encode()


def test_a_whole_amd_gpu_is_its_serial_number():
    card = cards_of(capture("amd-1.4-mi300x-documented"))["1"]
    assert (card.facts.uuid, card.facts.serial, card.facts.name) == ("692409005401", "692409005401", "102-G30211-0C")
    signals = card.reading.signals
    assert signals[Signal.MEMORY_TOTAL] == 196592 * MIB
    assert signals[Signal.ENERGY] == pytest.approx(4123456.789012)
    assert (signals[Signal.PCIE_LINK_GENERATION], signals[Signal.ECC_CORRECTED_VOLATILE]) == (5.0, 7.0)


def test_the_clock_of_an_amd_gpu_is_the_mean_of_its_dies():
    assert cards_of(capture("amd-1.4-mi300x-documented"))["0"].reading.signals[Signal.CLOCK_SM] == 2100e6


def test_time_with_clocks_held_down_is_an_active_reason():
    cards = cards_of(capture("amd-1.4-mi300x-documented"))
    assert cards["0"].reading.clock_events == {
        "sw_power_cap": True, "hw_thermal_slowdown": False, "hw_slowdown": False,
    }  # fmt: skip
    assert not any(cards["1"].reading.clock_events.values())


def test_partitions_of_one_amd_gpu_are_gpus_of_their_own():
    cards = cards_of(capture("amd-1.4-cpx-documented"))
    assert [card.facts.uuid for card in cards.values()] == ["692409005400", "692409005400/1"]
    assert cards["0"].reading.signals[Signal.POWER] == 683.0
    assert cards["1"].reading.missing[Signal.POWER] is Missing.NOT_EXPORTED
    assert cards["1"].facts.name == "AMD Instinct MI300X OAM"


def test_amd_gpus_that_share_a_name_are_told_apart_by_their_index():
    page = amd(gpu_id="0", serial_number="S", gpu_partition_id="NA") + amd(
        gpu_id="1", serial_number="S", gpu_partition_id="NA"
    )
    assert {gpu: card.facts.uuid for gpu, card in cards_of(page).items()} == {"0": "S", "1": "S/1"}


def test_a_serial_number_that_says_nothing_is_none():
    assert cards_of(amd(gpu_id="3", serial_number="N/A"))["3"].facts.uuid == "amd-3"


def test_an_ascend_chip_is_its_die_and_tells_its_processes():
    card = cards_of(capture("ascend-7.0-910b-documented"))["0"]
    assert (card.facts.uuid, card.facts.pci_bus_id) == (
        "185011D4-21104518-A0C4ED94-14CC040A-56102003",
        "0000:61:00.0",
    )
    signals = card.reading.signals
    assert (signals[Signal.UTILIZATION], signals[Signal.TENSOR_ACTIVE]) == (0.93, 0.61)
    assert signals[Signal.MEMORY_FREE] == (65536 - 58982) * MIB
    assert card.reading.processes == (CardProcess(pid=3318021, memory=55637 * MIB),)


def test_processes_of_ascend_chips_lead_to_replicas():
    cards = played(capture("ascend-7.0-910b-documented")).state.cards
    assert gpu_processes(cards) == {cards[0].facts.uuid: frozenset({3318021})}


def test_an_older_ascend_exporter_has_numbers_only():
    cards = cards_of(capture("ascend-3.0-910a-documented"))
    assert [card.facts.uuid for card in cards.values()] == ["ascend-0", "ascend-1"]
    assert cards["1"].facts.name == "910Awn-Ascend-V1"
    assert cards["1"].reading.processes is None


def test_a_value_that_ascend_could_not_read_is_absent():
    page = b'npu_chip_info_utilization{id="0"} -1\nnpu_chip_info_power{id="0"} 71.2\n'
    reading = cards_of(page)["0"].reading
    assert reading.missing[Signal.UTILIZATION] is Missing.INVALID
    assert reading.signals[Signal.POWER] == pytest.approx(71.2)


def test_intel_gpus_are_numbered_by_their_address_and_their_tiles_are_joined():
    cards = cards_of(capture("intel-1.2-max1550-documented"))
    assert [cards[gpu].facts.pci_bus_id for gpu in "01"] == ["0000:3a:00.0", "0000:4d:00.0"]
    signals = cards["1"].reading.signals
    assert signals[Signal.MEMORY_USED] == 31138512896 + 30138512896
    assert signals[Signal.POWER] == 512.5, "the whole GPU's, not its tiles'"
    assert (signals[Signal.CLOCK_SM], signals[Signal.TEMPERATURE_GPU]) == (1590e6, 64.0)
    assert cards["1"].reading.missing[Signal.MEMORY_TOTAL] is Missing.UNSUPPORTED


@pytest.mark.parametrize("name", ["amd-1.4-mi300x-documented", "ascend-7.0-910b-documented"])
def test_gpus_of_other_vendors_report_no_xids(name):
    assert not played(capture(name)).state.xids
