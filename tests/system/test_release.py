"""A release: the same tree gives the same bytes, and the wheel works in an environment that holds nothing else."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import venv

import pytest

from exporter import __version__

ROOT = pathlib.Path(__file__).parents[2]
EPOCH = "1577836800"
LEFT_OUT = (".git", ".venv", ".cache", "dist", "build", "__pycache__", "node_modules", ".*_cache", ".hypothesis")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    place = tmp_path_factory.mktemp("tree") / "shardwatch"
    shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return place


def build(tree, out):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    result = subprocess.run(command, capture_output=True, text=True, timeout=170, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


@pytest.fixture(scope="module")
def built(tree, tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    return out, build(tree, out)


def test_the_same_tree_gives_the_same_bytes(tree, built, tmp_path):
    """Neither the folder, nor when files were written, nor the umask gets into the archives."""
    other = tmp_path / "elsewhere"
    shutil.copytree(tree, other)
    for path in other.rglob("*"):
        if path.is_file():
            path.chmod(0o700 if os.access(path, os.X_OK) else 0o600)  # git keeps whether it is a program
            os.utime(path, (1_700_000_000, 1_700_000_000))
    before = os.umask(0o077)
    try:
        again = build(other, tmp_path / "dist")
    finally:
        os.umask(before)
    assert again == built[1]
    assert sorted(again) == [f"shardwatch-{__version__}-py3-none-any.whl", f"shardwatch-{__version__}.tar.gz"]


def test_the_source_archive_holds_what_its_tests_and_generators_read(built):
    (archive,) = built[0].glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert {"docs/architecture.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "tests/FAULTS.md"} <= held


@pytest.fixture(scope="module")
def clean(built, tmp_path_factory):
    """Install the wheel, with what it depends on and nothing else, as pipx and uv do."""
    place = tmp_path_factory.mktemp("clean")
    venv.create(place)  # installed from outside: a pip of its own would take longer than all that is tested here
    (wheel,) = built[0].glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install"]
    result = subprocess.run(
        [*pip, "--quiet", "--disable-pip-version-check", wheel], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return place


def typed(clean, *command, cwd):
    environment = {"PATH": f"{clean / 'bin'}:{os.environ['PATH']}", "HOME": str(cwd)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd, env=environment)


def test_the_wheel_says_its_version(clean, tmp_path):
    said = typed(clean, "shardwatch", "--version", cwd=tmp_path)
    assert (said.returncode, said.stdout) == (0, f"shardwatch {__version__}\n")


def test_the_wheel_brings_what_the_daemon_needs_and_nothing_of_the_boards_or_the_tests(clean, tmp_path):
    code = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    names = set(typed(clean, "python", "-c", code, cwd=tmp_path).stdout.split())
    assert {"shardwatch", "pyyaml", "nvidia-ml-py", "prometheus_client", "requests"} <= names
    assert not names & {
        "grafanalib",
        "pytest",
        "hypothesis",
        "mypy",
        "attrs",
        "promql-parser",
        "shtab",
    }


def test_the_generators_are_commands_of_the_installed_program(clean, tmp_path):
    said = typed(clean, "shardwatch", "alerts", "--output", "rules", "--language", "en", cwd=tmp_path)
    assert said.returncode == 0
    assert all(
        line.startswith("shardwatch alerts: ") and "; --" in line for line in said.stderr.splitlines()
    )  # hints
    assert (tmp_path / "rules/en/rules.yaml").read_text() == (ROOT / "alerts/generated/en/rules.yaml").read_text()
    said = typed(clean, "shardwatch", "dashboards", "--output", "dashboards", "--language", "en", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    fleet = "en/shardwatch-fleet.json"
    assert (tmp_path / "dashboards" / fleet).read_text() == (ROOT / "dashboards/generated" / fleet).read_text()
    said = typed(clean, "shardwatch", "dashboards", "--output", "other", "--traces", "", cwd=tmp_path)
    assert said.returncode == 2 and "pip install 'shardwatch[dashboards]'" in said.stderr
    for command in (["completion", "bash"], ["config", "--example"], ["config", "--schema"]):
        assert typed(clean, "shardwatch", *command, cwd=tmp_path).returncode == 0


def test_one_cycle_works_from_the_wheel_on_a_node_without_gpus(clean, tmp_path):
    config = tmp_path / "shardwatch.yaml"
    config.write_text("engines:\n- {name: gone, url: 'http://127.0.0.1:1/metrics'}\n")
    said = typed(clean, "shardwatch", "once", "--config", str(config), cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert f'shardwatch_build_info{{version="{__version__}"' in said.stdout
    assert 'llm_up{replica="gone"' in said.stdout


def test_the_demo_works_from_the_wheel(clean, tmp_path):
    command = [clean / "bin" / "shardwatch", "demo", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as process:
        url = process.stdout.readline().split()[1]
        with urllib.request.urlopen(url, timeout=20) as answer:
            page = answer.read().decode()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert page.startswith("# HELP")
    assert process.returncode == 0


def test_a_configuration_is_checked_from_the_wheel(clean, tmp_path):
    (tmp_path / "wrong.yaml").write_text("listne: 1\n")
    said = typed(clean, "shardwatch", "check-config", "wrong.yaml", cwd=tmp_path)
    assert said.returncode == 2
    assert "listne" in said.stderr


def test_a_checkout_checks_its_rules_with_what_the_wheel_brings(clean, tree):
    said = typed(clean, "python", "-m", "alerts", "--check", cwd=tree)
    assert (said.returncode, said.stderr) == (0, "")


def test_the_manual_page_is_installed_where_man_looks(clean):
    assert (clean / "share" / "man" / "man1" / "shardwatch.1").read_text().startswith(".")


def test_no_line_of_the_changelog_is_under_a_version_that_is_not_this_one():
    """The newest heading is what the package says it is, or what is not released yet."""
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert any(heading.startswith((f"## [{__version__}]", f"## {__version__}")) for heading in headings[:2])
