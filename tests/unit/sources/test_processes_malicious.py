"""A hostile, vanishing or endless /proc: bounded, counted, and never raised."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from exporter.sources.processes import listening, procfs, table
from tests.support.examples import examples
from tests.support.fake_proc import HOST_NET, FakeProc, bare_metal
from tests.support.processes import CLASSIFIER, listening_engines, read_processes


@pytest.fixture
def node(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_a_cycle_of_parents_ends(node: FakeProc) -> None:
    node.add(100, 101, ["a"])
    node.add(101, 102, ["b"])
    node.add(102, 100, ["c"], listens=[("127.0.0.1", 8000)])
    node.add(103, 103, ["own parent"])
    table = read_processes([100, 103], [8000, 8001], root=str(node.root))
    assert {100, 101, 102, 103} <= set(table.processes)
    assert table.listeners[0].pids == {102}


def test_hostile_text_is_cut_and_made_harmless(node: FakeProc) -> None:
    node.add(100, 1, b"\xff\xfe\nevil\x1b[2J\0" + b"A" * 5_000_000, title="a) S 7 (\n\x1b")
    process = read_processes([100], [], root=str(node.root)).processes[100]
    assert process.parent == 1
    assert sum(map(len, process.command)) <= 4096
    assert all(text.isprintable() for text in (*process.command, process.title))
    assert process.title.startswith("a) S 7 (")


def test_the_command_line_of_a_process_in_the_driver_is_not_read(
    node: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(100, 1, ["vllm", "serve"], state="D")
    monkeypatch.setattr(procfs, "command", lambda root, pid: pytest.fail("would hang") if pid == 100 else ())
    assert read_processes([100], [], root=str(node.root)).processes[100].title == "vllm"


def test_a_pid_that_is_over_is_left_out_and_counted(node: FakeProc) -> None:
    bare_metal(node)
    table = read_processes([111, 4242, -1, 0], [8000], root=str(node.root))
    assert table.problems == {"vanished": 1}
    assert 4242 not in table.processes


def test_pids_of_another_namespace_are_distinguished_from_those_that_ended(node: FakeProc) -> None:
    assert read_processes([4242], [8000], root=str(node.root)).problems == {"pid_namespace": 1}
    (node.root / "900" / "ns").mkdir(exist_ok=True)
    os.symlink(procfs.INITIAL_PID_NAMESPACE, node.root / "900" / "ns" / "pid")
    assert read_processes([4242], [8000], root=str(node.root)).problems == {"vanished": 1}
    (node.root / "1" / "stat").unlink()
    assert read_processes([4242], [8000], root=str(node.root)).problems == {"no_permission": 1}


def test_foreign_descriptors_are_counted_and_cost_only_their_own_sockets(
    node: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare_metal(node)
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("/100/fd"):
            raise PermissionError(13, "no")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    table = read_processes([111], [8000], root=str(node.root))
    assert table.problems["no_permission"] == 1
    assert [listener.pids for listener in table.listeners] == [frozenset()]


def test_the_number_of_processes_is_bounded(node: FakeProc) -> None:
    for pid in range(100, 140):
        node.add(pid, pid - 1 if pid > 100 else 1, ["x"])
    table = read_processes([139], [8000], root=str(node.root), limit=5)
    assert len(table.processes) == 5
    assert table.limits == {"processes"}


def test_the_number_of_descriptors_is_bounded(node: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add(100, 1, ["x"])
    for number in range(10, 60):
        os.symlink(f"socket:[{number}]", node.root / "100" / "fd" / str(number))
    monkeypatch.setattr("exporter.sources.processes.table._LINKS", 20)
    read = 0
    real = procfs.link

    def link(path: str) -> str:
        nonlocal read
        read += "/fd/" in path
        return real(path)

    monkeypatch.setattr(procfs, "link", link)
    assert read_processes([100], [8000], root=str(node.root)).limits == {"descriptors"}
    assert read <= 20


def test_listening_sockets_before_many_connections_are_found_and_the_rest_is_not_read(node: FakeProc) -> None:
    bare_metal(node)
    path = node.root / "900" / "net" / "tcp"
    busy = f"   9: 0100007F:1F90 0100007F:C000 01 {'0 ' * 5} 0 77 1\n"
    late = "   1: 00000000:0BB8 00000000:0000 0A 0:0 00:0 0 0 0 5555 1\n"
    path.write_text(path.read_text() + busy * 5000 + late)
    assert [listener.port for listener in read_processes([111], [8000, 3000], root=str(node.root)).listeners] == [
        8000
    ]


def test_an_absent_proc_reads_as_nothing(tmp_path: Path) -> None:
    table = read_processes([1, 2], [8000], root=str(tmp_path / "none"))
    assert (table.processes, table.listeners) == ({}, ())
    assert listening_engines(root=str(tmp_path / "none")) == ()


def test_files_that_vanish_at_any_moment_never_raise(node: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    bare_metal(node)
    real_open, real_link, real_scan = os.open, os.readlink, os.scandir
    dice = random.Random(7)

    def flaky(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: object, *rest: object, **more: object) -> object:
            if str(path).startswith(str(node.root)) and dice.random() < 0.3:
                raise dice.choice([FileNotFoundError, ProcessLookupError, PermissionError, OSError])(2, "gone")
            return real(path, *rest, **more)

        return call

    complete = 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", flaky(real_open))
        patch.setattr(os, "readlink", flaky(real_link))
        patch.setattr(os, "scandir", flaky(real_scan))
        for _ in range(100):
            complete += len(read_processes([111, 112], [8000], root=str(node.root)).processes)
            listening_engines(root=str(node.root))
    assert 0 < complete < 600


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stat=st.binary(max_size=200),
    cmdline=st.binary(max_size=300),
    cgroup=st.binary(max_size=300),
    tcp=st.binary(max_size=600),
    trie=st.binary(max_size=300),
    pids=st.lists(st.integers(-5, 10**12), max_size=4),
    ports=st.lists(st.integers(-1, 70_000), max_size=4),
)
def test_random_files_never_raise(
    tmp_path_factory: pytest.TempPathFactory,
    stat: bytes,
    cmdline: bytes,
    cgroup: bytes,
    tcp: bytes,
    trie: bytes,
    pids: list[int],
    ports: list[int],
) -> None:
    root = tmp_path_factory.mktemp("proc")
    for pid in ("100", "101"):
        (root / pid / "net").mkdir(parents=True)
        (root / pid / "cmdline").write_bytes(cmdline)
        (root / pid / "cgroup").write_bytes(cgroup)
        (root / pid / "net" / "tcp").write_bytes(tcp)
        (root / pid / "net" / "tcp6").write_bytes(tcp)
        (root / pid / "net" / "fib_trie").write_bytes(trie)
        (root / pid / "net" / "if_inet6").write_bytes(trie)
    (root / "100" / "stat").write_bytes(stat)
    (root / "101" / "stat").write_bytes(b"101 (" + stat + b") S 100 " + stat)
    os.symlink("101", root / "self")
    table = read_processes([100, 101, *pids], ports, root=str(root))
    assert set(table.processes) <= {100, 101}
    assert listening_engines(root=str(root)) == ()


CONTAINER = "0::/system.slice/docker-" + "a" * 64 + ".scope"


@pytest.mark.parametrize(
    ("bound", "assigned", "unprivileged"),
    [
        ("172.17.0.2", "172.17.0.2", {77}),
        ("172.17.0.2", "172.17.0.9", ()),  # bound with IP_FREEBIND
        ("169.254.169.254", "169.254.169.254", ()),
        ("192.0.2.1", "192.0.2.1", ()),
        ("127.0.0.1", "172.17.0.2", ()),
    ],
)
def test_a_network_namespace_of_its_own_names_no_address_to_request(
    node: FakeProc, bound: str, assigned: str, unprivileged: Collection[int]
) -> None:
    """Anybody may bind any address in a namespace of their own; here it is another's, or the metadata service.

    The name of the control group proves nothing: a container may create network namespaces, too.
    """
    node.add(90, 1, ["init"])
    node.address(HOST_NET, "192.0.2.1")
    node.add(100, 1, ["vllm", "serve", "m"], net=77, cgroup=CONTAINER, listens=[(bound, 8000)])
    node.address(77, assigned)
    assert listening_engines(root=str(node.root), unprivileged=unprivileged) == ()
    node.add(101, 1, ["vllm", "serve", "m"], net=78, cgroup=CONTAINER, listens=[("0.0.0.0", 1)])
    node.address(78, "172.17.0.3")
    engines = listening_engines(root=str(node.root), unprivileged=unprivileged)
    assert [engine.host for engine in engines] == ["172.17.0.3"]


@pytest.mark.parametrize(
    ("bound", "host"),
    [
        ("198.51.100.7", None), ("169.254.169.254", None), ("2001:db8::7", None), ("fe80::7", None),
        ("192.0.2.1", "192.0.2.1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("127.0.0.9", "127.0.0.9"),
    ],
)  # fmt: skip
def test_in_the_daemons_network_namespace_only_its_own_addresses_are_requested(
    node: FakeProc, bound: str, host: str | None
) -> None:
    """Anybody may bind a foreign address with IP_FREEBIND; the request would go to whoever has it."""
    node.address(HOST_NET, "192.0.2.1", "169.254.169.254", "fe80::7")  # clouds' hosts have a link-local address, too
    node.add(100, 1, ["vllm", "serve", "m"], listens=[(bound, 8000)])
    found = [engine.host for engine in listening_engines(root=str(node.root))]
    assert found == ([host] if host else [])


def test_a_process_that_leaves_its_network_namespace_meanwhile_lends_it_no_address(
    node: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(100, 1, ["vllm", "serve", "m"], net=77, cgroup=CONTAINER, listens=[("172.17.0.2", 8000)])
    node.address(77, "172.17.0.2")
    assert [engine.host for engine in listening_engines(root=str(node.root))] == ["172.17.0.2"]
    real = procfs.listening

    def listening(root: str, owner: int | str) -> tuple[procfs.Socket, ...]:
        if owner == 100:
            (node.root / "100" / "ns" / "net").unlink()
            os.symlink("net:[79]", node.root / "100" / "ns" / "net")
        return real(root, owner)

    monkeypatch.setattr(procfs, "listening", listening)
    assert listening_engines(root=str(node.root)) == ()


def owned(monkeypatch: pytest.MonkeyPatch, owners: dict[int, str]) -> None:
    monkeypatch.setattr(procfs, "owner", lambda _, pid: owners.get(pid, "1000"))


def test_another_users_fakes_with_many_descriptors_do_not_hide_an_engine(
    node: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_LINKS", 100)
    owned(monkeypatch, {300: "0"})
    for pid in range(100, 110):
        node.add(pid, 1, ["vllm", "serve", "fake"], shares=range(10_000, 10_040))
    node.add(300, 1, ["vllm", "serve", "true"], listens=[("127.0.0.1", 8000)])
    assert [engine.pid for engine in listening_engines(root=str(node.root))] == [300]


def test_another_users_sleeping_processes_do_not_hide_an_engine(
    node: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned(monkeypatch, {300: "0"})
    for pid in range(100, 150):
        node.add(pid, 1, ["sleep", "1"])
    node.add(300, 1, ["vllm", "serve", "true"], listens=[("127.0.0.1", 8000)])
    assert [engine.pid for engine in listening_engines(root=str(node.root), limit=20)] == [300]


def test_an_engine_above_a_gpus_process_comes_first(node: FakeProc) -> None:
    node.add(100, 1, ["vllm", "serve", "fake"], listens=[("127.0.0.1", 7000)])
    node.add(300, 1, ["vllm", "serve", "true"], listens=[("127.0.0.1", 8000)])
    node.add(310, 300, ["VLLM::EngineCore"])
    engines = listening.listening_engines(classifier=CLASSIFIER, gpu_pids=[310], root=str(node.root)).engines
    assert [(engine.pid, engine.uses_gpu) for engine in engines] == [(300, True), (100, False)]


def test_containers_are_told_apart_although_all_run_as_root(node: FakeProc) -> None:
    other = "0::/system.slice/docker-" + "b" * 64 + ".scope"
    rootless = f"0::/user.slice/user-1000.slice/user@1000.service/docker-{'c' * 64}.scope"
    for pid, group in ((100, CONTAINER), (101, CONTAINER), (102, other), (103, rootless), (104, "0::/init.scope")):
        node.add(pid, 1, ["sleep"], cgroup=group)
    owners = [procfs.owner(str(node.root), pid) for pid in range(100, 105)]
    assert owners[0] == owners[1] != owners[2]
    assert owners[3] == owners[4] == str(os.getuid()), "a user may give any name to the groups that are theirs"
    assert procfs.owner(str(node.root), 9999) == "-1"


def test_a_containers_sleeping_processes_do_not_hide_another_containers_engine(node: FakeProc) -> None:
    for pid in range(100, 150):
        node.add(pid, 1, ["sleep", "1"], cgroup="0::/system.slice/docker-" + "b" * 64 + ".scope")
    node.add(300, 1, ["vllm", "serve", "true"], cgroup=CONTAINER, listens=[("127.0.0.1", 8000)])
    scan = listening.listening_engines(classifier=CLASSIFIER, root=str(node.root), limit=20)
    assert [engine.pid for engine in scan.engines] == [300]
    assert scan.limits == {"processes"}


def test_chains_above_one_owners_gpu_processes_do_not_hide_anothers(
    node: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned(monkeypatch, {300: "0", 310: "0"})
    for pid in range(100, 140):
        node.add(pid, pid - 1 if pid % 10 else 1, ["vllm", "serve", "fake"])
    node.add(300, 1, ["vllm", "serve", "true"], listens=[("127.0.0.1", 8000)])
    node.add(310, 300, ["VLLM::EngineCore"])
    gpu_pids = [109, 119, 129, 139, 310]
    table = read_processes(gpu_pids, [8000], root=str(node.root), limit=20)
    assert {300, 310} <= table.processes.keys()
    assert table.limits == {"processes"}


def test_more_listening_sockets_than_are_read_are_reported(node: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "MAX_SOCKETS", 20)
    node.add(100, 1, ["nc"], listens=[("127.0.0.1", port) for port in range(1000, 1021)])
    assert read_processes([100], [8000], root=str(node.root)).limits == {"sockets"}
