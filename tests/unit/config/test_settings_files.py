"""Files of a configuration: secrets, certificates, folders and pipes, and nothing else that reading one does."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.config import settings
from exporter.errors import SettingsError
from tests.support.settings_texts import CANARY, CONFIGS, GOOD, engine, parse, refused
from tests.support.tools import without_root

# --- the files it names, and the file it is ----------------------------------------------------------------------


def test_certificate_and_key_go_together(tmp_path):
    (tmp_path / "pem").write_text("x")
    (tmp_path / "pem").chmod(0o600)
    for key, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        problems = refused(engine(f"tls: {{{key}: '{tmp_path}/pem'}}", url="https://h"))
        assert problems == [(3, f"engines[0].tls.{key}", f"needs {other} beside it")]


def test_a_request_carries_a_token_or_a_password_not_both(tmp_path):
    (tmp_path / "t").write_text("x")
    (tmp_path / "t").chmod(0o600)
    lines = f"bearer_token_file: {tmp_path}/t\nbasic_auth: {{username: u, password_file: '{tmp_path}/t'}}"
    assert [(line, path) for line, path, _ in refused(engine(lines))] == [(4, "engines[0].basic_auth")]


def test_a_secret_file_must_not_be_empty_or_world_readable(tmp_path, caplog):
    secret = tmp_path / "token"
    secret.touch(0o600)
    assert "is empty" in refused(engine(f"bearer_token_file: {secret}"))[0][2]
    secret.write_text(CANARY)
    secret.chmod(0o602)
    assert "chmod o-w" in refused(engine(f"bearer_token_file: {secret}"))[0][2]
    secret.chmod(0o604)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert parse(engine(f"bearer_token_file: {secret}")).engines[0].bearer_token_file == str(secret)
    assert f"secret_file_world_readable key=engines[0].bearer_token_file file={secret} " in caplog.text
    assert caplog.text.count("secret_file_world_readable") == 1, "not at each attempt"
    caplog.clear()
    secret.chmod(0o600)
    parse(engine(f"bearer_token_file: {secret}"))
    assert caplog.text == ""


def test_a_file_without_the_right_to_read_it_is_refused(tmp_path):
    (tmp_path / "t").touch(0)
    with without_root():
        assert "Permission denied" in refused(engine(f"bearer_token_file: {tmp_path}/t"))[0][2]


def test_a_pipe_without_a_writer_blocks_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(engine(f"bearer_token_file: {tmp_path}/pipe"))[0][2]
    with pytest.raises(SettingsError, match="not a regular file"):
        settings.load(str(tmp_path / "pipe"), {})


def test_refused_files_leave_no_descriptor_behind(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        refused(engine(f"bearer_token_file: {tmp_path}\ntls: {{ca_file: /dev/null}}", url="https://h"))
        with pytest.raises(SettingsError):
            settings.load(str(tmp_path), {})
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_cannot_be_read_does_not_hide_a_bad_variable(tmp_path):
    with pytest.raises(SettingsError) as caught:
        settings.load(str(tmp_path / "none.yaml"), {"SHARDWATCH_SERIES": "al"})
    assert [problem.path for problem in caught.value.problems] == ["", "$SHARDWATCH_SERIES"]


def test_relative_files_start_from_the_folder_of_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "ca.pem").write_text("x")
    pods = "discovery: {kubernetes: {tls: {ca_file: ca.pem}}}"
    (tmp_path / "conf" / "a.yaml").write_text(pods)
    monkeypatch.chdir(tmp_path)
    parsed = settings.load("conf/a.yaml", {})
    assert parsed.discovery.kubernetes.tls.ca_file == str(tmp_path / "conf" / "ca.pem")
    with pytest.raises(SettingsError):
        settings.default({"SHARDWATCH_DISCOVERY_KUBERNETES_TLS_CA_FILE": "ca.pem"})


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"\xff\xfes\x00", "UTF-8"),
        (b"\n\n\xe9", "line 3"),
        ("#é".encode() * (1 << 20), "larger"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_a_configuration_is_refused(tmp_path, content, reason):
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=reason) as caught:
        settings.load(str(path), {})
    assert len(caught.value.problems) == 1
    with pytest.raises(SettingsError, match="malformed"):
        settings.load("a\0b", {})


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path, each_loader):
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfseries: full\r\ngpu:\r\n  interval: 2s\r\n")
    read = settings.load(str(tmp_path / "a.yaml"), {})
    assert (read.series, read.gpu.interval) == ("full", 2.0)


# --- nothing else happens ---------------------------------------------------------------------------------------


ALONE = """
import sys

def watch(event, _):
    if event.split(".")[0] in {"socket", "subprocess", "ftplib", "http", "urllib"} or event == "os.system":
        raise RuntimeError(event)

sys.addaudithook(watch)
from exporter import errors
from exporter.config import settings

for path in sys.argv[1:]:
    try:
        settings.load(path, {})
    except errors.SettingsError as error:
        print(len(error.problems))
    else:
        print(0)
"""


def alone(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_reading_a_configuration_takes_no_network_and_starts_nothing(tmp_path):
    (tmp_path / "bad.yaml").write_text("engines: [{url: 'http://engine.example:1', kind: no}]\nlisten: localhost:1x")
    counts = alone(ALONE, str(tmp_path / "bad.yaml"), str(CONFIGS / "bad" / "many_problems.yaml"), str(GOOD[0]))
    assert counts == ["2", "8", "0"]


def test_a_daemon_without_a_file_does_not_load_yaml():
    code = "import sys; from exporter.config import settings; settings.default({}); print(*sys.modules)"
    assert {"yaml", "difflib", "requests", "urllib3", "asyncio", "http.server", "ssl"}.isdisjoint(alone(code))
