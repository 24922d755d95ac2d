"""What is read from /proc: the right processes, their sockets and containers, and the engines among them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.model.process import ListeningEngine, Process
from exporter.sources.processes import procfs
from exporter.sources.processes.program import is_shared
from tests.support.fake_proc import HOST_NET, FakeProc, bare_metal
from tests.support.processes import CLASSIFIER, listening_engines, read_processes

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


@pytest.fixture
def node(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def descriptor_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record whose descriptors are read from now on."""
    read_pids: list[int] = []
    real = procfs.descriptors

    def descriptors(root: str, pid: int, limit: int) -> Iterator[str]:
        read_pids.append(pid)
        return real(root, pid, limit)

    monkeypatch.setattr(procfs, "descriptors", descriptors)
    return read_pids


def test_a_gpu_process_brings_its_ancestors_and_the_holder_of_the_port(node: FakeProc) -> None:
    bare_metal(node)
    table = read_processes([111, 112], [8000], root=str(node.root))
    assert set(table.processes) == {111, 112, 110, 100, 50, 1}
    (listener,) = table.listeners
    assert (listener.port, listener.address, listener.netns, listener.pids) == (
        8000,
        "0.0.0.0",
        HOST_NET,
        frozenset({100}),
    )
    assert table.processes[111].command == ("VLLM::Worker_TP0",)
    assert table.processes[100].started == 100 * 100 / os.sysconf("SC_CLK_TCK")
    assert table.home == table.outer == HOST_NET
    assert table.reader == 900
    assert table.problems == {}


def test_only_the_requested_ports_of_the_host_are_returned(node: FakeProc) -> None:
    bare_metal(node)
    node.add(200, 1, ["sshd"], listens=[("0.0.0.0", 22)])
    assert [listener.port for listener in read_processes([111], [8000], root=str(node.root)).listeners] == [8000]
    assert read_processes([111], [], root=str(node.root)).listeners == ()


def test_unrelated_descriptors_are_not_read_when_an_ancestor_listens(
    node: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare_metal(node)
    node.add(300, 1, ["postgres"], listens=[("127.0.0.1", 5432)])
    read_pids = descriptor_reads(monkeypatch)
    read_processes([111, 112], [8000], root=str(node.root))
    assert set(read_pids) == {100, 110}


def test_a_wider_search_leaves_other_processes_below_a_shell_alone(
    node: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(50, 1, ["-bash"], title="bash")
    node.add(100, 50, ["python3", "launch.py"])
    node.add(101, 100, ["python3", "front.py"], listens=[("127.0.0.1", 8000)])
    node.add(102, 100, ["python3", "worker.py"])
    node.add(200, 50, ["python3", "private.py"])
    read_pids = descriptor_reads(monkeypatch)
    table = read_processes([102], [8000], root=str(node.root))
    assert table.listeners[0].pids == {101}
    assert set(read_pids) == {100, 101, 102}


def test_kernel_threads_are_passed_over_but_not_the_children_of_an_ordinary_pid_2(tmp_path: Path) -> None:
    for name, expected in (("kthreadd", []), ("entrypoint", [8000])):
        (tmp_path / name).mkdir()
        node = FakeProc(tmp_path / name)
        node.add(2, 0, [name])
        node.add(3, 2, ["vllm", "serve"], listens=[("0.0.0.0", 8000)])
        assert [engine.port for engine in listening_engines(root=str(node.root))] == expected


def test_a_sibling_that_listens_is_found_below_the_launcher(node: FakeProc) -> None:
    node.add(100, 1, ["text-generation-launcher", "--port", "80"])
    node.add(101, 100, ["text-generation-router", "--port", "80"], listens=[("::", 80)])
    node.add(102, 100, ["/opt/conda/bin/python3.11", "/opt/conda/bin/text-generation-server", "serve", "m"])
    table = read_processes([102], [80], root=str(node.root))
    assert [(listener.address, listener.pids) for listener in table.listeners] == [("::", frozenset({101}))]


def test_a_container_has_all_its_engine_ports_and_its_address(node: FakeProc) -> None:
    group = f"0::/system.slice/docker-{ID}.scope"
    node.add(400, 1, ["/usr/bin/containerd-shim-runc-v2", "-id", ID], title="containerd-shim")
    node.add(401, 400, ["vllm", "serve"], cgroup=group, net=77, listens=[("0.0.0.0", 8000)])
    node.add(402, 401, ["VLLM::EngineCore"], cgroup=group, net=77)
    node.add(
        390,
        1,
        [
            "/usr/bin/docker-proxy",
            "-proto",
            "tcp",
            "-host-ip",
            "0.0.0.0",
            "-host-port",
            "9001",
            "-container-ip",
            "172.17.0.2",
            "-container-port",
            "8000",
        ],
        listens=[("0.0.0.0", 9001)],
    )
    node.tables[77].append(("0.0.0.0", 9090, 5))  # held by nobody who can be seen
    node.address(77, "172.17.0.2")
    table = read_processes([402], [9001], root=str(node.root))
    assert {(listener.netns, listener.port): listener.pids for listener in table.listeners} == {
        (HOST_NET, 9001): {390},
        (77, 8000): {401},
    }
    assert table.addresses[77] == {"172.17.0.2"}
    assert table.processes[401].cgroup == f"/system.slice/docker-{ID}.scope"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"0::/system.slice/docker-{ID}.scope", f"/system.slice/docker-{ID}.scope"),
        (f"0::/system.slice/docker-{ID}.scope/init.scope", f"/system.slice/docker-{ID}.scope"),
        (f"12:memory:/docker/{ID}\n11:pids:/docker/{ID}", f"/docker/{ID}"),
        (f"4:cpu,cpuacct:/kubepods/burstable/pod12-34/{ID}", f"/kubepods/burstable/pod12-34/{ID}"),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice/cri-containerd-{ID}.scope",
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice/cri-containerd-{ID}.scope",
        ),
        (
            f"0::/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope/container",
            f"/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope",
        ),
        (
            f"1:name=systemd:/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}",
            f"/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}",
        ),
        (f"0::/machine.slice/libpod-{ID}.scope/container", f"/machine.slice/libpod-{ID}.scope"),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope", ""),
        (
            f"0::/docker/{ID}/kubelet.slice/cri-containerd-{OTHER}.scope",
            f"/docker/{ID}/kubelet.slice/cri-containerd-{OTHER}.scope",
        ),
        (f"0::/../../pod1/{ID}", f"/../../pod1/{ID}"),
        ("0::/lxc.payload.web/system.slice/x.service", "/lxc.payload.web"),
        ("0::/user.slice/user-1000.slice/session-3.scope", ""),
        ("0::/", ""),
        ("garbage", ""),
        ("", ""),
    ],
)
def test_a_control_group_names_the_container_in_every_runtime_shape(node: FakeProc, line: str, expected: str) -> None:
    node.add(100, 1, ["x"], cgroup=line)
    assert read_processes([100], [], root=str(node.root)).processes[100].cgroup == expected


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("vllm serve m", "vllm"),
        ("/usr/bin/python3 /usr/local/bin/vllm serve m", "vllm"),
        ("python3.12 -u -X dev -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("python /opt/vllm/entrypoints/openai/api_server.py", "vllm"),
        ("VLLM::APIServer_1", "vllm"),
        ("python -m sglang.launch_server --port 30000", "sglang"),
        ("/opt/bin/sglang serve m", "sglang"),
        ("text-generation-launcher --model-id m", "tgi"),
        ("trtllm-serve m", "tensorrt_llm"),
        ("/opt/tritonserver/bin/tritonserver", "triton"),
        ("vim tritonserver", ""),
        ("/usr/local/bin/text-generation-router --port 80", "tgi"),
        ("python3 /opt/conda/bin/text-generation-server serve m", ""),
        ("vllm bench serve", ""),
        ("VLLM::EngineCore_DP0", ""),
        ("vim vllm serve", ""),
        ("bash -c vllm serve m", ""),
        ("python -c vllm serve", ""),
        ("python -m", ""),
        ("python -X", ""),
        ("", ""),
    ],
)
def test_an_engine_server_is_known_by_what_it_runs_not_by_what_it_mentions(command: str, kind: str) -> None:
    assert CLASSIFIER.engine(tuple(command.split())) == kind


@pytest.mark.parametrize(
    "title",
    ["bash", "tmux: server", "systemd", "containerd-shim", "sshd", "raylet", "supervisord", "tini", "kubelet"],
)
def test_shells_supervisors_and_runtimes_are_shared(title: str) -> None:
    assert is_shared(title, ())
    assert is_shared("python3", ("python3", f"/usr/bin/{title}"))
    assert not is_shared("python3", ("python3", "launch.py", title))


def test_a_flag_is_read_in_both_spellings_and_may_stand_last() -> None:
    process = Process(pid=1, parent=0, command=("x", "--port=8001", "-p", "9", "--end"))
    assert [process.flag("--port"), process.flag("-p"), process.flag("--end"), process.flag("--none")] == [
        "8001",
        "9",
        "",
        "",
    ]


def test_addresses_are_read_as_people_write_them(node: FakeProc) -> None:
    node.add(100, 1, ["x"], listens=[("127.0.0.1", 1), ("::1", 2), ("::ffff:10.1.2.3", 3), ("2001:db8::7", 4)])
    table = read_processes([100], [1, 2, 3, 4], root=str(node.root))
    assert {listener.port: listener.address for listener in table.listeners} == {
        1: "127.0.0.1",
        2: "::1",
        3: "10.1.2.3",
        4: "2001:db8::7",
    }


def test_engines_are_found_by_command_line_and_the_port_they_really_listen_on(node: FakeProc) -> None:
    node.add(2, 0, b"", title="kthreadd")
    node.add(3, 2, b"", title="python-kworker")
    made = node.add(
        100,
        1,
        ["python3", "/usr/bin/vllm", "serve", "m", "--port", "8100"],
        title="vllm",
        listens=[("0.0.0.0", 8100), ("127.0.0.1", 45001)],
    )
    node.add(101, 100, ["VLLM::APIServer_0"], shares=made[:1])
    node.add(110, 1, ["python3", "-m", "sglang.launch_server"], listens=[("::", 30000), ("127.0.0.1", 40000)])
    node.add(120, 1, ["text-generation-launcher"])
    node.add(121, 120, ["text-generation-router", "-p", "8080"], listens=[("192.0.2.10", 8080)])
    node.add(130, 1, ["vllm", "serve", "still-starting"])
    node.add(140, 1, ["vllm", "serve", "odd"], listens=[("127.0.0.1", 7001), ("127.0.0.1", 7002)])
    node.add(
        150,
        1,
        ["vllm", "serve", "boxed"],
        net=77,
        cgroup=f"0::/system.slice/docker-{ID}.scope",
        listens=[("0.0.0.0", 8000)],
    )
    node.add(160, 1, ["vllm", "serve", "shut in"], net=78, listens=[("127.0.0.1", 8000)])
    node.address(77, "172.17.0.2")
    assert listening_engines(root=str(node.root)) == (
        ListeningEngine(kind="vllm", host="172.17.0.2", port=8000, pid=150),
        ListeningEngine(kind="tgi", host="192.0.2.10", port=8080, pid=121),
        ListeningEngine(kind="vllm", host="127.0.0.1", port=8100, pid=100),
        ListeningEngine(kind="sglang", host="::1", port=30000, pid=110),
    )


def test_a_server_whose_process_torch_has_renamed_is_found_and_is_an_engine_s_root(node: FakeProc) -> None:
    node.add(
        100, 1, ["python3", "-m", "vllm.entrypoints.openai.api_server"], title="pt_main_thread", listens=[("0.0.0.0", 8000)]
    )  # fmt: skip
    node.add(200, 1, ["python3", "train.py"], title="pt_main_thread", listens=[("0.0.0.0", 8001)])
    assert [(engine.pid, engine.port) for engine in listening_engines(root=str(node.root))] == [(100, 8000)]


def test_two_engines_on_one_port_of_different_addresses_are_two(node: FakeProc) -> None:
    for number in (1, 2):
        node.add(100 + number, 1, ["vllm", "serve", "m"], listens=[(f"127.0.0.{number}", 8000)])
    node.add(103, 1, ["VLLM::APIServer_1"], shares=[node.inode])
    engines = listening_engines(root=str(node.root))
    assert [(listener.host, listener.port, listener.pid) for listener in engines] == [
        ("127.0.0.1", 8000, 101), ("127.0.0.2", 8000, 102)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "ports", "expected"),
    [
        ("trtllm-serve m", (8000,), ("tensorrt_llm", 8000, "/prometheus/metrics", False, False)),
        ("/usr/bin/python3 /opt/bin/trtllm-serve serve m --port=9000", (9000, 9001),
         ("tensorrt_llm", 9000, "/prometheus/metrics", False, False)),
        ("python3 -m tensorrt_llm.commands.serve serve m", (8000,),
         ("tensorrt_llm", 8000, "/prometheus/metrics", False, False)),
        ("trtllm-serve disaggregated -c x.yaml", (8000,), None),
        ("/opt/tritonserver/bin/tritonserver --model-repository=/m", (8000, 8001, 8002),
         ("triton", 8002, "/metrics", False, False)),
        ("tritonserver --metrics-port 9002 --http-port 9000", (9000, 9001, 9002),
         ("triton", 9002, "/metrics", False, False)),
        ("tritonserver --allow-metrics=false", (8000, 8001), None),
        ("python3 -m dynamo.frontend", (8000, 41000), ("dynamo", 8000, "/metrics", False, False)),
        ("python3 -m dynamo.frontend --http-port 9000", (9000,), ("dynamo", 9000, "/metrics", False, False)),
        ("python3 -m dynamo.frontend --tls-cert-path c --tls-key-path k", (8000,),
         ("dynamo", 8000, "/metrics", True, False)),
        ("python3 -m dynamo.router", (8000,), None),
        ("vllm serve m --ssl-keyfile k --ssl-certfile c", (8000,), ("vllm", 8000, "/metrics", True, True)),
        ("vllm serve m --ssl_certfile=c --ssl_keyfile=k", (8000,), ("vllm", 8000, "/metrics", True, True)),
        ("python -m sglang.launch_server --ssl-certfile c", (30000,), ("sglang", 30000, "/metrics", True, True)),
        ("text-generation-router", (3000,), ("tgi", 3000, "/metrics", False, True)),
    ],
)  # fmt: skip
def test_each_kind_of_server_is_looked_for_where_it_shows_its_metrics(
    node: FakeProc, command: str, ports: tuple[int, ...], expected: tuple[object, ...] | None
) -> None:
    node.add(100, 1, command.split(), listens=[("0.0.0.0", port) for port in ports])
    engines = [
        (engine.kind, engine.port, engine.path, engine.tls, not engine.probe)
        for engine in listening_engines(root=str(node.root))
    ]
    assert engines == ([expected] if expected else [])


def test_what_dynamo_has_from_its_environment_alone_is_read_from_there_and_nothing_else_is(node: FakeProc) -> None:
    node.add(
        100, 1, ["python3", "-m", "dynamo.vllm", "--model", "m"], listens=[("0.0.0.0", 8081), ("0.0.0.0", 41000)]
    )
    node.add(200, 1, ["python3", "-m", "dynamo.frontend"], listens=[("0.0.0.0", 9000), ("0.0.0.0", 41001)])
    assert listening_engines(root=str(node.root)) == ()
    (node.root / "100" / "environ").write_bytes(b"HF_TOKEN=DYN_SYSTEM_PORT=41000\0DYN_SYSTEM_PORT=8081\0")
    (node.root / "200" / "environ").write_bytes(b"A=1\0DYN_HTTP_PORT=9000\0")
    engines = listening_engines(root=str(node.root))
    assert [(engine.kind, engine.port) for engine in engines] == [("dynamo", 8081), ("dynamo", 9000)]
    assert CLASSIFIER.engine(("python3", "-m", "dynamo.frontend")) == "", "the engine behind it owns the cards"
    assert procfs.variable(str(node.root), 100, "NONE") == "" == procfs.variable(str(node.root), 7, "A")


def test_a_worker_of_another_nodes_replica_is_a_server_only_if_it_shows_metrics(node: FakeProc) -> None:
    """SGLang answers health checks on every node, vLLM without a server may still hold a socket."""
    nodes = ["--nnodes", "2", "--node-rank", "1"]
    sglang = ["python3", "-m", "sglang.launch_server", "--dist-init-addr", "10.0.0.1:20000", *nodes]
    node.add(100, 1, sglang, listens=[("0.0.0.0", 30000)])
    node.add(
        200, 1, ["vllm", "serve", "m", "--master-addr", "10.0.0.1", *nodes, "--headless"], listens=[("0.0.0.0", 9)]
    )
    engines = listening_engines(root=str(node.root))
    assert [(engine.port, engine.probe) for engine in engines] == [(30000, True)]


@contextlib.contextmanager
def running(code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run a Python process until its standard input closes; gives its first line, split."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready, "the process did not come up"
        yield process, process.stdout.readline().split()
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


PARENT = """
import socket, subprocess, sys
s = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, s.getsockname()[1], flush=True)
sys.stdin.read()
child.stdin.close()
child.wait(10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_real_parent_that_listens_is_found_from_its_real_child() -> None:
    with running(PARENT) as (parent, (child, port)):
        table = read_processes([int(child)], [int(port)])
        assert [(listener.port, listener.address, listener.pids) for listener in table.listeners] == [
            (int(port), "127.0.0.1", frozenset({parent.pid}))
        ]
        assert table.processes[int(child)].parent == parent.pid
        assert table.processes[parent.pid].command[1] == "-c"
        assert table.reader == os.getpid()
        assert os.getpid() in table.processes
        assert table.listeners[0].netns == table.home == table.processes[parent.pid].netns != 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_real_sibling_that_listens_is_found_too() -> None:
    listener = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"
    with (
        running(listener) as (server, (port,)),
        running("import sys; print(1, flush=True); sys.stdin.read()") as (user, _),
    ):
        table = read_processes([user.pid], [int(port)])
        assert [listener.pids for listener in table.listeners] == [{server.pid}]


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs two users")
def test_a_reader_without_rights_counts_no_permission_and_names_no_process() -> None:
    look = f"""
import ctypes, os, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.support.processes import read_processes
os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: own entries in /proc become readable again
table = read_processes([int(sys.argv[1])], [int(sys.argv[2])])
print(table.problems.get("no_permission", 0), sum(len(one.pids) for one in table.listeners), len(table.listeners), flush=True)
"""
    with running(PARENT) as (_, (child, port)), running(look, child, port) as (_, words):
        refused, holders, listeners = map(int, words)
        assert refused >= 1
        assert (holders, listeners) == (0, 1)


def test_real_engines_are_found_by_their_command_line(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_text(
        "import socket, sys\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script), "serve", "m"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        engines = [engine for engine in listening_engines() if engine.pid == process.pid]
        process.stdin.close()
    assert engines == [ListeningEngine(kind="vllm", host="127.0.0.1", port=port, pid=process.pid)]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_reading_leaves_no_descriptor_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        read_processes([os.getpid()], [port])
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            table = read_processes([os.getpid()], [port, 1])
            listening_engines()
        assert len(os.listdir("/proc/self/fd")) == before
        assert table.listeners[0].pids == {os.getpid()}
