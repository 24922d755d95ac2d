"""Reads single files of /proc into plain values; bounded, and whatever is gone, forbidden or garbled reads as empty.

Only ``descriptors`` lets PermissionError through: whether sockets can be seen decides what may be concluded from
not finding one.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import sys
from collections.abc import Collection, Iterator
from itertools import islice

from msgspec import Struct

INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # a constant of the kernel

_NS_GET_USERNS = 0xB701  # linux/nsfs.h
_COMMAND_BYTES = 4096
_ENVIRONMENT_BYTES = 1 << 17
_FILE_BYTES = 1 << 20
_TABLE_BYTES = 4 << 20
_MAPS_BYTES = 16 << 20  # a serving process of PyTorch has about 1 MiB
MAX_PIDS = 65_536
MAX_SOCKETS = 16_384  # listening ones of one namespace; 150 bytes each
_LISTEN = "0A"
_OTHERS_IN_A_ROW = 512  # the kernel prints listening sockets first; beyond this many others there are no more
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# docker-<id>.scope, cri-containerd-<id>.scope, libpod-<id>.scope, crio-<id>.scope, <slice>:<runtime>:<id>, <id>.
_CONTAINER = re.compile(r"(?:^|[-:])[0-9a-f]{64}(?:\.scope)?$|^[0-9a-f]{32}-\d+$|^lxc\.payload\.")


class Stat(Struct, frozen=True):
    """The fixed part of a process; ``state`` is the kernel's letter, ``started`` counts seconds from boot."""

    parent: int
    title: str
    state: str
    started: float | None


class Socket(Struct, frozen=True):
    """A listening TCP socket; the address is in its usual text form, IPv4 also where the socket is IPv6."""

    address: str
    port: int
    inode: int


def pids(root: str) -> Iterator[int]:
    """Yield the process ids in a /proc, at most 65,536."""
    try:
        names = os.listdir(root)
    except OSError:
        return
    for name in islice(names, MAX_PIDS):
        if name.isascii() and name.isdecimal() and len(name) < 10:
            yield int(name)


def stat(root: str, pid: int) -> Stat | None:
    """Read a process's parent, title, state and start; None when it is gone."""
    raw = _read(f"{root}/{pid}/stat", 4096)
    # The title stands in parentheses and may hold anything, parentheses and newlines too.
    head, _, tail = raw.rpartition(b")")
    fields = tail.split()
    if len(fields) < 2 or not fields[1].isdigit():
        return None
    title = printable(head.partition(b"(")[2])
    ticks = fields[19] if len(fields) > 19 else b""
    started = int(ticks) / _TICKS if ticks.isdigit() and len(ticks) < 20 else None
    return Stat(int(fields[1][:10]), title, fields[0].decode("ascii", "replace"), started)


def command(root: str, pid: int) -> tuple[str, ...]:
    """Read the command line, the first 4 KiB; a process that renamed itself left zeros behind its title."""
    raw = _read(f"{root}/{pid}/cmdline", _COMMAND_BYTES).rstrip(b"\0")
    return tuple(printable(word) for word in raw.split(b"\0")) if raw else ()


def variable(root: str, pid: int, name: str) -> str:
    """Read one variable of a process's environment as it began; nothing else of it is kept, for it holds secrets."""
    return variables(root, pid, (name,)).get(name, "")


def variables(root: str, pid: int, names: Collection[str]) -> dict[str, str]:
    """Read some variables of a process's environment, as ``variable`` does; without those that are not set."""
    found: dict[str, str] = {}
    for entry in _read(f"{root}/{pid}/environ", _ENVIRONMENT_BYTES).split(b"\0"):
        name, _, value = entry.partition(b"=")
        key = name[:64].decode("ascii", "replace")
        if key in names:
            found.setdefault(key, printable(value[:256]))
    return found


def cgroup_lines(root: str, pid: int) -> str:
    """Read the control groups of a process, a line for each hierarchy."""
    return printable(_read(f"{root}/{pid}/cgroup", 65_536), keep="\n")


def real_uid(root: str, pid: int) -> int | None:
    """Read the user that a process runs as; None when it is gone or hidden."""
    for line in _read(f"{root}/{pid}/status", 8192).split(b"\n"):
        if line.startswith(b"Uid:"):
            uid = line[4:].split()[:1]
            return int(uid[0]) if uid and uid[0].isdigit() and len(uid[0]) < 11 else None
    try:
        return os.stat(f"{root}/{pid}").st_uid  # all that hidepid=1 shows
    except OSError:
        return None


def libraries(root: str, pid: int) -> tuple[str, ...]:
    """Read the paths of the shared libraries that a process has mapped, as it sees them, each once."""
    found: dict[bytes, None] = {}
    for line in _read(f"{root}/{pid}/maps", _MAPS_BYTES).splitlines():
        _, slash, path = line.partition(b"/")
        if b".so" in path:
            found[slash + path] = None
    return tuple(path.decode("utf-8", "replace") for path in found)


def cgroup(root: str, pid: int) -> str:
    """Read the control group up to its innermost container; "" outside of containers."""
    for line in cgroup_lines(root, pid).split("\n"):
        parts = line.partition(":")[2].partition(":")[2].split("/")
        for end in range(len(parts), 0, -1):
            name = parts[end - 1]
            # conmon, which watches a container, has a group of its own beside it, named after it.
            if _CONTAINER.search(name) and "conmon" not in name:
                return "/".join(parts[:end])
    return ""


def namespace(root: str, owner: int | str, kind: str) -> str:
    """Read which namespace a process is in, as the kernel writes it (``net:[4026531840]``); "" when hidden."""
    return link(f"{root}/{owner}/ns/{kind}")


def user_namespace(root: str, owner: int | str, kind: str) -> int:
    """Return the inode of the user namespace that owns a process's namespace, 0 when it is hidden.

    The kernel records it when a namespace is created, so no process can claim another one.
    """
    try:
        with open(f"{root}/{owner}/ns/{kind}", "rb") as namespace_file:
            descriptor = fcntl.ioctl(namespace_file, _NS_GET_USERNS)
    except (OSError, ValueError):
        return 0
    with open(descriptor, "rb") as owner_file:
        return os.fstat(owner_file.fileno()).st_ino


def bracketed(text: str, prefix: str) -> int:
    """Return N of ``prefix[N]``, or 0."""
    number = text[len(prefix) + 1 : -1]
    if text.startswith(f"{prefix}[") and number.isascii() and number.isdecimal() and len(number) < 20:
        return int(number)
    return 0


def link(path: str) -> str:
    """Read a symbolic link; "" when it is gone or forbidden."""
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return ""


def owner(root: str, pid: int) -> str:
    """Return whose a process is: its container, or outside of containers the uid that started it; "-1" if it is gone.

    What a user runs in containers of their own, and so names themselves, is that user's.
    """
    container = cgroup(root, pid)
    if container and "/user.slice/" not in container:
        return container
    try:
        return str(os.stat(f"{root}/{pid}").st_uid)
    except OSError:
        return "-1"


def descriptors(root: str, pid: int, limit: int) -> Iterator[str]:
    """Yield what the first ``limit`` descriptors point to.  Raises PermissionError for a process of another user."""
    base = f"{root}/{pid}/fd"
    try:
        with os.scandir(base) as entries:
            for entry in islice(entries, limit):
                yield link(f"{base}/{entry.name}")
    except PermissionError:
        raise
    except OSError:
        return


def listening(root: str, owner: int | str) -> tuple[Socket, ...]:
    """Read the listening TCP sockets of a process's network namespace, at most MAX_SOCKETS each of IPv4 and IPv6."""
    base = f"{root}/{owner}/net"
    return tuple(socket for name in ("tcp", "tcp6") for socket in islice(_sockets(f"{base}/{name}"), MAX_SOCKETS))


def addresses(root: str, owner: int | str) -> frozenset[str]:
    """Read the addresses of a process's network namespace, without loopback."""
    addresses: set[str] = set()
    last = ""
    for line in _read(f"{root}/{owner}/net/fib_trie", _FILE_BYTES).decode("ascii", "replace").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            last = "".join(words[1:2])
        elif words[:3] == ["/32", "host", "LOCAL"]:
            addresses.add(last)
    for line in _read(f"{root}/{owner}/net/if_inet6", _FILE_BYTES).decode("ascii", "replace").splitlines():
        packed = _packed(line[:32])
        if len(packed) == 16:
            addresses.add(socket.inet_ntop(socket.AF_INET6, packed))
    return frozenset(address for address in addresses if address and not is_loopback(address))


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address."""
    return address == "::1" or address.startswith("127.")


def hostname(root: str) -> str:
    """Read the daemon's host name in lower case."""
    return printable(_read(f"{root}/sys/kernel/hostname", 256).strip()).lower()


def printable(raw: bytes, keep: str = "") -> str:
    """Return text of untrusted bytes, so that they cannot break a line or a terminal."""
    text = raw.decode("utf-8", "replace")
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _sockets(path: str) -> Iterator[Socket]:
    others = 0
    for line in _lines(path):
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            others += 1
            if others > _OTHERS_IN_A_ROW:
                return
            continue
        others = 0
        address, _, port = fields[1].partition(":")
        text, number = _address(address), _packed(port)
        if text and len(number) == 2 and fields[9].isascii() and fields[9].isdecimal() and len(fields[9]) < 20:
            yield Socket(text, int.from_bytes(number, "big"), int(fields[9]))


def _address(text: str) -> str:
    """Decode an address that the kernel printed as hexadecimal words in its own byte order."""
    packed = _packed(text)
    if sys.byteorder == "little":
        packed = b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
    if len(packed) == 16 and packed.startswith(b"\0" * 10 + b"\xff\xff"):
        packed = packed[12:]
    if len(packed) not in (4, 16):
        return ""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _packed(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _lines(path: str) -> Iterator[str]:
    """Read a file line by line, so that stopping early also stops the kernel from printing the rest."""
    try:
        with open(path, "rb", buffering=16_384) as stream:
            left = _TABLE_BYTES
            while left > 0 and (line := stream.readline(4096)):
                left -= len(line)
                yield line.decode("ascii", "replace")
    except (OSError, ValueError):
        return


def _read(path: str, limit: int) -> bytes:
    """Read at most ``limit`` bytes; nothing when the file is gone or forbidden."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    parts: list[bytes] = []
    try:
        while limit > 0 and (part := os.read(descriptor, min(limit, 65_536))):
            parts.append(part)
            limit -= len(part)
    except OSError:
        pass  # gone in the middle: what was read still holds
    finally:
        os.close(descriptor)
    return b"".join(parts)
