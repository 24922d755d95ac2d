"""The documentation: its commands run, its queries and configurations are accepted, its links lead somewhere."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

import promql_parser
import pytest
import yaml

from exporter.catalog import CATALOG
from exporter.cli.parser import COMMANDS, parser
from exporter.config import web
from exporter.config.settings import parse
from exporter.simulate.scenarios import SCENARIOS
from tests.bench import detection
from tests.support import fault_messages
from tests.support.stack_files import ENV_FILES

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "compose/README.md", "compose/FLEET.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
README_LINES = 150

END_TO_END = "system/test_end_to_end.py"
CHECK = "system/test_check.py"
ALERTMANAGER = "unit/alerts/test_alertmanager.py"
TOP = "unit/cli/test_top.py"
# Commands that another test runs: its source, with the fixtures and helpers that it uses, holds their words.
ELSEWHERE = {
    "shardwatch check": f"{CHECK}::test_without_a_daemon_the_node_is_read",
    "shardwatch check node1:9853 node2:9853": f"{CHECK}::test_many_nodes_have_a_line_each_and_one_that_is_away_is_unknown",
    "shardwatch check --json --fail-on critical": f"{CHECK}::test_a_fault_is_an_exit_code_and_json",
    "shardwatch check --ca-file ca.pem --user prometheus --password-file password https://node1:9853": "component/http/test_web_config.py::test_check_asks_a_protected_daemon",
    "pipx install 'shardwatch[top]'": f"{TOP}::test_without_the_extra_one_line_says_how_to_install_it",
    "shardwatch top": f"{TOP}::test_in_a_terminal_it_shows_the_nodes_until_the_user_quits",
    "shardwatch top node1:9853 node2:9853": f"{TOP}::test_in_a_terminal_it_shows_the_nodes_until_the_user_quits",
    "shardwatch top --once node1:9853": f"{TOP}::test_once_prints_the_tables_as_agreed",
    "shardwatch run": f"{END_TO_END}::test_without_driver_and_engines_it_runs_and_says_so",
    "shardwatch run --config shardwatch.yaml": f"{END_TO_END}::test_sighup_adopts_a_good_configuration_and_refuses_a_bad_one_whole",
    "pipx install .": "system/test_release.py::test_the_wheel_says_its_version",
    "make dist": "system/test_release.py::test_the_same_tree_gives_the_same_bytes",
    "make demo": f"{END_TO_END}::test_the_demo_joins_gpus_and_replicas_and_its_page_is_clean",
    "amtool check-config alertmanager.yaml": f"{ALERTMANAGER}::test_what_needs_no_newer_one_loads_in_the_oldest_alertmanager",
    "amtool config routes test --config.file=alertmanager.yaml severity=critical alertname=GpuLost component=gpu": f"{ALERTMANAGER}::test_amtool_itself_finds_the_receivers_of_every_severity",
    ".venv/bin/shardwatch demo --scenario hang --fault-at 20": f"{END_TO_END}::test_a_gpu_lost_in_the_demo_costs_its_own_series_only",
    ".venv/bin/python -m tests.bench.real_card --output report --load": "system/test_real_card.py::test_work_that_the_gpu_does_not_show_is_a_difference",
    ".venv/bin/python -m compose.fleet serve --nodes 1000 http://127.0.0.1:9853/metrics": "system/test_ending.py::test_a_served_fleet_ends_with_every_signal",
}
# Commands for which a live system, another program or an hour is needed, and why.
NOT_RUN = {
    "py-spy dump": "a process id",
    "gdb -p": "a process id",
    "curl -s http://127.0.0.1:9853": "a daemon on the default port",
    "git diff": "a repository",
    "openssl req": "a temporary folder; tests/component/http/test_web_config.py runs it",
    "amtool alert add": "an Alertmanager; tests/system/test_alerts_end_to_end.py sends alerts to one",
    "helm install": "a cluster; tests/contract/test_helm_chart.py renders the chart",
    "kubectl create": "a cluster",
    "kubectl label": "a cluster",
    "kubectl apply": "a cluster; tests/contract/test_kubernetes.py renders the folders",
    "(cd compose/kubernetes/base && kustomize": "a registry",
    "docker build": "Docker; tests/contract/test_image.py runs the steps",
    "docker compose": "Docker; tests/contract/test_compose.py judges every env file",
    "SHARDWATCH_SCENARIO=heat docker compose": "Docker",
    ".venv/bin/python -m compose.fleet measure": "minutes; tests/system/test_fleet.py measures six nodes",
}
# Words that are replaced when a command is run: by a folder of the test's, or to be quick.
QUICK = {
    ".venv/bin/python -m tests.bench.node --seconds 30": {"30": "1"},
    ".venv/bin/python -m tests.bench.parse": {"tests.bench.parse": "tests.bench.parse CAPTURE"},
}
EXIT_CODES = {
    "shardwatch once": {0, 1},  # 1 where there is neither a GPU nor an engine
    **dict.fromkeys((f"shardwatch {what} --output DIR --diff" for what in ("alerts", "dashboards")), {1}),  # all new
}
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def fences(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            found.append((page.name, block))
    return found


def commands() -> list[str]:
    lines = [re.split(r"\s+#", line)[0].strip() for _, block in fences("sh") for line in block.splitlines()]
    return sorted({line for line in [*lines, *quick_spans()] if line and not line.startswith("#")})


def quick_spans() -> Iterator[str]:
    """Return the commands within sentences that take seconds: steps of recipes, and what a shell evaluates."""
    for page in PAGES:
        for span in spans_of(page):
            if span.startswith((".venv/bin/pytest", ".venv/bin/python -m alerts", ".venv/bin/python -m dashboards")):
                yield span
            yield from re.findall(r"\$\((shardwatch [^)]*)\)", span)
            yield from re.findall(r"^(shardwatch [^|]*) \| source$", span)


def spans_of(page: pathlib.Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def is_made(command: str) -> bool:
    return command.startswith("make ")


def is_run_here(command: str) -> bool:
    return command not in ELSEWHERE and not is_made(command) and not command.startswith(tuple(NOT_RUN))


def recipe(target: str) -> list[str]:
    no_environment = ("--assume-old=.venv/.test", "--assume-old=.venv/.run", "--assume-old=.venv/.dist")
    made = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", *no_environment, target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.replace("\\\n", " ").splitlines()


def words_run_by(path: pathlib.Path, name: str) -> set[str]:
    """Return the words of all texts in a test, and in the functions, fixtures and constants of its module that it uses."""
    defined: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            defined |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    words, open_names, seen = set(), [name], set()
    assert name in defined
    while open_names:
        if (used := open_names.pop()) in seen or used not in defined:
            continue
        seen.add(used)
        for node in ast.walk(defined[used]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.update(word.partition("=")[0] for word in node.value.split())
            elif isinstance(node, ast.Name):
                open_names.append(node.id)
            elif isinstance(node, ast.arg):
                open_names.append(node.arg)
    return words


def telling_words(command: str) -> set[str]:
    """Return the words of a command by which it is known: not its program, nor what differs from place to place."""
    words = [word.partition("=")[0] if word.startswith("--") else word for word in shlex.split(command)[1:]]
    return {word for word in words if not re.search(r"^[\d.]+$|[.]yaml$|:|^\w+=|^(report|-m)$", word)}


def test_the_readme_is_short():
    lines = len((ROOT / "README.md").read_text().splitlines())
    assert lines <= README_LINES, "move details into docs/"


@pytest.mark.parametrize("command", sorted(ELSEWHERE))
def test_a_command_that_another_test_runs_is_in_the_documentation_and_in_that_test(command):
    assert command in commands()
    path, _, name = ELSEWHERE[command].partition("::")
    typed = [line for line in recipe(command.split()[1]) if "rm -rf" not in line] if is_made(command) else [command]
    wanted = set().union(*map(telling_words, typed))
    assert wanted <= (said := words_run_by(ROOT / "tests" / path, name)), wanted - said


@pytest.mark.parametrize("start", sorted(NOT_RUN))
def test_a_command_that_no_test_runs_is_in_the_documentation(start):
    assert [command for command in commands() if command.startswith(start)]


@pytest.mark.parametrize("command", [command for command in commands() if "--env-file" in command])
def test_an_env_file_of_the_documentation_is_one_that_is_judged(command):
    words = shlex.split(command)
    assert words[words.index("--env-file") + 1] in ENV_FILES


@pytest.mark.parametrize("command", [command for command in commands() if is_made(command)])
def test_a_make_target_of_the_documentation_runs_programs_that_exist(command):
    target = command.split()[1]
    assert target in TARGETS
    programs = [shlex.split(line) for line in recipe(target) if line.startswith(".venv/bin/")]
    assert programs
    for program, *words in programs:
        if words[:1] == ["-m"]:
            assert importlib.util.find_spec(words[1]), words
        else:
            assert shutil.which(pathlib.Path(program).name, path=pathlib.Path(sys.executable).parent), program


@pytest.mark.parametrize("command", [command for command in commands() if is_run_here(command)])
def test_a_command_of_the_documentation_succeeds(command, tmp_path):
    words = shlex.split(command)
    (tmp_path / "shardwatch.yaml").write_text("engines:\n  - {name: a, url: 'http://127.0.0.1:8000/metrics'}\n")
    shutil.copy(ROOT / "alerts" / "receivers.yaml", tmp_path / "mine.yaml")
    if "--thresholds" in words:
        (tmp_path / "mine.yaml").write_text("")
    program = words[0].removeprefix(".venv/bin/")
    known = {
        "shardwatch": [sys.executable, "-m", "exporter"],
        "python": [sys.executable],
        "pytest": [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "--quiet",
            "--no-header",
            "-p",
            "no:cacheprovider",
        ],
    }
    assert program in known, f"say in ELSEWHERE or NOT_RUN how {command!r} is proved"
    out = str(tmp_path / "out")
    places = {"DIR": out, "/etc/prometheus/shardwatch": out, "URL": "http://jaeger:16686", **QUICK.get(command, {})}
    capture = str(ROOT / "tests/captures/llamacpp-documented.prom")
    arguments = [word for text in words[1:] for word in places.get(text, text).replace("CAPTURE", capture).split()]
    done = subprocess.run(
        [*known[program], *arguments],
        cwd=ROOT if program == "pytest" else tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in EXIT_CODES.get(command, {0}), done.stdout + done.stderr


def spans() -> list[tuple[str, str]]:
    """Return the commands of ours that stand within sentences."""
    found = set()
    for page in [*PAGES, ROOT / "tests" / "captures" / "README.md"]:
        ours = r"(?:\.venv/bin/)?(?:python -m (?:alerts|compose|dashboards|exporter|tests)|make|shardwatch|pytest)(?: |$|\.)"
        found |= {(page.name, span) for span in spans_of(page) if re.match(ours, span)}
    return sorted(found)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "tests" / "captures" / "README.md"], ids=lambda page: page.name)
def test_what_runs_in_a_checkout_is_written_with_its_environment(page):
    """One convention: .venv/bin/… for a checkout, the bare program for what is installed."""
    text = page.read_text()
    bare = re.findall(r"(?:^|`)(pytest .*|python -m (?:alerts|compose|dashboards|tests).*)", text, re.MULTILINE)
    assert not bare, f"write .venv/bin/ before {bare}"


@pytest.mark.parametrize(("page", "span"), spans())
def test_a_command_within_a_sentence_exists(page, span):
    words = span.removeprefix(".venv/bin/").split()
    if words[0] == "python":
        assert importlib.util.find_spec(words[2]), page
    elif words[0] == "make" and len(words) > 1:
        assert words[1] in TARGETS, page
    elif words[0] == "pytest":
        assert all((ROOT / word).exists() for word in words[1:] if not word.startswith("-")), page
    elif words[0] == "shardwatch" and len(words) > 1 and words[1] not in {"COMMAND", "--version"}:
        assert words[1] in COMMANDS, page
        options = (
            {option for action in parser_of(words[1])._actions for option in action.option_strings}
            if COMMANDS[words[1]].function
            else set()
        )
        assert {word for word in words if word.startswith("--")} <= options, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_path_of_the_repository_within_a_sentence_exists(page):
    paths = re.findall(r"`((?:exporter|alerts|dashboards|tests|docs|compose)/[\w./-]+)`", page.read_text())
    missing = [path for path in paths if not re.search("NAME|VERSION", path) and not is_in_repository(path)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_test_that_a_sentence_names_exists(page):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    assert not [(path, name) for path, name in named if f"\ndef {name}(" not in (ROOT / path).read_text()]


def test_every_threat_names_its_test():
    rows = re.findall(
        r"^\| .* \|$", (ROOT / "docs/security.md").read_text().partition("## Threat model")[2], re.MULTILINE
    )
    assert len(rows) > 20
    assert not [
        row for row in rows[1:] if not re.search(r"\| `tests/[\w/]+\.py::test_\w+`(, `tests/[^`]+`)* \|$", row)
    ]


def is_in_repository(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


def parser_of(command: str):
    (commands_,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return commands_.choices[command]


@pytest.mark.parametrize(("page", "block"), fences("promql"))
def test_a_query_of_the_documentation_parses_and_names_metrics_that_exist(page, block):
    names = {metric.name for metric in CATALOG}
    text = re.sub(r"#.*", "", block).strip()
    queries = [text] if "\n  " in text else text.splitlines()
    for query in filter(None, map(str.strip, queries)):
        promql_parser.parse(query)
        used = set(re.findall(r"\b(?:gpu|llm|gateway|shardwatch)_\w+", query))
        assert used <= names | {"group_left"}, (page, used - names)


@pytest.mark.parametrize(("page", "block"), fences("yaml"))
def test_a_configuration_of_the_documentation_is_accepted(page, block, tmp_path):
    document = yaml.safe_load(block)
    assert document
    if tls := document.get("tls_server_config"):
        for name in (value for key, value in tls.items() if key.endswith("_file")):
            (tmp_path / name).write_text("PEM")
        web.parse(block, "web.yml", base=str(tmp_path))
    elif not {"scrape_configs", "readinessProbe"} & document.keys():
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


def test_every_fault_of_the_simulator_has_golden_messages_and_a_detection_time():
    faults = {scenario.name for scenario in SCENARIOS if scenario.faults} | set(fault_messages.FROM_THE_START)
    assert {*fault_messages.FAULTS, "drift"} == faults == {case.name for case in detection.CASES}
    for path in detection.PAGES.values():
        assert set(re.findall(r"^\| ([a-z]+) \| ", path.read_text(encoding="utf-8"), re.MULTILINE)) >= faults
