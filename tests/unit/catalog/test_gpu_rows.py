"""What the full set leaves out about cards because another row says the same."""

from __future__ import annotations

import pytest

from exporter.catalog import metrics
from exporter.catalog.spec import Metric
from exporter.model import CardReading, CardState, GpuModes, Missing, Signal, Snapshot
from exporter.model.software import NodeSoftware, SharedMemory
from exporter.render import api_documents
from tests.support.builders import card
from tests.support.records import replace

OLD = Signal.RETIRED_PAGES_SINGLE_BIT


def rows(metric: Metric, *cards: CardState) -> list[tuple[str, ...]]:
    """Return the labels behind those of the subject."""
    sources = tuple(gpu.status for gpu in cards)
    read = metric.read_full or metric.read
    return [labels for labels, _ in read(Snapshot(at=1.0, unix_time=1.0, cards=cards, sources=sources))]


def values(metric: Metric, *cards: CardState) -> list[float]:
    return [value for _, value in metric.read(Snapshot(at=1.0, unix_time=1.0, cards=cards))]


def without(why: Missing, **signals: float) -> CardState:
    made = card(**signals)
    assert made.reading is not None
    reading = CardReading(at=1.0, signals=made.reading.signals, missing={OLD: why})
    return replace(made, reading=reading)


def test_links_are_counted_only_where_the_state_of_each_was_read():
    whole = replace(card(), reading=CardReading(at=1.0, signals={}, nvlink_up={0: True, 1: True}))
    partly = CardReading(
        at=1.0, signals={}, nvlink_up={0: True, 1: True}, missing={Signal.NVLINK_STATE: Missing.ERROR}
    )
    for metric in (metrics.GPU_NVLINK_ACTIVE_LINKS, metrics.GPU_NVLINK_UP):
        assert rows(metric, whole)
    assert rows(metrics.GPU_NVLINK_ACTIVE_LINKS, replace(whole, reading=partly)) == []
    assert len(rows(metrics.GPU_NVLINK_UP, replace(whole, reading=partly))) == 2


def test_a_gpu_that_remaps_rows_does_not_miss_retired_pages():
    assert rows(metrics.GPU_SIGNAL_MISSING_INFO, without(Missing.UNSUPPORTED, row_remap_pending=0.0)) == []


def test_a_gpu_with_neither_and_one_that_fails_to_say_miss_them():
    for gpu, why in (
        (without(Missing.UNSUPPORTED), "unsupported"),
        (without(Missing.ERROR, row_remap_pending=0.0), "error"),
    ):
        assert rows(metrics.GPU_SIGNAL_MISSING_INFO, gpu) == [("0", "GPU-0000", OLD.value, why)]


def test_gpus_are_sources_where_no_row_of_their_own_says_it():
    lost = card(up=False)
    assert rows(metrics.SHARDWATCH_SOURCE_UP, lost) == []
    assert rows(metrics.SHARDWATCH_SOURCE_HUNG, lost) == [("gpu:GPU-0000",)]
    assert rows(metrics.SHARDWATCH_SOURCE_DOWN_INFO, lost) == [("gpu:GPU-0000", "lost")]


@pytest.mark.parametrize(
    ("mode", "pending", "shown"), [(1.0, 1.0, []), (0.0, 0.0, []), (1.0, 0.0, [0.0]), (0.0, 1.0, [1.0])]
)
def test_the_ecc_mode_of_the_next_reset_is_shown_where_it_changes_the_mode(mode, pending, shown):
    gpu = card(ecc_mode=mode, ecc_mode_pending=pending)
    assert values(metrics.GPU_ECC_ENABLED_PENDING, gpu) == shown


def test_only_banks_that_have_used_spare_rows_have_a_series():
    banks = {"row_remap_banks_max": 639.0, "row_remap_banks_high": 0.0, "row_remap_banks_none": 1.0}
    assert rows(metrics.GPU_ROW_REMAP_BANKS, card(**banks)) == [("0", "GPU-0000", "none")]


def test_a_gpu_without_c2c_links_does_not_miss_their_mode():
    reading = CardReading(at=1.0, signals={}, missing={Signal.C2C_MODE: Missing.UNSUPPORTED})
    assert rows(metrics.GPU_SIGNAL_MISSING_INFO, replace(card(), reading=reading)) == []


def test_software_of_a_gpu_that_stopped_answering_is_not_shown():
    """It is read once a minute: until then nobody knows which processes such a GPU has."""
    for gpu, shown in ((card(), [1.0]), (card(up=False), [])):
        software = NodeSoftware(mps={gpu.facts.uuid: True}, shared_memory={gpu.facts.uuid: SharedMemory(1.0, 1.0)})
        snapshot = Snapshot(at=1.0, unix_time=1.0, cards=(gpu,), software=software)
        for metric in (metrics.GPU_MPS_ACTIVE, metrics.GPU_PROCESS_SHARED_MEMORY_SIZE_BYTES):
            assert [value for _, value in metric.read(snapshot)] == shown


@pytest.mark.parametrize("reason", ["lost", "released"])
def test_the_modes_of_a_gpu_that_is_not_read_are_not_known(reason):
    """The driver, and its firmware with it, may have been replaced meanwhile."""
    read = card(0)
    read = replace(read, facts=replace(read.facts, modes=GpuModes(persistence="enabled", gsp_firmware="580.95.05")))
    silent = replace(read, reading=None, status=replace(read.status, up=False, reason=reason))
    assert len(rows(metrics.GPU_MODE_INFO, read)) == 1
    assert rows(metrics.GPU_MODE_INFO, silent) == []
    (known, unknown) = (
        api_documents.node(Snapshot(at=1.0, unix_time=1.0, cards=(one,))).gpus[0] for one in (read, silent)
    )
    assert (known.gsp_firmware_version, known.modes) == ("580.95.05", {"persistence_mode": "enabled"})
    assert (unknown.gsp_firmware_version, unknown.modes) == ("", {})
