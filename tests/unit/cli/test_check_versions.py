"""check with several addresses says in which versions and modes the nodes differ."""

from __future__ import annotations

from exporter.cli.check_nodes import Answer
from exporter.cli.check_versions import differences
from exporter.model.finding import VerdictState
from exporter.model.text import Language
from exporter.render import api

SERVES = api.VerdictDocument(state=VerdictState.SERVE)


def node(url, *, problem="", engine="0.32.0", driver="580.95.05", **software):
    replica = api.ReplicaDocument(replica="chat", engine="sglang", model="m", up=True, verdict=SERVES, version=engine)
    document = api.NodeDocument(
        api="v1", version="0.1.0", time=0.0, verdict=SERVES, findings=(), driver={"driver_version": driver},
        replicas=(replica,), software={name: tuple(versions) for name, versions in software.items()},
    )  # fmt: skip
    return Answer(url=url, document=document, problem=problem)


def lines(*answers, language=Language.ENGLISH):
    return list(differences(answers, language))


def test_nodes_that_are_alike_have_no_line():
    assert lines(node("a", nccl=["2.27.3"]), node("b", nccl=["2.27.3"])) == []
    assert lines(node("a", nccl=["2.27.3"])) == []


def test_each_component_that_differs_is_a_line_with_the_version_of_most_nodes_first():
    first, second = node("a", nccl=["2.27.3"]), node("b", nccl=["2.29.1"], driver="570.172.08", engine="0.31.1")
    assert lines(second, first, node("c", nccl=["2.27.3"])) == [
        "driver: 580.95.05 (a, c), 570.172.08 (b)",
        "NCCL: 2.27.3 (a, c), 2.29.1 (b)",
        "sglang: 0.32.0 (a, c), 0.31.1 (b)",
    ]


def test_a_node_that_does_not_know_a_version_does_not_differ():
    assert lines(node("a", nccl=["2.27.3"]), node("b")) == []


def test_a_node_with_two_versions_differs_from_one_with_one_of_them():
    assert lines(node("a", torch=["2.8.0"]), node("b", torch=["2.9.0", "2.8.0"])) == [
        "torch: 2.8.0 (a), 2.8.0 + 2.9.0 (b)"
    ]


def gpus(url, *found, **options):
    documents = [
        api.GpuDocument(gpu=str(n), uuid=f"GPU-{n}", up=True, verdict=SERVES, **gpu) for n, gpu in enumerate(found)
    ]
    document = api.NodeDocument(
        api="v1", version="0.1.0", time=0.0, verdict=SERVES, findings=(), gpus=tuple(documents), **options
    )  # fmt: skip
    return Answer(url=url, document=document, problem="")


def test_the_way_the_driver_runs_the_gpus_is_compared():
    usual = {"persistence_mode": "enabled", "compute_mode": "default", "ecc_mode": "enabled", "mps": "disabled"}
    other = {
        "persistence_mode": "disabled",
        "compute_mode": "exclusive_process",
        "ecc_mode": "disabled",
        "mps": "enabled",
    }
    first = {"modes": usual, "gsp_firmware_version": "580.95", "shared_memory": 64.0 * 2**30}
    second = {"modes": other, "gsp_firmware_version": "570.86", "shared_memory": 2.0**30}
    assert lines(gpus("a", first, fabric_manager=True), gpus("b", second, fabric_manager=False)) == [
        "fabric manager: not running (b), running (a)",
        "GSP firmware: 570.86 (b), 580.95 (a)",
        "/dev/shm of the engines: 1.0 GiB (b), 64.0 GiB (a)",
        "persistence mode: disabled (b), enabled (a)",
        "compute mode: default (a), exclusive_process (b)",
        "ECC: disabled (b), enabled (a)",
        "MPS: disabled (a), enabled (b)",
    ]


def test_one_gpu_of_a_node_that_differs_is_a_difference_and_what_is_not_known_is_none():
    enabled, disabled = {"modes": {"ecc_mode": "enabled"}}, {"modes": {"ecc_mode": "disabled"}}
    assert lines(gpus("a", enabled, enabled), gpus("b", enabled, disabled)) == [
        "ECC: disabled + enabled (b), enabled (a)"
    ]
    assert lines(gpus("a", enabled), gpus("b", {})) == []


def test_a_document_that_is_old_is_not_compared():
    assert lines(node("a", nccl=["1.0.0"], problem="the data are old"), node("b", nccl=["2.0.0"])) == []


def test_hostile_versions_reach_no_terminal_and_many_nodes_are_counted():
    (line,) = lines(*(node(f"n{number}", nccl=["2.27.3"]) for number in range(6)), node("x", nccl=["\x1b[2J"]))
    assert line.isprintable()
    assert "n3 and 2 more" in line
