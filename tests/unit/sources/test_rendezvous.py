"""Whatever a command line or an environment holds, a rendezvous address is a host and a port, or nothing."""

from __future__ import annotations

import random
import re

import pytest

from exporter.engines.tables.sglang import RENDEZVOUS as SGLANG
from exporter.engines.tables.vllm import RENDEZVOUS as VLLM
from exporter.sources.processes.rendezvous import of_group, of_raylet, of_server

HOST = re.compile(r"[a-z0-9_.:-]{1,253}\Z", re.ASCII)
VALUES = ("10.0.0.1", "[fd00::1]:5", "::1", "2001:db8::1%AKIA x\n", "fe80::1%" + "Z" * 4000, "127.1", "a..b", "a:b:c", "tcp://h:1", "h:99999", "h:", ":1", "", "=", "\n", '"', "é", "\0", "A" * 300,
          "x" * 4096, "9" * 40, "-1", "0", "2", "1e3", "\N{ARABIC-INDIC DIGIT TWO}", "h\u202e", "--nnodes", "a b", "..", "-")  # fmt: skip
FLAGS = sorted({flag for way in (*VLLM, SGLANG) for field in way.__struct_fields__ if field != "default_port"
                for flag in getattr(way, field)})  # fmt: skip


@pytest.mark.parametrize("seed", range(200))
def test_what_a_process_claims_is_bounded(seed: int) -> None:
    pick = random.Random(seed)
    words = [pick.choice(("{}", "{}={}")).format(pick.choice(FLAGS), pick.choice(VALUES)) for _ in range(3)]
    command = [word for pair in words for word in (pair, pick.choice(VALUES))] + ["--nnodes=2", "-dp=4", "-dpl=2"]
    variables = {name: pick.choice(VALUES) for name in ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")}
    raylet = [f"--gcs-address={pick.choice(VALUES)}", f"--cluster-id={pick.choice(VALUES)}"]
    found = (
        of_server("vllm", VLLM, command),
        of_server("sglang", (SGLANG,), command),
        of_group(variables),
        of_raylet(raylet),
    )
    for rendezvous in found:
        if rendezvous is not None:
            assert not rendezvous.host or HOST.match(rendezvous.host)
            assert 0 <= rendezvous.port < 65_536
            assert all(count is None or 0 <= count < 10_000 for count in (rendezvous.nodes, rendezvous.node_rank))


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.0.1:5000", "10.0.0.1", 5000),
        ("Head.Example.:5000", "head.example", 5000),
        ("[FD00::1]:5000", "fd00::1", 5000),
        ("fd00::1", "fd00::1", 0),
        ("::ffff:10.0.0.1", "10.0.0.1", 0),
        ("tcp://10.0.0.1:5000", "10.0.0.1", 5000),
        ("10.0.0.1:99999", "10.0.0.1", 0),
        ("127.1:5000", "127.0.0.1", 5000),
        ("0x7f000001", "127.0.0.1", 0),
        ("1.2.3.4.5", "", 0),
        ("a..b", "", 0),
        ("fd00::1%eth0", "", 0),
        ("[fe80::1%secret]:5000", "", 0),
        ("not a host:1", "", 0),
    ],
)
def test_an_address_is_written_in_one_way(address: str, host: str, port: int) -> None:
    found = of_server("sglang", (SGLANG,), ["--nnodes", "2", "--dist-init-addr", address])
    assert found is not None
    assert (found.host, found.port) == (host, port)


def test_the_last_of_two_flags_counts_as_it_does_for_the_engine() -> None:
    found = of_server("vllm", VLLM, ["--nnodes", "2", "--master-addr", "a", "--master_addr=b"])
    assert found is not None
    assert found.host == "b"
