"""Archives whose bytes depend on the tree and the time of its commit only."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

CHART = Path("compose/kubernetes/chart")
_IGNORE_FILE = Path("compose/Dockerfile.dockerignore")


def chart_files(root: Path) -> Mapping[str, Path]:
    """Return the files of the Helm chart by their names in the package; links are followed, as Helm does."""
    place = root / CHART
    return {f"shardwatch/{path.relative_to(place)}": path for path in _below(place) if path.name != ".helmignore"}


def image_files(root: Path) -> Mapping[str, Path]:
    """Return what ``docker build`` needs: the Dockerfile and the files that its ignore file admits."""
    lines = (root / _IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    admitted = [root / line[1:] for line in lines if line.startswith("!")]
    wanted = [*admitted, root / "compose/Dockerfile", root / _IGNORE_FILE]
    return {str(path.relative_to(root)): path for place in wanted for path in _below(place)}


def _below(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    else:
        yield from (path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def write(path: Path, files: Mapping[str, Path], epoch: int) -> None:
    """Write a ``.tar.gz`` with ``files`` under their names; ``epoch`` is the time of each."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, source in sorted(files.items()):
            content = source.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), epoch
            entry.mode = 0o755 if os.access(source, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def checksums(folder: Path) -> str:
    """Return the folder's files as ``sha256sum --check`` reads them."""
    found = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in found)
