"""Our own page under DCGM's names, read back as a dcgm-exporter's, gives what the driver gave."""

from __future__ import annotations

import pytest

from exporter.gpu_pages.gpu_exporter import Part, limits
from exporter.gpu_pages.tables.dcgm import DCGM
from exporter.model import Missing, Signal
from exporter.render.dcgm.page import render
from exporter.render.dcgm.query import DIALECTS, parse_query
from exporter.render.dcgm.rates import RateTracker
from tests.support.dcgm_card import FULL, RATES, full_card
from tests.support.gpu_page_probe import played
from tests.support.records import replace
from tests.support.virtual_node import VirtualNode

# What DCGM's names cut off, in our units: whole MHz, MiB, percent.
UNITS = {"memory": 2.0**20, "bar1": 2.0**20, "clock": 1e6}
ROUNDED = {"memory": 2.0**20, "bar1": 2.0**20, "clock": 1e6, "energy": 1.0, "temperature": 1.0}
EXACT = 1e-6  # six decimals


def tolerance(signal):
    if signal.value.endswith("utilization") or signal in {Signal.MEMORY_ACTIVITY, Signal.FAN_SPEED}:
        return 0.005 + EXACT
    return next((unit for prefix, unit in ROUNDED.items() if signal.value.startswith(prefix)), 0.5)


def read_back(shot, dialect, rates):
    text = render(shot, parse_query(f"dialect={dialect}&fields=all"), hostname="n", rates=rates)
    poller = played(text.encode(), kind="dcgm")
    assert poller.parse_warnings == {}
    return {card.facts.uuid: card for card in poller.state.cards}


def plausible(signal):
    low, high = limits(signal)
    unit = UNITS.get(signal.value.partition("_")[0], 1.0) if high > 1.0 else 1.0
    return min(max(PLACES[signal] * unit, low), high)


PLACES = {signal: place for place, signal in enumerate(Signal, start=1)}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_signal_of_the_table_comes_back(dialect):
    told = [row.target for row in DCGM.fields if isinstance(row.target, Signal)]
    values = {signal: plausible(signal) for signal in told}
    values |= {Signal.FABRIC_STATE: 3.0, Signal.FABRIC_STATUS: 0.0}
    gpu = full_card(0, **{signal.value: number for signal, number in values.items()})
    found = read_back(replace(FULL, cards=(gpu,)), dialect, RATES)[gpu.facts.uuid].reading
    if dialect == "legacy":  # whose PCIe fields are rates
        assert found.missing[Signal.PCIE_TRANSMIT] is found.missing[Signal.PCIE_RECEIVE] is Missing.NOT_EXPORTED
        values = {s: n for s, n in values.items() if s not in {Signal.PCIE_TRANSMIT, Signal.PCIE_RECEIVE}}
    for signal, number in values.items():
        assert found.signals[signal] == pytest.approx(number, abs=tolerance(signal)), signal
    assert found.traffic[("pcie", "transmit")] == 4096.0
    assert found.pipe_active.keys() == {row.word for row in DCGM.fields if row.target is Part.PIPE_ACTIVE}


@pytest.fixture(scope="module", params=["heat", "powercap"])
def lived(request):
    """A simulated node with a fault, after half a minute, and the rates of its byte counters."""
    node, rates = VirtualNode(request.param, fault_at=5.0), RateTracker()
    for _ in node.live(30.0):
        current = rates.update(node.publisher.snapshot.cards)
    return node.publisher.snapshot, current


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_simulated_node_read_through_dcgm_gives_the_same_catalogue_values(lived, dialect):
    shot, current = lived
    direct = {card.facts.uuid: card for card in shot.cards}
    through = read_back(shot, dialect, current)
    assert through.keys() == direct.keys()
    for uuid, card in through.items():
        expected, found = direct[uuid].reading, card.reading
        assert {signal for signal in expected.signals.keys() & DCGM.signals() if signal not in found.signals} <= {
            Signal.PCIE_TRANSMIT, Signal.PCIE_RECEIVE,
        }  # fmt: skip
        for signal, number in found.signals.items():
            assert number == pytest.approx(expected.signals[signal], abs=tolerance(signal)), signal
        assert found.clock_events == {
            reason: expected.clock_events.get(reason, False) for reason in found.clock_events
        }
        for part in (Part.CLOCK_EVENT_SECONDS, Part.POLICY_SECONDS, Part.NVLINK_ERRORS, Part.PIPE_ACTIVE):
            told, known = getattr(found, part.value), getattr(expected, part.value)
            assert told == pytest.approx({word: known[word] for word in told}, abs=EXACT), part
        assert (card.facts.index, card.facts.name) == (direct[uuid].facts.index, direct[uuid].facts.name)
        assert card.facts.pci_bus_id == direct[uuid].facts.pci_bus_id
