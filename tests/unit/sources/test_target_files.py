"""Where engines are declared on this machine: lists in files and Ray's file, honest and hostile."""

from __future__ import annotations

import json
import os
import pwd
import threading
import time
import tracemalloc

import pytest

from exporter.config.trusted_paths import unprotected_directory
from exporter.sources.discovery import target_file
from exporter.sources.discovery.file_sd import MAX_FILES, FileSd
from exporter.sources.discovery.ray import Ray


def urls(result):
    return [engine.url for engine in result.engines]


def group(*targets, **labels):
    return {"targets": list(targets), "labels": labels}


def write(path, groups):
    text = groups if isinstance(groups, str) else json.dumps(groups)
    (path.parent / "new").write_text(text)
    os.replace(path.parent / "new", path)


# ---------------------------------------------------------------------- lists in files


def test_json_and_yaml_lists_give_the_same_engines_and_only_known_labels_count(tmp_path):
    labels = {"__scheme__": "https", "__metrics_path__": "/m", "replica": "chat", "engine": "vllm", "job": "x"}
    write(tmp_path / "a.json", [group("10.0.0.1:8000", **labels), group("[::1]:9", kind="tgi", name="n"), group("h")])
    write(
        tmp_path / "a.yaml",
        "# three\n- targets: ['10.0.0.1:8000']\n  labels:\n"
        + "".join(f"    {name}: {value}\n" for name, value in labels.items())
        + '- {targets: ["[::1]:9"], labels: {kind: tgi, name: n}}\n- targets:\n  - h\n',
    )
    first, second = (FileSd([str(tmp_path / name)]).refresh() for name in ("a.json", "a.yaml"))
    assert first == second
    assert (first.problem, first.warning) == (None, "")
    assert urls(first) == ["https://10.0.0.1:8000/m", "http://[::1]:9/metrics", "http://h/metrics"]
    assert [(target.name, target.kind, target.tentative) for target in first.engines] == [
        ("chat", "vllm", False), ("n", "tgi", False), ("", "", False),
    ]  # fmt: skip


def test_a_rewritten_file_is_read_again_and_an_unchanged_one_is_not(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write(path, [group("a:1")])
    place = FileSd([str(path)])
    assert urls(place.refresh()) == ["http://a:1/metrics"]
    monkeypatch.setattr(target_file, "_read", lambda *_: pytest.fail("the file is as it was"))
    assert urls(place.refresh()) == ["http://a:1/metrics"]
    monkeypatch.undo()
    write(path, [group("b:1")])  # of the same size
    assert urls(place.refresh()) == ["http://b:1/metrics"]
    path.write_text(json.dumps([group("c:1")]))  # in its place
    assert urls(place.refresh()) == ["http://c:1/metrics"]


def test_a_pattern_follows_files_that_come_and_go_and_a_bad_one_costs_the_others_nothing(tmp_path):
    place = FileSd([str(tmp_path / "*.json"), str(tmp_path / "a.json")])
    assert place.refresh().engines == ()
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.json", [group(f"{name}:1")])
    write(tmp_path / ".hidden.json", [group("hidden:1")])
    write(tmp_path / "d.yaml", "- targets: ['d:1']")
    everything = ["http://a:1/metrics", "http://b:1/metrics", "http://c:1/metrics"]
    assert urls(place.refresh()) == everything
    write(tmp_path / "b.json", "[{")
    write(tmp_path / "c.json", [group("c:2")])
    result = place.refresh()
    assert urls(result) == [*everything[:2], "http://c:2/metrics"]
    assert result.problem.reason == "malformed"
    assert str(tmp_path / "b.json") in str(result.problem)
    assert place.refresh().problem is result.problem
    (tmp_path / "b.json").unlink()
    assert urls(place.refresh()) == ["http://a:1/metrics", "http://c:2/metrics"]
    assert place.refresh().problem is None


BAD = {
    "half": ('[{"targets": ["b:', "malformed"),
    "empty": ("", "empty"),
    "blank": (" \n", "empty"),
    "mapping": ('{"targets": []}', "malformed"),
    "words": ('["a:1"]', "malformed"),
    "target mapping": ('[{"targets": {"a": 1}}]', "malformed"),
    "labels list": ('[{"targets": [], "labels": ["x"]}]', "malformed"),
    "null": ("null", "malformed"),
    "deep": ("[" * 40_000 + "]" * 40_000, "malformed"),
    "wide": ("[" + "[]," * 30_000 + "[]]", "too_large"),
    "huge": ('["' + "x" * (1 << 20) + '"]', "too_large"),
    "a hundred thousand": (json.dumps([group(*[f"h{n}:1" for n in range(100_000)])]), "too_large"),
    "number": ("[" + "9" * 900_000 + "]", "malformed"),
}


@pytest.mark.parametrize("text, reason", BAD.values(), ids=BAD)
def test_a_bad_file_keeps_the_last_good_list_and_is_judged_once(tmp_path, text, reason):
    path = tmp_path / "a.json"
    write(path, [group("a:1")])
    place = FileSd([str(path)])
    place.refresh()
    write(path, text)
    begun = time.monotonic()
    result = place.refresh()
    assert urls(result) == ["http://a:1/metrics"]
    assert result.problem.reason == reason
    assert len(str(result.problem)) < 300 + len(str(path))
    assert place.refresh().problem is result.problem
    assert time.monotonic() - begun < 5
    write(path, [group("b:1")])
    assert (urls(place.refresh()), place.refresh().problem) == (["http://b:1/metrics"], None)


BAD_YAML = {
    "half": "- targets: ['b:",
    "alias of nothing": "- targets: *a",
    "alias bomb": "- &a [x:1, x:1, x:1, x:1]\n"
    + "".join(f"- &{new} [{', '.join([f'*{old}'] * 40)}]\n" for old, new in zip("abcd", "bcde", strict=True)),
    "key twice": "- targets: [a:1]\n  targets: [b:1]",
    "tag": "- !!python/object/apply:os.system ['true']",
    "deep": "[" * 2000,
    "deep blocks": "".join(f"{' ' * n}- \n" for n in range(200)),
    "two keys": "- targets: [a:1]: b",
    "control": "- targets: ['\x01']",
    "wide": "- targets: []\n" * 40_000,
}


@pytest.mark.parametrize("text", BAD_YAML.values(), ids=BAD_YAML)
def test_a_bad_yaml_file_keeps_the_last_good_list_and_runs_nothing(tmp_path, text):
    path = tmp_path / "a.yml"
    write(path, "- targets: ['a:1']")
    place = FileSd([str(path)])
    place.refresh()
    write(path, text)
    begun = time.monotonic()
    result = place.refresh()
    assert urls(result) == ["http://a:1/metrics"]
    assert result.problem.reason in ("malformed", "too_large")
    assert time.monotonic() - begun < 10


def test_pipes_loops_folders_and_files_without_permission_do_not_hold_it_up(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    os.symlink("loop.json", tmp_path / "loop.json")
    (tmp_path / "folder.json").mkdir()
    os.symlink("/dev/zero", tmp_path / "zero.json")
    (tmp_path / "secret.json").touch(0)
    reasons = {}
    done = threading.Event()

    def refresh():
        for name in ("pipe", "loop", "folder", "zero", "absent", "not\0a/name"):
            place = FileSd([f"{tmp_path}/{name}.json"])
            reasons[name] = place.refresh().problem.reason
            assert place.refresh().problem.reason == reasons[name]
        done.set()

    thread = threading.Thread(target=refresh, daemon=True)
    thread.start()
    assert done.wait(10)
    thread.join(5)
    assert reasons == {
        "pipe": "not_regular", "loop": "unreadable", "folder": "not_regular", "zero": "not_regular",
        "absent": "missing", "not\0a/name": "unreadable",
    }  # fmt: skip
    if os.geteuid():
        assert FileSd([f"{tmp_path}/secret.json"]).refresh().problem.reason == "unreadable"


def test_a_file_that_is_taken_away_lists_nothing_and_one_that_cannot_be_read_lists_what_it_did(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write(path, [group("a:1")])
    place = FileSd([str(path)])
    place.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(
            target_file.os, "stat", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
        )
        result = place.refresh()
        assert (urls(result), result.problem.reason) == (["http://a:1/metrics"], "unreadable")
        assert place.refresh().problem is result.problem
    assert place.refresh().problem is None
    path.unlink()
    result = place.refresh()
    assert (result.engines, result.problem.reason) == ((), "missing")


def test_targets_that_cannot_be_asked_are_ignored_and_counted(tmp_path):
    bad = ["", "http://a:1", "a:1/x", "user@a:1", "a:0", "a:99999", "a b:1", "ä:1", 7, None, ["a"], "-:1", "\ud800:1"]
    odd = [
        group("p:1", __metrics_path__="/m?token=s3cret"), group("p:2", __scheme__="file"),
        group("p:3", __metrics_path__=["x"]), group("p:4", __metrics_path__="x y"),
    ]  # fmt: skip
    write(tmp_path / "a.json", [group("a:1", *bad), *odd, group("b:1", replica="x\ny", engine=["vllm"])])
    result = FileSd([str(tmp_path / "a.json")]).refresh()
    assert urls(result) == ["http://a:1/metrics", "http://b:1/metrics"]
    assert result.warning.startswith(f"ignored={len(bad) + len(odd)}:")
    assert result.problem is None
    assert (result.engines[1].name, result.engines[1].kind) == ("", "")
    assert "s3cret" not in repr(result)


def test_a_yaml_list_may_share_its_labels_through_an_alias_as_prometheus_allows(tmp_path):
    path = tmp_path / "a.yml"
    write(path, "- targets: ['a:1']\n  labels: &team {engine: vllm}\n- targets: ['b:1']\n  labels: *team\n")
    result = FileSd([str(path)]).refresh()
    assert [(engine.url, engine.kind) for engine in result.engines] == [
        ("http://a:1/metrics", "vllm"),
        ("http://b:1/metrics", "vllm"),
    ]


def test_a_bad_yaml_list_names_its_line_and_shows_nothing_of_it(tmp_path):
    write(tmp_path / "a.yml", "- targets: ['a:1']\n  labels: {token: 's3cret\n")
    problem = str(FileSd([str(tmp_path / "a.yml")]).refresh().problem)
    assert "line 3: is not YAML" in problem and "s3cret" not in problem


def test_only_so_many_targets_and_files_are_read(tmp_path):
    write(tmp_path / "a.json", [group(*[f"a{n}:1" for n in range(1500)])])
    result = FileSd([str(tmp_path / "a.json")]).refresh()
    assert (len(result.engines), result.warning.split(":")[0]) == (1000, "ignored=500")
    for number in range(100):
        (tmp_path / f"f{number}.json").write_text(json.dumps([group(f"f{number}:1")]))
    place = FileSd([str(tmp_path / "f*.json")])
    assert len(place.refresh().engines) == MAX_FILES
    assert "files_ignored=36" in place.refresh().warning


def test_the_worst_file_takes_little_memory(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[" + "[]," * 24_000 + "[]]" + " " * 900_000)
    tracemalloc.start()
    try:
        assert FileSd([str(path)]).refresh().problem.reason == "malformed"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    place = FileSd([str(tmp_path / "none" / "*.json")])
    result = place.refresh()
    assert result.problem.reason == "missing"
    assert "none/*.json" in str(result.problem)
    assert place.refresh().problem is result.problem
    (tmp_path / "none").mkdir()
    write(tmp_path / "none" / "a.json", [group("a:1")])
    assert (urls(place.refresh()), place.refresh().problem) == (["http://a:1/metrics"], None)


# ---------------------------------------------------------------------- Ray


def test_of_rays_file_only_this_machines_agents_are_taken(tmp_path):
    targets = ["10.0.0.1:19180", "10.0.0.2:19180", "127.0.0.1:20001", "[fd00::7]:8080", "head:1", "10.0.0.1:44217"]
    write(tmp_path / "ray.json", [group(*targets, "10.0.0.1:44227", job="ray")])
    result = Ray(str(tmp_path / "ray.json"), addresses=lambda: frozenset({"10.0.0.1", "fd00::7"})).refresh()
    assert urls(result) == [
        "http://10.0.0.1:19180/metrics", "http://127.0.0.1:20001/metrics", "http://[fd00::7]:8080/metrics",
    ]  # fmt: skip
    assert result.warning == ""
    elsewhere = Ray(str(tmp_path / "ray.json"), addresses=lambda: frozenset({"10.0.0.9"})).refresh()
    assert urls(elsewhere) == ["http://127.0.0.1:20001/metrics"]


def test_rays_file_makes_the_daemon_request_no_other_path(tmp_path):
    groups = [{"targets": ["127.0.0.1:80"], "labels": {"__metrics_path__": "/shutdown?confirm=1"}}]
    write(tmp_path / "ray.json", [*groups, group("127.0.0.1:20001")])
    assert urls(Ray(str(tmp_path / "ray.json")).refresh()) == ["http://127.0.0.1:20001/metrics"]


def test_rays_file_belongs_to_root_the_daemons_user_or_a_configured_one(tmp_path, monkeypatch):
    """A process called raylet says nothing: anybody may have one."""
    write(tmp_path / "ray.json", [group("127.0.0.1:20001")])
    owner = os.stat(tmp_path / "ray.json").st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    monkeypatch.setattr(target_file, "_ROOT", -1)
    result = Ray(str(tmp_path / "ray.json"), users=["no-such-user", str(owner + 2)]).refresh()
    assert (result.engines, result.problem.reason) == ((), "untrusted")
    name = pwd.getpwuid(owner).pw_name
    for users in ([str(owner)], ["no-such-user", name]):
        assert len(Ray(str(tmp_path / "ray.json"), users=users).refresh().engines) == 1


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_list_that_others_may_write_to_is_not_rays(tmp_path, mode):
    write(tmp_path / "ray.json", [group("127.0.0.1:20001")])
    (tmp_path / "ray.json").chmod(mode)
    result = Ray(str(tmp_path / "ray.json")).refresh()
    assert (result.engines, result.problem.reason) == ((), "untrusted")
    (tmp_path / "ray.json").chmod(0o644)
    assert len(Ray(str(tmp_path / "ray.json")).refresh().engines) == 1


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize(("mode", "reason"), [(0o1777, "untrusted"), (0o775, "untrusted"), (0o755, None)])
def test_where_others_may_write_a_link_is_not_rays_file(tmp_path, monkeypatch, link, mode, reason):
    """Ray opens its own directories to everybody, who may then link another trusted file there."""
    monkeypatch.setattr(target_file, "unprotected_directory", lambda *_: "ray" if mode & 0o022 else None)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray").chmod(mode)
    write(tmp_path / "list.json", [group("127.0.0.1:20001")])
    link(tmp_path / "list.json", tmp_path / "ray" / "list.json")
    problem = Ray(str(tmp_path / "ray" / "list.json")).refresh().problem
    assert (problem and problem.reason) == reason
    write(tmp_path / "ray" / "list.json", [group("127.0.0.1:20001")])
    assert Ray(str(tmp_path / "ray" / "list.json")).refresh().problem is None


@pytest.mark.parametrize(
    ("modes", "owner", "protected"),
    [
        ((0o755, 0o755), 0, True), ((0o1777, 0o755), 0, True), ((0o777, 0o755), 0, False), ((0o775, 0o755), 0, False),
        ((0o755, 0o1777), 0, False), ((0o755, 0o755), 1000, False),
    ],
)  # fmt: skip
def test_a_directory_protects_a_list_if_all_above_it_are_of_trusted_users(monkeypatch, modes, owner, protected):
    """Whoever owns a directory, or may write to it, may put any file there."""
    upper, lower = modes
    known = {"/": (0o755, 0), "/tmp": (upper, 0), "/tmp/ray": (lower, owner)}  # noqa: S108

    def status(path):
        mode, uid = known[path]
        return os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))

    monkeypatch.setattr("os.stat", status)
    monkeypatch.setattr("os.path.realpath", lambda path: path)
    assert (unprotected_directory("/tmp/ray/list.json", {0}) is None) is protected  # noqa: S108


def test_a_cluster_elsewhere_is_remarked_and_a_file_that_is_not_there_yet_is_missing(tmp_path):
    ray = Ray(str(tmp_path / "ray.json"), addresses=frozenset)
    assert ray.refresh().problem.reason == "missing"
    write(tmp_path / "ray.json", [group("10.0.0.2:1", "10.0.0.3:1", job="ray")])
    result = ray.refresh()
    assert (result.engines, result.problem) == ((), None)
    assert result.warning == "targets=2: none is at an address of this machine"
