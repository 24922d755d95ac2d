"""The daemon imports nothing from where other users can write."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from exporter.__main__ import drop_working_directory
from exporter.cli import import_path
from exporter.cli.import_path import untrusted_import
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


@pytest.fixture
def trusted_above(tmp_path, monkeypatch):
    """Return a directory; whatever is above it counts as protected, as the test's own need not be."""
    real = os.stat

    def stat(path, **options):
        status = real(path, **options)
        is_above = os.path.commonpath([os.fspath(path), tmp_path]) == os.fspath(path) != str(tmp_path)
        return os.stat_result((0o40755, *status[1:4], 0, *status[5:])) if is_above else status

    monkeypatch.setattr(os, "stat", stat)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "mode"), [("a/lib", 0o777), ("a/lib", 0o1777), ("a", 0o777), ("a/lib/msgspec", 0o777)]
)
def test_a_directory_in_which_others_can_place_a_module_is_refused(trusted_above, monkeypatch, place, mode):
    (trusted_above / "a" / "lib" / "msgspec").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(trusted_above / "a" / "lib"), str(trusted_above / "a" / "gone")])
    assert untrusted_import() == ""
    (trusted_above / place).chmod(mode)
    assert f"may write to {trusted_above / place};" in untrusted_import()


def test_in_a_sticky_directory_others_cannot_replace_a_directory_but_create_one(trusted_above, monkeypatch):
    (trusted_above / "lib").mkdir()
    trusted_above.chmod(0o1777)
    monkeypatch.setattr(sys, "path", [str(trusted_above / "lib")])
    assert untrusted_import() == ""
    monkeypatch.setattr(sys, "path", [str(trusted_above / "gone")])
    assert "may write to" in untrusted_import()


def test_a_directory_of_another_user_is_refused_unless_the_program_is_theirs(trusted_above, monkeypatch):
    (trusted_above / "lib").mkdir()
    monkeypatch.setattr(sys, "path", [str(trusted_above / "lib")])
    stat, other = os.stat, os.geteuid() + 4711
    theirs = [str(trusted_above / "lib")]

    def owned(path, **options):
        status = stat(path, **options)
        return os.stat_result((*status[:4], other, *status[5:])) if os.fspath(path) in theirs else status

    monkeypatch.setattr(os, "stat", owned)
    assert f"may write to {theirs[0]};" in untrusted_import()
    theirs.append(import_path.__file__)
    assert untrusted_import() == ""


@pytest.mark.parametrize("command", ["run", "demo", "once", "check", "check-config", "alerts", "dashboards"])
def test_no_command_runs_a_module_of_a_world_writable_directory(hostile, command):
    (hostile / "argparse.py").write_text(HOSTILE)
    hostile.chmod(0o777)
    run = ended("/", sys.executable, "-m", "exporter", command, path=f"{hostile}:{ROOT}")
    assert (run.returncode, run.stderr.count("\n")) == (3 if command == "check" else 1, 1), run.stderr
    assert f"may write to {hostile};" in run.stderr


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
