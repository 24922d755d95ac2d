"""DCGM's names held against the contract: names, types, units, rounding and labels, and whole pages as ever."""

from __future__ import annotations

import re
import subprocess

import pytest

from exporter.render.dcgm.query import DIALECTS, parse_query, rows
from tests.support import dcgm_contract as contract
from tests.support.builders import card, snapshot
from tests.support.dcgm_card import FULL, PLAUSIBLE, families, full_card, kinds, page, samples
from tests.support.dcgm_contract import full
from tests.support.records import replace

# -- the contract


@pytest.mark.parametrize(("dialect", "column"), [("legacy", 0), ("4.9", 4)])
def test_the_default_rows_have_the_names_and_types_that_dcgms_exporter_gives_them_in_its_order(dialect, column):
    expected = [(full(row[column]), row[1]) for row in contract.DEFAULT_ROWS if row[column]]
    assert list(kinds(page(f"dialect={dialect}")).items()) == expected


def base_value(name):
    """What each default row shows of the full card, in base units."""
    signals = PLAUSIBLE
    return {
        "SM_CLOCK": signals["clock_sm"],
        "MEM_CLOCK": signals["clock_memory"],
        "MEMORY_TEMP": signals["temperature_memory"],
        "GPU_TEMP": signals["temperature_gpu"],
        "POWER_USAGE": signals["power"],
        "TOTAL_ENERGY_CONSUMPTION": signals["energy"],
        "PCIE_REPLAY_COUNTER": signals["pcie_replays"],
        "GPU_UTIL": signals["utilization"],
        "MEM_COPY_UTIL": signals["memory_activity"],
        "ENC_UTIL": signals["encoder_utilization"],
        "DEC_UTIL": signals["decoder_utilization"],
        "XID_ERRORS": 0.0,
        "FB_FREE": signals["memory_free"],
        "FB_USED": signals["memory_used"],
        "FB_RESERVED": signals["memory_reserved"],
        "": signals["memory_total"],
        "NVLINK_BANDWIDTH_TOTAL": 4_500_000_000.5,
        "VGPU_LICENSE_STATUS": signals["vgpu_licensed"],
        "UNCORRECTABLE_REMAPPED_ROWS": signals["remapped_rows_uncorrectable"],
        "CORRECTABLE_REMAPPED_ROWS": signals["remapped_rows_correctable"],
        "ROW_REMAP_FAILURE": signals["row_remap_failed"],
        "PROF_GR_ENGINE_ACTIVE": signals["graphics_active"],
        "PROF_PIPE_TENSOR_ACTIVE": signals["tensor_active"],
        "PROF_DRAM_ACTIVE": signals["dram_active"],
        "PROF_PCIE_TX_BYTES": 4096.4,
        "PROF_PCIE_RX_BYTES": 8192.5,
    }[name]


@pytest.mark.parametrize("row", contract.DEFAULT_ROWS)
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
        ("VGPU_LICENSE_STATUS", "0"),
        ("BAR1_TOTAL", "131072"),
        ("BAR1_USED", "2"),  # 2.5 MiB
        ("BAR1_FREE", "131069"),
        ("POWER_USAGE_INSTANT", "401.500000"),
        ("POWER_MGMT_LIMIT", "650.000000"),
        ("POWER_MGMT_LIMIT_DEF", "700.000000"),
        ("APP_SM_CLOCK", "1830"),
        ("APP_MEM_CLOCK", "2619"),
        ("ECC_CURRENT", "1"),
        ("ECC_PENDING", "0"),
        ("PCIE_TX_THROUGHPUT", "4"),
        ("PCIE_RX_THROUGHPUT", "8"),
        ("NVLINK_BANDWIDTH_L0", "34000"),
        ("NVLINK_BANDWIDTH_L17", "0"),
        ("TOTAL_APP_CLOCKS_VIOLATION", "500000000"),
        ("TOTAL_BASE_CLOCKS_VIOLATION", "0"),
        ("THERMAL_VIOLATION", "4500000000"),
        ("BOARD_LIMIT_VIOLATION", "0"),
        ("LOW_UTIL_VIOLATION", "9000000000000"),
        ("RELIABILITY_VIOLATION", "1"),
    ],
)
def test_legacy_numbers_are_rounded_as_dcgm_rounds_them(name, written):
    assert samples(page("fields=all"))[full(name)][1] == written


def test_modern_joules_keep_the_drivers_millijoules_and_link_bytes_are_rounded_down():
    rows = samples(page("dialect=4.9"))
    assert rows[full("GPU_ENERGY_JOULES_TOTAL")][1] == "1234567.891000"
    assert rows[full("NVLINK_THROUGHPUT_BYTES_PER_SECOND")][1] == str(4_394_531 * 1024)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("BAR1_CAPACITY_BYTES", str(128 * 2**30)),
        ("BAR1_USED_BYTES", str(5 * 2**19)),
        ("BOARD_POWER_LIMIT_REQUESTED_WATTS", "650.000000"),
        ("THERMAL_THROTTLE_SECONDS_TOTAL", "4.500000"),
        ("LOW_UTIL_THROTTLE_SECONDS_TOTAL", "9000.000000"),
        ("VGPU_LICENSE_STATUS", "0"),
    ],
)
def test_modern_numbers_are_in_base_units(name, written):
    assert samples(page("dialect=4.9&fields=all"))[full(name)][1] == written


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_licence_of_a_vgpu_is_1_where_the_driver_says_so_and_absent_where_it_says_nothing(dialect):
    licensed = snapshot(cards=(full_card(0, vgpu_licensed=1.0),))
    assert samples(page(f"dialect={dialect}", licensed))[full("VGPU_LICENSE_STATUS")][1] == "1"
    silent = {name: value for name, value in PLAUSIBLE.items() if name != "vgpu_licensed"}
    shot = snapshot(cards=(card(0, **silent),))
    assert full("VGPU_LICENSE_STATUS") not in samples(page(f"dialect={dialect}", shot))


@pytest.mark.parametrize(
    ("millijoules", "joules"), [(999, "0.999000"), (4_742_776, "4742.776000"), (3_000_000, "3000.000000")]
)
def test_millijoules_survive_the_way_through_floating_point(millijoules, joules):
    shot = snapshot(cards=(full_card(0, energy=millijoules * 1e-3),))
    assert samples(page("dialect=4.9", shot))[full("GPU_ENERGY_JOULES_TOTAL")][1] == joules
    assert samples(page("", shot))[full("TOTAL_ENERGY_CONSUMPTION")][1] == str(millijoules)


@pytest.mark.parametrize(("legacy", "modern"), contract.OPTIONAL_ROWS)
def test_rows_that_people_switch_on_are_there_when_all_are_asked_for_and_only_then(legacy, modern):
    for dialect, name in (("legacy", legacy), ("4.9", modern)):
        assert full(name) in samples(page(f"dialect={dialect}&fields=all"))
        assert full(name) not in samples(page(f"dialect={dialect}"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_labels_are_dcgms_in_dcgms_order(dialect):
    text = page(f"dialect={dialect}&fields=all")
    shown = samples(text, gpu="1")
    assert shown.keys() == kinds(text).keys(), "every row of the second card"
    for name, (labels, _) in shown.items():
        assert tuple(labels) == contract.LABELS[dialect] + contract.MORE_LABELS.get(name, ())
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
    by_name = families(page())
    for selector in contract.DASHBOARDS[dashboard]:
        name, labels = re.fullmatch(r"(\w+)\{(.*)\}", selector).groups()
        assert by_name[name].samples
        for sample in by_name[name].samples:
            for label in re.findall(r"(\w+)=", labels):
                assert sample.labels[label]


@pytest.mark.parametrize("rule", contract.ALERTS)
def test_every_metric_of_a_common_alert_rule_is_there_with_its_labels_and_the_type_that_it_needs(rule):
    text = page("fields=all")
    by_name, types = families(text), kinds(text)
    names = re.findall(r"DCGM_\w+", rule)
    assert names
    for name in names:
        counted = re.search(rf"(rate|increase)\({name}\[", rule)
        assert types[name] == ("counter" if counted else "gauge"), name
    for name, labels in re.findall(r"(\w+)\{(.*?)\}", rule):
        for label in re.findall(r"(\w+)=~?", labels):
            assert all(label in sample.labels for sample in by_name[name].samples)


def test_the_recording_rules_of_openshift_find_their_metrics():
    assert {full(name) for name in contract.RECORDED} <= kinds(page("fields=all")).keys()


def test_the_dialects_share_only_names_that_did_not_change():
    legacy, modern = (kinds(page(f"dialect={dialect}")) for dialect in DIALECTS)
    same = {"VGPU_LICENSE_STATUS", "PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"}
    assert legacy.keys() & modern.keys() == {full(name) for name in same}


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
    selected = rows(parse_query(f"dialect={dialect}&fields=all"))
    assert {row.name for row in selected} == set(kinds(text))
    series = [sample for family in families(text).values() for sample in family.samples]
    assert len(series) == len({(sample.name, *sorted(sample.labels.items())) for sample in series})
    assert len(series) == sum(not line.startswith("#") for line in text.splitlines())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_promtool_objects_to_nothing_but_dcgms_own_names(dialect, promtool):
    text = page(f"dialect={dialect}&fields=all&hostname=both")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    complaints = (done.stdout + done.stderr).splitlines()
    theirs = re.compile(
        r"DCGM_\w+ (label names should be written in 'snake_case' not 'camelCase'"
        r'|counter metrics should have "_total" suffix|non-counter metrics should not have "_total" suffix'
        r"|metric names should not contain abbreviated units|metric name should not include type '(counter|summary)')"
    )
    assert complaints, "promtool has always found fault with camelCase labels; has it run?"
    assert [line for line in complaints if not theirs.fullmatch(line)] == []


def test_hostile_text_in_a_label_stays_inside_it():
    name = 'a"} 1\nb\\{x="\ud800'
    shot = replace(FULL, cards=(replace(FULL.cards[0], facts=replace(FULL.cards[0].facts, name=name)),))
    labels = {sample.labels["modelName"] for family in families(page("", shot)).values() for sample in family.samples}
    assert labels == {name.replace("\ud800", "?")}
