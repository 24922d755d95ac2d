"""What ships: the three import packages that exist, typed, and nothing of the tests."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
import yaml

from exporter import __version__

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = {"exporter", "dashboards", "alerts"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


@pytest.mark.slow
def test_the_wheel_holds_the_import_packages_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    ours = {name for name in top if not name.endswith((".dist-info", ".data"))}
    assert [name for name in names if ".data/" in name] == [
        f"shardwatch-{__version__}.data/data/share/man/man1/shardwatch.1"
    ]
    assert "exporter" in ours
    assert ours <= PACKAGES
    assert ours == {name for name in PACKAGES if (ROOT / name / "__init__.py").exists()}
    assert all(f"{package}/py.typed" in names for package in ours)
    assert not [name for name in names if {"tests", "compose"} & set(name.split("/"))]


@pytest.mark.slow
def test_every_module_of_the_tree_is_in_the_wheel(built):
    (wheel,) = built.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    tree = {str(path.relative_to(ROOT)) for path in (ROOT / "exporter").rglob("*.py")}
    assert tree - shipped == {"exporter/cli/generate.py"}, "what only make generate needs"
    generated = {f"exporter/cli/completion.{shell}" for shell in ("bash", "zsh", "fish")}
    assert generated | {"exporter/config/schema.json", "exporter/render/api.schema.json"} <= shipped


@pytest.mark.slow
def test_the_sdist_can_be_built_from_and_tested(built):
    (sdist,) = built.glob("*.tar.gz")
    names = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "exporter/METRICS.md"} <= names
    assert {
        "compose/compose.yaml",
        "compose/native/stack.py",
        "alerts/generated/en/rules.yaml",
        "tests/conftest.py",
    } <= names


def test_the_version_stands_in_one_place():
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert "\nversion = " not in text


def test_whatever_pins_versions_is_kept_up_to_date():
    kinds = {
        "pip": "pyproject.toml",
        "docker": "*",
        "docker-compose": "compose.yaml",
        "npm": "package.json",
        "github-actions": ".github/workflows/*.yml",
    }
    configured = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    found = {(update["package-ecosystem"], update["directory"].lstrip("/")) for update in configured}
    for ecosystem, directory in found:
        files = [path for path in (ROOT / directory).glob(kinds[ecosystem]) if path.is_file()]
        if ecosystem == "docker":
            files = [
                path for path in files if re.search(r"^FROM |^ *image: \S+:\S+$", path.read_text(), re.MULTILINE)
            ]
        assert files, (ecosystem, directory)
    assert {ecosystem for ecosystem, _ in found} == set(kinds)
