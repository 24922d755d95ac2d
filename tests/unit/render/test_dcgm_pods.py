"""The labels of pods on DCGM's page: dcgm-exporter's names and order, off by default, never of two pods."""

from __future__ import annotations

import pytest

from exporter.model import CardFacts, GpuOwner, MigInstance, Owner
from exporter.render.dcgm.page import render
from exporter.render.dcgm.query import parse_query
from exporter.render.dcgm_pages import DcgmPageStore
from tests.support.builders import card, snapshot
from tests.support.records import replace

CHAT = Owner(name="ml/chat-0/vllm", namespace="ml", pod="chat-0", pod_uid="u1", container="vllm")
SIDE = replace(CHAT, container="side")
OTHER = Owner(name="x/y", namespace="x", pod="y", pod_uid="u2")
QUERY = parse_query("")


def labels(*owners, with_pods=True, **more):
    shot = snapshot(
        cards=(card(0, power=300.0),),
        owners=tuple(GpuOwner(uuid=card(0).facts.uuid, owner=owner) for owner in owners),
    )
    page = render(shot, QUERY, hostname="n1", rates={}, with_pods=with_pods)
    (line,) = (line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_POWER_USAGE{"))
    return line.partition("{")[2].rpartition("}")[0]


@pytest.mark.parametrize(
    "owners, ending",
    [
        ([CHAT], ',container="vllm",namespace="ml",pod="chat-0"'),
        ([CHAT, Owner(name="alice", user="alice")], ',container="vllm",namespace="ml",pod="chat-0"'),
        ([CHAT, SIDE], ',container="",namespace="ml",pod="chat-0"'),
        ([CHAT, OTHER], ""),
        ([Owner(name="job 7", slurm_job="7")], ""),
        ([], ""),
    ],
)
def test_one_pod_is_named_and_of_two_none(owners, ending):
    assert labels(*owners) == labels() + ending


def test_they_are_off_by_default():
    assert labels(CHAT, with_pods=False) == labels()
    stores = {on: DcgmPageStore(with_pods=lambda on=on: on, hostname=lambda: "n1") for on in (False, True)}
    shot = snapshot(cards=(card(0, power=300.0),), owners=(GpuOwner(uuid=card(0).facts.uuid, owner=CHAT),))
    for on, store in stores.items():
        store.publish(shot)
        assert (b'pod="chat-0"' in store.page(QUERY, gzip=False)) is on


def test_two_compute_instances_of_one_gpu_instance_stay_one_series():
    def instance(number):
        part = MigInstance(number=number, parent=card(0).facts.uuid, gpu_instance=1, compute_instance=number)
        facts = CardFacts(index=0, uuid=f"MIG-{number}", instance=part)
        return replace(card(number + 1, power=10.0), facts=facts)

    shot = snapshot(
        cards=(card(0, power=300.0), instance(0), instance(1)),
        owners=(GpuOwner(uuid="MIG-0", owner=CHAT), GpuOwner(uuid="MIG-1", owner=OTHER)),
    )
    page = render(shot, QUERY, hostname="n1", rates={}, with_pods=True)
    lines = [line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_POWER_USAGE{")]
    assert len(lines) == 2 and 'pod="chat-0"' in lines[1]
