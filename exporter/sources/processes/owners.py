"""Reads the owners of processes, each once: a process is known by its pid and start time together.

Only the control group and the real uid are read.  Neither the environment nor the command line is.
"""

from __future__ import annotations

import pwd
import threading
from collections.abc import Callable

from msgspec.structs import replace

from exporter.errors import ThreadLimitError
from exporter.model.owner import ProcessOwner
from exporter.sources.processes import procfs
from exporter.sources.processes.cgroup import parse_cgroup
from exporter.threads import Thread

MAX_KNOWN = 8192  # processes
_MAX_USERS = 1024
_MAX_NAME = 64
LOOKUP_SECONDS = 0.5  # for one name, which may come from a directory server that does not answer


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, ValueError, OverflowError, OSError):
        return ""


class UserNames:
    """The names of users by uid; a directory server that hangs delays one look-up by half a second, and no more."""

    def __init__(self, name_of: Callable[[int], str] = _name_of, seconds: float = LOOKUP_SECONDS) -> None:
        self._name_of = name_of
        self._seconds = seconds
        self._names: dict[int, str] = {}
        self._lookup: Thread | None = None

    def name(self, uid: int) -> str | None:
        """Return the user's name, the uid where it has none, and None while the look-up does not return."""
        if uid not in self._names:
            if self._lookup is not None and self._lookup.is_alive():
                return None
            if len(self._names) >= _MAX_USERS:
                self._names = {}
            done = threading.Event()
            self._lookup = Thread(self._look_up, name="user-name", args=(self._names, uid, done))
            try:
                self._lookup.start()
            except ThreadLimitError:
                return None
            done.wait(self._seconds)
        return self._names.get(uid)

    def _look_up(self, names: dict[int, str], uid: int, done: threading.Event) -> None:
        name = self._name_of(uid)
        usable = name and len(name) <= _MAX_NAME and name.isprintable() and name == name.strip()
        names[uid] = name if usable else str(uid)
        done.set()


class OwnerReader:
    """Reads and keeps the owners of processes; for one thread."""

    def __init__(
        self, users: UserNames | None = None, read_cgroup: Callable[[str, int], str] = procfs.cgroup_lines
    ) -> None:
        """``read_cgroup`` returns the text of ``/proc/PID/cgroup`` for the root of /proc and a pid."""
        self._users = users or UserNames()
        self._read_cgroup = read_cgroup
        self._known: dict[tuple[int, float], ProcessOwner] = {}
        self.reads = 0  # of control groups

    def owner(self, root: str, pid: int, started: float | None) -> ProcessOwner:
        """Return a process's owner.

        Nothing is kept of a process that is gone meanwhile, or whose user is not known yet.
        """
        known = self._known.get((pid, started)) if started is not None else None
        if known is not None:
            return known
        self.reads += 1
        uid = procfs.real_uid(root, pid)
        name = self._users.name(uid) if uid is not None else ""
        owner = replace(parse_cgroup(self._read_cgroup(root, pid)), user=name if name is not None else str(uid))
        stat = procfs.stat(root, pid)
        if started is None or stat is None or stat.started != started:
            return ProcessOwner()  # what was read may be another's, which has the pid now
        if uid is not None and name is not None:
            if len(self._known) >= MAX_KNOWN:
                self._known = {}
            self._known[pid, started] = owner
        return owner
