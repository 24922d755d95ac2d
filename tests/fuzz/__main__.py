"""Fuzz a reader of bytes from outside with atheris (libFuzzer), or replay what was kept.

    python -m tests.fuzz TARGET [--seconds 60] [--keep 20]

It starts from the target's seeds, from ``tests/fuzz/corpus/TARGET`` and from what earlier runs found interesting
(``.cache/fuzz``).  An input that fails is written to the corpus, where every test run replays it, and the exit code is
1.  ``--keep`` adds so many small inputs that reached something new to the corpus.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
MAX_BYTES = 8_192
SMALL = 400  # bytes of an input that is kept
SECONDS_EACH = 5  # an input that takes longer hangs
RSS_MIB = 1_024


def _prepare(target: str) -> Path:
    """Return the folder of what earlier runs found, with the seeds in it."""
    folder = ROOT / ".cache" / "fuzz" / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[target].seeds()):
        (folder / f"seed-{number}").write_bytes(seed)
    return folder


def _engine(target: str, options: list[str], folders: list[Path]) -> tuple[int, str]:
    """Run the fuzzer and show what it says; return its exit code and output."""
    with tempfile.NamedTemporaryFile("w", suffix=".dict") as words:
        for word in TARGETS[target].words:
            words.write('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n')
        words.flush()
        dictionary = [f"-dict={words.name}"] if TARGETS[target].words else []
        command = [sys.executable, "-m", "tests.fuzz.engine", target, *dictionary, *options, *map(str, folders)]
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if not re.match(r"#\d+\s+(NEW|REDUCE|RELOAD|pulse)|INFO|WARNING|\"|#####", line):
                print(line, end="", flush=True)
        return process.wait(), "".join(lines)


def fuzz(target: str, seconds: int) -> int:
    """Fuzz for so long or until an input fails, which is kept; return the exit code."""
    folder = _prepare(target)
    kept = corpus.FOLDER / target
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as finds:
        options = [
            f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", f"-timeout={SECONDS_EACH}", f"-rss_limit_mb={RSS_MIB}",
            f"-artifact_prefix={finds}/",
        ]  # fmt: skip
        code, output = _engine(target, options, [folder, kept])
        # Whatever raises is kept by the process itself; hangs and memory end it.
        for path in (*Path(finds).glob("timeout-*"), *Path(finds).glob("oom-*")):
            print(f"fails: {corpus.keep(target, path.read_bytes())}")
    executions = re.findall(r"^(?:#|Done )(\d+)", output, re.MULTILINE)
    coverage = re.findall(r"cov: (\d+)", output)
    print(
        f"{target}: {executions[-1]} executions, {coverage[-1]} edges in {seconds} s"
        if coverage
        else f"{target}: no figures"
    )
    return code


def keep(target: str, number: int) -> None:
    """Add small inputs that reached something new, evenly chosen by size, to the corpus."""
    folder = ROOT / ".cache" / "fuzz" / target
    files = [path for path in folder.iterdir() if not path.name.startswith("seed-")]
    small = sorted(
        (path.read_bytes() for path in files if path.stat().st_size <= SMALL), key=lambda data: (len(data), data)
    )
    for data in small[:: max(1, len(small) // number)][:number]:
        corpus.keep(target, data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", type=int, default=0, metavar="NUMBER")
    given = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        parser.exit(2, "atheris is not installed: pip install atheris\n")
    os.environ["PYTHONWARNINGS"] = "ignore"
    code = fuzz(given.target, given.seconds)
    if given.keep:
        keep(given.target, given.keep)
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
