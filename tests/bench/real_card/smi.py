"""What NVIDIA's own programs say of the cards: nvidia-smi (query, topo -m, dmon) and dcgmi, each where it exists.

Every program may hang like the driver under it, so each has a deadline.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable

_DEADLINE = 60.0
_UNKNOWN = re.compile(r'Field "([^"]+)" is not a valid field')
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# Words instead of a value; "[N/A]" and "N/A" alike.
_NOTHING = re.compile(
    r"^\[?(?:N/A|Not Supported|Unknown Error|Insufficient Permissions|No data|-|–|)\]?$", re.IGNORECASE
)

GPM = {
    2: "gpu_sm_active_ratio",
    3: "gpu_sm_occupancy_ratio",
    5: "gpu_tensor_active_ratio",
    10: "gpu_dram_active_ratio",
}
_DCGM = (1002, 1003, 1004, 1005)  # the same four


class ProgramError(Exception):
    """One of NVIDIA's programs is not there, or fails, in its own words."""


def run(*command: str) -> str:
    """Run a program and give what it prints.  Raises ProgramError."""
    path = shutil.which(command[0])
    if path is None:
        raise ProgramError(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            [path, *command[1:]], capture_output=True, text=True, errors="replace", timeout=_DEADLINE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramError(f"{' '.join(command[:2])}: {error}") from error
    if done.returncode:
        raise ProgramError(
            f"{' '.join(command[:2])[:80]} ends with {done.returncode}: {(done.stdout + done.stderr)[:300].strip()}"
        )
    return done.stdout


def query(fields: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """Return uuid → field → text, None where the card has no such thing.

    A field that this nvidia-smi does not know is left out: it refuses a whole question for one of them.  Raises
    ProgramError.
    """
    wanted = list(dict.fromkeys(["uuid", *fields]))
    while True:
        try:
            text = run("nvidia-smi", f"--query-gpu={','.join(wanted)}", "--format=csv,noheader,nounits")
            break
        except ProgramError as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None or unknown[1] not in wanted or unknown[1] == "uuid":
                raise
            wanted.remove(unknown[1])
    rows_by_uuid = {}
    for line in text.strip().splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(wanted):
            raise ProgramError(f"nvidia-smi answers {len(parts)} values to {len(wanted)} questions")
        row = {field: None if _NOTHING.match(part) else part for field, part in zip(wanted, parts, strict=True)}
        rows_by_uuid[parts[0]] = row
    return rows_by_uuid


def paths() -> dict[tuple[int, int], str]:
    """Return (card, other card) → word, from ``nvidia-smi topo -m``.  Raises ProgramError."""
    lines = [_STYLE.sub("", line).split() for line in run("nvidia-smi", "topo", "-m").splitlines()]
    heads = next((line for line in lines if line and line[0] == "GPU0" and "X" not in line), [])
    columns = {place: int(text[3:]) for place, text in enumerate(heads) if re.fullmatch(r"GPU\d+", text)}
    path_by_pair = {}
    for line in lines:
        if line and re.fullmatch(r"GPU\d+", line[0]) and line is not heads:
            for place, other in columns.items():
                if place + 1 < len(line) and line[place + 1] != "X":
                    path_by_pair[int(line[0][3:]), other] = line[place + 1]
    return path_by_pair


def work() -> tuple[str, dict[int, dict[str, float]]]:
    """Return the program that answered, and card → metric → share, from nvidia-smi or dcgmi.  Raises ProgramError."""
    try:
        text = run("nvidia-smi", "dmon", "-s", "u", "-c", "3", "--gpm-metrics", ",".join(map(str, GPM)))
        table = _table(text, 0.01)
        if any(table.values()):
            return "nvidia-smi dmon", table
        why = "nvidia-smi dmon has no GPM figures"
    except ProgramError as error:
        why = str(error)
    try:
        table = _table(run("dcgmi", "dmon", "-e", ",".join(map(str, _DCGM)), "-c", "3"), 1.0)
    except ProgramError as error:
        raise ProgramError(f"{why}; {error}") from error
    return "dcgmi dmon", table


def _table(text: str, scale: float) -> dict[int, dict[str, float]]:
    """Read the last row of each card; the figures asked for are the last columns of it."""
    table: dict[int, dict[str, float]] = {}
    for line in text.splitlines():
        words = line.replace("GPU ", "").split()
        if len(words) > len(GPM) and words[0].isdigit():
            parts = zip(GPM.values(), words[-len(GPM) :], strict=True)
            table[int(words[0])] = {name: float(part) * scale for name, part in parts if _is_number(part)}
    return table


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(?:\.\d+)?", text) is not None
