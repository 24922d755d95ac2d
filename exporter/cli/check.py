"""``shardwatch check``: what is wrong on one or many nodes, in words and as an exit code."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from exporter.cli import streams
from exporter.cli.check_nodes import DEFAULT, NODE_SECONDS, Answer, ask_all, credentials_of, distinct, own_look
from exporter.cli.check_text import CRITICAL, SEVERITY_CODE, WARNING, report
from exporter.cli.exit_codes import OK, UNKNOWN
from exporter.cli.terminal import printable
from exporter.config.parsers import is_loopback
from exporter.model.finding import NO_REPLICA_SERVES, Severity, VerdictState
from exporter.model.text import Language

VERDICT = "verdict"  # of --fail-on: only a node that should get no jobs fails
_VERDICT_CODE = {VerdictState.DRAIN: WARNING, VerdictState.EJECT: CRITICAL}  # whatever its findings
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")


def run(arguments: argparse.Namespace) -> int:
    """Print what is wrong and return 0 (well), 1 (warning), 2 (critical) or 3 (unknown)."""
    if problem := _usage_problem(arguments):
        arguments.command.error(problem)
    for url in _urls_in_clear_text(arguments):
        print(f"shardwatch check: hint: the password passes in clear text to {url}; use https", file=sys.stderr)
    language = Language(arguments.lang)
    credentials = credentials_of(arguments)
    seconds = NODE_SECONDS if arguments.timeout is None else arguments.timeout
    answers = ask_all(distinct(arguments.urls or [DEFAULT]), language, seconds, credentials)
    # Some seconds know of no XID of before: a scheduler would resume a node that a daemon drained.
    if not arguments.urls and answers[0].is_refused and arguments.fail_on != VERDICT:
        answers = [own_look(language, arguments.timeout)]
    judged = [(answer, code(answer, arguments.fail_on)) for answer in answers]
    if arguments.json:
        streams.write(_json(judged))
    else:
        colour = sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        streams.print_lines(*report(judged, language, colour=colour))
    return worst([code for _, code in judged], arguments.fail_on)


def _usage_problem(arguments: argparse.Namespace) -> str:
    """Return which options do not go together; "" where all do."""
    pairs = {
        "--user": (arguments.user, "--password-file", arguments.password_file),
        "--cert-file": (arguments.cert_file, "--key-file", arguments.key_file),
    }
    for option, (value, other, other_value) in pairs.items():
        if (value is None) != (other_value is None):
            given, missing = (option, other) if other_value is None else (other, option)
            return f"{given} needs {missing}"
    return "--user: a user name has no colon" if ":" in (arguments.user or "") else ""


def _urls_in_clear_text(arguments: argparse.Namespace) -> list[str]:
    """Return the hosts that get the password over http and are not this one."""
    if arguments.user is None:
        return []
    split = [urlsplit(url if "://" in url else f"http://{url}") for url in arguments.urls]
    return [
        printable(parts.netloc.rpartition("@")[2])
        for parts in split
        if parts.scheme == "http" and not is_loopback(parts.hostname or "")
    ]


def worst(codes: Sequence[int], fail_on: str) -> int:
    """Return the gravest code: what is known to be critical counts more than what is not known."""
    for code in (CRITICAL, UNKNOWN, WARNING):
        if code in codes:
            return OK if code == WARNING and fail_on == Severity.CRITICAL.value else code
    return OK


def code(answer: Answer, fail_on: str = Severity.WARNING.value) -> int:
    """Return the exit code of one node: of its gravest finding and its verdict, or of its verdict alone."""
    node = answer.document
    if node is None or answer.problem:
        return UNKNOWN
    state = node.verdict.state
    if fail_on == VERDICT:
        if state is VerdictState.UNKNOWN:
            return UNKNOWN
        # What lies in the engines is theirs to repair: the node's GPUs can take other jobs.
        return OK if state is VerdictState.SERVE or node.verdict.reason == NO_REPLICA_SERVES else CRITICAL
    gravest = max((SEVERITY_CODE.get(finding.severity, OK) for finding in node.findings), default=OK)
    gravest = max(gravest, _VERDICT_CODE.get(state, OK))
    return UNKNOWN if gravest == OK and state is VerdictState.UNKNOWN else gravest


def _json(judged: Sequence[tuple[Answer, int]]) -> bytes:
    documents = [
        {"url": answer.url, "exit": code, "problem": answer.problem, "note": answer.note, "node": answer.document}
        for answer, code in judged
    ]
    text = msgspec.json.format(msgspec.json.encode(documents), indent=2).decode()
    # Text that no terminal should get stands only inside strings, where it may be escaped.
    return _UNPRINTABLE.sub(_escaped, text).encode() + b"\n"


def _escaped(match: re.Match[str]) -> str:
    letter = match[0]
    if letter.isprintable():
        return letter
    units = letter.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
