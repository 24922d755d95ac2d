"""Where engines are declared: lists in files, Ray's file and a fake Kubernetes API, honest and hostile."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import tracemalloc

import pytest

from exporter.sources.discovery import target_file
from exporter.sources.discovery.file_sd import MAX_FILES, FileSd
from exporter.sources.discovery.kubernetes import Access, Kubernetes
from exporter.sources.discovery.ray import Ray
from tests.hostile import FAULTS, Hostile


def urls(seen):
    return [engine.url for engine in seen.found]


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
    first, second = (FileSd([str(tmp_path / name)]).look() for name in ("a.json", "a.yaml"))
    assert first == second
    assert (first.problem, first.remark) == (None, "")
    assert urls(first) == ["https://10.0.0.1:8000/m", "http://[::1]:9/metrics", "http://h/metrics"]
    assert [(one.name, one.kind, one.tentative) for one in first.found] == [
        ("chat", "vllm", False), ("n", "tgi", False), ("", "", False),
    ]  # fmt: skip


def test_a_rewritten_file_is_read_again_and_an_unchanged_one_is_not(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write(path, [group("a:1")])
    place = FileSd([str(path)])
    assert urls(place.look()) == ["http://a:1/metrics"]
    monkeypatch.setattr(target_file, "_read", lambda *_: pytest.fail("the file is as it was"))
    assert urls(place.look()) == ["http://a:1/metrics"]
    monkeypatch.undo()
    write(path, [group("b:1")])  # of the same size
    assert urls(place.look()) == ["http://b:1/metrics"]
    path.write_text(json.dumps([group("c:1")]))  # in its place
    assert urls(place.look()) == ["http://c:1/metrics"]


def test_a_pattern_follows_files_that_come_and_go_and_a_bad_one_costs_the_others_nothing(tmp_path):
    place = FileSd([str(tmp_path / "*.json"), str(tmp_path / "a.json")])
    assert place.look().found == ()
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.json", [group(f"{name}:1")])
    write(tmp_path / ".hidden.json", [group("hidden:1")])
    write(tmp_path / "d.yaml", "- targets: ['d:1']")
    everything = ["http://a:1/metrics", "http://b:1/metrics", "http://c:1/metrics"]
    assert urls(place.look()) == everything
    write(tmp_path / "b.json", "[{")
    write(tmp_path / "c.json", [group("c:2")])
    seen = place.look()
    assert urls(seen) == [*everything[:2], "http://c:2/metrics"]
    assert seen.problem.reason == "malformed"
    assert str(tmp_path / "b.json") in str(seen.problem)
    assert place.look().problem is seen.problem
    (tmp_path / "b.json").unlink()
    assert urls(place.look()) == ["http://a:1/metrics", "http://c:2/metrics"]
    assert place.look().problem is None


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
    place.look()
    write(path, text)
    begun = time.monotonic()
    seen = place.look()
    assert urls(seen) == ["http://a:1/metrics"]
    assert seen.problem.reason == reason
    assert len(str(seen.problem)) < 300 + len(str(path))
    assert place.look().problem is seen.problem
    assert time.monotonic() - begun < 5
    write(path, [group("b:1")])
    assert (urls(place.look()), place.look().problem) == (["http://b:1/metrics"], None)


BAD_YAML = {
    "half": "- targets: ['b:",
    "alias": "- targets: &a [x:1]\n- targets: *a",
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
    place.look()
    write(path, text)
    begun = time.monotonic()
    seen = place.look()
    assert urls(seen) == ["http://a:1/metrics"]
    assert seen.problem.reason in ("malformed", "too_large")
    assert time.monotonic() - begun < 10


def test_pipes_loops_folders_and_files_without_permission_do_not_hold_it_up(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    os.symlink("loop.json", tmp_path / "loop.json")
    (tmp_path / "folder.json").mkdir()
    os.symlink("/dev/zero", tmp_path / "zero.json")
    (tmp_path / "secret.json").touch(0)
    reasons = {}
    done = threading.Event()

    def look():
        for name in ("pipe", "loop", "folder", "zero", "absent", "not\0a/name"):
            place = FileSd([f"{tmp_path}/{name}.json"])
            reasons[name] = place.look().problem.reason
            assert place.look().problem.reason == reasons[name]
        done.set()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    assert done.wait(10)
    thread.join(5)
    assert reasons == {
        "pipe": "not_regular", "loop": "unreadable", "folder": "not_regular", "zero": "not_regular",
        "absent": "missing", "not\0a/name": "unreadable",
    }  # fmt: skip
    if os.geteuid():
        assert FileSd([f"{tmp_path}/secret.json"]).look().problem.reason == "unreadable"


def test_a_file_that_is_taken_away_lists_nothing_and_one_that_cannot_be_read_lists_what_it_did(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write(path, [group("a:1")])
    place = FileSd([str(path)])
    place.look()
    with monkeypatch.context() as patch:
        patch.setattr(
            target_file.os, "stat", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
        )
        seen = place.look()
        assert (urls(seen), seen.problem.reason) == (["http://a:1/metrics"], "unreadable")
        assert place.look().problem is seen.problem
    assert place.look().problem is None
    path.unlink()
    seen = place.look()
    assert (seen.found, seen.problem.reason) == ((), "missing")


def test_targets_that_cannot_be_asked_are_left_out_and_counted(tmp_path):
    bad = ["", "http://a:1", "a:1/x", "user@a:1", "a:0", "a:99999", "a b:1", "ä:1", 7, None, ["a"], "-:1", "\ud800:1"]
    odd = [
        group("p:1", __metrics_path__="/m?token=s3cret"), group("p:2", __scheme__="file"),
        group("p:3", __metrics_path__=["x"]), group("p:4", __metrics_path__="x y"),
    ]  # fmt: skip
    write(tmp_path / "a.json", [group("a:1", *bad), *odd, group("b:1", replica="x\ny", engine=["vllm"])])
    seen = FileSd([str(tmp_path / "a.json")]).look()
    assert urls(seen) == ["http://a:1/metrics", "http://b:1/metrics"]
    assert seen.remark.startswith(f"left_out={len(bad) + len(odd)}:")
    assert seen.problem is None
    assert (seen.found[1].name, seen.found[1].kind) == ("", "")
    assert "s3cret" not in repr(seen)


def test_only_so_many_targets_and_files_are_read(tmp_path):
    write(tmp_path / "a.json", [group(*[f"a{n}:1" for n in range(1500)])])
    seen = FileSd([str(tmp_path / "a.json")]).look()
    assert (len(seen.found), seen.remark.split(":")[0]) == (1000, "left_out=500")
    for number in range(100):
        (tmp_path / f"f{number}.json").write_text(json.dumps([group(f"f{number}:1")]))
    place = FileSd([str(tmp_path / "f*.json")])
    assert len(place.look().found) == MAX_FILES
    assert "files_left_out=36" in place.look().remark


def test_the_worst_file_takes_little_memory(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[" + "[]," * 24_000 + "[]]" + " " * 900_000)
    tracemalloc.start()
    try:
        assert FileSd([str(path)]).look().problem.reason == "malformed"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    place = FileSd([str(tmp_path / "none" / "*.json")])
    seen = place.look()
    assert seen.problem.reason == "missing"
    assert "none/*.json" in str(seen.problem)
    assert place.look().problem is seen.problem
    (tmp_path / "none").mkdir()
    write(tmp_path / "none" / "a.json", [group("a:1")])
    assert (urls(place.look()), place.look().problem) == (["http://a:1/metrics"], None)


# ---------------------------------------------------------------------- Ray


def test_of_rays_file_only_this_machines_agents_are_taken(tmp_path):
    targets = ["10.0.0.1:19180", "10.0.0.2:19180", "127.0.0.1:20001", "[fd00::7]:8080", "head:1", "10.0.0.1:44217"]
    write(tmp_path / "ray.json", [group(*targets, "10.0.0.1:44227", job="ray")])
    seen = Ray(str(tmp_path / "ray.json"), addresses=lambda: frozenset({"10.0.0.1", "fd00::7"})).look()
    assert urls(seen) == [
        "http://10.0.0.1:19180/metrics", "http://127.0.0.1:20001/metrics", "http://[fd00::7]:8080/metrics",
    ]  # fmt: skip
    assert seen.remark == ""
    elsewhere = Ray(str(tmp_path / "ray.json"), addresses=lambda: frozenset({"10.0.0.9"})).look()
    assert urls(elsewhere) == ["http://127.0.0.1:20001/metrics"]


def test_a_cluster_elsewhere_is_remarked_and_a_file_that_is_not_there_yet_is_missing(tmp_path):
    ray = Ray(str(tmp_path / "ray.json"), addresses=frozenset)
    assert ray.look().problem.reason == "missing"
    write(tmp_path / "ray.json", [group("10.0.0.2:1", "10.0.0.3:1", job="ray")])
    seen = ray.look()
    assert (seen.found, seen.problem) == ((), None)
    assert seen.remark == "targets=2: none is at an address of this machine"


# ---------------------------------------------------------------------- Kubernetes


def pod(name, ip="10.1.0.1", *, node="n1", phase="Running", ports=(), **annotations):
    return {
        "metadata": {
            "name": name, "uid": "u" * 36, "managedFields": [{"x": [1, 2, {}]}],
            "annotations": {f"prometheus.io/{key}": value for key, value in annotations.items()},
        },
        "spec": {"nodeName": node, "containers": [{"ports": [{"containerPort": p, "protocol": "TCP"} for p in ports]}]},
        "status": {"phase": phase, "podIP": ip},
    }  # fmt: skip


@pytest.fixture
def api(monkeypatch):
    """A fake API server; ``api.body`` is what it answers."""
    with Hostile() as server:

        def answer(peer):
            peer.keep = True
            if peer.server.status != b"200 OK":
                peer.reply(b"{}", status=peer.server.status)
                return
            peer.reply(peer.server.body)

        monkeypatch.setitem(FAULTS, "api", answer)
        monkeypatch.setitem(FAULTS, "pods", answer)
        server.status, server.body = b"200 OK", b""
        yield server


def pods(*items):
    return json.dumps({"kind": "PodList", "items": list(items)}).encode()


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("t0ken\n")
    return str(path)


def access(api, token, **more):
    return Access(url=f"http://127.0.0.1:{api.port}", node_name="n1", bearer_token_file=token, **more)


def test_the_annotated_running_pods_of_this_node_are_found(api, token):
    api.body = pods(
        pod("chat-0", scrape="true", port="8000"),
        pod("chat-1", "fd00::7", scrape="true", port="8001", path="/m", scheme="https"),
        pod("one-port", "10.1.0.3", ports=[9000], scrape="true"),
        pod("two-ports", "10.1.0.4", ports=[1, 2], scrape="true"),
        pod("no-port", "10.1.0.5", scrape="true"),
        pod("bad-port", "10.1.0.5", scrape="true", port="80/../"),
        pod("no-address", "", scrape="true", port="1"),
        pod("odd-address", "evil.example", scrape="true", port="1"),
        pod("silent", port="1"),
        pod("off", scrape="false", port="1"),
        pod("elsewhere", node="n2", scrape="true", port="1"),
        pod("over", phase="Succeeded", scrape="true", port="1"),
        {"metadata": None}, 7, {}, {"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}},
    )  # fmt: skip
    place = Kubernetes(access(api, token), {})
    try:
        seen = place.look()
    finally:
        place.close()
    assert [(one.name, one.url) for one in seen.found] == [
        ("chat-0", "http://10.1.0.1:8000/metrics"),
        ("chat-1", "https://[fd00::7]:8001/m"),
        ("one-port", "http://10.1.0.3:9000/metrics"),
    ]
    assert all(one.tentative for one in seen.found)
    assert seen.problem is None
    assert seen.remark.startswith("left_out=5:")
    ((_, head),) = api.requests
    assert head.startswith(b"GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0 HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer t0ken\r\n" in head
    assert b"\r\nAccept: application/json\r\n" in head


def test_a_kubelet_is_asked_for_its_own_list(api, token):
    api.body = pods(pod("a", scrape="true", port="1"))
    place = Kubernetes(Access(url=f"http://127.0.0.1:{api.port}/pods", bearer_token_file=token), {"NODE_NAME": "n1"})
    try:
        assert [one.name for one in place.look().found] == ["a"]
    finally:
        place.close()
    assert api.requests[0][1].startswith(b"GET /pods HTTP/1.1\r\n")


ANSWERS = {
    "half": (pods(pod("b"))[:-9], "malformed"),
    "status": (b'{"kind": "Status", "code": 200}', "malformed"),
    "list": (b"[]", "malformed"),
    "bytes": (b"\xff\xfe", "malformed"),
    "deep": (b"[" * 100_000, "malformed"),
    "wide": (b'{"items": [' + b"[]," * 400_000 + b"[]]}", "too_large"),
    "nothing": (b"", "empty"),
}


def test_an_answer_that_is_of_no_use_keeps_the_last_good_list(api, token):
    place = Kubernetes(access(api, token), {})
    api.body = good = pods(pod("a", scrape="true", port="1"))
    assert len(place.look().found) == 1
    for name, (body, reason) in ANSWERS.items():
        api.body = body
        seen = place.look()
        assert (name, len(seen.found), seen.problem.reason) == (name, 1, reason)
        assert "t0ken" not in str(seen.problem)
    api.status = b"403 Forbidden"
    assert place.look().problem.reason == "http_403"
    with open(token, "w") as emptied:
        emptied.write("")
    assert place.look().problem.reason == "credentials"
    with open(token, "w") as rotated:
        rotated.write("an0ther")
    api.status, api.body = b"200 OK", good
    seen = place.look()
    assert (len(seen.found), seen.problem) == (1, None)
    assert b"an0ther" in api.requests[-1][1]
    api.body = pods()
    assert place.look().found == ()
    place.close()


def test_outside_of_a_cluster_or_without_a_nodes_name_it_says_what_to_give(tmp_path):
    for environ, reason in (({}, "no_node_name"), ({"NODE_NAME": "n1"}, "no_api_server")):
        place = Kubernetes(Access(), environ)
        seen = place.look()
        assert (seen.found, seen.problem.reason) == ((), reason)
        assert place.look().problem is seen.problem
        place.close()


def test_in_a_pod_the_server_the_token_and_the_authority_are_those_of_every_pod():
    place = Kubernetes(
        Access(), {"NODE_NAME": "n1", "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    )
    target = place._endpoint._target
    assert target.url == "https://[fd00::1]:6443/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0"
    assert target.bearer_token_file == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert target.ca_file == "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    place.close()


def test_the_token_goes_only_to_a_server_whose_authority_is_known(tmp_path, token, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificates and is not installed")
    from tests.test_endpoint_tls import CONFIGURATION, Keys, server_context

    keys = Keys(tmp_path)
    (tmp_path / "conf").write_text(CONFIGURATION)
    (tmp_path / "index").touch()
    for authority in ("ca", "stranger"):
        keys.authority(authority)
        keys.certificate(f"of-{authority}", authority, "here", "20200101000000Z", "20480102030405Z")
    monkeypatch.setitem(FAULTS, "api", lambda peer: peer.reply(pods(pod("a", scrape="true", port="1"))))
    outcomes = {}
    for authority in ("ca", "stranger"):
        with Hostile(tls=server_context(keys, f"of-{authority}")) as server:
            place = Kubernetes(
                Access(
                    url=server.url("").rstrip("/"),
                    node_name="n1",
                    bearer_token_file=token,
                    ca_file=keys.path("ca.pem"),
                ),
                {},
            )
            seen = place.look()
            place.close()
            outcomes[authority] = (len(seen.found), seen.problem and seen.problem.reason, len(server.requests))
    assert outcomes == {"ca": (1, None, 1), "stranger": (0, "tls_unknown_ca", 0)}


def test_a_full_nodes_list_takes_little_memory_beyond_its_own_size(api, token):
    filler = [{"name": f"E{n}", "value": "v" * 20, "from": {"a": {"b": [n]}}} for n in range(90)]
    everything = [pod(f"p{n}", f"10.1.{n // 250}.{n % 250 + 1}", scrape="true", port="80") for n in range(250)]
    for one in everything:
        one["spec"]["volumes"] = filler
    api.body = pods(*everything)
    assert 1 << 20 < len(api.body) < 8 << 20
    place = Kubernetes(access(api, token), {})
    tracemalloc.start()
    try:
        assert len(place.look().found) == 250
        assert tracemalloc.get_traced_memory()[1] < 3 * len(api.body) + (2 << 20)
    finally:
        tracemalloc.stop()
        place.close()
