"""check and top with several addresses join the nodes of a replica, and say what of it is lost or not there."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from exporter.cli.check_nodes import Answer
from exporter.cli.multi_node import named_across, spanning_lines
from exporter.cli.top_model import NodeState
from exporter.model.finding import VerdictState
from exporter.model.text import Language
from exporter.render import api

KEY = "vllm://10.0.0.1:29501"
SERVES = api.VerdictDocument(state=VerdictState.SERVE)


def node(name: str, role: str, rank: int | None, *, replica: str = KEY, lost: int | None = None) -> Answer:
    gpus = tuple(
        api.GpuDocument(
            gpu=str(number), uuid=f"{name}-{number}", up=number != lost, verdict=SERVES, replicas=(replica,)
        )
        for number in range(4)
    )
    part = api.ReplicaPartDocument(
        replica_key=KEY, replica=replica, engine="vllm", role=role, node_rank=rank, nodes=2,
        gpus=tuple(gpu.uuid for gpu in gpus),
    )  # fmt: skip
    document = api.NodeDocument(
        api="v1",
        version="1",
        time=time.time(),
        verdict=SERVES,
        findings=(),
        gpus=gpus,
        node=name,
        replica_parts=(part,),
    )
    return Answer(url=f"http://{name}:9853", document=document)


HEAD, WORKER = node("a", "head", 0, replica="chat"), node("b", "worker", 1, lost=3)


@pytest.mark.parametrize(
    ("answers", "english", "chinese"),
    [
        (
            (WORKER, HEAD),
            f"chat ({KEY}): a head, GPU 0–3; b worker, GPU 0–3: GPU 3 lost",
            f"chat ({KEY})：a 首节点，GPU 0–3；b 工作节点，GPU 0–3：GPU 3 掉卡",
        ),
        (
            (WORKER,),
            (
                f"{KEY}: b worker, GPU 0–3: GPU 3 lost; its head is not among these nodes; "
                "1 of its 2 nodes not among these"
            ),
            f"{KEY}：b 工作节点，GPU 0–3：GPU 3 掉卡；首节点不在这些节点中；其 2 个节点中有 1 个不在此列",
        ),
        ((Answer(url="http://c:9853", problem="timed out"),), None, None),
    ],
)
def test_a_replica_that_spans_nodes_is_one_line(answers, english, chinese) -> None:
    for language, expected in ((Language.ENGLISH, english), (Language.CHINESE, chinese)):
        assert list(spanning_lines(answers, language)) == ([expected] if expected else [])


def test_hostile_names_are_printable() -> None:
    (line,) = spanning_lines([node("a\x1b[2J", "head", 0, replica="c\nd")], Language.ENGLISH)
    assert line.isprintable()


def test_two_nodes_that_say_they_are_the_head_are_said_and_none_is_missing() -> None:
    (line,) = spanning_lines([HEAD, node("b", "head", 0)], Language.ENGLISH)
    assert line.endswith("; 2 nodes say that they are its head: look whether --node-rank is missing on one")


def test_a_node_that_names_thousands_of_replicas_hides_no_other() -> None:
    documents = [found.document for found in (HEAD, WORKER)]
    flood = tuple(replace(documents[1].replica_parts[0], replica_key=f"k{number}") for number in range(20_000))
    hostile = Answer(url="http://b:9853", document=replace(documents[1], replica_parts=flood))
    lines = list(spanning_lines([hostile, HEAD], Language.ENGLISH))
    assert len(lines) == 65
    assert any(KEY in line for line in lines)
    assert lines[-1] == "and 19937 more"


def test_a_number_of_nodes_that_none_can_have_is_not_printed() -> None:
    part = replace(WORKER.document.replica_parts[0], nodes=10**12)
    answer = Answer(url="http://b:9853", document=replace(WORKER.document, replica_parts=(part,)))
    (line,) = spanning_lines([answer], Language.ENGLISH)
    assert "000000" not in line


def test_top_names_the_replica_on_all_of_its_nodes() -> None:
    states = [NodeState(name=answer.url, document=answer.document) for answer in (HEAD, WORKER)]
    assert {name for state in named_across(states) for gpu in state.document.gpus for name in gpu.replicas} == {
        "chat"
    }
    assert named_across(states[1:]) == states[1:]
    assert named_across([NodeState(name="c")]) == [NodeState(name="c")]
