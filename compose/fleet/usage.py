"""What a server used: CPU time and memory of its process, and what it says about itself on its own page."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*(?:\{.*\})?) (\S+)$")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Return its resident memory now, mapped files included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def own_figures(url: str) -> dict[str, float]:
    """Return every sample of a server's own page by its text."""
    return dict(_samples(get(f"{url}/metrics").decode()))


def get(url: str, *, posted: bool = False) -> bytes:
    """Fetch a page, past any proxy that the environment names."""
    with _direct.open(url, data=b"" if posted else None, timeout=300) as answer:
        body: bytes = answer.read()
        return body


def total(figures: dict[str, float], name: str) -> float:
    """Sum a family over its labels."""
    return sum(values(figures, name))


def values(figures: dict[str, float], name: str) -> list[float]:
    """Return the values of a family, one a set of labels."""
    return [value for text, value in figures.items() if text.partition("{")[0] == name]


def files_mib(folder: Path, pattern: str) -> float:
    """Return the size of files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file()) / 2**20


def _samples(page: str) -> Iterator[tuple[str, float]]:
    for line in page.splitlines():
        match = _SAMPLE.match(line)
        if match:
            yield match[1], float(match[2])
