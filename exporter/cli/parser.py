"""The parser of the command line: options and their defaults, and help that reads like a manual page."""

from __future__ import annotations

import argparse
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from exporter import __version__
from exporter.cli import texts

SHELLS = ("bash", "zsh", "fish")
WIDTH = 100  # columns of what argparse does not wrap

AddOptions = Callable[[argparse.ArgumentParser], None]


class Command(Struct, frozen=True):
    """One command: its help, its options, and the function that runs it, as ``module:function``.

    A command without a function belongs to a package above the daemon's and is found by its entry point.
    """

    help: texts.CommandHelp
    add_options: AddOptions
    function: str = ""


def parser() -> argparse.ArgumentParser:
    """Return the parser; its namespace has ``command``, the parser of the command, and ``function``."""
    found = _parser_of(argparse.ArgumentParser, texts.PROGRAM, prog="shardwatch")
    found.add_argument("--version", action="version", version=f"shardwatch {__version__}")
    commands = found.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for name, declared in COMMANDS.items():
        command = _parser_of(commands.add_parser, declared.help, name=name, help=declared.help.summary)
        declared.add_options(command)
        command.set_defaults(command=command, function=declared.function)
    return found


def _parser_of(
    make: Callable[..., argparse.ArgumentParser], page: texts.CommandHelp, **more: Any
) -> argparse.ArgumentParser:
    name = more.pop("name", None)
    return make(
        *([name] if name else []),
        description=textwrap.fill(page.description, WIDTH),
        epilog=_epilog(page),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )


def _epilog(page: texts.CommandHelp) -> str:
    sections = (
        ("examples", page.examples),
        ("files", page.files),
        ("environment", page.environment),
        ("signals", page.signals),
        ("exit codes", page.exit_codes),
    )
    return "\n\n".join(f"{title}:\n{_pairs(pairs)}" for title, pairs in sections if pairs)


def _pairs(pairs: texts.Pairs) -> str:
    """Return short names beside their explanation, long ones above it."""
    lines = []
    for name, meaning in pairs:
        if len(name) <= 20:
            lines.append(textwrap.fill(meaning, WIDTH, initial_indent=f"  {name:<22}", subsequent_indent=" " * 24))
        else:
            lines += [f"  {name}", textwrap.indent(textwrap.fill(meaning, WIDTH - 6), " " * 6)]
    return "\n".join(lines)


# ---------------------------------------------------------------------- options


def _run(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", metavar="FILE", help="YAML configuration; SHARDWATCH_* variables override its keys"
    )
    command.add_argument(
        "--listen", metavar="HOST:PORT", help="address to serve on (default 0.0.0.0:9853, or what FILE says)"
    )


def _demo(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--scenario", metavar="NAME", default="healthy", help="what happens on the node (default %(default)s)")
    add("--listen", metavar="HOST:PORT", help="address to serve on (default 127.0.0.1:9853)")
    add("--seed", type=int, default=0, metavar="NUMBER", help="seed of the simulation (default %(default)s)")
    add(
        "--fault-at",
        type=_seconds,
        metavar="SECONDS",
        help="when the fault begins, after the start (default: as the scenario says)",
    )
    add(
        "--fault-until", type=_seconds, metavar="SECONDS", help="when it is repaired, after the start (default never)"
    )
    add("--node", type=_node, default=0, metavar="N", help="which node of a service whose nodes differ (default 0)")
    add("--list", action="store_true", help="list the scenarios and exit")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError("expected seconds after the start, such as 60")
    return seconds


def _node(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise argparse.ArgumentTypeError("expected a number from 0 to 999999")
    return int(text)


def _once(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help="YAML configuration (default: find GPUs and engines)")


def _diagnose(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("urls", metavar="URL", nargs="*", help="HOST:PORT or URL of a daemon (default: this node)")
    add("--json", action="store_true", help="print JSON")
    _language(command)
    add(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="for each node (default 5); how long the node is read where no daemon runs (default 8)",
    )
    add(
        "--fail-on",
        choices=("warning", "critical", "verdict"),
        default="warning",
        help="lowest severity that fails (default %(default)s); verdict: only a node that should get no jobs",
    )
    _credentials(command)


def _top(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("urls", metavar="URL", nargs="*", help="HOST:PORT or URL of a daemon (default: this node)")
    add("--once", action="store_true", help="print all tables once, as plain text, and exit")
    add(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time between two requests to a node (default %(default)g, at least 0.2)",
    )
    add("--timeout", type=_seconds, default=5.0, metavar="SECONDS", help="for each node (default %(default)g)")
    _language(command)
    _credentials(command)


def _language(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--language", "--lang", dest="lang", choices=("en", "zh"), default="en", help="language (default %(default)s)"
    )


def _credentials(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--ca-file", metavar="FILE", help="authorities of https:// URLs (default: the system's)")
    add("--cert-file", metavar="FILE", help="client certificate (default none)")
    add("--key-file", metavar="FILE", help="key of the client certificate (default none)")
    add("--user", metavar="NAME", help="user name; needs --password-file (default none)")
    add("--password-file", metavar="FILE", help="file that holds the user's password (default none)")


def _check(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="YAML configuration")
    _language(command)


def _config(command: argparse.ArgumentParser) -> None:
    group = command.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--example", dest="print", action="store_const", const="example", help="every key, explained, as YAML"
    )
    group.add_argument("--schema", dest="print", action="store_const", const="schema", help="the JSON Schema")
    group.add_argument(
        "--reference", dest="print", action="store_const", const="reference", help="a table of every key, as Markdown"
    )


def _completion(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=SHELLS, help="the shell")


def _elsewhere(_: argparse.ArgumentParser) -> None:
    """Its own parser has the options."""


COMMANDS: Mapping[str, Command] = {
    "run": Command(texts.RUN, _run, "exporter.cli.daemon:run"),
    "demo": Command(texts.DEMO, _demo, "exporter.cli.demo:run"),
    "once": Command(texts.ONCE, _once, "exporter.cli.once:run"),
    "check": Command(texts.DIAGNOSE, _diagnose, "exporter.cli.check:run"),
    "top": Command(texts.TOP, _top, "exporter.cli.top:run"),
    "check-config": Command(texts.CHECK, _check, "exporter.cli.config:check"),
    "config": Command(texts.CONFIG, _config, "exporter.cli.config:show"),
    "completion": Command(texts.COMPLETION, _completion, "exporter.cli.config:completion"),
    "alerts": Command(texts.ALERTS, _elsewhere),
    "dashboards": Command(texts.DASHBOARDS, _elsewhere),
}
