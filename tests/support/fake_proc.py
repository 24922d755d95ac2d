"""Builds a /proc in a directory: processes, their sockets, control groups and network namespaces."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

HOST_NET = 4026531840
HOST_ADDRESS = "192.0.2.10"


def kernel_address(address: str) -> str:
    """Write an address as a little-endian kernel prints it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    return b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4)).hex().upper()


class FakeProc:
    """A node whose /proc is a directory; pid 1 is systemd, the reader is pid 900 below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inode = 1000
        self.tables: dict[int, list[tuple[str, int, int]]] = {}
        self.addresses: dict[int, list[str]] = {HOST_NET: [HOST_ADDRESS, "172.17.0.1"]}
        self.add(1, 0, ["/sbin/init"], title="systemd", started=1)
        self.add(900, 1, ["shardwatch", "run"], title="shardwatch")
        os.symlink("900", root / "self")

    def add(
        self,
        pid: int,
        parent: int,
        command: Sequence[str] | bytes,
        *,
        title: str | None = None,
        cgroup: str = "0::/system.slice/x.service",
        net: int = HOST_NET,
        listens: Sequence[tuple[str, int]] = (),
        shares: Sequence[int] = (),
        started: int | None = None,
        state: str = "S",
        environment: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Add a process that opens listening sockets, and holds the inodes ``shares`` too; give the new inodes."""
        home = self.root / str(pid)
        (home / "fd").mkdir(parents=True)
        (home / "ns").mkdir()
        os.symlink(self._namespace(net), home / "net")
        raw = command if isinstance(command, bytes) else b"\0".join(argument.encode() for argument in command) + b"\0"
        (home / "cmdline").write_bytes(raw)
        first = "" if isinstance(command, bytes) else (command[0] if command else "")
        name = (title if title is not None else first.rpartition("/")[2])[:15]
        ticks = started if started is not None else pid * 100
        zeros = " ".join(["0"] * 17)
        (home / "stat").write_bytes(f"{pid} ({name}) {state} {parent} {zeros} {ticks} 0\n".encode())
        (home / "cgroup").write_text(cgroup + "\n")
        variables = (f"{name}={value}" for name, value in (environment or {}).items())
        (home / "environ").write_bytes("\0".join(variables).encode())
        os.symlink(f"net:[{net}]", home / "ns" / "net")
        os.symlink("/dev/null", home / "fd" / "0")
        os.symlink("anon_inode:[eventpoll]", home / "fd" / "1")
        made = []
        for address, port in listens:
            self.inode += 1
            made.append(self.inode)
            self.tables.setdefault(net, []).append((address, port, self.inode))
        for number, inode in enumerate((*made, *shares), start=3):
            os.symlink(f"socket:[{inode}]", home / "fd" / str(number))
        self._write(net)
        return made

    def address(self, net: int, *addresses: str) -> None:
        self.addresses[net] = list(addresses)
        self._write(net)

    def _write(self, net: int) -> None:
        texts = {"tcp": "  sl  local_address rem_address   st …\n", "tcp6": "  sl  local_address …\n"}
        for number, (address, port, inode) in enumerate(self.tables.get(net, [])):
            kind = "tcp6" if ":" in address else "tcp"
            texts[kind] += (
                f"{number:4}: {kernel_address(address)}:{port:04X} {'0' * 8}:0000 0A 00000000:00000000 00:00000000 "
                f"00000000     0        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
            )
        texts["tcp"] += f"   9: 0100007F:1F90 0100007F:C000 01 {'0 ' * 5} 0 77 1\n"
        trie = "Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
        for address in self.addresses.get(net, []):
            trie += f"     |-- {address}\n        /32 host LOCAL\n     |-- {address}9\n        /32 link BROADCAST\n"
        texts["fib_trie"] = trie
        texts["if_inet6"] = "00000000000000000000000000000001 01 80 10 80       lo\n"
        for name, text in texts.items():
            (self._namespace(net) / name).write_text(text)

    def _namespace(self, net: int) -> Path:
        """Return the directory of a network namespace's files, which its processes share."""
        folder = self.root / f"namespace-{net}"
        folder.mkdir(exist_ok=True)
        return folder


def bare_metal(node: FakeProc) -> None:
    """Start vLLM from a shell: the server at pid 100 on port 8000, its engine core 110, the workers 111 and 112."""
    node.add(50, 1, ["-bash"], title="bash")
    node.add(
        100,
        50,
        ["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m", "--port", "8000"],
        title="vllm",
        listens=[("0.0.0.0", 8000)],
    )
    node.add(110, 100, b"VLLM::EngineCore" + b"\0" * 40, title="VLLM::EngineCore")
    node.add(111, 110, b"VLLM::Worker_TP0" + b"\0" * 40)
    node.add(112, 110, b"VLLM::Worker_TP1" + b"\0" * 40)
