"""XIDs of instances (MIG): under the instance where it is known, else under its card, and never under both."""

from __future__ import annotations

import pytest

from exporter.derive.xids import MAX_UNKNOWN, MERGE_WINDOW, XidCounters
from exporter.model import BUS, KERNEL_LOG, NVML, WHOLE_GPU, CardFacts, GpuLabels, InstanceId, MigInstance, XidReport
from tests.support.builders import card
from tests.support.records import replace

PCI = "0000:65:00"
WHOLE_CARD = replace(
    card(0),
    facts=CardFacts(index=0, uuid="GPU-a", pci_bus_id="00000000:65:00.0", mig=True),
    labels=GpuLabels("0", "GPU-a"),
)


def part(number, gpu, compute=0, *, uuid=None, parent="GPU-a"):
    uuid = uuid or f"MIG-{number}"
    instance = MigInstance(number=number, parent=parent, gpu_instance=gpu, compute_instance=compute)
    facts = CardFacts(index=0, uuid=uuid, instance=instance)
    return replace(card(0), facts=facts, labels=GpuLabels(f"0:{number}", uuid))


@pytest.fixture
def book():
    counters = XidCounters({79})
    counters.update_gpus([WHOLE_CARD, part(0, 7), part(1, 9), part(2, 9, 1)])
    return counters


def nvml(xid=94, at=100.0, befell=WHOLE_GPU, uuid="GPU-a", **more):
    return XidReport(xid=xid, source=NVML, at=at, unix_time=1e9 + at, uuid=uuid, instance=InstanceId(*befell), **more)


def log(xid=94, at=100.0, befell=WHOLE_GPU, source=KERNEL_LOG, **more):
    return XidReport(xid=xid, source=source, at=at, unix_time=1e9 + at, pci=PCI, instance=InstanceId(*befell), **more)


def rows(book):
    return {
        xid_count.labels[:3]: xid_count.count
        for xid_count in book.counts("s")
        if xid_count.labels[2] != "79" or xid_count.count
    }


@pytest.mark.parametrize(
    "befell, where",
    [
        ((7, 0), ("0:0", "MIG-0")),
        ((7, None), ("0:0", "MIG-0")),  # the only one of its GPU instance
        ((9, 1), ("0:2", "MIG-2")),
        ((9, None), ("0", "GPU-a")),  # one of two
        ((5, 0), ("0", "GPU-a")),  # nobody knows it
        ((7, 3), ("0", "GPU-a")),
        (WHOLE_GPU, ("0", "GPU-a")),
    ],
)
@pytest.mark.parametrize("tell", [nvml, log])
def test_an_error_is_counted_where_it_happened_as_far_as_that_is_known(book, tell, befell, where):
    assert book.add(tell(befell=befell)) == 1
    assert rows(book) == {(*where, "94"): 1}


def test_the_log_line_about_it_names_instance_and_place(book):
    assert book.identify(nvml(befell=(7, 0))) == ("0:0", "MIG-0", PCI)


def test_ids_of_instances_of_another_gpu_are_other_instances(book):
    book.update_gpus([WHOLE_CARD, part(0, 7), part(0, 7, uuid="MIG-other", parent="GPU-b")])
    book.add(nvml(befell=(7, 0)))
    assert rows(book) == {("0:0", "MIG-0", "94"): 1}


@pytest.mark.parametrize(
    "first, second",
    [
        (nvml(befell=(7, 0)), log(at=100.0 + MERGE_WINDOW)),
        (nvml(), log(at=101.0, befell=(7, 0))),
        (log(befell=(7, None)), nvml(at=101.0)),
        (log(befell=(7, None)), nvml(at=101.0, befell=(7, 0))),
        (nvml(79, befell=(7, 0)), log(79, at=101.0, source=BUS)),
    ],
)
def test_an_event_of_which_one_source_names_the_instance_and_the_other_does_not_counts_once(book, first, second):
    assert (book.add(first), book.add(second)) == (1, 0)
    assert sum(rows(book).values()) == 1


def test_errors_of_two_instances_are_two_events(book):
    assert (book.add(nvml(befell=(7, 0))), book.add(log(befell=(9, 1), at=100.1))) == (1, 1)


def test_a_reported_old_error_of_an_instance_moves_its_time_only(book):
    assert book.add(log(befell=(7, 0), old=True)) == 0
    (xid_count,) = [xid_count for xid_count in book.counts("s") if xid_count.last_unix_time is not None]
    assert (xid_count.labels[1], xid_count.count) == ("MIG-0", 0)


def test_an_instance_that_moved_in_the_list_takes_its_counter_along_and_one_taken_away_loses_it(book):
    book.add(nvml(befell=(7, 0)))
    book.update_gpus([WHOLE_CARD, part(5, 7, uuid="MIG-0")])
    assert rows(book) == {("0:5", "MIG-0", "94"): 1}
    book.update_gpus([WHOLE_CARD])
    assert rows(book) == {}
    assert book.add(nvml(befell=(7, 0), at=200.0)) == 1
    assert rows(book) == {("0", "GPU-a", "94"): 1}


def test_instances_that_come_and_go_for_ever_leave_room_for_others(book):
    for number in range(3 * MAX_UNKNOWN):
        book.update_gpus([WHOLE_CARD, part(0, 7, uuid=f"MIG-{number}-new")])
        assert book.add(nvml(befell=(7, 0), at=1000.0 * number)) == 1
    assert book.add(nvml(uuid="GPU-stranger", at=1e6)) == 1
    assert book.dropped == 0 and len(book._cards) <= 3
