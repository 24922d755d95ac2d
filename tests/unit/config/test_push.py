"""What ``push`` may say, and what is refused with the correction."""

from __future__ import annotations

import pytest

from exporter.config import push
from exporter.config.lint import config_lint
from tests.support.settings_texts import CANARY, parse, refused

URL = "http://127.0.0.1:9090/api/v1/write"


def text(*lines, url=URL):
    return f"push:\n  - url: {url}\n" + "".join(f"    {line}\n" for line in lines)


def test_a_url_is_enough():
    (found,) = parse(text()).push
    assert (found.url, found.name, found.protocol) == (URL, "127.0.0.1:9090", "remote_write")
    assert (found.interval, found.timeout, dict(found.labels)) == (15.0, 10.0, {})
    assert (found.queue.max_age, found.queue.max_bytes) == (3600.0, 8 * 2**20)


def test_nothing_is_pushed_by_default():
    assert parse("").push == ()


def test_the_deadline_is_never_longer_than_the_interval():
    (found,) = parse(text("interval: 5s")).push
    assert found.timeout == 5.0
    assert refused(text("interval: 5s", "timeout: 6s")) == [
        (4, "push[0].timeout", "is longer than interval; at most 5s")
    ]


@pytest.mark.parametrize(
    ("lines", "path", "message"),
    [
        (("labels: {__name__: a}",), "push[0].labels.__name__", "expected the name of a label"),
        (("labels: {le: a}",), "push[0].labels.le", "a label of the series themselves"),
        (("labels: {quantile: a}",), "push[0].labels.quantile", "a label of the series themselves"),
        (("labels: {replica: a}",), "push[0].labels.replica", "a label of the series themselves"),
        (("labels: {pci_bus_id: a}",), "push[0].labels.pci_bus_id", "a label of the series themselves"),
        (("labels: {my-label: a}",), "push[0].labels.my-label", "expected the name of a label"),
        (("labels: {1st: a}",), "push[0].labels.1st", "expected the name of a label"),
        (("labels: {job: ''}",), "push[0].labels.job", "expected the value of a label"),
        (("headers: {Content-Type: a}",), "push[0].headers.Content-Type", "the daemon sets itself"),
        (("headers: {Host: a}",), "push[0].headers.Host", "the daemon sets itself"),
        (("headers: {Authorization: a}",), "push[0].headers.Authorization", "use bearer_token_file or basic_auth"),
        (("headers: {X-Api-Key: a}",), "push[0].headers.X-Api-Key", "name its file under header_files"),
        (("headers: {'X A': a}",), "push[0].headers.?", "expected the name of an HTTP header"),
        (('headers: {X-Tenant: "a\\nb"}',), "push[0].headers.X-Tenant", "expected the value of a header"),
        (("header_files: {X-Api-Key: nowhere}",), "push[0].header_files.X-Api-Key", "cannot be opened"),
        (("tls: {insecure_skip_verify: true}",), "push[0].tls", "has no effect on an http:// URL"),
        (("protocol: graphite",), "push[0].protocol", "remote_write, otlp"),
        (("interval: 10m",), "push[0].interval", "must be between 1s and 5m"),
        (("queue: {max_bytes: 10}",), "push[0].queue.max_bytes", "expected a number of bytes"),
    ],
)
def test_what_cannot_work_is_refused(lines, path, message):
    (problem,) = refused(text(*lines))
    assert problem[1] == path
    assert message in problem[2]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9090", "http://127.0.0.1:9090/"])
def test_a_url_without_a_path_is_refused_with_the_usual_ones(url):
    ((_, path, message),) = refused(text(url=url))
    assert path == "push[0].url"
    assert "/api/v1/write" in message


@pytest.mark.parametrize("url", ["'http://[::xy/w'", "'http://h:port/w'"])
def test_a_url_whose_host_is_malformed_is_refused(url):
    ((_, path, message),) = refused(text(url=url))
    assert path == "push[0].url"
    assert "malformed" in message


def test_a_secret_in_the_wrong_place_is_not_repeated():
    for wrong in (f"headers: {{X-Token: '{CANARY}'}}", f"headers: {{'{CANARY}': a}}", f"labels: {{'{CANARY}': a}}"):
        problems = refused(text(wrong))
        assert CANARY not in str(problems)


def test_headers_are_not_shown():
    (found,) = parse(text("headers: {X-Scope-OrgID: gpu-team-7}")).push
    assert "gpu-team-7" not in repr(found)


@pytest.mark.parametrize(("protocol", "extra"), [("remote_write", "push"), ("otlp", "otlp")])
def test_a_missing_package_is_named(monkeypatch, protocol, extra):
    monkeypatch.setattr(push, "_is_installed", lambda _: False)
    assert refused(text(f"protocol: {protocol}")) == [
        (2, "push[0]", f"{protocol} needs more packages: pip install 'shardwatch[{extra}]'")
    ]


def test_whether_a_package_is_installed_does_not_depend_on_the_one_above_it():
    assert push._is_installed("google.protobuf")
    assert not push._is_installed("no_such_package.at_all")


def test_two_receivers_share_neither_name_nor_url():
    problems = refused(f"push:\n  - {{url: '{URL}'}}\n  - {{url: '{URL}', name: other}}\n")
    assert [path for _, path, _ in problems] == ["push[1].url"]
    problems = refused(f"push:\n  - {{url: '{URL}?a=1'}}\n  - {{url: '{URL}?a=2', name: other}}\n")
    assert [path for _, path, _ in problems] == ["push[1].url"], "the query makes no other receiver"


def test_credentials_in_clear_text_are_hinted_at(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("t")
    plain = text(f"header_files: {{X-Api-Key: {secret}}}", "name: central", url="http://10.0.0.1/api/v1/write")
    hints = [hint for hint in config_lint(parse(plain)) if hint.startswith("push: ")]
    assert len(hints) == 1
    assert "central" in hints[0]
