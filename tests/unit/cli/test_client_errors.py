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
    ("reason", "message", "shown"),
    [
        ("http_404", "answered with status 404", "应答状态码为 404；"),
        ("http_4xx", "answered with status 499", "应答状态码为 499"),
        ("refused", "connection refused; is the server running on that port?", "连接被拒绝；服务是否在该端口上运行？"),
        ("timeout", "not done within 2.5 s, stopped while connecting", "未在时限内完成（2.5 秒）"),
        ("redirect", "redirected to http://other:1, another origin; configure that URL if it is right", "（http://other:1）"),
        ("too_large", "the page is larger than 1024 bytes", "应答过大（上限 1024 字节）"),
        ("invented", "something else", "请求失败（invented）"),
    ],
)  # fmt: skip
def test_a_failed_exchange_is_chinese(monkeypatch, capsys, reason, message, shown):
    def fail(_):
        raise EndpointError(reason, f"http://h:1/api/v1/node: {message}")

    monkeypatch.setattr(SessionClient, "fetch", fail)
    assert main(["check", "--lang", "zh", "--fail-on", "verdict", "h:1"]) == 3
    line = capsys.readouterr().out
    assert shown in line
    assert message not in line
    assert message in client_errors.explain(EndpointError(reason, message), Language.ENGLISH)


def test_an_answer_of_another_program_is_chinese(monkeypatch, capsys):
    body = b'{"api": "v1", "version": "1", "time": 1, "verdict": {"state": "nonsense"}}'
    monkeypatch.setattr(
        SessionClient, "fetch", lambda _: FetchResult(body=body, duration=0.0, certificate_expires=None)
    )
    assert main(["check", "--lang", "zh", "h:1"]) == 3
    assert capsys.readouterr().out.split(maxsplit=2)[2:] == ["不是此版本的 Shardwatch（字段 $.verdict.state）\n"]
