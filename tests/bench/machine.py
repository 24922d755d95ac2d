"""What a process tree costs, by the kernel's own accounting."""

from __future__ import annotations

import os

HZ = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    pids = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in file.read().split():
                    pids += tree(int(child))
    except OSError:
        pass
    return pids


def cpu_seconds(pids: list[int]) -> float:
    """Return user and system time spent by living processes, in seconds (a tick is 10 ms)."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / HZ


def memory_mib(pids: list[int], field: str = "Pss") -> float:
    """Return proportional (Pss) or resident (Rss) memory in MiB."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith(field + ":"))
        except OSError:
            pass
    return total / 1024


def percentile(values: list[float], share: float) -> float:
    """Return the value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
