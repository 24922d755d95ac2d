"""Replicas that span nodes, joined over the nodes that ``shardwatch check`` and ``top`` look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from exporter.cli.check_nodes import Answer
from exporter.cli.terminal import printable
from exporter.cli.top_model import NodeState
from exporter.model.text import Language, Text
from exporter.render import api
from exporter.web import values

MAX_KEYS = 64
_MAX_NODES = 32  # that are named for one replica
_MOST_NODES = 9999  # that a replica may say it has; a document with more is wrong


class _Part(NamedTuple):
    """What one node contributes to a replica."""

    url: str
    node: str
    document: api.NodeDocument
    part: api.ReplicaPartDocument


def spanning_lines(answers: Sequence[Answer], language: Language) -> Iterator[str]:
    """Yield a line for each replica that spans nodes: on which it is, what of it is lost, which nodes are missing."""
    own_names = [answer.document.node for answer in answers if answer.document is not None]
    parts: dict[str, list[_Part]] = {}
    for answer in answers:
        if answer.document is not None and not answer.problem:
            for part in answer.document.replica_parts:
                parts.setdefault(part.replica_key, []).append(
                    _Part(answer.url, _name(answer, own_names), answer.document, part)
                )
    shown = _shared_out(parts)
    for key, found in shown.items():
        found.sort(key=lambda one: (one.part.role != "head", one.part.node_rank or 0))
        said = Text("; ", "；").in_(language).join(part.in_(language) for part in _said(found))
        names = [one.part.replica for one in found if one.part.role == "head" and one.part.replica != key]
        name = f"{printable(names[0])} ({printable(key)})" if names else printable(key)
        yield f"{name}{Text(': ', '：').in_(language)}{said}"
    if more := len(parts) - len(shown):
        yield Text(f"and {more} more", f"另有 {more} 个").in_(language)


def _shared_out(parts: Mapping[str, list[_Part]]) -> dict[str, list[_Part]]:
    """Return at most ``MAX_KEYS`` replicas, the nodes in turns: one that names thousands hides no other's."""
    of_node: dict[str, list[str]] = {}
    for key, found in parts.items():
        of_node.setdefault(found[0].url, []).append(key)
    turns = (key for turn in zip_longest(*of_node.values()) for key in turn if key is not None)
    chosen = set(islice(turns, MAX_KEYS))
    return {key: found for key, found in parts.items() if key in chosen}


def _said(parts: Sequence[_Part]) -> Iterator[Text]:
    for part in parts[:_MAX_NODES]:
        yield _on_node(part)
    heads = {part.url for part in parts if part.part.role == "head"}
    if not heads:
        yield Text("its head is not among these nodes", "首节点不在这些节点中")
    if len(heads) > 1:
        yield Text(
            f"{len(heads)} nodes say that they are its head: look whether --node-rank is missing on one",
            f"有 {len(heads)} 个节点自称首节点：检查其中是否有节点缺少 --node-rank",
        )
    in_all = max((part.part.nodes or 0 for part in parts), default=0)
    missing = in_all - len({(part.url if part.part.role == "head" else "", part.part.node_rank) for part in parts})
    if missing > 0 and in_all <= _MOST_NODES:
        yield Text(f"{missing} of its {in_all} nodes not among these", f"其 {in_all} 个节点中有 {missing} 个不在此列")


def _on_node(part: _Part) -> Text:
    """Return the role of a node, its GPUs, and those that are lost."""
    of_part = set(part.part.gpus)
    gpus = [gpu for gpu in part.document.gpus if gpu.uuid in of_part]
    listed = values.ranges([printable(gpu.gpu) for gpu in gpus])
    role = Text("head", "首节点") if part.part.role == "head" else Text("worker", "工作节点")
    said = Text(f"{part.node} ", f"{part.node} ") + role + Text(f", GPU {listed}", f"，GPU {listed}")
    if lost := [printable(gpu.gpu) for gpu in gpus if not gpu.up]:
        said += Text(f": GPU {values.ranges(lost)} lost", f"：GPU {values.ranges(lost)} 掉卡")
    return said


def _name(answer: Answer, own_names: Sequence[str]) -> str:
    """Return the node's own name where no other node has it, else its address."""
    name = answer.document.node if answer.document is not None else ""
    return printable(name) if name and own_names.count(name) == 1 else answer.url


def named_across(states: Sequence[NodeState]) -> list[NodeState]:
    """Return the nodes with a replica's name, which its head knows, in place of its key on the others."""
    documents = [state.document for state in states if state.document is not None]
    names = {
        part.replica_key: part.replica for node in documents for part in node.replica_parts if part.role == "head"
    }
    if not names:
        return list(states)
    return [
        state if state.document is None else replace(state, document=_renamed(state.document, names))
        for state in states
    ]


def _renamed(node: api.NodeDocument, names: Mapping[str, str]) -> api.NodeDocument:
    keys = {part.replica_key for part in node.replica_parts}
    if not keys & names.keys():
        return node
    gpus = tuple(
        replace(gpu, replicas=tuple(names.get(name, name) if name in keys else name for name in gpu.replicas))
        for gpu in node.gpus
    )
    return replace(node, gpus=gpus)
