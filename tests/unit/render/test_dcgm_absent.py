"""DCGM's names where something is missing or divided: lost cards, bad numbers, MIG instances, XIDs."""

from __future__ import annotations

import re

import pytest

from exporter.model import GpuLabels, MigInstance, Signal
from exporter.render.dcgm.query import DIALECTS
from tests.support import dcgm_contract as contract
from tests.support.builders import card, snapshot
from tests.support.dcgm_card import FULL, PLAUSIBLE, families, full_card, kinds, page, samples, xid
from tests.support.dcgm_contract import full
from tests.support.records import replace

# -- what we do not have


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_was_not_read_is_absent_and_never_zero(dialect):
    bare = replace(card(0), facts=full_card(0).facts)
    assert page(f"dialect={dialect}&fields=all", snapshot(cards=(bare,)), rates={}) == ""
    lone = snapshot(cards=(card(0, power=1.0),))
    assert len(samples(page(f"dialect={dialect}&fields=all", lone, rates={}))) == 1


def shown(dialect, signals):
    """Return the names of the rows of a card of which only these signals were read."""
    return samples(page(f"dialect={dialect}&fields=all", snapshot(cards=(card(0, **signals),)), rates={})).keys()


@pytest.mark.parametrize("signal", [signal.value for signal in Signal])
def test_no_row_outlives_its_signal(signal):
    others = {name: value for name, value in PLAUSIBLE.items() if name != signal}
    for dialect in DIALECTS:
        own = shown(dialect, {signal: PLAUSIBLE[signal]})
        assert own <= kinds(page(f"dialect={dialect}&fields=all")).keys()
        assert own.isdisjoint(shown(dialect, others))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_most_signals_have_a_row_that_needs_nothing_else(dialect):
    assert sum(bool(shown(dialect, {signal: value})) for signal, value in PLAUSIBLE.items()) > 40


def test_a_lost_gpu_takes_only_its_own_series_away():
    shot = replace(FULL, cards=(replace(FULL.cards[0], reading=None), FULL.cards[1]))
    assert samples(page("", shot), "0") == {}
    assert samples(page("", shot), "1") == samples(page(), "1")


def test_a_lost_gpu_that_reported_an_error_still_shows_which():
    lost = (replace(FULL.cards[1], reading=None), replace(FULL.cards[0], reading=None))
    shown = samples(page("fields=all", replace(FULL, cards=lost)), "1")
    assert shown.keys() == {full("XID_ERRORS"), "DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_EXP_XID_ERRORS_COUNT"}
    labels, value = shown[full("XID_ERRORS")]
    assert (value, labels["err_code"], labels["UUID"]) == ("48", "48", "GPU-0001")
    assert samples(page("fields=all", replace(FULL, cards=lost)), "0") == {}, "its XIDs are all at zero"


def test_without_a_driver_version_its_label_is_left_out():
    labels, _ = samples(page("", replace(FULL, driver=None)))[full("GPU_UTIL")]
    assert "DCGM_FI_DRIVER_VERSION" not in labels


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_costs_its_own_rows_only(poison):
    sick = dict.fromkeys(PLAUSIBLE, poison)
    shot = snapshot(cards=(card(0, **sick), full_card(1)))
    for dialect in DIALECTS:
        text = page(f"dialect={dialect}&fields=all", shot)
        assert not re.search(r"\b(nan|inf)\b", text, re.IGNORECASE)
        assert len(samples(text, "1")) > 60


@pytest.mark.parametrize(
    ("state", "status", "shown"),
    [(1.0, None, "1"), (2.0, None, "2"), (3.0, 0.0, "3"), (3.0, 999.0, "4"), (3.0, None, None)],
)
def test_a_fabric_counts_as_a_success_only_when_its_driver_says_how_it_ended(state, status, shown):
    signals = {"fabric_state": state} if status is None else {"fabric_state": state, "fabric_status": status}
    row = samples(page("fields=all", snapshot(cards=(card(0, **signals),)))).get(full("FABRIC_MANAGER_STATUS"))
    assert (row[1] if row else None) == shown


def test_the_mask_of_clock_events_adds_up_the_active_reasons():
    assert samples(page("fields=all"))[full("CLOCKS_EVENT_REASONS")][1] == str(0x4 | 0x40)


# -- instances


def instance(number, profile="1g.10gb", parent="GPU-0000", compute=0, **signals):
    gpu = card(0, **signals)
    part = MigInstance(
        number=number, parent=parent, profile=profile, gpu_instance=number + 7, compute_instance=compute
    )
    facts = replace(
        gpu.facts, uuid=f"MIG-{number}-{compute}", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", instance=part
    )
    return replace(gpu, facts=facts, labels=GpuLabels("0:0", facts.uuid))


def test_an_instance_stands_under_its_parents_labels_and_its_own_two():
    parts = (instance(0, memory_used=2.0**30), instance(1, memory_used=3 * 2.0**20, sm_active=0.5))
    text = page("fields=all", replace(FULL, cards=(full_card(0), *parts, full_card(1))))
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_FB_USED{")]
    shown = [(dict(re.findall(r'(\w+)="([^"]*)"', line)), line.rpartition(" ")[2]) for line in lines]
    assert [(labels["gpu"], labels.get("GPU_I_ID"), value) for labels, value in shown] == [
        ("0", None, "61441"),
        ("0", "7", "1024"),
        ("0", "8", "3"),
        ("1", None, "61441"),
    ]
    labels = shown[1][0]
    assert tuple(labels) == (
        *contract.LABELS["legacy"][:5],
        *contract.INSTANCE_LABELS,
        *contract.LABELS["legacy"][5:],
    )
    parents = {name: labels[name] for name in contract.LABELS["legacy"][:5]}
    assert parents == {name: shown[0][0][name] for name in parents}, "the parent's UUID, place and model"
    assert labels["GPU_I_PROFILE"] == "1g.10gb"


def test_two_compute_instances_of_one_gpu_instance_are_one_series():
    parts = (instance(0, compute=0, memory_used=2.0**30), instance(0, compute=1, memory_used=2.0**30))
    text = page("", snapshot(cards=(full_card(0), *parts)))
    assert text.count("DCGM_FI_DEV_FB_USED{") == 2


def test_an_instance_of_an_unknown_gpu_is_left_out():
    assert page("", snapshot(cards=(instance(0, memory_used=1.0),))) == ""


# -- XIDs


@pytest.mark.parametrize(
    ("xids", "shown"),
    [
        ((), None),  # nobody listens
        ((xid(0, 48), xid(0, 79)), "0"),
        ((xid(0, 48, 1, 10.0), xid(0, 13, 3, 20.0)), "13"),
        ((xid(0, 48, 1, 30.0), xid(0, 13, 3, 20.0)), "48"),
        ((xid(0, 48, 0, 30.0),), "0"),  # from before the start: DCGM would not know it
        ((xid(0, 48, 1, 10.0), xid(0, None, 1, 20.0)), None),  # the newest was counted without its code
        ((xid(1, 48, 1, 10.0),), None),
    ],
)
def test_the_last_xid_is_the_newest_since_the_start(xids, shown):
    row = samples(page("", replace(FULL, xids=xids))).get(full("XID_ERRORS"))
    assert (row[1] if row else None) == shown
    if shown is not None:
        assert row[0]["err_code"] == shown
        assert row[0]["err_msg"]


def test_xids_are_counted_by_code_once_they_happened():
    xid_family = families(page("fields=all"))["DCGM_EXP_XID_ERRORS_TOTAL"]
    assert {(sample.labels["gpu"], sample.labels["xid"]): sample.value for sample in xid_family.samples} == {
        ("1", "13"): 2.0,
        ("1", "48"): 1.0,
    }
