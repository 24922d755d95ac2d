"""The notes of a release: its section of the changelog, and what it changes about rules and dashboards."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from compose.release.errors import ReleaseError

GENERATORS = ("alerts", "dashboards")  # both have --diff; their files are in NAME/generated
_TITLE = re.compile(r"^## \[(?P<version>[^\]]+)\] - (?P<date>.+)\n", re.MULTILINE)
_IN_USE = re.compile(r"en/(rules\.yaml|shardwatch-[\w-]+\.json): ")  # the others say the same in another format
_EQUAL, _DIFFERS = 0, 1


def section(changelog: str, version: str) -> tuple[str, str]:
    """Return a version's date, or "unreleased", and its text; raise ReleaseError if the changelog has none."""
    titles = list(_TITLE.finditer(changelog))
    for title, following in zip(titles, [*titles[1:], None], strict=True):
        if title["version"] == version:
            return title["date"], changelog[title.end() : following.start() if following else None].strip()
    raise ReleaseError(f"CHANGELOG.md has no section ## [{version}] - DATE")


def differences(root: Path, tag: str) -> str:
    """Return in words what the generated files of ``root`` change about those of a release; empty if nothing."""
    places = [f"{name}/generated/en" for name in GENERATORS]
    archived = subprocess.run(["git", "archive", tag, *places], cwd=root, capture_output=True, check=False)  # noqa: S607
    if archived.returncode != 0:
        raise ReleaseError(f"{tag}: {archived.stderr.decode(errors='replace').strip()}")
    with tempfile.TemporaryDirectory() as before:
        with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
            archive.extractall(before)  # noqa: S202 - git's own archive of this repository
        return "\n".join(line for name in GENERATORS for line in _changes(root, name, Path(before)))


def _changes(root: Path, name: str, before: Path) -> Iterator[str]:
    command = [sys.executable, "-m", name, "--diff", "--language", "en", "--output", str(before / name / "generated")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode not in {_EQUAL, _DIFFERS}:
        raise ReleaseError(f"python -m {name} --diff: {done.stderr.strip()}")
    return in_use(done.stdout.replace(f"{before}/", "").splitlines())


def in_use(report: Iterable[str]) -> Iterator[str]:
    """Yield the lines about files that Prometheus and Grafana load; the others are copies for Kubernetes."""
    wanted = False
    for line in report:
        if not line.startswith(" "):
            wanted = _IN_USE.search(line) is not None
        if wanted:
            yield line


def text(version: str, changes: str, changed_files: str, tag: str | None) -> str:
    """Return the notes as Markdown; ``tag`` is the release that ``changed_files`` compares with."""
    parts = [f"# Shardwatch {version}", changes]
    if tag is not None:
        parts.append(f"## Rules and dashboards since {tag}")
        parts.append(f"```text\n{changed_files}\n```" if changed_files else "No change.")
    return "\n\n".join(parts) + "\n"
