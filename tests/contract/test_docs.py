"""The documentation: its commands run, its queries and configurations are accepted, its links lead somewhere."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import promql_parser
import pytest
import yaml

from exporter.catalog import CATALOG
from exporter.config.settings import parse

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
README_LINES = 150

# Commands that another test runs; each must exist.
ELSEWHERE = {
    "make demo": "system/test_end_to_end.py::test_the_demo_joins_cards_and_replicas_and_its_page_is_clean",
    "shardwatch check": "system/test_check.py::test_without_a_daemon_the_node_is_read",
    "shardwatch check node1:9853 node2:9853": "system/test_check.py::test_many_nodes_have_a_line_each_and_one_that_is_away_is_unknown",
    "shardwatch check --json --fail-on critical": "system/test_check.py::test_a_fault_is_an_exit_code_and_json",
    "shardwatch run": "system/test_end_to_end.py::test_without_driver_and_engines_it_runs_and_says_so",
    "shardwatch run --config shardwatch.yaml": "system/test_faults_process.py::test_p1_sigterm_ends_every_state_with_zero_and_leaves_no_worker",
    "shardwatch once": "unit/cli/test_command_line.py::test_the_help_of_a_command_answers_like_a_manual",
    "pipx install .": "system/test_release.py::test_the_same_tree_gives_the_same_bytes",
    "make dist": "system/test_release.py::test_the_same_tree_gives_the_same_bytes",
    "make generate": "unit/config/test_reference.py::test_the_committed_schema_and_reference_are_current",
    "kubectl apply --kustomize compose/kubernetes/base": "contract/test_kubernetes.py",
    "amtool check-config alertmanager.yaml": "unit/alerts/test_alertmanager.py",
    "amtool config routes test --config.file=alertmanager.yaml severity=critical alertname=GpuLost component=gpu": "unit/alerts/test_alertmanager.py",
    "make preview": "system/test_preview.py",
    ".venv/bin/shardwatch demo --scenario hang --fault-at 20": "system/test_end_to_end.py::test_a_card_lost_in_the_demo_costs_its_own_series_only",
    ".venv/bin/python -m tests.bench.real_card --output report --load": "system/test_real_card.py",
    ".venv/bin/pytest tests/component/driver/test_driver_faults.py -k hang -x": "component/driver/test_driver_faults.py",
    ".venv/bin/pytest tests/contract/test_golden.py --update-golden": "contract/test_golden.py",
    "make check": "../Makefile",
    "make test": "../Makefile",
    "make lint": "../Makefile",
    "make bench": "../Makefile",
    ".venv/bin/python -m tests.bench.node --seconds 30": "bench/node.py",
    ".venv/bin/python -m tests.bench.parse": "bench/parse.py",
}
# Commands of other programs, aimed at what only a live system has.
FOREIGN = ("py-spy dump", "gdb -p", "curl -s http://127.0.0.1:9853", "git diff", "amtool alert add")


def fences(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            found.append((page.name, block))
    return found


def commands() -> list[str]:
    lines = [line.split("  #")[0].strip() for _, block in fences("sh") for line in block.splitlines()]
    return sorted({line for line in lines if line and not line.startswith("#")})


def run_here(command: str) -> bool:
    return command not in ELSEWHERE and not command.startswith(FOREIGN)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.parametrize("command", sorted(ELSEWHERE))
def test_a_command_that_another_test_runs_is_in_the_documentation_and_so_is_the_test(command):
    assert command in commands()
    path, _, name = ELSEWHERE[command].partition("::")
    text = (ROOT / "tests" / path).read_text()
    if name:
        functions = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
        assert name in functions
    elif path == "../Makefile":
        assert re.search(rf"^{command.split()[1]}:", text, re.MULTILINE)


@pytest.mark.parametrize("command", [command for command in commands() if run_here(command)])
def test_a_command_of_the_documentation_succeeds(command, tmp_path):
    words = shlex.split(command)
    (tmp_path / "shardwatch.yaml").write_text("engines:\n  - {name: a, url: 'http://127.0.0.1:8000/metrics'}\n")
    shutil.copy(ROOT / "alerts" / "receivers.yaml", tmp_path / "mine.yaml")
    if "--thresholds" in words:
        (tmp_path / "mine.yaml").write_text("")
    program = words[0].removeprefix(".venv/bin/")
    known = {"shardwatch": [sys.executable, "-m", "exporter"], "python": [sys.executable]}
    assert program in known, f"say in ELSEWHERE or FOREIGN how {command!r} is proved"
    out = str(tmp_path / "out")
    arguments = [
        {"DIR": out, "/etc/prometheus/shardwatch": out, "URL": "http://jaeger:16686"}.get(word, word)
        for word in words[1:]
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*known[program], *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("page", "query"), fences("promql"))
def test_a_query_of_the_documentation_parses_and_names_metrics_that_exist(page, query):
    names = {metric.name for metric in CATALOG}
    text = re.sub(r"#.*", "", query).strip()
    queries = [text] if "\n  " in text else text.splitlines()
    for one in filter(None, map(str.strip, queries)):
        promql_parser.parse(one)
        used = set(re.findall(r"\b(?:gpu|llm|gateway|shardwatch)_\w+", one))
        assert used <= names | {"group_left"}, (page, used - names)


@pytest.mark.parametrize(("page", "block"), fences("yaml"))
def test_a_configuration_of_the_documentation_is_accepted(page, block):
    document = yaml.safe_load(block)
    assert document
    if not {"scrape_configs", "readinessProbe"} & document.keys():
        parse(block, "shardwatch.yaml", {})


def anchors(page: pathlib.Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target
