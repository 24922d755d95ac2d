"""Rows P3 to P5 of the fault matrix: a bad configuration at start and on SIGHUP, and two hundred reloads."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import tests.support.living_engines  # noqa: F401 - whose faults are served by name
from tests.support.fault_matrix import bare_environment, cards, configure
from tests.support.waiting import until

STAMP = "shardwatch_source_last_success_timestamp_seconds"
BAD = pathlib.Path(__file__).parents[1] / "support" / "configs" / "bad" / "many_problems.yaml"


WRONG = {
    "unknown key": ("engines:\n  - {url: 'http://x:1', intervall: 5s}\n", "line 2: engines[0].intervall"),
    "bad URL": ("engines:\n  - url: ftp://x\n", "line 2: engines[0].url"),
    "duplicate engine": (
        "engines:\n  - {name: a, url: 'http://x:1'}\n  - {name: a, url: 'http://x:2'}\n",
        "line 3: engines[1].name",
    ),
    "wrong type": ("gpu:\n  interval: [1]\n", "line 2: gpu.interval"),
    "timeout far above interval": (
        "engines:\n  - {url: 'http://x:1', interval: 1s, timeout: 7s}\n",
        "engines[0].timeout",
    ),
    "no such file": (None, ""),
}


@pytest.mark.slow
def test_p3_a_bad_configuration_is_exit_code_two_with_file_line_and_key_from_both_commands(tmp_path):
    """The table of more than a hundred bad texts is in test_settings_refused; here the commands say the same."""
    cases = []
    for number, (text, wanted) in enumerate(WRONG.values()):
        path = tmp_path / f"bad{number}.yaml"
        if text is not None:
            path.write_text(text)
        cases.append((path, wanted))
    cases.append((BAD, "line "))

    def ask(case: tuple[pathlib.Path, str]) -> None:
        path, wanted = case
        stderrs = []
        for arguments in (["run", "--config", str(path)], ["check-config", str(path)]):
            command = [sys.executable, "-m", "exporter", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=bare_environment())
            assert done.returncode == 2, (path, done.stderr)
            assert str(path) in done.stderr and wanted in done.stderr, done.stderr
            assert "Traceback" not in done.stderr
            assert done.stdout == ""
            stderrs.append(done.stderr.replace(f"shardwatch {arguments[0]}: ", "", 1))
        assert stderrs[0] == stderrs[1]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, cases))


@pytest.mark.slow
def test_p4_a_bad_configuration_on_sighup_leaves_everything_as_it_was(start, server, tmp_path):
    engines = [("a", server.url("living/a")), ("b", server.url("living/b"))]
    config = configure(tmp_path, engines)
    program = start(config, cards(tmp_path))
    before = program.wait_for(lambda page: page.all("llm_up") == [1.0, 1.0] and page.all("gpu_up") == [1.0, 1.0])
    loaded = "shardwatch_config_last_reload_success_timestamp_seconds"
    for text in ("engines: [", "nonsense: 1\n", "engines:\n  - {url: 'http://x:1', timeout: 99s}\n", "\x00"):
        config.write_text(text)
        program.process.send_signal(signal.SIGHUP)
        page = program.wait_for(lambda page: page.value("shardwatch_config_last_reload_successful") == 0.0)
        assert page.rows.keys() >= {key for key in before.rows if key[0].startswith(("gpu_", "llm_up"))}
        assert page.value(loaded) == before.value(loaded)
    tokens = max(before.all("llm_generation_tokens_total"))
    program.wait_for(lambda page: max(page.all("llm_generation_tokens_total"), default=0.0) > tokens)
    configure(tmp_path, engines[:1])
    program.process.send_signal(signal.SIGHUP)
    page = program.wait_for(lambda page: page.value("shardwatch_config_last_reload_successful") == 1.0)
    assert page.value(loaded) > before.value(loaded)
    program.wait_for(lambda page: page.labels("llm_up", "replica") == {"a"})


@pytest.mark.slow
def test_p5_two_hundred_reloads_leave_no_thread_descriptor_or_memory_behind(start, server, tmp_path):
    keep = [("keep", server.url("living/keep"))]
    more = [(f"e{number}", server.url(f"living/{number}")) for number in range(6)] + [("hung", server.url("silent"))]
    extra = "reload_endpoint: true\ngpu: {enabled: false}\n"
    program = start(configure(tmp_path, keep, extra=extra))

    def reload(engines: list[tuple[str, str]]) -> None:
        configure(tmp_path, engines, extra=extra)
        assert program.get("/-/reload", method="POST")[0] == 200

    def settled() -> tuple[int, int]:
        program.wait_for(lambda page: page.labels("llm_up", "replica") == {"keep"})
        until(lambda: program.threads == base[0])
        until(lambda: program.descriptors <= base[1])
        return program.threads, program.descriptors

    program.wait_for(lambda page: page.all("llm_up") == [1.0])
    time.sleep(0.5)
    base = (program.threads, program.descriptors + 1)  # the client that asks may be there
    restarts = len(program.log)
    for number in range(60):
        reload(keep + more if number % 2 == 0 else keep)
    reload(keep + more)
    program.wait_for(lambda page: sum(page.all("llm_up")) == 7.0)
    reload(keep)
    settled()
    resident = program.resident
    for number in range(140):
        reload(keep + more if number % 2 == 0 else keep)
    reload(keep + more)
    program.wait_for(lambda page: sum(page.all("llm_up")) == 7.0)
    reload(keep)
    settled()
    assert program.resident - resident <= 4.0
    page = program.page()
    assert page.all("shardwatch_source_failures_total", source="engine:keep") == []
    assert not [key for key in page.rows if dict(key[1]).get("replica", "keep") != "keep"]
    assert not [line for line in program.log[restarts:] if "engine:keep" in line]
