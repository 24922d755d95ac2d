"""The daemon imports nothing from where other users can write."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from exporter.__main__ import drop_working_directory
from exporter.cli.import_path import ImportPathError, check_import_path
from exporter.driver import protocol
from exporter.driver.daemon import process

ROOT = pathlib.Path(__file__).parents[3]
HOSTILE = "raise SystemExit('the hostile module ran')\n"


def test_the_working_directory_is_no_place_to_import_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(ROOT)])
    drop_working_directory()
    assert sys.path == [str(ROOT)]
    monkeypatch.chdir(ROOT)
    drop_working_directory()
    assert sys.path == [str(ROOT)], "a checkout runs from its own directory"


def test_a_directory_that_anybody_may_write_to_is_refused(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setattr(sys, "path", [str(ROOT), str(tmp_path)])
    with pytest.raises(ImportPathError, match="anybody may write to it"):
        check_import_path()
    monkeypatch.setattr(sys, "path", [str(ROOT), str(tmp_path / "gone")])
    check_import_path()


@pytest.fixture
def hostile(tmp_path):
    """Return a directory whose modules have the names of ours, of packages and of the standard library's."""
    for name in ("yaml", "msgspec", "requests", "resource", "pynvml", "exporter_is_elsewhere"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    (tmp_path / "c.yaml").write_text("listen: 127.0.0.1:0\nengines: [{name: a}]\n")
    return tmp_path


def ended(directory, *command, path=str(ROOT)):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": path} if path else {}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60)


def test_modules_that_are_imported_late_do_not_come_from_a_hostile_working_directory(hostile):
    run = ended(hostile, sys.executable, "-m", "exporter", "run", "--config", "c.yaml")
    assert "hostile" not in run.stderr
    assert (run.returncode, "engines[0]" in run.stderr) == (2, True), run.stderr


@pytest.mark.parametrize(
    "program", [[], [sys.executable, "-I", "-m", "exporter"]], ids=["shardwatch", "python -I -m"]
)
def test_an_installed_program_imports_nothing_from_a_hostile_working_directory(hostile, program):
    """Not even the packages themselves, which ``python -m`` finds in the working directory first."""
    for name in ("exporter", "alerts", "dashboards"):
        (hostile / name).mkdir()
        for module in ("__init__", "__main__"):
            (hostile / name / f"{module}.py").write_text(HOSTILE)
    installed = pathlib.Path(sys.executable).parent / "shardwatch"
    if not installed.exists():
        pytest.skip("the package is not installed")
    program = program or [str(installed)]
    run = ended(hostile, *program, "run", "--config", "c.yaml", path=None)
    assert (run.returncode, "engines[0]" in run.stderr) == (2, True), run.stderr
    run = ended(hostile, *program, "alerts", "--output", "out", path=None)
    assert (run.returncode, "hostile" in run.stderr) == (0, False), run.stderr


def test_the_worker_imports_nothing_from_a_hostile_working_directory(hostile, monkeypatch):
    (hostile / "exporter").mkdir()
    (hostile / "exporter" / "__init__.py").write_text(HOSTILE)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    interpreter, *options, code, _ = process.command(protocol.WorkerOptions(module="pynvml"))
    assert options == ["-I", "-c"]
    without_start = code.removesuffix("main()") + "print(main.__module__)"
    assert without_start != code
    run = ended(hostile, interpreter, *options, without_start, path=str(hostile))
    assert (run.returncode, run.stdout) == (0, "exporter.driver.worker.main\n"), run.stderr
