"""Which XIDs a card shows as 0 before they come: a few in the common set, all that ask for a reset in the full one."""

from __future__ import annotations

from exporter.catalog import metrics
from exporter.derive.xids import MAX_CODES, XidCounters
from exporter.model import KERNEL_LOG, NVML, CardFacts, GpuLabels, MigInstance, Snapshot, XidReport
from exporter.model.xid_catalog import CATALOGUE, FATAL, RESETTING
from tests.support.builders import card
from tests.support.records import replace


def whole(index: int):
    return replace(
        card(index), facts=CardFacts(index=index, uuid=f"GPU-{index}", pci_bus_id=f"00000000:0{index}:00.0")
    )


def part(index: int):
    instance = MigInstance(number=0, parent=f"GPU-{index}", profile="1g.10gb", gpu_instance=7, compute_instance=0)
    return replace(
        card(index), facts=CardFacts(index=index, uuid="MIG-0", instance=instance), labels=GpuLabels("0:0", "MIG-0")
    )


def xid_report(code, at=1.0, **where):
    return XidReport(xid=code, source=NVML if "uuid" in where else KERNEL_LOG, at=at, unix_time=1.7e9 + at, **where)


def counters(*cards, reports=()):
    made = XidCounters(FATAL, RESETTING)
    made.update_gpus(cards)
    for report in reports:
        made.add(report)
    return made


def rows(made, *, full):
    """Return UUID → code → count."""
    metric = metrics.GPU_XID_EVENTS_TOTAL
    read = metric.read_full if full else metric.read
    counts = {}
    given = list(read(Snapshot(at=1.0, unix_time=1.0, xids=made.counts("nvml"))))
    assert len({labels for labels, _ in given}) == len(given), "no series twice"
    for (_, uuid, xid, source), count in given:
        assert source == "nvml"
        counts.setdefault(uuid, {})[xid] = count
    return counts


def test_what_needs_a_reset_is_what_the_catalogue_says():
    assert {code for code, xid in CATALOGUE.items() if xid.kind.value in {"reset_card", "reset_node"}} == RESETTING
    assert FATAL < RESETTING


def test_the_full_set_shows_every_code_that_needs_a_reset_from_the_start():
    made = counters(whole(0), whole(1))
    zeros = {str(code): 0.0 for code in RESETTING}
    assert rows(made, full=True) == {"GPU-0": zeros, "GPU-1": zeros}
    few = {str(code): 0.0 for code in FATAL}
    assert rows(made, full=False) == {"GPU-0": few, "GPU-1": few}


def test_a_code_that_came_stands_for_its_zero():
    made = counters(whole(0), whole(1), reports=[xid_report(62, uuid="GPU-0"), xid_report(13, uuid="GPU-0")])
    counts = rows(made, full=True)
    assert (counts["GPU-0"]["62"], counts["GPU-0"]["13"], counts["GPU-1"]["62"]) == (1.0, 1.0, 0.0)
    assert len(counts["GPU-0"]) == len(RESETTING) + 1
    assert "13" not in counts["GPU-1"]
    assert rows(made, full=False)["GPU-0"].keys() == {*map(str, FATAL), "62", "13"}


def test_instances_and_places_without_a_gpu_have_no_zeros():
    strange = xid_report(46, pci="0000:0e:00")
    made = counters(whole(0), part(0), reports=[xid_report(46, uuid="MIG-0"), strange])
    counts = rows(made, full=True)
    assert counts["MIG-0"] == {"46": 1.0}
    assert counts["unknown-0000:0e:00"] == {"46": 1.0}
    assert len(counts["GPU-0"]) == len(RESETTING)


def test_a_gpu_with_many_codes_counts_a_reset_under_its_own_name_where_the_page_showed_it_as_0():
    reports = [xid_report(code, uuid="GPU-0") for code in range(200, 300)]
    made = counters(whole(0), reports=[*reports, xid_report(46, uuid="GPU-0")])
    counts = rows(made, full=True)["GPU-0"]
    assert counts["46"] == 1.0
    assert counts["other"] == 100 - (MAX_CODES - len(FATAL))
