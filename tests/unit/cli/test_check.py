"""The text of ``shardwatch check`` and its exit codes, without a daemon."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from exporter.cli import check
from exporter.cli.main import main
from exporter.http.client.client import SessionClient
from exporter.model.finding import Severity, SubjectKind
from exporter.model.text import Language
from exporter.render import api

CAUSE = api.FindingDocument(
    id="GpuLost", severity=Severity.CRITICAL, subject_kind=SubjectKind.GPU, subject="GPU-6", label="GPU 6", summary="GPU 6 掉卡",
    action="", runbook="GpuLost",
    evidence=(api.EvidenceDocument(name="xid", value="79（GPU 已从总线掉落）", label="XID"),),
)  # fmt: skip
FINDING = api.FindingDocument(
    id="EngineFrozen", severity=Severity.CRITICAL, subject_kind=SubjectKind.REPLICA, subject="chat-b", label="chat-b",
    summary="chat-b 没有进展", action="", runbook="EngineFrozen", steps=("摘除 chat-b。", "重启节点。"), causes=(CAUSE,),
    evidence=(api.EvidenceDocument(name="requests_running", value=24.0, label="运行中"),),
)  # fmt: skip


def lines(finding, language):
    return [line.strip() for line in check._finding_lines(finding, language, lambda _, text: text, "")]


def test_chinese_lines_have_no_english_word_of_ours():
    assert lines(FINDING, Language.CHINESE) == [
        "严重 chat-b 没有进展",
        "原因: GPU 6 掉卡",
        "XID 79（GPU 已从总线掉落）",
        "依据: 运行中 24",
        "处理:",
        "1. 摘除 chat-b。",
        "2. 重启节点。",
        "运行手册: EngineFrozen",
    ]


def test_a_single_step_stands_on_its_line():
    finding = api.FindingDocument(
        id="GpuHot", severity=Severity.INFO, subject_kind=SubjectKind.GPU, subject="", label="", summary="hot", action="",
        runbook="GpuHot", steps=("Check the fan.",),
    )  # fmt: skip
    assert lines(finding, Language.ENGLISH) == ["INFO hot", "do: Check the fan.", "runbook: GpuHot"]


@pytest.mark.parametrize(
    "arguments", [["--fail-on", "never"], ["--no-such-option"], ["--timeout", "soon"], ["--language", "fr"]]
)
def test_invalid_usage_is_unknown_and_never_critical(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    assert ended.value.code == 3
    assert "usage" in capsys.readouterr().err


def test_help_succeeds(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", "--help"])
    assert ended.value.code in (0, None)
    assert "exit codes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("codes", "fail_on", "worst"),
    [
        ([0, 0], "warning", 0),
        ([0, 1], "warning", 1),
        ([0, 1], "critical", 0),
        ([3, 1], "warning", 3),
        ([3, 2, 1], "critical", 2),
        ([3, 0], "critical", 3),
    ],
)
def test_the_worst_node_decides_and_unknown_counts_less_than_critical(codes, fail_on, worst):
    assert check._worst(codes, fail_on) == worst


@pytest.fixture
def node(monkeypatch):
    """Let every node answer with the body that is set."""
    body = {}
    monkeypatch.setattr(SessionClient, "fetch", lambda _: SimpleNamespace(body=body[""]))
    return lambda text: body.update({"": text})


HEAD = b'{"api":"v1","version":"1","time":1,"verdict":{"state":"serve"},"findings":['
FIELDS = b'{"id":"a","severity":"info","subject_kind":"gpu","subject":"","label":"","summary":"","action":"","runbook":"","causes":['


@pytest.mark.parametrize(
    "text",
    [
        HEAD + FIELDS * 900 + b"]}" * 900 + b"]}",
        HEAD.replace(b'"v1"', b'"v2"') + b"]}",
        HEAD + FIELDS.replace(b'"info"', b'"fatal"') + b"]}]}",
    ],
    ids=["deep", "other version", "unknown severity"],
)
def test_a_document_that_is_not_understood_is_one_unknown_line(node, text, capsys):
    node(text)
    assert main(["check", "http://h:1"]) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("UNKNOWN  http://h:1  is no Shardwatch of this version")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_password_in_an_address_is_not_printed(options, node, capsys):
    node(b"{}")
    main(["check", *options, "http://user:s3c@ret@h:1", "user:s3c@h:1"])
    printed = "".join(capsys.readouterr())
    assert "h:1" in printed
    assert "s3c" not in printed


def test_no_word_of_a_node_or_an_address_reaches_the_terminal_as_a_control_character(node, capsys):
    node(HEAD + FIELDS.replace(b'"runbook":""', b'"runbook":"\\u001b[2J"') + b"]}]}")
    main(["check", "http://h:1/\x1b[2J"])
    assert "\x1b" not in "".join(capsys.readouterr())
