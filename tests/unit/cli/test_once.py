"""``shardwatch once``: what it prints, and when there is nothing to print about."""

from __future__ import annotations

import gc
import re

import pytest

from exporter.cli import main, once

ALONE = "gpu: {enabled: false}\nkernel_log: {enabled: false}\ndiscovery: {processes: false}\n"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(ALONE)
    return path


def test_without_a_gpu_and_without_an_engine_it_fails_and_says_what_to_do(config, capfd):
    config.write_text(ALONE.replace("gpu: {enabled: false}", "gpu: {interval: 1s}"))
    assert main.main(["once", "--config", str(config)]) == 1
    out, err = capfd.readouterr()
    assert "shardwatch_build_info" in out
    assert "shardwatch once: no GPU driver (library), and no engine was found" in err.splitlines()[-1]
    assert "gpu: {enabled: false}" in err.splitlines()[-1]
    (down,) = [line for line in err.splitlines() if "source=driver state=down" in line]
    assert "reason=library" in down and 'hint="set gpu: {enabled: false} on a node without GPUs"' in down


def test_where_gpus_are_off_only_the_engines_are_missed(config, capfd):
    assert main.main(["once", "--config", str(config)]) == 1
    last_line = capfd.readouterr().err.splitlines()[-1]
    assert last_line.startswith("shardwatch once: no engine was found") and "GPU" not in last_line


def test_an_engine_that_is_down_is_on_the_page_and_no_failure_of_the_command(config, capfd):
    config.write_text(f"{ALONE}engines: [{{url: 'http://127.0.0.1:1/', name: a}}]")
    assert main.main(["once", "--config", str(config)]) == 0
    assert re.search(r'^llm_up\{replica="a",.*\} 0', capfd.readouterr().out, re.MULTILINE)


def test_the_garbage_collector_is_on_while_it_reads(config, monkeypatch, capfd):
    during = []

    class Watched(once.App):
        def start(self):
            during.append(gc.isenabled())
            super().start()

    monkeypatch.setattr(once, "App", Watched)
    main.main(["once", "--config", str(config)])
    assert during == [True]
