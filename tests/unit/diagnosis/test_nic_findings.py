"""Findings about adapters: which port, what beside it, and which replica waits for it."""

from __future__ import annotations

import pytest

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.diagnose import arrange, find
from exporter.diagnosis.history import DiagnosisHistory
from exporter.model import GpuAssignment
from exporter.model.finding import SubjectKind
from exporter.model.nic import (
    NearGpu,
    NicEventCount,
    NicEventLabels,
    NicPort,
    NicPortKey,
    NicState,
    PciLocation,
)
from exporter.model.text import Text
from tests.support.builders import card, replica, snapshot
from tests.support.records import replace

PCI = "0000:65:00.0"
LOCATION = PciLocation(path=("pci0000:60", PCI))
UP = {"state": "active", "physical_state": "link_up"}
NEAR = (NearGpu("GPU-0001", "PIX"),)


def nic(*, is_down=False, max_rate=None, nearest=NEAR, **port):
    made = NicPort(key=NicPortKey("mlx5_1", "1"), location=LOCATION, **{**UP, **port})
    return NicState(port=made, is_down=is_down, max_rate=max_rate, nearest=nearest)


def seen(*nics, at=1001.0, **more):
    owns = (GpuAssignment(uuid="GPU-0001", replica="a"),)
    made = snapshot(cards=(card(0), card(1)), replicas=(replica("a"),), assignments=owns, nics=nics, **more)
    return replace(made, at=at)


def named(findings):
    return {finding.id: finding for finding in findings if finding.subject.kind is SubjectKind.ADAPTER}


def evidence(finding):
    return {item.name: item.value.en if isinstance(item.value, Text) else item.value for item in finding.evidence}


def after(*states):
    """Findings of the last of some states, a minute apart."""
    history = DiagnosisHistory()
    for minute, state in enumerate(states):
        current = seen(state, at=60.0 * minute)
        past = history.update(current)
    return named(find(current, past))


def test_a_healthy_port_has_no_finding():
    assert not named(find(seen(nic(rate=50e9, max_rate=50e9))))


def test_a_port_that_is_down_names_itself_its_gpu_and_what_the_driver_said():
    events = NicEventCount(labels=NicEventLabels(PCI, "cable_unplugged"), count=1, last_unix_time=1.7e9 - 60)
    other = NicEventCount(labels=NicEventLabels("0000:66:00.0", "health"), count=1, last_unix_time=1.7e9)
    old = NicEventCount(labels=NicEventLabels(PCI, "health"), count=0, last_unix_time=1.6e9)
    down = nic(is_down=True, state="down", physical_state="polling", interface="ens1")
    found = named(find(seen(down, nic_events=(events, other, old))))
    assert list(found) == ["NicPortDown"]
    finding = found["NicPortDown"]
    assert (finding.subject.label, finding.summary.en) == ("mlx5_1 port 1", "mlx5_1 port 1 is down (polling)")
    assert finding.replica == "a"
    assert evidence(finding) == {
        "state": "down", "interface": "ens1", "pci_bus_id": PCI, "driver_events": "cable_unplugged",
        "nearest_gpus": "GPU 1",
    }  # fmt: skip
    assert "mlx5_1 port 1" in finding.actions[0].en
    assert "{port}" not in finding.actions[0].zh


def test_a_port_below_its_best_rate_says_both():
    (finding,) = named(find(seen(nic(rate=25e9, max_rate=50e9)))).values()
    assert finding.id == "NicBelowRate"
    assert finding.summary.en == "mlx5_1 port 1 runs at 200 Gb/s instead of 400 Gb/s"


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"link_downs": 5.0}, {"link_downs": 5.0 + limit.NIC_LINK_DOWNS}, {"NicLinkFlaps"}),
        ({"link_downs": 5.0}, {"link_downs": 6.0}, set()),
        ({"carrier_changes": 1.0}, {"carrier_changes": 5.0}, {"NicLinkFlaps"}),
        ({"carrier_changes": 1.0}, {"carrier_changes": 4.0}, set()),
        ({"link_downs": 0.0, "carrier_changes": 1.0}, {"link_downs": 0.0, "carrier_changes": 5.0}, {"NicLinkFlaps"}),
        ({"errors": {"symbol": 7.0}}, {"errors": {"symbol": 8.0 + limit.NIC_ERRORS}}, {"NicErrorsRise"}),
        ({"errors": {"symbol": 7.0}}, {"errors": {"symbol": 7.0 + limit.NIC_ERRORS}}, set()),
        ({"errors": {"symbol": 2.0**32}}, {"errors": {"symbol": 5.0}}, set()),  # wrapped, or was reset
        ({}, {"errors": {"symbol": 1e9}}, set()),  # known from now on
    ],
)
def test_what_grew_during_the_window_is_judged(before, now, expected):
    assert set(after(nic(**before), nic(**now))) == expected


def test_of_a_port_that_is_down_nothing_else_is_said():
    down = nic(is_down=True, state="down", link_downs=9.0, errors={"symbol": 1e6})
    assert set(after(nic(link_downs=0.0, errors={"symbol": 0.0}), down)) == {"NicPortDown"}


def test_a_frozen_replica_names_the_adapter_beside_its_gpus_as_the_cause():
    frozen = replica("a", frozen=True)
    down = nic(is_down=True, state="down", physical_state="polling")
    current = replace(seen(down), replicas=(frozen,))
    (finding,) = [each for each in arrange(find(current)) if each.id == "EngineFrozen"]
    assert finding.cause.en == "mlx5_1 port 1 is down (polling)"
    assert [cause.id for cause in finding.causes] == ["NicPortDown"]
    assert finding.solution == finding.causes[0].actions


def test_an_adapter_beside_another_replica_is_no_cause():
    frozen = replica("a", frozen=True)
    down = nic(is_down=True, state="down", nearest=(NearGpu("GPU-0000", "PIX"),))
    found = arrange(find(replace(seen(down), replicas=(frozen,))))
    assert {each.id for each in found} == {"EngineFrozen", "NicPortDown"}


def test_a_port_that_is_down_has_its_errors_as_evidence_and_no_second_finding():
    before = nic(errors={"symbol": 0.0})
    down = nic(is_down=True, state="down", physical_state="polling", errors={"symbol": limit.NIC_ERRORS + 1.0})
    found = after(before, down)
    assert list(found) == ["NicPortDown"]
    assert evidence(found["NicPortDown"])["errors_symbol"] == limit.NIC_ERRORS + 1.0


def test_errors_that_were_found_before_the_port_went_down_are_shown_under_it():
    before = nic(errors={"symbol": 0.0})
    errors = after(before, nic(errors={"symbol": limit.NIC_ERRORS + 1.0}))["NicErrorsRise"]
    down = named(find(seen(nic(is_down=True))))["NicPortDown"]
    (shown,) = arrange((errors, down))
    assert (shown.id, [cause.id for cause in shown.causes]) == ("NicPortDown", [])


def test_a_port_is_described_in_chinese_without_words_of_the_kernel():
    (finding,) = named(find(seen(nic(is_down=True, state="down", physical_state="polling")))).values()
    assert finding.summary.zh == "mlx5_1 端口 1 已断开（轮询中）"
    texts = {item.name: item.value.zh for item in finding.evidence if item.name in {"state", "nearest_gpus"}}
    assert texts == {"state": "断开", "nearest_gpus": "1 号卡"}
