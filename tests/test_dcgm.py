"""DCGM's names: held against the contract, on pages of a fixed snapshot, through the store, and through a server."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import time
from dataclasses import replace

import dcgm_contract as contract
import pytest
from builders import Clock, card, snapshot
from dcgm_contract import full
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from test_end_to_end import Daemon

from exporter.dcgm.page import render
from exporter.dcgm.query import DIALECTS, QueryRefusedError, understood
from exporter.dcgm.rates import COUNTERS, HALF, LONGEST, RateBook
from exporter.dcgm_pages import DcgmPages, hostname
from exporter.listener.loop import Request
from exporter.model import DriverFacts, MigInstance, Signal, XidCount
from exporter.pages import TOO_OLD, WANTED_FOR
from exporter.server import TEXT, routes

ALL = {signal.value: float(place) for place, signal in enumerate(Signal, start=1)}
GIB = 2.0**30
PLAUSIBLE = {
    **ALL,
    "utilization": 0.875,
    "memory_activity": 0.125,
    "encoder_utilization": 0.0,
    "decoder_utilization": 0.05,
    "memory_total": 80 * GIB,
    "memory_used": 60 * GIB + 1.5 * 2**20,
    "memory_free": 19 * GIB + 1023 * 1024.0,
    "memory_reserved": GIB - 0.5 * 2**20,
    "power": 345.678,
    "energy": 1234567.891,
    "temperature_gpu": 61.0,
    "temperature_memory": 72.0,
    "clock_sm": 1980e6,
    "clock_memory": 2619e6,
    "sm_active": 0.5,
    "sm_occupancy": 0.25,
    "tensor_active": 0.123456789,
    "dram_active": 0.75,
    "graphics_active": 0.9,
    "fabric_state": 3.0,
    "fabric_status": 0.0,
    "row_remap_failed": 0.0,
    "row_remap_pending": 1.0,
    "temperature_margin": -2.0,
    "fan_speed": 0.3,
}
EVENTS = {"sw_power_cap": 1.5, "sync_boost": 0.0, "sw_thermal_slowdown": 2e-9}
EVENTS |= {"hw_thermal_slowdown": 4.0, "hw_power_brake_slowdown": 0.25}
PIPES = dict.fromkeys(
    ("integer", "tensor_dfma", "tensor_hmma", "tensor_dmma", "tensor_imma", "fp64", "fp32", "fp16"), 0.5
)


def full_card(index=0, **signals):
    one = card(index, **{**PLAUSIBLE, **signals})
    reading = replace(
        one.reading,
        clock_events={"sw_power_cap": True, "gpu_idle": False, "hw_thermal_slowdown": True},
        clock_event_seconds=EVENTS,
        nvlink_errors={"replay": 3.0, "recovery": 2.0, "crc": 1.0},
        pipe_active=PIPES,
    )
    facts = replace(one.facts, name="NVIDIA H100 80GB HBM3", pci_bus_id=f"00000000:{0x19 + index:02X}:00.0")
    return replace(one, reading=reading, facts=facts)


def xid(index, code, count=0, wall=None):
    return XidCount(
        labels=(str(index), f"GPU-{index:04d}", str(code or "other"), "nvml"), xid=code, count=count, last_wall=wall
    )


RATES = {
    f"GPU-{index:04d}": {
        Signal.NVLINK_TRANSMIT: 3_000_000_000.0,
        Signal.NVLINK_RECEIVE: 1_500_000_000.5,
        Signal.PCIE_TRANSMIT: 4096.4,
        Signal.PCIE_RECEIVE: 8192.5,
    }
    for index in range(2)
}
FULL = snapshot(
    cards=(full_card(0), full_card(1)),
    driver=DriverFacts(driver_version="580.95.05"),
    xids=(xid(0, 48), xid(0, 79), xid(1, 13, 2, 1e9), xid(1, 48, 1, 2e9), xid(1, 63, 0, 3e9)),
)


def page(query="", shot=FULL, rates=RATES):
    return render(shot, understood(query), hostname="node-1", rates=rates)


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def kinds(text):
    return dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))


def samples(text, gpu="0"):
    """Give name → (labels, value as written) of one card's series; of a name that is there twice, the first."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r'(\w+)\{(gpu="(\d+)".*)\} (\S+)', line)
        if match and match[3] == gpu:
            found.setdefault(match[1], (dict(re.findall(r'(\w+)="([^"]*)"', match[2])), match[4]))
    return found


# -- the contract


@pytest.mark.parametrize(("dialect", "column"), [("legacy", 0), ("4.9", 4)])
def test_the_default_rows_have_the_names_and_types_that_dcgms_exporter_gives_them_in_its_order(dialect, column):
    expected = [
        (full(row[column]), row[1])
        for row in contract.DEFAULT_ROWS
        if row[column] and row[column] not in contract.NOT_OURS
    ]
    assert list(kinds(page(f"dialect={dialect}")).items()) == expected


def base_value(name):
    """What each default row shows of the full card, in base units."""
    found = PLAUSIBLE
    return {
        "SM_CLOCK": found["clock_sm"],
        "MEM_CLOCK": found["clock_memory"],
        "MEMORY_TEMP": found["temperature_memory"],
        "GPU_TEMP": found["temperature_gpu"],
        "POWER_USAGE": found["power"],
        "TOTAL_ENERGY_CONSUMPTION": found["energy"],
        "PCIE_REPLAY_COUNTER": found["pcie_replays"],
        "GPU_UTIL": found["utilization"],
        "MEM_COPY_UTIL": found["memory_activity"],
        "ENC_UTIL": found["encoder_utilization"],
        "DEC_UTIL": found["decoder_utilization"],
        "XID_ERRORS": 0.0,
        "FB_FREE": found["memory_free"],
        "FB_USED": found["memory_used"],
        "FB_RESERVED": found["memory_reserved"],
        "": found["memory_total"],
        "NVLINK_BANDWIDTH_TOTAL": 4_500_000_000.5,
        "UNCORRECTABLE_REMAPPED_ROWS": found["remapped_rows_uncorrectable"],
        "CORRECTABLE_REMAPPED_ROWS": found["remapped_rows_correctable"],
        "ROW_REMAP_FAILURE": found["row_remap_failed"],
        "PROF_GR_ENGINE_ACTIVE": found["graphics_active"],
        "PROF_PIPE_TENSOR_ACTIVE": found["tensor_active"],
        "PROF_DRAM_ACTIVE": found["dram_active"],
        "PROF_PCIE_TX_BYTES": 4096.4,
        "PROF_PCIE_RX_BYTES": 8192.5,
    }[name]


@pytest.mark.parametrize("row", [row for row in contract.DEFAULT_ROWS if row[0] not in contract.NOT_OURS])
def test_both_dialects_show_the_same_quantity_each_in_its_unit_and_form(row):
    legacy, _, unit, form, modern, new_unit, new_form = row
    expected = base_value(legacy)
    for query, name, scale, how in (("", legacy, unit, form), ("dialect=4.9", modern, new_unit, new_form)):
        if not name:
            continue
        written = samples(page(query))[full(name)][1]
        assert bool(re.fullmatch(r"-?\d+", written) if how == "i" else re.fullmatch(r"-?\d+\.\d{6}", written)), (
            written
        )
        step = {"NVLINK_THROUGHPUT_BYTES_PER_SECOND": 1024.0}.get(name, scale if how == "i" else 5e-7)
        assert abs(float(written) * scale - expected) <= step, (name, written)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("FB_USED", "61441"),  # 61441.5 MiB
        ("FB_FREE", "19456"),  # 19456 MiB and 1023 KiB
        ("FB_RESERVED", "1023"),
        ("TOTAL_ENERGY_CONSUMPTION", "1234567891"),
        ("GPU_UTIL", "88"),
        ("POWER_USAGE", "345.678000"),
        ("PROF_PIPE_TENSOR_ACTIVE", "0.123457"),
        ("NVLINK_BANDWIDTH_TOTAL", "4394"),  # 4394531 KiB/s
    ],
)
def test_legacy_numbers_are_rounded_as_dcgm_rounds_them(name, written):
    assert samples(page())[full(name)][1] == written


def test_modern_joules_and_link_bytes_are_rounded_down():
    found = samples(page("dialect=4.9"))
    assert found[full("GPU_ENERGY_JOULES_TOTAL")][1] == "1234567"
    assert found[full("NVLINK_THROUGHPUT_BYTES_PER_SECOND")][1] == str(4_394_531 * 1024)


@pytest.mark.parametrize(("millijoules", "joules"), [(999, 0), (1000, 1), (4_742_776, 4742), (3_000_000, 3000)])
def test_whole_joules_survive_the_way_through_floating_point(millijoules, joules):
    shot = snapshot(cards=(full_card(0, energy=millijoules * 1e-3),))
    assert samples(page("dialect=4.9", shot))[full("GPU_ENERGY_JOULES_TOTAL")][1] == str(joules)
    assert samples(page("", shot))[full("TOTAL_ENERGY_CONSUMPTION")][1] == str(millijoules)


@pytest.mark.parametrize(("legacy", "modern"), contract.OPTIONAL_ROWS)
def test_rows_that_people_switch_on_are_there_when_all_are_asked_for_and_only_then(legacy, modern):
    for dialect, name in (("legacy", legacy), ("4.9", modern)):
        assert full(name) in samples(page(f"dialect={dialect}&fields=all"))
        assert full(name) not in samples(page(f"dialect={dialect}"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_labels_are_dcgms_in_dcgms_order(dialect):
    text = page(f"dialect={dialect}&fields=all")
    for name, (labels, _) in samples(text, gpu="1").items():
        more = {full("XID_ERRORS"): ("err_code", "err_msg"), full("XID_ERROR"): ("err_code", "err_msg")}
        assert tuple(labels) == contract.LABELS[dialect] + more.get(name, ()) + (
            ("xid",) if name == "DCGM_EXP_XID_ERRORS_TOTAL" else ()
        )
        assert labels["gpu"] == "1"
        assert labels["UUID"] == "GPU-0001"
        assert labels["pci_bus_id"] == "00000000:1A:00.0"
        assert labels["device"] == "nvidia1"
        assert labels["modelName"] == "NVIDIA H100 80GB HBM3"
        assert labels[contract.LABELS[dialect][5]] == "node-1"
        assert labels[contract.LABELS[dialect][6]] == "580.95.05"


@pytest.mark.parametrize(
    ("query", "spellings"),
    [
        ("hostname=both", ["Hostname", "hostname"]),
        ("hostname=hostname", ["hostname"]),
        ("dialect=4.9&hostname=Hostname", ["Hostname"]),
        ("dialect=4.9&hostname=both", ["Hostname", "hostname"]),
    ],
)
def test_the_hosts_label_is_spelt_as_asked(query, spellings):
    labels, _ = samples(page(query))[next(iter(kinds(page(query))))]
    assert [name for name in labels if name.lower() == "hostname"] == spellings


@pytest.mark.parametrize("dashboard", contract.DASHBOARDS)
def test_every_query_of_a_known_dashboard_finds_its_metric_and_labels(dashboard):
    found = families(page())
    for selector in contract.DASHBOARDS[dashboard]:
        name, labels = re.fullmatch(r"(\w+)\{(.*)\}", selector).groups()
        for sample in found[name].samples:
            for label in re.findall(r"(\w+)=", labels):
                assert sample.labels[label]


def test_the_recording_rules_of_openshift_find_their_metrics():
    assert {full(name) for name in contract.RECORDED} <= kinds(page("fields=all")).keys()


def test_the_dialects_share_only_names_that_did_not_change():
    legacy, modern = (kinds(page(f"dialect={dialect}")) for dialect in DIALECTS)
    assert legacy.keys() & modern.keys() == {full("PROF_PCIE_TX_BYTES"), full("PROF_PCIE_RX_BYTES")}


def test_no_dialect_has_a_name_twice_and_every_row_has_one_reader():
    for dialect in DIALECTS.values():
        rows = dialect.default + dialect.more
        assert len({row.name for row in rows}) == len(rows)
        assert all((row.value is None) != (row.split is None) for row in rows)
        assert all(row.help.endswith(".") and row.kind in ("gauge", "counter") for row in rows)


# -- whole pages


@pytest.mark.parametrize(
    ("file", "query"), [("legacy", "fields=all"), ("4.9", "dialect=4.9&fields=all&hostname=both")]
)
def test_a_fixed_snapshot_gives_the_same_page_as_ever(file, query, golden):
    golden(f"dcgm/{file}.txt", page(query))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_reference_parser_reads_the_page_and_finds_every_row(dialect):
    text = page(f"dialect={dialect}&fields=all")
    rows = understood(f"dialect={dialect}&fields=all").rows
    assert {row.name for row in rows} == set(kinds(text))
    series = [sample for family in families(text).values() for sample in family.samples]
    assert len(series) == len({(one.name, *sorted(one.labels.items())) for one in series})
    assert len(series) == sum(not line.startswith("#") for line in text.splitlines())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_promtool_objects_to_nothing_but_dcgms_own_names(dialect, promtool):
    text = page(f"dialect={dialect}&fields=all&hostname=both")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    said = (done.stdout + done.stderr).splitlines()
    theirs = re.compile(
        r"DCGM_\w+ (label names should be written in 'snake_case' not 'camelCase'"
        r'|counter metrics should have "_total" suffix|non-counter metrics should not have "_total" suffix'
        r"|metric names should not contain abbreviated units|metric name should not include type 'counter')"
    )
    assert said, "promtool has always found fault with camelCase labels; has it run?"
    assert [line for line in said if not theirs.fullmatch(line)] == []


def test_hostile_text_in_a_label_stays_inside_it():
    name = 'a"} 1\nb\\{x="\ud800'
    shot = replace(FULL, cards=(replace(FULL.cards[0], facts=replace(FULL.cards[0].facts, name=name)),))
    labels = {sample.labels["modelName"] for family in families(page("", shot)).values() for sample in family.samples}
    assert labels == {name.replace("\ud800", "?")}


# -- what we do not have


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_was_not_read_is_absent_and_never_zero(dialect):
    bare = replace(card(0), facts=full_card(0).facts)
    assert page(f"dialect={dialect}&fields=all", snapshot(cards=(bare,)), rates={}) == ""
    lone = snapshot(cards=(card(0, power=1.0),))
    assert len(samples(page(f"dialect={dialect}&fields=all", lone, rates={}))) == 1


@pytest.mark.parametrize("signal", [signal.value for signal in Signal])
def test_no_row_outlives_its_signal(signal):
    left = {name: value for name, value in PLAUSIBLE.items() if name != signal}
    whole_page, less = page("fields=all"), page("fields=all", snapshot(cards=(card(0, **left),)))
    assert kinds(less).keys() <= kinds(whole_page).keys()
    one = samples(page("fields=all", snapshot(cards=(card(0, **{signal: 2.0}),)), rates={}))
    assert all(name in kinds(whole_page) for name in one)


def test_a_lost_card_takes_only_its_own_series_away():
    shot = replace(FULL, cards=(replace(FULL.cards[0], reading=None), FULL.cards[1]))
    assert samples(page("", shot), "0") == {}
    assert samples(page("", shot), "1") == samples(page(), "1")


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
    found = samples(page("fields=all", snapshot(cards=(card(0, **signals),)))).get(full("FABRIC_MANAGER_STATUS"))
    assert (found[1] if found else None) == shown


def test_the_mask_of_clock_events_adds_up_the_active_reasons():
    assert samples(page("fields=all"))[full("CLOCKS_EVENT_REASONS")][1] == str(0x4 | 0x40)


# -- instances


def instance(number, profile="1g.10gb", parent="GPU-0000", compute=0, **signals):
    one = card(0, **signals)
    part = MigInstance(
        number=number, parent=parent, profile=profile, gpu_instance=number + 7, compute_instance=compute
    )
    facts = replace(
        one.facts, uuid=f"MIG-{number}-{compute}", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", instance=part
    )
    return replace(one, facts=facts, labels=("0:0", facts.uuid))


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


def test_an_instance_of_an_unknown_card_is_left_out():
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
    found = samples(page("", replace(FULL, xids=xids))).get(full("XID_ERRORS"))
    assert (found[1] if found else None) == shown
    if shown is not None:
        assert found[0]["err_code"] == shown
        assert found[0]["err_msg"]


def test_xids_are_counted_by_code_once_they_happened():
    found = families(page("fields=all"))["DCGM_EXP_XID_ERRORS_TOTAL"]
    assert {(one.labels["gpu"], one.labels["xid"]): one.value for one in found.samples} == {
        ("1", "13"): 2.0,
        ("1", "48"): 1.0,
    }


# -- rates


def moved(at, index=0, **counters):
    return replace(card(index, at=at, **counters), last_read_at=at)


def test_a_card_has_no_rate_before_its_second_reading():
    book = RateBook()
    assert book.take([moved(0.0, pcie_transmit=5.0)]) == {"GPU-0000": {}}
    assert book.take([moved(0.0, pcie_transmit=5.0)]) == {"GPU-0000": {}}, "the same reading again"
    assert book.take([moved(2.0, pcie_transmit=25.0)]) == {"GPU-0000": {Signal.PCIE_TRANSMIT: 10.0}}


@given(st.lists(st.floats(0.1, LONGEST - HALF - 1.0), min_size=1, max_size=60), st.floats(0.0, 1e12))
def test_a_steady_flow_has_its_own_rate_however_often_it_is_read(gaps, flow):
    book, at, rates = RateBook(), 0.0, {}
    book.take([moved(at, nvlink_receive=7.0)])
    for gap in gaps:
        at += gap
        rates = book.take([moved(at, nvlink_receive=7.0 + flow * at)])
    assert rates["GPU-0000"][Signal.NVLINK_RECEIVE] == pytest.approx(flow, rel=1e-6, abs=1e-6)


def test_a_rate_forgets_what_is_longer_ago_than_half_a_minute():
    book, sent = RateBook(), 0.0
    for second in range(200):
        sent += 1000.0 if second < 100 else 0.0
        rate = book.take([moved(float(second), pcie_receive=sent)])["GPU-0000"].get(Signal.PCIE_RECEIVE, 0.0)
        if 3 < second < 100:
            assert rate == pytest.approx(1000.0)
        if second >= 100 + 2 * HALF:
            assert rate == 0.0


def test_a_counter_that_starts_anew_has_no_rate_until_it_is_read_again():
    book = RateBook()
    book.take([moved(0.0, pcie_transmit=1e9, pcie_receive=1.0)])
    assert book.take([moved(1.0, pcie_transmit=5.0, pcie_receive=2.0)]) == {"GPU-0000": {}}
    assert book.take([moved(2.0, pcie_transmit=9.0, pcie_receive=4.0)])["GPU-0000"][Signal.PCIE_TRANSMIT] == 4.0


def test_a_gap_longer_than_a_minute_is_no_rate():
    book = RateBook()
    book.take([moved(0.0, pcie_transmit=0.0)])
    assert book.take([moved(LONGEST + 1.0, pcie_transmit=1e6)]) == {"GPU-0000": {}}


def test_a_counter_that_comes_later_waits_for_its_own_second_reading_and_a_card_that_goes_is_forgotten():
    book = RateBook()
    book.take([moved(0.0, pcie_transmit=0.0)])
    assert set(book.take([moved(1.0, pcie_transmit=1.0, nvlink_transmit=9.0)])["GPU-0000"]) == {Signal.PCIE_TRANSMIT}
    assert book.take([card(0, up=False)]) == {}
    assert book._anchors == {}
    assert len(COUNTERS) == 4


def test_what_the_card_measures_itself_goes_before_its_counters():
    one = full_card(0)
    measured = replace(one.reading, traffic={("pcie", "transmit"): 77.0, ("nvlink", "receive"): 88.0})
    found = samples(page("fields=all", replace(FULL, cards=(replace(one, reading=measured),))))
    assert found[full("PROF_PCIE_TX_BYTES")][1] == "77"
    assert found[full("PROF_NVLINK_RX_BYTES")][1] == "88"
    assert found[full("PROF_PCIE_RX_BYTES")][1] == "8193"


# -- the question


def test_nothing_asked_is_the_legacy_dialect_with_its_default_rows():
    assert understood("") == understood("dialect=legacy&hostname=default&fields=default")
    assert understood("dialect=4%2E9") == understood("dialect=4.9")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("dialect=5.0", "legacy, 4.9"),
        ("dialect=", "legacy, 4.9"),
        ("dialect", "legacy, 4.9"),
        ("dialect=LEGACY", "legacy, 4.9"),
        ("dialect=legacy,4.9", "legacy, 4.9"),
        ("dialect=legacy&dialect=4.9", "each at most once"),
        ("dialact=4.9", "dialect=legacy|4.9"),
        ("hostname=HOSTNAME", "Hostname, hostname, both"),
        ("fields=GPU_UTIL", "default, all"),
        ("&".join(f"a{n}=1" for n in range(100)), "each at most once"),
        ("x=%00%ff%ZZ", "each at most once"),
    ],
)
def test_a_question_that_is_not_understood_is_refused_with_the_words_that_are(query, says):
    with pytest.raises(QueryRefusedError, match=re.escape(says)):
        understood(query)


@given(st.text(max_size=200))
def test_no_question_breaks_the_reader(query):
    said = ""
    try:
        wanted = understood(query)
    except QueryRefusedError as refused:
        said = str(refused)
    else:
        assert wanted.rows
    assert len(said) < 300, "it repeats nothing of the question"


# -- the store


def store(clock):
    return DcgmPages(clock=clock, hostname=lambda: "node-1")


def test_a_page_is_rendered_once_for_each_snapshot_and_form():
    pages = store(Clock())
    pages.publish(FULL)
    wanted, other = understood(""), understood("dialect=4.9")
    first = pages.page(wanted, gzip=False)
    assert pages.page(wanted, gzip=False) is first
    packed = pages.page(wanted, gzip=True)
    assert pages.page(wanted, gzip=True) is packed
    assert gzip.decompress(packed) == first
    assert pages.page(other, gzip=False) != first
    pages.publish(FULL)
    assert pages.page(wanted, gzip=False) is not first


def test_there_is_no_page_before_the_first_snapshot_nor_when_the_newest_is_too_old():
    clock = Clock()
    pages = store(clock)
    assert pages.page(understood(""), gzip=False) is None
    pages.publish(FULL)
    assert pages.page(understood(""), gzip=False)
    clock.tick(TOO_OLD + 0.1)
    assert pages.page(understood(""), gzip=False) is None


def test_rates_appear_at_the_second_snapshot_after_the_first_question_and_end_when_nobody_asks_any_more():
    clock = Clock()
    pages = store(clock)
    wanted = understood("dialect=4.9")

    def publish(seconds):
        clock.tick(seconds)
        pages.publish(snapshot(cards=(moved(clock.now, pcie_transmit=100.0 * clock.now),)))

    publish(1.0)
    publish(1.0)
    assert pages._book is None, "nobody has asked"
    assert pages.page(wanted, gzip=False) == b""
    publish(1.0)
    assert pages.page(wanted, gzip=False).endswith(b" 100\n")
    publish(WANTED_FOR + 1.0)
    assert pages._book is None
    assert pages._rates == {}


def test_a_node_that_nobody_asks_for_dcgms_names_does_not_load_them():
    code = (
        "import sys, exporter.app, exporter.server\n"
        "print(sorted(name for name in sys.modules if name.startswith('exporter.dcgm')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['exporter.dcgm_pages']"


def test_the_host_is_called_what_its_pod_is_told(monkeypatch):
    monkeypatch.setenv("NODE_NAME", "gpu-worker-7")
    assert hostname() == "gpu-worker-7"
    monkeypatch.setenv("NODE_NAME", "")
    monkeypatch.setattr("socket.gethostname", lambda: "metal")
    assert hostname() == "metal"


# -- the server


class Nothing:
    def page(self, **_):
        return None

    def healthy(self):
        return True, ""

    ready = healthy


def ask(pages, query="", method="GET", **headers):
    handler = routes(Nothing(), Nothing(), reload=None, dcgm=pages)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return handler(Request(method=method, path="/metrics/dcgm", query=query, headers=named))


def test_the_server_answers_in_text_and_packed_where_that_is_welcome():
    pages = store(Clock())
    pages.publish(FULL)
    plain = ask(pages, accept="application/openmetrics-text;version=1.0.0")
    assert (plain.status, plain.content_type) == (200, TEXT)
    packed = ask(pages, accept_encoding="gzip")
    assert ("Content-Encoding", "gzip") in packed.headers
    assert gzip.decompress(packed.body) == plain.body
    assert ask(pages, method="HEAD") == plain
    assert ask(pages, "dialect=4.9").body != plain.body


def test_the_server_refuses_an_unknown_dialect_and_says_which_there_are():
    answer = ask(store(Clock()), "dialect=<script>")
    assert answer.status == 400
    assert b"legacy, 4.9" in answer.body
    assert b"script" not in answer.body


def test_the_server_has_no_page_before_there_is_data():
    answer = ask(store(Clock()))
    assert answer.status == 503
    assert b"/-/ready" in answer.body


@pytest.mark.slow
def test_a_demonstration_is_scraped_under_both_sets_of_names():
    daemon = Daemon("demo", "--listen", "127.0.0.1:0", environ={"NODE_NAME": "demo-node"})
    try:
        ours = daemon.wait_for(lambda page: page.count("\ngpu_up{") == 8 and "gpu_memory_total_bytes" in page)
        pages = {}
        for dialect, last in (("legacy", full("NVLINK_BANDWIDTH_TOTAL")), ("4.9", full("FB_CAPACITY_BYTES"))):
            deadline = time.monotonic() + 20.0
            while last not in pages.get(dialect, ""):
                status, pages[dialect] = daemon.get(f"/metrics/dcgm?dialect={dialect}")
                assert status == 200
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert daemon.get("/metrics/dcgm?dialect=5")[0] == 400
    finally:
        daemon.stop()
    total = {
        one.labels["uuid"]: one.value
        for family in text_string_to_metric_families(ours)
        for one in family.samples
        if one.name == "gpu_memory_total_bytes"
    }
    capacity = families(pages["4.9"])[full("FB_CAPACITY_BYTES")].samples
    assert {one.labels["UUID"]: one.value for one in capacity} == total
    assert len(total) == 8
    for dialect, text in pages.items():
        assert len(kinds(text)) >= 18
        for labels, _ in samples(text, gpu="7").values():
            assert tuple(labels)[:7] == contract.LABELS[dialect]
            assert labels[contract.LABELS[dialect][5]] == "demo-node"
