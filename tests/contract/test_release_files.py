"""What `make release` adds to wheel and sdist, and the workflows that publish it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile

import pytest
import yaml

from alerts.render import RULES
from compose.release import __main__ as program
from compose.release import archives, notes
from compose.release.errors import ReleaseError
from exporter import __version__
from tests.support.stack_files import ROOT
from tests.support.tools import tool

WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
BUILT = (f"shardwatch-{__version__}-py3-none-any.whl", f"shardwatch-{__version__}.tar.gz", "sbom.json")
TAG = f"v{__version__}"


@pytest.fixture
def output(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in BUILT:
        (folder / name).write_text(name)
    return folder


def held(path):
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}


def git(folder, *words):
    settings = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    subprocess.run([tool("git"), *settings, *words], cwd=folder, check=True, capture_output=True)


# ---------------------------------------------------------------------- files


def test_a_release_has_checksums_of_all_its_files(output):
    program.release(ROOT, output, tag=None, since=None)
    lines = dict(reversed(line.split("  ")) for line in (output / "SHA256SUMS").read_text().splitlines())
    added = {f"shardwatch-{__version__}-image.tar.gz", f"shardwatch-{__version__}.tgz", "NOTES.md"}
    assert set(lines) == {*BUILT, *added} == {path.name for path in output.iterdir()} - {"SHA256SUMS"}
    assert all(hashlib.sha256((output / name).read_bytes()).hexdigest() == found for name, found in lines.items())
    notes_text = (output / "NOTES.md").read_text()
    assert (
        notes_text.startswith(f"# Shardwatch {__version__}\n\n### ") and "## Rules and dashboards" not in notes_text
    )


def test_the_same_tree_gives_the_same_release(output):
    def made():
        program.release(ROOT, output, tag=None, since=None)
        return (output / "SHA256SUMS").read_text()

    first = made()
    with tarfile.open(output / f"shardwatch-{__version__}.tgz") as archive:
        assert {(entry.mtime, entry.uid, entry.uname) for entry in archive.getmembers()} == {(1700000000, 0, "")}
    for path in output.glob("*gz"):
        path.touch()
    assert made() == first


def test_the_chart_holds_what_helm_would_pack(tmp_path):
    ours = tmp_path / "ours.tgz"
    archives.write(ours, archives.chart_files(ROOT), 0)
    subprocess.run(
        [tool("helm"), "package", str(ROOT / archives.CHART), "--destination", str(tmp_path)],
        check=True, capture_output=True, env={"HOME": str(tmp_path)},
    )  # fmt: skip
    ours, theirs = held(ours), held(tmp_path / f"shardwatch-{__version__}.tgz")
    ignored = {"shardwatch/.helmignore"}
    assert set(ours) == set(theirs) - ignored
    assert {name for name in ours if ours[name] != theirs[name]} == {"shardwatch/Chart.yaml"}, "Helm sorts its keys"


def test_the_image_can_be_built_from_its_context(tmp_path):
    context = tmp_path / "context.tar.gz"
    archives.write(context, archives.image_files(ROOT), 0)
    names = set(held(context))
    dockerfile = (ROOT / "compose/Dockerfile").read_text()
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE) for word in line.split()
    }
    assert len(copied) >= 8 and "compose/Dockerfile" in names
    assert all(any(name == word or name.startswith(f"{word}/") for name in names) for word in copied)
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests", ".git"))]


# ---------------------------------------------------------------------- refusals


def test_a_tag_must_be_the_version(output):
    with pytest.raises(ReleaseError, match=f"v9.9.9 is not {TAG}"):
        program.release(ROOT, output, tag="v9.9.9", since=None)


def test_a_tagged_version_has_a_date(output, tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{__version__}] - unreleased\n\n- A\n")
    with pytest.raises(ReleaseError, match="no date"):
        program.release(tree, output, tag=TAG, since=None)


def test_without_wheel_and_sdist_it_says_what_to_type(output):
    for name in BUILT:
        (output / name).unlink()
    with pytest.raises(ReleaseError, match="lacks .*whl.*make release"):
        program.release(ROOT, output, tag=None, since=None)


def test_only_what_is_committed_is_released(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert program.main(["--output", str(tmp_path)]) == program.REFUSED
    assert "from a git checkout" in capsys.readouterr().err
    git(tmp_path, "init", "--quiet")
    (tmp_path / "new").write_text("")
    assert program.main(["--output", str(tmp_path)]) == program.REFUSED
    assert "?? new" in capsys.readouterr().err


# ---------------------------------------------------------------------- notes


def test_a_section_ends_where_the_next_version_begins():
    text = "# Changelog\n\n## [1.1.0] - 2026-01-02\n\n### Added\n\n- A\n\n## [1.0.0] - 2025-01-01\n\n- B\n"
    assert notes.section(text, "1.1.0") == ("2026-01-02", "### Added\n\n- A")
    assert notes.section(text, "1.0.0") == ("2025-01-01", "- B")
    with pytest.raises(ReleaseError, match=r"\[2\.0\.0\]"):
        notes.section(text, "2.0.0")


def test_the_changelog_has_a_section_for_the_version():
    _, text = notes.section((ROOT / "CHANGELOG.md").read_text(), __version__)
    assert "### Changed" in text


def test_notes_say_what_changed_about_rules_and_dashboards(tmp_path):
    """A release before this one is a tag of a repository whose rules lacked an alert and had another."""
    repository = tmp_path / "repository"
    for name in notes.GENERATORS:
        shutil.copytree(ROOT / name / "generated/en", repository / name / "generated/en")
    rules = repository / "alerts/generated/en" / RULES
    rules.write_text(rules.read_text().replace("- alert: GpuLost\n", "- alert: CardLost\n"))
    git(repository, "init", "--quiet")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "before")
    git(repository, "tag", "v0.0.1")
    for name in (*notes.GENERATORS, "exporter"):
        shutil.rmtree(repository / name, ignore_errors=True)
        (repository / name).symlink_to(ROOT / name)
    found = notes.differences(repository, "v0.0.1").splitlines()
    assert found[0].startswith("alerts/generated/en/rules.yaml: ")
    assert [line for line in found if line.startswith("  + ") and "GpuLost" in line]
    assert [line for line in found if line.startswith("  - ") and "CardLost" in line]
    assert not [line for line in found if "prometheusrule" in line or str(tmp_path) in line]
    with pytest.raises(ReleaseError, match="v0.0.2"):
        notes.differences(repository, "v0.0.2")
    text = notes.text("1", "- A", "\n".join(found), "v0.0.1")
    assert "- A\n\n## Rules and dashboards since v0.0.1\n\n```text\nalerts/" in text
    assert notes.text("1", "- A", "", "v0.0.1").endswith("since v0.0.1\n\nNo change.\n")


# ---------------------------------------------------------------------- workflows


def jobs():
    return [(f"{name}: {job}", spec) for name, flow in WORKFLOWS.items() for job, spec in flow["jobs"].items()]


def test_ci_runs_what_ci_is():
    runs = [step.get("run", "") for step in WORKFLOWS["ci.yml"]["jobs"]["test"]["steps"]]
    assert "bash .ci/run" in runs
    assert WORKFLOWS["release.yml"]["jobs"]["test"]["uses"] == "./.github/workflows/ci.yml"
    assert set(WORKFLOWS["release.yml"][True]) == {"push"}, "YAML reads the key on as true"
    assert set(WORKFLOWS["release.yml"][True]["push"]) == {"tags"}


def test_nothing_is_published_that_was_not_tested():
    flow = WORKFLOWS["release.yml"]["jobs"]
    assert flow["build"]["needs"] == "test"
    assert all(spec["needs"] == "build" for name, spec in flow.items() if name not in {"test", "build"})


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_job_may_write_only_what_it_publishes(name):
    flow = WORKFLOWS[name]
    assert flow["permissions"] in ({}, {"contents": "read"})
    written = {
        job: [key for key, value in spec.get("permissions", {}).items() if value == "write"]
        for job, spec in flow["jobs"].items()
    }
    allowed = {"release": ["contents"], "pypi": ["id-token"], "registry": ["packages"]}
    assert {job: keys for job, keys in written.items() if keys} == ({} if name == "ci.yml" else allowed)


@pytest.mark.parametrize(("name", "spec"), jobs())
def test_no_job_needs_a_secret_or_writes_expressions_into_a_shell(name, spec):
    assert "secrets" not in str(spec)
    for step in spec.get("steps", ()):
        assert "${{" not in step.get("run", ""), "expressions come as variables of the environment"
        assert re.search(r"@(v\d+|release/v\d+|[0-9a-f]{40})$", step.get("uses", "@v1"))


def test_what_the_workflow_publishes_is_what_a_release_writes():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert all(f'dist/shardwatch-"${{VERSION_TAG#v}}"{end}' in text for end in ("-image.tar.gz", ".tgz"))
    assert "make release" in text and "sha256sum --check SHA256SUMS" in text and "dist/NOTES.md" in text
    values = yaml.safe_load((ROOT / archives.CHART / "values.yaml").read_text())
    assert values["image"]["repository"].endswith("/shardwatch") and values["image"]["repository"].startswith(
        "ghcr.io/"
    )
