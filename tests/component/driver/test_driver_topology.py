"""Paths between GPUs and the health of their links, over the real binding and a library that misbehaves.

The library is built from tests/support/fake_nvml.c: four GPUs or more, four behind each socket, eighteen links each to
switches.  Scenarios run side by side where they are long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from tests.support.nvml_node import SOURCE, Node, build, uuid
from tests.support.scenarios import Scenarios
from tests.support.tools import tool

pytestmark = pytest.mark.slow

ANCESTOR = "nvmlDeviceGetTopologyCommonAncestor"
ACCESS = "nvmlDeviceGetP2PStatus"
END, PLACE = "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"
ALL = (ANCESTOR, ACCESS, END, PLACE)
CODES = (*range(1, 29), 999)
LINKED = "read,write,nvlink,atomics,pci"
JUDGED_AFTER = {"exporter.derive.links.JUDGED_AFTER": 5.0}
scenario = Scenarios()


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """Return what makes nodes; ends them all."""
    folder = tmp_path_factory.mktemp("topology")
    library, poor = build(tool("cc"), folder / "lib"), build(tool("cc"), folder / "poor", ALL)
    nodes, lock = [], threading.Lock()

    def make(*, lacking=False, **more):
        with lock:
            nodes.append(None)
            place = len(nodes) - 1
        nodes[place] = Node(folder / f"node{place}", poor if lacking else library, **more)
        return nodes[place]

    make.library = library
    yield make
    for node in nodes:
        if node is not None:
            node.stop()


def paths(page):
    """Return (card, other) → path both ways; the page says a way back only where it differs."""
    path_by_pair = {
        (int(s.labels["gpu"]), int(s.labels["peer"][-1])): s.labels["path"] for s in page.all("gpu_peer_path_info")
    }
    return {(other, card): path for (card, other), path in path_by_pair.items()} | path_by_pair


def access(page):
    return {s.labels["p2p"] for s in page.all("gpu_peer_path_info")}


def known(cards):
    return lambda page: len(paths(page)) == cards * (cards - 1)


def problems(page, number):
    return {s.labels["problem"] for s in page.all("gpu_fabric_problem_info", uuid=uuid(number))}


# ---------------------------------------------------------------- what is read


def test_paths_access_and_far_ends_are_read_through_the_real_binding(harness):
    node = harness(cards=5)
    page = node.until(known(5))
    assert set(paths(page).values()) == {"NV18"}
    # The binding's constant for "read" is a tuple; asked with the number itself it is answered.
    assert {s.labels["p2p"] for s in page.all("gpu_peer_path_info")} == {LINKED}
    assert page.card("gpu_nvlink_remote_links", 0, remote="switch") == 18
    assert page.card("gpu_nvlink_links_down", 0) == 0 and problems(page, 0) == set()
    asked = node.call_counts()
    assert asked[f"0:{ANCESTOR}"] == 4 and asked[f"0:{ACCESS}"] == 20, "once, not each cycle"
    assert f"0:{PLACE}" not in asked, "a switch needs no address"
    assert not page.all("gpu_c2c_links") + page.all("gpu_c2c_errors_total") and "c2c_errors" not in page.missing(0)
    assert not page.all("gpu_nvlink_bit_error_ratio")


def test_gpus_whose_fabric_never_started_use_pcie(harness):
    node = harness(
        cards=5, plan=["value * p2p2 5", "value * nvmlDeviceGetGpuFabricInfoV 1", "value * fabric_health 1"]
    )
    page = node.until(known(5))
    path_by_pair = paths(page)
    assert path_by_pair[0, 1] == path_by_pair[1, 0] == "NODE" and path_by_pair[0, 4] == path_by_pair[4, 0] == "SYS"
    assert problems(page, 0) == {"not_started", "degraded_bandwidth"}
    assert page.all("gpu_peer_path_info")[0].labels["p2p"] == "read,write,atomics,pci"


def test_a_fabric_whose_driver_only_sums_up_is_in_trouble_too(harness):
    old = [f"value {uuid(number)} fabric_version 2" for number in (1, 2)]
    plan = [f"value {uuid(0)} fabric_summary 3", *old, f"value {uuid(1)} fabric_summary 2"]
    node = harness(cards=3, plan=[*plan, f"value {uuid(2)} fabric_health 1"])
    page = node.until(lambda page: problems(page, 2) and page.up(0, 1, 2))
    assert problems(page, 0) == {"limited_capacity"}
    # The older structure has no summary, and the state is read all the same.
    assert problems(page, 1) == set() and page.card("gpu_fabric_state", 1) == 3
    assert problems(page, 2) == {"degraded_bandwidth"}


def test_nvlink_five_shows_its_own_errors_and_bit_error_ratios(harness):
    node = harness(cards=1, plan=[
        *[f"field * {field} code 3" for field in (161, 162, 163)],
        "field * 206 q 2", "field * 213 q 1", "field * 219 q 7", "field * 220 q 1295", "field * 222 q 255",
        "field * 170 u 2", "field * 171 u 1", "field * 231 u 4", "field * 232 q 5", "field * 233 code 3",
    ])  # fmt: skip
    page = node.until(lambda page: page.card("gpu_nvlink_bit_error_ratio", 0, type="effective") is not None)
    assert page.card("gpu_nvlink_bit_error_ratio", 0, type="effective") == pytest.approx(5e-15)
    assert page.card("gpu_nvlink_bit_error_ratio", 0, type="symbol") == 0.0
    errors = {s.labels["type"]: s.value for s in page.all("gpu_nvlink_errors_total")}
    assert errors == {"malformed_packet": 36, "recovery_successful": 18, "effective_error": 126}
    assert page.card("gpu_c2c_links", 0) == page.card("gpu_c2c_active_links", 0) == 2
    c2c = {s.labels["type"]: s.value for s in page.all("gpu_c2c_errors_total")}
    assert c2c == {"crc": 4, "replay": 5}, "of the worst link, and not of both together"
    node.plan(*[f"field * {field} code 999" for field in (231, 232)], "field * 170 u 2", "field * 171 u 1")
    page = node.until(lambda page: page.missing(0).get("c2c_errors") == "error")
    assert not page.all("gpu_c2c_errors_total") and page.card("gpu_c2c_active_links", 0) == 2


# ---------------------------------------------------------------- links over time


def test_links_that_go_down_are_counted_across_workers_and_shorten_the_path(harness):
    node = harness(cards=4, plan=[f"value {uuid(3)} nvmlDeviceGetNvLinkState 0"])
    page = node.until(lambda page: known(4)(page) and page.card("gpu_nvlink_links_down", 3) == 18)
    assert paths(page)[0, 1] == "NV18" and paths(page)[0, 3] == "NODE", "it was down before the daemon started"
    node.plan(f"value {uuid(1)} link4 0", f"value {uuid(1)} link9 0")
    # Each card looks at its links every few seconds, when its own turn comes.
    page = node.until(lambda page: [page.card("gpu_nvlink_links_down", number) for number in (1, 3)] == [2, 0])
    assert page.card("gpu_nvlink_links_down", 0) == 0
    assert paths(page)[0, 1] == paths(page)[1, 0] == "NV16"
    old = node.worker()
    os.kill(old, 9)
    page = node.until(lambda page: page.up(0, 1, 2, 3) and node.workers() not in ([], [old]))
    assert page.card("gpu_nvlink_links_down", 1) == 2, "what was up is known to the daemon, not to the worker"


@scenario
def pcie_is_judged_under_load(harness):
    node = harness(cards=4, plan=[
        f"value {uuid(1)} nvmlDeviceGetCurrPcieLinkWidth 8",
        f"value {uuid(2)} nvmlDeviceGetCurrPcieLinkGeneration 1",
        f"value {uuid(3)} nvmlDeviceGetCurrPcieLinkGeneration 1",
        f"value {uuid(3)} nvmlDeviceGetSamples 0",
        f"value {uuid(3)} nvmlGpmMetricsGet 0",
        "value * nvmlGpmMetricsGet 50",
    ], constants=JUDGED_AFTER)  # fmt: skip
    early = node.until(lambda page: page.up(0, 1, 2, 3))
    judged = (0, 1, 2)
    late = node.until(lambda page: all(page.card("gpu_pcie_link_degraded", n) is not None for n in judged))
    return SimpleNamespace(early=early, late=late)


@scenario
def a_question_that_blocks(harness):
    node = harness(cards=4, plan=[f"on {uuid(0)} {ACCESS} block"])
    node.until(lambda page: page.up(0, 1, 2, 3))
    node.spared = {0, 1, 2, 3}
    workers = node.worker()
    page = node.until(lambda page: page.hung() == 1 and known(4)(page))
    same = node.worker() == workers
    node.plan()
    healed = node.until(lambda page: page.hung() == 0 and known(4)(page) and access(page) == {LINKED})
    node.plan(f"on {uuid(0)} {ACCESS} block", f"on {uuid(2)} nvmlDeviceGetUUID code 15", f"on {uuid(2)} * code 15")
    node.spared = {0, 1, 3}
    node.until(lambda page: page.why(2) == "lost")
    node.during(3.0)
    node.plan()
    node.spared = set()
    whole = node.until(lambda page: page.up(0, 1, 2, 3) and known(4)(page))
    worst_age = node.worst_age
    code, seconds = node.stop()
    return SimpleNamespace(
        page=page,
        same=same,
        healed=healed,
        whole=whole,
        worst_age=worst_age,
        code=code,
        seconds=seconds,
        log=node.log(),
    )


@pytest.fixture(scope="module")
def result_of(request, harness):
    """Return what returns a scenario's result."""
    with scenario.running(request, harness, 2) as result_of:
        yield result_of


def test_a_pcie_link_is_judged_only_under_load(result_of):
    result = result_of(pcie_is_judged_under_load)
    assert not result.early.all("gpu_pcie_link_degraded")
    degraded = [result.late.card("gpu_pcie_link_degraded", number) for number in range(4)]
    assert degraded == [0, 1, 1, None], "the last one is idle"


def test_a_question_about_two_gpus_that_never_returns_costs_no_gpu_anything(result_of):
    result = result_of(a_question_that_blocks)
    assert result.same and result.worst_age < 1.5
    assert set(paths(result.healed).values()) == set(paths(result.whole).values()) == {"NV18"}
    assert result.code == 0 and result.seconds < 3


def test_a_question_about_two_gpus_that_never_returns_costs_no_other_path_and_is_reported(result_of):
    result = result_of(a_question_that_blocks)
    page = result.page
    # Of the blocked GPU the others say how it is connected, and its own links were read before.
    assert set(paths(page).values()) == {"NV18"} and page.card("gpu_nvlink_remote_links", 0, remote="switch") == 18
    assert page.failures("topology_hung") == 1 and page.why() is None and page.hung("nvml_events") == 0
    assert result.healed.failures("topology_hung") == 1
    assert "event=topology_hung" in result.log and "event=topology_recovered" in result.log


# ---------------------------------------------------------------- refusals


def test_a_library_without_these_functions_has_no_paths_and_nothing_else_changes(harness):
    node = harness(cards=4, lacking=True)
    node.until(lambda page: page.up(0, 1, 2, 3))
    node.spared = {0, 1, 2, 3}
    page = node.during(3.0)[-1]
    assert not page.all("gpu_peer_path_info") and not page.all("gpu_nvlink_remote_links")
    assert page.card("gpu_nvlink_active_links", 0) == 18 and page.card("gpu_nvlink_links_down", 0) == 0
    assert node.most_workers == 1 and page.why() is None


def test_a_peer_that_is_lost_costs_its_own_pairs_only(harness):
    node = harness(cards=4)
    node.until(known(4))
    node.spared = {0, 1, 2}
    node.plan(f"on {uuid(3)} * code 15")
    page = node.until(lambda page: not page.up(3))
    assert set(paths(page)) == {(a, b) for a in range(3) for b in range(3) if a != b}
    node.plan()
    node.spared = set()
    assert set(paths(node.until(lambda page: page.up(0, 1, 2, 3) and known(4)(page))).values()) == {"NV18"}


PASSES = """
import json, os, sys, pynvml
from exporter.model import Missing
from exporter.driver.nvml.library import initialise, open_card
from exporter.driver.nvml.errors import DeviceCalls
from exporter.driver.nvml.topology import TopologyReader

initialise(pynvml)
opened = [open_card(pynvml, index) for index in range(2)]
handles = {facts.uuid: calls.handle for calls, facts in opened}
control, plans = sys.argv[1], json.loads(sys.argv[2])
found = []
for plan in plans:
    with open(control + ".new", "w") as file:
        file.write("\\n".join(["cards " + " ".join(handles), *plan, ""]))
    os.replace(control + ".new", control)
    reader = TopologyReader(pynvml)
    try:
        cards = reader.read(handles)
        one = cards.get(opened[0][1].uuid)
        pair = one.peers.get(opened[1][1].uuid) if one else None
        found.append([sorted(cards), pair and [pair.pci_path, dict(pair.access)], one and len(one.links), reader.complete])
    except Exception as error:
        found.append(type(error).__name__)
calls, other = opened[0][0], opened[1][0].handle
tuple_of_the_binding = calls.call("nvmlDeviceGetP2PStatus", other, pynvml.NVML_P2P_CAPS_INDEX_READ, key="tuple")
number = calls.call("nvmlDeviceGetP2PStatus", other, 0, key="number")
print(json.dumps([found, tuple_of_the_binding is Missing.UNSUPPORTED, number]))
"""


@pytest.fixture(scope="module")
def passes(harness, tmp_path_factory):
    """Return what one pass over two cards finds for each function and code, in one process over the real binding."""
    folder = tmp_path_factory.mktemp("passes")
    control = folder / "control"
    control.write_text(f"cards {uuid(0)} {uuid(1)}\n")
    asked = [(name, code) for name in ALL for code in CODES]
    plans = [
        [f"on * {name} code {code}", *(["value * " + END + " 0"] if name == PLACE else [])] for name, code in asked
    ]
    done = subprocess.run(
        [sys.executable, "-c", PASSES, str(control), json.dumps(plans)],
        env=os.environ | {
            "LD_LIBRARY_PATH": str(harness.library), "FAKE_NVML_CONTROL": str(control), "PYTHONPATH": str(SOURCE.parents[2]),
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers, tuple_is_unsupported, number = json.loads(done.stdout)
    return dict(zip(asked, answers, strict=True)), tuple_is_unsupported, number


LOST, OVER = (15, 16, 28), (1, 9, 12, 18)
SETTLED = (2, 3, 4, 13, 25)


@pytest.mark.parametrize("name", ALL)
def test_every_return_code_costs_its_own_answer_and_no_other(passes, name):
    answers, _, _ = passes
    for code in CODES:
        answer = answers[name, code]
        if code in OVER:
            assert answer == "DriverUnavailable", code
        elif code in LOST:
            cards, pair, _, whole = answer
            assert not whole and (not cards if name in {END, PLACE} else pair is None), code
        else:
            _, (path, access), links, whole = answer
            assert path == ("" if name == ANCESTOR else "NODE"), code
            assert set(access.values()) == (set() if name == ACCESS else {"ok"}), code
            assert links == (18 if name != END else 18), code
            assert whole is (code in SETTLED), code


def test_the_binding_s_tuple_is_an_argument_error_that_costs_one_answer(passes):
    _, tuple_is_unsupported, number = passes
    assert tuple_is_unsupported and number == 0
