"""The table of ``tests.bench.peers`` in docs/performance.md: its cases, its columns, and how it is written between markers."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from tests.bench.load import D8, G8, W8, W16, Load

BEGIN, END = "<!-- Written by: make bench-peers -->", "<!-- End of make bench-peers -->"
COLUMNS = ("CPU", "PSS", "scrape p50", "scrape p99", "first response", "first data", "series")
_FORMATS = ("{:.2f} %", "{:.1f} MiB", "{:.2f} ms", "{:.1f} ms", "{:.2f} s", "{:.2f} s", "{:,}")
ENGINES = ("Shardwatch", "vmagent", "Prometheus agent")  # that read engines
SECURED = (*ENGINES, "node_exporter")  # that can serve over TLS
ALL = (*ENGINES, "nvitop-exporter", "node_exporter")


@dataclass(frozen=True)
class Case:
    """A load, under which circumstances, and who takes part."""

    name: str
    load: Load
    description: str
    peers: tuple[str, ...] = ALL
    starved: bool = False
    tls: bool = False


CASES = (
    Case("W8", W8, "8 replicas of 1,485 lines each second, two scrapers each second"),
    Case("D8", D8, "8 replicas each 5 s, one scraper each 15 s"),
    Case("W16", W16, "16 replicas of 3,110 lines each second, two scrapers each second"),
    Case("G8", G8, "no engines, one scraper each 15 s", ("Shardwatch", "nvitop-exporter", "node_exporter")),
    Case("starved", W8, "W8 beside two busy processes a core", starved=True),
    Case("TLS", W8, "W8, scraped over TLS on kept connections", SECURED, tls=True),
)


@dataclass(frozen=True)
class Measured:
    """Percent of one core and MiB over all processes; milliseconds of a scrape; seconds from exec; series given."""

    cpu: float
    pss: float
    p50: float
    p99: float
    first_page: float
    first_data: float
    series: int


def cells(measured: Measured) -> list[str]:
    """Return the figures as the table has them, one for each column."""
    return [form.format(value) for form, value in zip(_FORMATS, astuple(measured), strict=True)]


def ratios(ours: Measured, theirs: Measured) -> list[float]:
    """Return our figures as parts of theirs, one for each column."""
    pairs = zip(astuple(ours), astuple(theirs), strict=True)
    return [mine / other if other else float("nan") for mine, other in pairs]


def machine() -> str:
    """Return in words what the figures were measured on."""
    with open("/proc/cpuinfo") as file:
        model = re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    with open("/proc/meminfo") as file:
        kib = int(file.read().split()[1])
    cores, load = os.cpu_count(), os.getloadavg()[2]
    name = f" ({' '.join(model[1].split())})" if model else ""
    python = f"Python {platform.python_version()}"
    return f"{cores} cores{name}, {kib / 2**20:.0f} GiB, {python}, load average {load:.0f} over 15 minutes"


def debian_version(package: str) -> str:
    """Return the version of an installed Debian package, "" where it is not one."""
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition("+")[0]
    except FileNotFoundError:
        return ""


def render(results: Mapping[str, Mapping[str, Measured]], where: str, versions: Mapping[str, str]) -> str:
    """Return the Markdown of all results by case and exporter."""
    peers = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    lines = [f"Measured on {time.strftime('%Y-%m-%d')}: {where}.", f"{peers}.", ""]
    lines += [f"| | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for case in CASES:
        for name in case.peers:
            title = f"**{case.name}** {name}" if name == case.peers[0] else name
            lines.append(f"| {title} | {' | '.join(cells(results[case.name][name]))} |")
    lines += ["", *(f"- **{case.name}**: {case.description}." for case in CASES)]
    return "\n".join(lines)


def between(document: str) -> str:
    """Return what stands between the markers."""
    return document.partition(BEGIN)[2].partition(END)[0].strip("\n")


def replaced(document: str, table: str) -> str:
    """Return the document with the table between its markers."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError("the markers of the table are missing")
    return f"{before}{begin}\n{table}\n{end}{after}"
