"""Generated files are whole, and are written where the user said and nowhere else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from exporter.config import output_files
from exporter.config.output_files import read_text, write_text
from tests.support.waiting import CEILING


def test_a_file_is_created_with_its_directories_and_replaced(tmp_path):
    path = tmp_path / "a" / "b" / "rules.yaml"
    write_text(path, "groups: []\n")
    write_text(path, "groups: [ä]\n")
    assert path.read_text(encoding="utf-8") == "groups: [ä]\n"
    assert os.listdir(path.parent) == ["rules.yaml"], "nothing is left beside it"


def test_a_link_in_the_output_directory_is_replaced_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "rules.yaml").symlink_to(victim)
    write_text(tmp_path / "rules.yaml", "groups: []\n")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "rules.yaml").is_symlink()


def test_on_a_full_disk_the_file_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "rules.yaml"
    path.write_text("old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_text(path, "new" * 1000)
    assert caught.value.filename == str(path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["rules.yaml"])


def test_a_directory_with_the_files_name_is_an_error_that_names_it(tmp_path):
    (tmp_path / "rules.yaml").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_text(tmp_path / "rules.yaml", "groups: []\n")
    assert caught.value.filename == str(tmp_path / "rules.yaml")


def test_what_is_no_regular_file_or_too_large_is_not_read(tmp_path, monkeypatch):
    assert read_text(tmp_path / "none") is None
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "zero")
    for name in ("pipe", "zero", "."):
        with pytest.raises(OSError, match="not a regular file"):
            read_text(tmp_path / name)
    monkeypatch.setattr(output_files, "MAX_BYTES", 4)
    (tmp_path / "file").write_text("12345")
    with pytest.raises(OSError, match="too large"):
        read_text(tmp_path / "file")


@pytest.mark.parametrize("package", ["alerts", "dashboards"])
def test_a_pipe_in_the_output_directory_holds_no_check_up(tmp_path, package):
    words = [sys.executable, "-m", package, "--output", str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True, timeout=CEILING)
    victim = next(path for path in sorted(tmp_path.rglob("*")) if path.is_file())
    victim.unlink()
    os.mkfifo(victim)
    checked = subprocess.run([*words, "--check"], capture_output=True, text=True, timeout=CEILING)
    assert checked.returncode == 1
    assert "differs" in checked.stderr
    assert "Traceback" not in checked.stderr
