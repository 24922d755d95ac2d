"""The inputs that are kept, a folder for each target; every test run replays them."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def kept(target: str) -> list[Path]:
    """Return the files of a target."""
    return sorted((FOLDER / target).glob("*"))


def keep(target: str, data: bytes) -> Path:
    """Write an input under the name that its content has, and return the file."""
    path = FOLDER / target / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
