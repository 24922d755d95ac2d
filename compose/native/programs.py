"""The programs that the stack needs from the distribution, and which package brings each."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from compose.native.errors import StackError

CHECK_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program: the names it goes by (distributions differ) and the Debian package that brings it."""

    names: tuple[str, ...]
    package: str

    def path(self) -> str | None:
        """Return where it is installed; None when it is not."""
        return next(filter(None, map(shutil.which, self.names)), None)

    def required(self) -> str:
        """Return where it is installed; StackError with the cure when it is not."""
        path = self.path()
        if path is None:
            raise StackError(missing([self]))
        return path


PROMETHEUS = Program(names=("prometheus",), package="prometheus")
PROMTOOL = Program(names=("promtool",), package="prometheus")
ALERTMANAGER = Program(names=("prometheus-alertmanager", "alertmanager"), package="prometheus-alertmanager")
AMTOOL = Program(names=("amtool",), package="prometheus-alertmanager")
VICTORIA_METRICS = Program(names=("victoria-metrics", "victoria-metrics-prod"), package="victoria-metrics")


def missing(programs: Iterable[Program]) -> str:
    """Return which of them are not installed and how to get them; empty when all are there."""
    absent = [program for program in programs if program.path() is None]
    if not absent:
        return ""
    names = ", ".join(program.names[0] for program in absent)
    packages = " ".join(dict.fromkeys(program.package for program in absent))
    return f"not installed: {names}; on Debian and Ubuntu: apt-get install --no-install-recommends {packages}"


def refusal(checker: Program, *arguments: str) -> str:
    """Return what a checker (promtool, amtool) says against a file; empty when it accepts it."""
    command = [checker.required(), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} did not end within {CHECK_SECONDS:g} s"
    if result.returncode == 0:
        return ""
    output = (result.stdout + result.stderr).strip()
    return f"{' '.join(command)} refuses it:\n{output}"
