"""Errors of the HTTP client as ``shardwatch check --lang zh`` prints them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import exporter.http.client
from exporter.cli import client_errors
from exporter.cli.main import main
from exporter.errors import EndpointError
from exporter.http.client.client import FetchResult, SessionClient
from exporter.model.text import Language

FOLDER = Path(exporter.http.client.__file__).parent


def raised_reasons():
    """Yield the reasons of the errors that the client's modules raise, those of statuses left out."""
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "EndpointError":
                if isinstance(node.args[0], ast.Constant):
                    yield node.args[0].value


def test_every_reason_of_the_client_has_a_chinese_text():
    assert set(raised_reasons()) == client_errors.reasons()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (EndpointError("http_404", "answered with status 404", detail=404), "应答状态码为 404；"),
        (EndpointError("http_4xx", "answered with status 499", detail=499), "应答状态码为 499"),
        (EndpointError("refused", "connection refused"), "连接被拒绝；服务是否在该端口上运行？"),
        (EndpointError("timeout", "not done within 2.5 s", detail=4.99967), "未在时限内完成（5.0 秒）"),
        (EndpointError("redirect", "to another origin", detail="http://other:1"), "未跟随（http://other:1）"),
        (EndpointError("too_large", "the page is larger", detail=33554432), "应答过大（上限 33554432 字节）"),
        (EndpointError("credentials", "cannot read ca.pem", detail="ca.pem"), "凭据文件无法使用（ca.pem）"),
        (EndpointError("invented", "something else"), "请求失败（invented）"),
    ],
)
def test_a_failed_exchange_is_chinese(monkeypatch, capsys, error, shown):
    def fail(_):
        raise EndpointError(error.reason, str(error), detail=error.detail)  # one that keeps no frames of this test

    monkeypatch.setattr(SessionClient, "fetch", fail)
    assert main(["check", "--lang", "zh", "--fail-on", "verdict", "h:1"]) == 3
    line = capsys.readouterr().out
    assert shown in line
    assert str(error) not in line
    assert client_errors.explain(error, Language.ENGLISH) == str(error)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["127.0.0.1:1"], "连接被拒绝"),
        (["--ca-file", "/nonexistent.pem", "https://127.0.0.1:1"], "凭据文件无法使用（/nonexistent.pem）"),
    ],
)
def test_the_detail_of_an_error_survives_the_client(arguments, shown, capsys):
    assert main(["check", "--lang", "zh", "--fail-on", "verdict", *arguments]) == 3
    assert shown in capsys.readouterr().out


def test_an_answer_of_another_program_is_chinese(monkeypatch, capsys):
    body = b'{"api": "v1", "version": "1", "time": 1, "verdict": {"state": "nonsense"}}'
    monkeypatch.setattr(
        SessionClient, "fetch", lambda _: FetchResult(body=body, duration=0.0, certificate_expires=None)
    )
    assert main(["check", "--lang", "zh", "h:1"]) == 3
    assert capsys.readouterr().out.split(maxsplit=2)[2:] == ["不是此版本的 Shardwatch（字段 $.verdict.state）\n"]
