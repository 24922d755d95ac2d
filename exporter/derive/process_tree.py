"""Process trees: which processes belong to one engine server."""

from __future__ import annotations

from exporter.model.process import Process, ProcessTable

MAX_DEPTH = 128  # generations; deeper trees are not real


class ProcessTree:
    """The ancestry of all processes, robust against cycles, missing parents and reused pids."""

    def __init__(self, table: ProcessTable) -> None:
        self.table = table
        self._ancestries: dict[int, tuple[int, ...]] = {}
        self._engines: dict[int, int] = {}

    def ancestry(self, pid: int) -> tuple[int, ...]:
        """Return the process and its ancestors, nearest first, as far as they are known."""
        if pid not in self._ancestries:
            ancestors: list[int] = []
            ancestor, process = pid, self.table.processes.get(pid)
            while process is not None and ancestor not in ancestors and len(ancestors) < MAX_DEPTH:
                ancestors.append(ancestor)
                ancestor, child = process.parent, process
                process = self.table.processes.get(ancestor)
                if process is not None and _is_reused_pid(process, child):
                    break
            self._ancestries[pid] = tuple(ancestors)
        return self._ancestries[pid]

    def engine(self, pid: int) -> int:
        """Return the topmost engine server that the process is or descends from, or 0."""
        if pid not in self._engines:
            engines = [ancestor for ancestor in self.ancestry(pid) if self.table.processes[ancestor].engine]
            self._engines[pid] = engines[-1] if engines else 0
        return self._engines[pid]

    def unrelated(self, user: int, server: int) -> bool:
        """Return whether the two belong to different engine servers, which no other evidence may join."""
        return bool(self.engine(user)) and bool(self.engine(server)) and self.engine(user) != self.engine(server)

    def is_common_ancestor(self, pid: int) -> bool:
        """Return whether two descendants of this process belong to one server."""
        process = self.table.processes.get(pid)
        return process is not None and pid not in (1, self.table.reader) and not process.shared

    def distance(self, user: int, server: int) -> int | None:
        """Return the generations from a GPU process up to the server or to a common ancestor; None if unrelated."""
        if self.unrelated(user, server):
            return None
        ancestry_of_server = self.ancestry(server)
        for generations, ancestor in enumerate(self.ancestry(user)):
            if ancestor == server:
                return generations
            if ancestor in ancestry_of_server:
                return generations if self.is_common_ancestor(ancestor) else None
            if ancestor == self.engine(user) and server not in self.ancestry(ancestor):
                return None  # the server is beside the engine's tree, not in it
        return None


def _is_reused_pid(parent: Process, child: Process) -> bool:
    """Return whether the parent started after its child: the pid was reused while the table was read."""
    return parent.started is not None and child.started is not None and parent.started > child.started
