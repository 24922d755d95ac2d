"""Generated files are whole, and are written where the user said and nowhere else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from exporter.config import files, output_files
from exporter.config.output_files import read_text, remove, write_text
from exporter.config.parsers import Invalid
from tests.support.waiting import CEILING


def test_a_file_is_created_with_its_directories_and_replaced(tmp_path):
    path = tmp_path / "a" / "b" / "rules.yaml"
    write_text(tmp_path, "a/b/rules.yaml", "groups: []\n")
    write_text(tmp_path, "a/b/rules.yaml", "groups: [ä]\n")
    assert path.read_text(encoding="utf-8") == "groups: [ä]\n"
    assert os.listdir(path.parent) == ["rules.yaml"], "nothing is left beside it"


def test_a_link_in_the_output_directory_is_replaced_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "rules.yaml").symlink_to(victim)
    write_text(tmp_path, "rules.yaml", "groups: []\n")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "rules.yaml").is_symlink()


def test_a_link_to_a_directory_below_the_output_directory_is_an_error(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "rules.yaml").write_text("mine")
    (tmp_path / "real").mkdir()
    (tmp_path / "output").symlink_to("real")
    (tmp_path / "real" / "en").symlink_to(tmp_path / "victim")
    for action in (lambda: write_text(tmp_path / "output", "en/rules.yaml", ""), lambda: remove(
        tmp_path / "output", "en/rules.yaml"
    )):  # fmt: skip
        with pytest.raises(OSError, match="is a symbolic link") as caught:
            action()
        assert caught.value.filename == str(tmp_path / "output" / "en")
    assert (tmp_path / "victim" / "rules.yaml").read_text() == "mine"
    write_text(tmp_path / "output", "zh/rules.yaml", "ours")
    assert (tmp_path / "real" / "zh" / "rules.yaml").read_text() == "ours", "the output directory may be a link"


@pytest.mark.parametrize("package", ["alerts", "dashboards"])
def test_no_command_writes_or_removes_files_beyond_a_link_in_the_output_directory(tmp_path, package):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "old.yaml").write_text("mine")
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "en").symlink_to("../victim")
    words = [sys.executable, "-m", package, "--output", str(tmp_path / "o")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=CEILING)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert f"cannot write {tmp_path / 'o' / 'en'}: is a symbolic link" in ended.stderr
    assert os.listdir(tmp_path / "victim") == ["old.yaml"]


def test_what_claims_to_be_a_regular_file_and_has_nothing_to_read_yet_is_an_error(tmp_path, monkeypatch):
    """As /proc/kmsg does, without blocking."""
    os.mkfifo(tmp_path / "kmsg")
    monkeypatch.setattr("stat.S_ISREG", lambda _: True)
    writer = os.open(tmp_path / "kmsg", os.O_RDWR)
    try:
        with pytest.raises(OSError, match="nothing to read yet"):
            read_text(tmp_path / "kmsg")
        with pytest.raises(Invalid, match="nothing to read yet"):
            files.read_text(str(tmp_path / "kmsg"))
    finally:
        os.close(writer)


def test_on_a_full_disk_the_file_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "rules.yaml"
    path.write_text("old")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_text(tmp_path, "rules.yaml", "new" * 1000)
    assert caught.value.filename == str(path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["rules.yaml"])


def test_a_directory_with_the_files_name_is_an_error_that_names_it(tmp_path):
    (tmp_path / "rules.yaml").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_text(tmp_path, "rules.yaml", "groups: []\n")
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
