"""``shardwatch check``: what is wrong on one or many nodes, in words and as an exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec import Struct

from exporter.cli import streams
from exporter.cli.exit_codes import OK, UNKNOWN
from exporter.cli.setup import read_settings
from exporter.errors import ShardwatchError, SourceError
from exporter.model.finding import Severity, VerdictState
from exporter.model.text import Language, Text
from exporter.render import api

WARNING, CRITICAL = 1, 2  # with OK and UNKNOWN the codes that Nagios, Icinga and Slurm's health check expect
DEFAULT = "http://127.0.0.1:9853"
OWN_LOOK_SECONDS = 8.0  # several readings of a second, so that rates and progress can be judged
_AT_ONCE = 32  # nodes that are asked at the same time
_CODE = {Severity.CRITICAL: CRITICAL, Severity.WARNING: WARNING, Severity.INFO: OK}
_WORDS = {
    CRITICAL: Text("CRITICAL", "严重"),
    WARNING: Text("WARNING", "警告"),
    UNKNOWN: Text("UNKNOWN", "未知"),
    OK: Text("OK", "正常"),
}
_SEVERITIES = {
    Severity.CRITICAL: _WORDS[CRITICAL],
    Severity.WARNING: _WORDS[WARNING],
    Severity.INFO: Text("INFO", "提示"),
}
_COLOURS = {CRITICAL: "31;1", WARNING: "33;1", UNKNOWN: "35;1", OK: "32"}
_GIB = 2**30


class Answer(Struct, frozen=True):
    """One node: its document, or why there is none."""

    url: str
    document: api.NodeDocument | None
    problem: str = ""


class DaemonCredentials(Struct, frozen=True, kw_only=True):
    """What the daemons are verified against, and as whom they are asked."""

    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    username: str | None
    password_file: str | None


def run(arguments: argparse.Namespace) -> int:
    """Print what is wrong and return 0 (well), 1 (warning), 2 (critical) or 3 (unknown)."""
    language = Language(arguments.lang)
    credentials = DaemonCredentials(
        ca_file=arguments.ca_file,
        cert_file=arguments.cert_file,
        key_file=arguments.key_file,
        username=arguments.user,
        password_file=arguments.password_file,
    )
    answers = _ask_all(arguments.urls or [DEFAULT], language, arguments.timeout, credentials)
    if not arguments.urls and answers[0].document is None:
        answers = [_own_look(language)]
    codes = [_code(answer) for answer in answers]
    if arguments.json:
        documents = [
            {"url": answer.url, "exit": code, "problem": answer.problem, "node": answer.document}
            for answer, code in zip(answers, codes, strict=True)
        ]
        streams.write(msgspec.json.format(msgspec.json.encode(documents), indent=2) + b"\n")
    else:
        colour = sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        paint = _painter(enabled=colour)
        lines = [
            line
            for answer, code in zip(answers, codes, strict=True)
            for line in _node_lines(answer, code, language, paint)
        ]
        streams.print_lines(*lines)
    return _worst(codes, arguments.fail_on)


def _worst(codes: Sequence[int], fail_on: str) -> int:
    """Return the gravest code: what is known to be critical counts more than what is not known."""
    for code in (CRITICAL, UNKNOWN, WARNING):
        if code in codes:
            return OK if code == WARNING and fail_on == Severity.CRITICAL.value else code
    return OK


def _code(answer: Answer) -> int:
    if answer.document is None:
        return UNKNOWN
    gravest = max((_CODE.get(finding.severity, OK) for finding in answer.document.findings), default=OK)
    if gravest == OK and answer.document.verdict.state is VerdictState.UNKNOWN:
        return UNKNOWN
    return gravest


# ---------------------------------------------------------------------- asking


def _ask_all(urls: Sequence[str], language: Language, timeout: float, credentials: DaemonCredentials) -> list[Answer]:
    with ThreadPoolExecutor(min(_AT_ONCE, len(urls)), thread_name_prefix="check") as pool:
        return list(pool.map(lambda url: _ask(url, language, timeout, credentials), urls))


def _ask(url: str, language: Language, timeout: float, credentials: DaemonCredentials) -> Answer:
    from exporter.http.client.client import SessionClient  # noqa: PLC0415 - the own look needs none of it
    from exporter.http.client.target import Target  # noqa: PLC0415

    base = url if "://" in url else f"http://{url}"
    url = _without_userinfo(url)
    try:
        location = f"{base.rstrip('/')}/api/v1/node?lang={language.value}"
        client = SessionClient(
            Target(
                url=location,
                timeout=timeout,
                ca_file=credentials.ca_file,
                cert_file=credentials.cert_file,
                key_file=credentials.key_file,
                username=credentials.username,
                password_file=credentials.password_file,
            )
        )
        with contextlib.closing(client):
            return Answer(url, msgspec.json.decode(client.fetch().body, type=api.NodeDocument))
    except SourceError as error:
        return Answer(url, None, str(error))
    except (msgspec.MsgspecError, RecursionError) as error:  # a finding may have causes without end
        return Answer(url, None, f"is no Shardwatch of this version: {error}")
    except (ShardwatchError, ValueError) as error:
        return Answer(url, None, str(error))


def _without_userinfo(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _own_look(language: Language) -> Answer:
    """Read the node for some seconds without a daemon."""
    from exporter.runtime.app import App  # noqa: PLC0415

    app = App(read_settings(None))
    app.start()
    try:
        deadline = time.monotonic() + OWN_LOOK_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.1)
        snapshot = app.publisher.snapshot
    finally:
        app.stop()
    if snapshot is None or not (snapshot.cards or snapshot.replicas):
        return Answer("this node", None, "no daemon answers here, and no GPU and no engine was found")
    return Answer("this node", api.node(snapshot, language))


# ---------------------------------------------------------------------- words


def _painter(*, enabled: bool) -> Callable[[int, str], str]:
    def paint(code: int, text: str) -> str:
        return f"\x1b[{_COLOURS[code]}m{text}\x1b[0m" if enabled else text

    return paint


def _node_lines(answer: Answer, code: int, language: Language, paint: Callable[[int, str], str]) -> Iterator[str]:
    word = paint(code, _WORDS[code].in_(language))
    node = answer.document
    if node is None:
        yield f"{word}  {clean(answer.url)}  {clean(answer.problem)}"
        return
    models = sorted({clean(gpu.name) for gpu in node.gpus if gpu.name})
    up = sum(gpu.up for gpu in node.gpus)
    age = max(0.0, time.time() - node.time)
    parts = [
        clean(answer.url),
        f"{up}/{len(node.gpus)} GPUs" + (f" {models[0]}" if len(models) == 1 else ""),
        *([f"driver {clean(node.driver['driver_version'])}"] if node.driver.get("driver_version") else []),
        Text(f"{len(node.replicas)} replicas", f"{len(node.replicas)} 个副本").in_(language),
        Text(f"data {age:.0f} s old", f"数据 {age:.0f} 秒前").in_(language),
    ]
    yield f"{word}  {'  '.join(parts)}"
    for finding in node.findings:
        yield from _finding_lines(finding, language, paint, "  ")


def _finding_lines(
    finding: api.FindingDocument, language: Language, paint: Callable[[int, str], str], indent: str
) -> Iterator[str]:
    code = _CODE.get(finding.severity, OK)
    word = _SEVERITIES.get(finding.severity, _SEVERITIES[Severity.INFO]).in_(language)
    yield f"{indent}{paint(code, word)} {clean(finding.summary)}"
    inner = indent + "    "
    yield from _cause_lines(finding, language, inner)
    if finding.evidence:
        yield f"{inner}{Text('evidence', '依据').in_(language)}: {_evidence(finding)}"
    heading = Text("do", "处理").in_(language)
    if len(finding.steps) == 1:
        yield f"{inner}{heading}: {clean(finding.steps[0])}"
    else:
        yield f"{inner}{heading}:"
        yield from (f"{inner}  {number}. {clean(step)}" for number, step in enumerate(finding.steps, 1))
    yield f"{inner}{Text('runbook', '运行手册').in_(language)}: {clean(finding.runbook)}"


def _cause_lines(finding: api.FindingDocument, language: Language, indent: str) -> Iterator[str]:
    for cause in finding.causes:
        yield f"{indent}{Text('cause', '原因').in_(language)}: {clean(cause.summary)}"
        if cause.evidence:
            yield f"{indent}  {_evidence(cause)}"
        yield from _cause_lines(cause, language, indent + "  ")


def _evidence(finding: api.FindingDocument) -> str:
    return "  ".join(
        f"{clean(evidence.label or evidence.name)} {_value(evidence)}" for evidence in finding.evidence[:12]
    )


def _value(evidence: api.EvidenceDocument) -> str:
    value = evidence.value
    if isinstance(value, str):
        return clean(value)
    shown = {
        "ratio": lambda: f"{value:.2f}" if value > 1 else f"{value:.0%}",
        "bytes": lambda: f"{value / _GIB:.1f} GiB",
        "hertz": lambda: f"{value / 1e6:.0f} MHz",
        "celsius": lambda: f"{value:.0f} °C",
        "watts": lambda: f"{value:.0f} W",
        "seconds": lambda: f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s",
    }
    return shown.get(evidence.unit, lambda: f"{value:g}")()


def clean(text: str) -> str:
    """Return text that cannot move the cursor or reverse the line; names and labels may be hostile."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)[:300]
