"""The daemon imports nothing from where other users can write."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from exporter.__main__ import drop_working_directory
from exporter.cli.import_path import ImportPathError, check_import_path

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


def test_modules_that_are_imported_late_do_not_come_from_a_hostile_working_directory(tmp_path):
    for name in ("yaml", "msgspec", "requests", "resource", "exporter_is_elsewhere"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    (tmp_path / "c.yaml").write_text("listen: 127.0.0.1:0\nengines: [{name: a}]\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "exporter", "run", "--config", "c.yaml"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "hostile" not in ended.stderr
    assert (ended.returncode, "engines[0]" in ended.stderr) == (2, True), ended.stderr
