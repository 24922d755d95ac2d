"""GPU exporters: declarations, pages made from their documentation, GPUs that come and go, and bad input."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil

import pytest

from exporter.config.settings import parse
from exporter.config.targets import GPU_EXPORTER_KINDS
from exporter.derive.gpu_pages import all_cards, driver_of, xid_cards
from exporter.gpu_pages import tables
from exporter.gpu_pages.gpu_exporter import GpuExporter
from exporter.gpu_pages.interpreter import MAX_GPUS
from exporter.gpu_pages.reference import reference
from exporter.gpu_pages.tables import GPU_EXPORTERS, recognise
from exporter.model import DriverFacts, Missing, Signal
from exporter.runtime.gpu_page import EXPIRE_AFTER
from tests.support.builders import Clock
from tests.support.builders import card as driver_card
from tests.support.gpu_page_probe import RECORDINGS, capture, cards_of, make_poller, played, rendered
from tests.support.records import replace

ROOT = pathlib.Path(__file__).parents[3]


def dcgm(name="DCGM_FI_DEV_GPU_TEMP", value="51", **labels):
    written = ",".join(f'{key}="{text}"' for key, text in {"gpu": "0", "UUID": "GPU-a", **labels}.items())
    return f"{name}{{{written}}} {value}\n".encode()


def test_every_file_in_tables_declares_exporters_that_are_in_the_list():
    declared = {
        value.kind
        for module in pkgutil.iter_modules(tables.__path__)
        for value in vars(importlib.import_module(f"{tables.__name__}.{module.name}")).values()
        if isinstance(value, GpuExporter)
    }
    assert declared == {exporter.kind for exporter in GPU_EXPORTERS} == set(GPU_EXPORTER_KINDS)


def test_the_documentation_is_what_the_declarations_make():
    assert (ROOT / "docs/gpu-exporters.md").read_text() == reference(), "run make generate"


@pytest.mark.parametrize("exporter", GPU_EXPORTERS, ids=lambda exporter: exporter.kind)
def test_every_exporter_has_a_page_on_which_it_is_recognised(exporter):
    assert [name for name in RECORDINGS if recognise(capture(name)) is exporter]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_page_gives_the_same_metrics_as_ever(name, golden):
    poller = played(capture(name))
    assert poller.parse_warnings == {}
    golden(f"gpu_pages/{name}.prom", rendered(poller.state))


def test_older_and_newer_names_of_dcgm_tell_the_same():
    older, newer = (cards_of(capture(f"dcgm-{version}-documented")) for version in ("4.4", "4.9"))
    assert older.keys() == newer.keys() == {"0", "1"}
    for gpu, card in older.items():
        signals = dict(newer[gpu].reading.signals)
        assert signals.pop(Signal.ENERGY) == pytest.approx(card.reading.signals[Signal.ENERGY], abs=1.0)
        assert signals == pytest.approx({s: n for s, n in card.reading.signals.items() if s is not Signal.ENERGY})
        assert newer[gpu].reading.traffic == card.reading.traffic


def test_a_gpu_is_identified_by_the_labels_of_its_series():
    card = cards_of(capture("dcgm-4.4-documented"))["1"]
    assert (card.facts.uuid, card.facts.index) == ("GPU-5c1e0e2f-9b3a-6a51-4a0e-1f7c2ce9b001", 1)
    assert (card.facts.name, card.facts.pci_bus_id) == ("NVIDIA H100 80GB HBM3", "00000000:2B:00.0")
    state = played(capture("dcgm-4.4-documented")).state
    assert driver_of(None, [state]) == DriverFacts(driver_version="570.124.06")


def test_what_dcgm_leaves_out_by_default_is_told_apart_from_what_it_never_tells():
    missing = cards_of(capture("dcgm-4.4-documented"))["0"].reading.missing
    assert missing[Signal.POWER_LIMIT] is missing[Signal.CLOCK_EVENTS] is Missing.NOT_EXPORTED
    assert missing[Signal.PROCESSES] is missing[Signal.CLOCK_GRAPHICS] is Missing.UNSUPPORTED
    assert Signal.POWER not in missing


def test_a_gpu_that_mig_divides_is_shown_by_its_instances_and_itself():
    cards = cards_of(capture("dcgm-4.4-mig-documented"))
    assert set(cards) == {"0", "0:0", "0:1", "1"}
    assert (cards["0"].facts.mig, cards["1"].facts.mig) == (True, False)
    assert cards["0:1"].facts.uuid == f"{cards['0'].facts.uuid}/9"
    assert (cards["0:1"].facts.instance.profile, cards["0:1"].facts.instance.gpu_instance) == ("1g.10gb", 9)
    assert cards["0:1"].reading.signals[Signal.MEMORY_USED] == 800 * 2**20


def test_a_gpu_shared_by_several_pods_is_one_gpu():
    page = dcgm(pod="a") + dcgm(pod="b")
    assert [card.reading.signals[Signal.TEMPERATURE_GPU] for card in cards_of(page).values()] == [51.0]


@pytest.mark.parametrize("value", ["9223372036854775794", "NaN", "+Inf", "-1e300", "1e9"])
def test_a_value_that_cannot_be_true_is_absent_and_counted(value):
    poller = played(dcgm() + dcgm("DCGM_FI_DEV_POWER_USAGE", value))
    (card,) = poller.state.cards
    assert Signal.POWER not in card.reading.signals
    assert card.reading.missing[Signal.POWER] is Missing.INVALID
    assert poller.parse_warnings == {"bad_number": 1}
    assert card.status.failures == {"signal_invalid": 1}


def test_memory_that_is_not_exported_follows_from_what_is():
    page = b"".join(dcgm(f"DCGM_FI_DEV_FB_{word}", value) for word, value in (("USED", "100"), ("FREE", "28")))
    assert cards_of(page)["0"].reading.signals[Signal.MEMORY_TOTAL] == 128 * 2**20
    assert Signal.MEMORY_TOTAL not in cards_of(page)["0"].reading.missing


def test_all_gpus_are_down_while_the_page_cannot_be_read():
    poller = played(capture("dcgm-4.4-documented"), b"")
    assert poller.state.reading is None
    assert [(card.reading, card.status.up) for card in poller.state.cards] == [(None, False)] * 2
    assert {card.status.reason for card in poller.state.cards} == {"exporter_down"}
    text = rendered(poller.state)
    assert text.count("gpu_up{") == 2
    assert "gpu_power_watts{" not in text


def test_a_gpu_that_the_page_shows_no_more_is_lost_until_it_comes_back(caplog):
    caplog.set_level("INFO")
    both, one = dcgm() + dcgm(gpu="1", UUID="GPU-b"), dcgm()
    poller = make_poller([both, one, one, both])
    poller.poll()
    poller.poll()
    poller.poll()
    (_, gone) = poller.state.cards
    assert (gone.facts.uuid, gone.status.reason, gone.reading) == ("GPU-b", "lost", None)
    assert gone.status.failures == {"lost": 1}
    poller.poll()
    assert all(card.status.up for card in poller.state.cards)
    assert caplog.text.count("GPU-b") == 2


def test_a_lost_gpu_is_dropped_after_a_day():
    clock = Clock(1000.0)
    poller = make_poller([dcgm() + dcgm(gpu="1", UUID="GPU-b"), dcgm(), dcgm()], clock)
    poller.poll()
    clock.tick(EXPIRE_AFTER - 1)
    poller.poll()
    assert len(poller.state.cards) == 2
    clock.tick(2.0)
    poller.poll()
    assert len(poller.state.cards) == 1


def test_identities_that_change_on_every_page_are_bounded():
    pages = [b"".join(dcgm(gpu=str(n), UUID=f"GPU-{turn}-{n}") for n in range(MAX_GPUS // 2)) for turn in range(6)]
    poller = played(*pages)
    assert len(poller.state.cards) <= MAX_GPUS
    assert sum(card.status.up for card in poller.state.cards) == MAX_GPUS // 2


def test_a_page_of_a_thousand_gpus_shows_the_first():
    poller = played(b"".join(dcgm(gpu=str(n), UUID=f"GPU-{n}") for n in range(1000)))
    assert len(poller.state.cards) == MAX_GPUS
    assert poller.parse_warnings["too_many_gpus"] == 1000 - MAX_GPUS


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"up 1\n", "unknown_gpu_exporter"),
        (b"<html>DCGM_FI_DEV_GPU_TEMP</html>", "unknown_gpu_exporter"),
        (b"DCGM_FI_DEV_GPU_TEMP 5\n", "no_gpu_metrics"),
        (b'DCGM_FI_DEV_GPU_TEMP{gpu="x",UUID=""} 5\n', "no_gpu_metrics"),
    ],
)
def test_a_page_without_gpus_is_no_gpu_exporter(body, reason):
    state = played(body).state
    assert (state.status.reason, state.cards) == (reason, ())


def test_hostile_labels_reach_no_log_and_no_page_unclean():
    poller = played(dcgm(UUID="GPU-\x1b[2Jx" + "y" * 5000, modelName="\x07"))
    (card,) = poller.state.cards
    assert card.facts.uuid.isprintable() and len(card.facts.uuid) <= 512
    assert card.facts.name.isprintable()


def test_a_counter_that_falls_is_shown_as_it_is():
    energies = [dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", value) for value in ("5000", "1000")]
    assert played(*energies).state.cards[0].reading.signals[Signal.ENERGY] == 1.0


def test_a_gpu_that_the_driver_reads_too_is_taken_from_the_driver():
    state = played(dcgm(UUID="GPU-0000") + dcgm(gpu="1", UUID="GPU-0001")).state
    driver = driver_card(0, power=7.0)
    found = all_cards((driver,), [state])
    assert found[0] is driver
    assert [card.facts.uuid for card in found] == ["GPU-0000", "GPU-0001"]
    assert list(xid_cards(found, [replace(state, xids=False)])) == []
    assert xid_cards(found, [state]) == found


def test_pages_switch_nvml_off_unless_it_is_asked_for():
    pages = "pages: [{url: 'http://127.0.0.1:9400'}]"
    assert parse(f"gpu: {{{pages}}}", "x", {}).gpu.enabled is False
    assert parse(f"gpu: {{enabled: true, {pages}}}", "x", {}).gpu.enabled is True
    assert parse(f"gpu: {{{pages}}}", "x", {}).gpu.pages[0].url == "http://127.0.0.1:9400/metrics"
