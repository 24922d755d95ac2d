"""check and top with several addresses join the nodes of a replica, and say what of it is lost or not there."""

from __future__ import annotations

import time

import pytest

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
            f"chat ({KEY})：a 首节点，GPU 0–3；b worker，GPU 0–3：GPU 3 掉卡",
        ),
        (
            (WORKER,),
            (
                f"{KEY}: b worker, GPU 0–3: GPU 3 lost; its head is not among these nodes; "
                "1 of its 2 nodes not among these"
            ),
            f"{KEY}：b worker，GPU 0–3：GPU 3 掉卡；首节点不在这些节点中；其 2 个节点中有 1 个不在此列",
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


def test_top_names_the_replica_on_all_of_its_nodes() -> None:
    states = [NodeState(name=answer.url, document=answer.document) for answer in (HEAD, WORKER)]
    assert {name for state in named_across(states) for gpu in state.document.gpus for name in gpu.replicas} == {
        "chat"
    }
    assert named_across(states[1:]) == states[1:]
    assert named_across([NodeState(name="c")]) == [NodeState(name="c")]
