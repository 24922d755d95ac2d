"""Which card serves which replica, whatever is read: rows name known cards and replicas, the rest has a reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exporter.derive.assignment import Endpoint, assign_gpus
from exporter.model import CardState
from exporter.model.process import ListeningSocket, Process, ProcessTable
from exporter.sources.processes.program import is_mps, is_relay, is_shared
from tests.support.examples import examples
from tests.support.owned_cards import card, rows
from tests.support.processes import CLASSIFIER


def classified(*, command, title, **more):
    """Return the process as the reader of the process table classifies it."""
    return Process(
        command=command,
        title=title,
        engine=CLASSIFIER.engine(command),
        shared=is_shared(title, command),
        relay=is_relay(title),
        mps=is_mps(title),
        **more,
    )


NUMBERS = st.integers(0, 12)
TITLES = st.sampled_from(["", "bash", "docker-proxy", "nvidia-cuda-mps", "VLLM::Worker_DP1", "python3", "vllm"])
WORDS = st.lists(
    st.sampled_from(["vllm", "serve", "text-generation-router", "text-generation-launcher", "python3", "-m", "sglang.launch_server", "VLLM::Worker_DP2_TP0", "--data-parallel-rank", "-host-port", "-container-ip", "10.0.0.1", "-container-port", "8000", "3"]),
    max_size=6,
).map(tuple)  # fmt: skip
PROCESSES = st.dictionaries(
    NUMBERS,
    st.builds(lambda **more: more, parent=NUMBERS, command=WORDS, title=TITLES, cgroup=st.sampled_from(["", "/docker/x", "/docker/y"]), netns=st.integers(0, 3), started=st.none() | st.floats(0, 3)),
).map(lambda processes: {pid: classified(pid=pid, **more) for pid, more in processes.items()})  # fmt: skip
LISTENERS = st.lists(
    st.builds(ListeningSocket, port=st.sampled_from([8000, 8001]), address=st.sampled_from(["0.0.0.0", "::", "127.0.0.1", "10.0.0.1", "junk"]), netns=st.integers(0, 3), pids=st.frozensets(NUMBERS, max_size=3)),
    max_size=6,
).map(tuple)  # fmt: skip
TABLES = st.builds(
    ProcessTable,
    processes=PROCESSES,
    listeners=LISTENERS,
    problems=st.dictionaries(st.sampled_from(["no_permission", "pid_namespace", "vanished"]), st.integers(1, 9)),
    home=st.integers(0, 3),
    outer=st.integers(0, 3),
    addresses=st.dictionaries(st.integers(0, 3), st.frozensets(st.sampled_from(["10.0.0.1", "10.0.0.2"]))),
    reader=NUMBERS,
)
ENDPOINTS = st.lists(
    st.builds(
        Endpoint,
        replica=st.sampled_from(["a", "b", "c"]),
        host=st.sampled_from(
            ["127.0.0.1", "localhost", "10.0.0.1", "::1", "[::1]", "fe80::1%eth0", "far.example", "", "%", "\n"]
        ),
        port=st.sampled_from([8000, 8001, -1]),
        gpus=st.none()
        | st.lists(st.integers(-1, 4) | st.sampled_from(["GPU-0", "gpu-1", "MIG-9", ""]), max_size=3).map(tuple),
    ),
    max_size=4,
    unique_by=lambda declared: declared.replica,
)


@examples(400)
@given(
    cards=st.lists(
        st.builds(card, st.integers(0, 3), NUMBERS, NUMBERS, known=st.booleans(), read=st.booleans()), max_size=4
    ),
    endpoints=ENDPOINTS,
    table=st.none() | TABLES,
)
def test_whatever_is_read_every_row_names_a_known_gpu_and_replica(
    cards: list[CardState], endpoints: list[Endpoint], table: ProcessTable | None
) -> None:
    result = assign_gpus(cards, endpoints, table)
    names = {declared.replica for declared in endpoints}
    assigned = rows(result)
    assert {uuid for uuid, _, _ in assigned} <= {state.facts.uuid for state in cards}
    assert {name for _, name, _ in assigned} <= names
    assert set(result.unassigned) <= names
    assert len(assigned) == len(set(assigned))
    served = {name for _, name, _ in assigned}
    for declared in endpoints:
        if declared.gpus is None:
            assert (declared.replica in served) != (declared.replica in result.unassigned)
    assert set(result.unassigned.values()) <= {
        "remote", "no_driver", "no_processes", "pid_namespace", "no_permission", "no_listener", "ambiguous", "unknown_gpu",
    }  # fmt: skip
