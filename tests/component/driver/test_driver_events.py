"""XIDs through the whole daemon: events of a real binding over a library that misbehaves, and a kernel log beside them.

Each test runs one daemon over tests/support/fake_nvml.c; a card's place on the bus is 0000:0N:00.
"""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from exporter.model.xid_catalog import FATAL, RESETTING
from tests.support.nvml_node import Node, build, uuid
from tests.support.tools import tool

pytestmark = pytest.mark.slow

WAIT = "nvmlEventSetWait_v2"
XID = "0x8"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tool("cc"), tmp_path_factory.mktemp("events") / "lib")


@pytest.fixture
def start(tmp_path, library):
    """Return a function that starts a daemon; ``log``: the file that is its kernel log."""
    nodes = []

    def make(*plan, log=None, library=library, **more):
        config = {"kernel_log": {"path": str(log)}} if log is not None else None
        nodes.append(Node(tmp_path / f"node{len(nodes)}", library, plan=plan, config=config, **more))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("")
    return path


def count(page, number, xid):
    return page.card("gpu_xid_events_total", number, xid=str(xid))


def source_is_up(page, source="nvml_events"):
    return page.get("shardwatch_source_up", source=source) == 1


def listening(node):
    """Wait until the events of every card are waited for."""
    every = {f"{number}:nvmlDeviceRegisterEvents" for number in range(node.count)}
    return node.until(
        lambda page: page.up(*range(node.count)) and source_is_up(page) and every <= node.call_counts().keys()
    )


def kernel(log, number, xid, text="x"):
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"1795172400.5 node kernel: NVRM: Xid (PCI:0000:0{number}:00): {xid}, {text}\n")


def test_an_event_is_on_the_page_once_whichever_source_reports_it(start, log):
    node = start(log=log)
    page = listening(node)
    node.spared = {0, 1, 2, 3}
    page = node.until(lambda page: source_is_up(page, "kernel_log"))
    zeros = {(s.labels["uuid"], s.labels["xid"]): s.value for s in page.all("gpu_xid_events_total")}
    assert zeros == {(uuid(number), str(xid)): 0 for number in range(4) for xid in RESETTING}
    assert not page.all("gpu_xid_last_timestamp_seconds") + page.all("gpu_xid_action_info")
    assert "nvswitch_sxid" not in page.text, "not even as a name"

    before = time.time()
    node.plan(f"event 1 {uuid(1)} {XID} 95", f"event 2 {uuid(2)} 0x10 95", f"event 3 {uuid(3)} {XID} 13")
    page = node.until(lambda page: count(page, 1, 95) == 1 and count(page, 3, 13) == 1)
    assert count(page, 2, 95) == 0, "an event of another type is no XID"
    assert before - 1 <= page.card("gpu_xid_last_timestamp_seconds", 1, xid="95") <= time.time()
    (action,) = page.all("gpu_xid_action_info", uuid=uuid(1))
    assert (action.labels["class"], action.labels["action"]) == ("reset_card", "reset_card")

    kernel(log, 1, 95)
    kernel(log, 2, 119, "pid=7, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU2 GSP!")
    page = node.until(lambda page: count(page, 2, 119) == 1)
    assert count(page, 1, 95) == 1, "the log told what the driver had told"
    assert {s.labels["source"] for s in page.all("gpu_xid_events_total")} == {"nvml+kernel_log"}
    assert re.search("event=xid xid=95 class=reset_card .*source=nvml", node.log())
    assert re.search("event=xid xid=119 class=reset_card .*source=kernel_log .*Timeout after 6s", node.log())
    assert node.log().count("event=xid xid=95") == 1


def test_d24_a_burst_is_counted_whole_and_codes_without_end_share_one_name(start):
    node = start()
    listening(node)
    node.spared = {0, 1, 2, 3}
    many = [f"event {2 + n} {uuid(1)} {XID} {200 + n}" for n in range(60)]
    node.plan(f"event 1 {uuid(0)} {XID} 13 every 1000", *many)
    page = node.until(lambda page: count(page, 0, 13) == 1000 and count(page, 1, "other") == 60 - (32 - len(FATAL)))
    assert len(page.all("gpu_xid_events_total", uuid=uuid(1))) == 33 + len(RESETTING - FATAL)
    assert node.log().count("event=xid xid=13 ") == 1
    node.plan(f"event 100 {uuid(0)} {XID} 79", f"event 101 {uuid(0)} {XID} 79")
    node.until(lambda page: count(page, 0, 79) == 2)


def test_a_wait_that_fails_for_ever_costs_no_gpu_and_heals(start):
    node = start(f"on * {WAIT} code 999")
    page = node.until(lambda page: page.up(0, 1, 2, 3) and page.failures("unknown", "nvml_events") >= 2)
    node.spared = {0, 1, 2, 3}
    assert (page.why("nvml_events"), page.why()) == ("unknown", None)
    assert node.log().count("source=nvml_events state=down") == 1
    node.plan(f"event 1 {uuid(3)} {XID} 48")
    page = node.until(lambda page: source_is_up(page) and count(page, 3, 48) == 1)
    assert page.why("nvml_events") is None


def test_a_wait_that_never_returns_costs_no_gpu_and_no_stop(start, log):
    node = start(f"on * {WAIT} block", log=log)
    page = node.until(lambda page: page.up(0, 1, 2, 3) and page.why("nvml_events") == "hung")
    node.spared = {0, 1, 2, 3}
    assert page.hung("nvml_events") == 1 and page.hung() == 0
    kernel(log, 2, 79)
    page = node.until(lambda page: count(page, 2, 79) == 1)
    assert {s.labels["source"] for s in page.all("gpu_xid_events_total")} == {"kernel_log"}
    node.plan(f"event 1 {uuid(1)} {XID} 95")
    node.until(lambda page: source_is_up(page) and count(page, 1, 95) == 1)
    node.plan(f"on * {WAIT} block")
    time.sleep(1.0)
    code, seconds = node.stop()
    assert code == 0 and seconds < 5


def test_a_driver_without_events_says_so_and_the_log_is_read_alone(start, tmp_path, log):
    poor = build(tool("cc"), tmp_path / "poor", ["nvmlEventSetCreate"])
    node = start(library=poor, log=log)
    page = node.until(lambda page: page.up(0, 1, 2, 3) and page.why("nvml_events") == "unsupported")
    kernel(log, 0, 64)
    page = node.until(lambda page: count(page, 0, 64) == 1)
    assert page.failures("unsupported", "nvml_events") == 1
    assert node.log().count("source=nvml_events state=down reason=unsupported") == 1


def test_a_gpu_that_is_lost_while_its_event_arrives_keeps_its_series(start):
    node = start()
    listening(node)
    node.spared = {0, 2, 3}
    node.plan(f"on {uuid(1)} * code 15", f"event 1 {uuid(1)} {XID} 79")
    page = node.until(lambda page: page.why(1) == "lost" and count(page, 1, 79) == 1)
    assert not page.card("gpu_power_watts", 1) and page.card("gpu_up", 1) == 0
    (action,) = page.all("gpu_xid_action_info", uuid=uuid(1), xid="79")
    assert (action.labels["gpu"], action.labels["class"]) == ("1", "reset_node")


def test_an_error_of_a_switch_is_counted_by_switch_code_and_severity(start, log):
    node = start(log=log)
    node.until(lambda page: page.up(0, 1, 2, 3) and source_is_up(page, "kernel_log"))
    node.spared = {0, 1, 2, 3}
    # At the address of a device that the driver names: the bus of the machine that runs the test has no switch.
    head = "1795172400.5 node kernel: nvidia-nvswitch2: SXid (PCI:0000:01:00.0): "
    words = (
        "24007, Fatal, Link 30 sourcetrack timeout error",
        "24007, Severity 1 Engine instance 30",
        "24007, Data {0x00000001, 0x00000002}",
        "20009, Non-fatal, Link 28 RX Short Error Rate",
    )
    with open(log, "a", encoding="utf-8") as file:
        file.writelines(f"{head}{each}\n" * 2 for each in words)  # as where two daemons write into one file
    family = "gpu_nvswitch_sxid_events_total"
    page = node.until(lambda page: len(page.all(family)) == 2)
    counts = {(s.labels["pci_bus_id"], s.labels["sxid"], s.labels["severity"]): s.value for s in page.all(family)}
    assert counts == {("0000:01:00", "24007", "fatal"): 1, ("0000:01:00", "20009", "non_fatal"): 1}
    assert time.time() - page.get("gpu_nvswitch_sxid_last_timestamp_seconds", sxid="24007") < 30
    assert re.search("level=error .*event=sxid sxid=24007 severity=fatal pci=0000:01:00 link=30", node.log())


PART = "MIG-aaaaaaaa-0000-0000-0000-000000000005"
DIVIDED = (f"value {uuid(1)} nvmlDeviceGetMigMode 1", f"mig {uuid(1)} 2 9 0 1g.18gb {PART}")


def test_an_event_of_an_instance_is_under_the_instance_whichever_source_reports_it(start, log):
    node = start(*DIVIDED, log=log)
    listening(node)
    node.until(lambda page: page.get("gpu_up", uuid=PART) == 1)
    node.plan(*DIVIDED, f"event 1 {PART} {XID} 94", f"event 2 {uuid(1)} {XID} 95")
    page = node.until(lambda page: page.get("gpu_xid_events_total", uuid=PART, xid="94") == 1)
    (event,) = page.all("gpu_xid_events_total", uuid=PART)
    assert event.labels["gpu"] == "1:2", "no zeros for what befalls whole cards"
    page = node.until(lambda page: count(page, 1, 95) == 1)
    assert count(page, 1, 94) is None

    with open(log, "a", encoding="utf-8") as file:  # the log names the instance too, and then an unknown one
        file.write("1795172400.5 node kernel: NVRM: Xid (PCI:0000:01:00 GPU-I:09 GPU-CI:00): 94, pid=7, x\n")
        file.write("1795172400.5 node kernel: NVRM: Xid (PCI:0000:01:00 GPU-I:11): 43, pid=7, x\n")
    page = node.until(lambda page: count(page, 1, 43) == 1)
    assert page.get("gpu_xid_events_total", uuid=PART, xid="94") == 1
    assert re.search(f"event=xid xid=94 .*gpu=1:2 uuid={PART}", node.log())


def test_neither_a_new_worker_nor_a_reload_costs_a_count(start, tmp_path):
    pipe = tmp_path / "kernel"
    os.mkfifo(pipe)
    node = start(log=pipe)
    listening(node)
    node.plan(f"event 1 {uuid(0)} {XID} 79")
    node.until(lambda page: count(page, 0, 79) == 1)
    kernel(pipe, 1, 48)
    node.until(lambda page: count(page, 1, 48) == 1)

    node.plan()  # a new event set would be told the same event again
    worker = node.worker()
    os.kill(worker, signal.SIGKILL)
    page = node.until(
        lambda page: node.workers() not in ([], [worker]) and page.up(0, 1, 2, 3) and source_is_up(page)
    )
    assert (count(page, 0, 79), count(page, 1, 48)) == (1, 1)

    node.process.send_signal(signal.SIGHUP)
    node.until(lambda page: "event=reloaded" in node.log())
    node.plan(f"event 1 {uuid(0)} {XID} 79")
    page = node.until(lambda page: count(page, 0, 79) == 2)
    assert count(page, 1, 48) == 1


def test_events_follow_a_gpu_through_a_new_initialisation_and_another_index(start):
    node = start()
    listening(node)
    node.plan(f"event 1 {uuid(3)} {XID} 79")
    node.until(lambda page: count(page, 3, 79) == 1)
    registered = node.call_counts()["3:nvmlDeviceRegisterEvents"]
    node.plan(order=[3, 2, 0])  # another number of cards is noticed and initialised anew
    node.until(lambda page: page.up(0, 2, 3) and page.all("gpu_up", uuid=uuid(3), gpu="0"))
    page = node.until(lambda _: node.call_counts()["3:nvmlDeviceRegisterEvents"] > registered)
    (event,) = page.all("gpu_xid_events_total", uuid=uuid(3), xid="79")
    assert (event.labels["gpu"], event.value) == ("0", 1)
    node.plan(f"event 1 {uuid(3)} {XID} 79", order=[3, 2, 0])
    node.until(lambda page: count(page, 3, 79) == 2)


def test_a_kernel_log_that_is_not_there_is_said_once_and_found_later(start, tmp_path):
    log = tmp_path / "later.log"
    node = start(log=log)
    page = listening(node)
    assert page.why("kernel_log") == "missing" and page.failures("missing", "kernel_log") >= 1
    log.write_text("")
    kernel(log, 0, 79, "pid=1, name=\x1b]0;forged\x07\\, GPU has fallen off the bus.")
    kernel(log, 9, 79)
    page = node.until(lambda page: count(page, 0, 79) == 1 and source_is_up(page, "kernel_log"))
    (unidentified,) = page.all("gpu_xid_events_total", uuid="unknown-0000:09:00")
    assert (unidentified.labels["gpu"], unidentified.value) == ("", 1)
    assert node.log().count("source=kernel_log state=down reason=missing") == 1
