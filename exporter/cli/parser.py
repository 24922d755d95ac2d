"""The parser of the command line: options and their defaults, and help that answers like a manual page."""

from __future__ import annotations

import argparse
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from exporter import __version__
from exporter.cli import texts

Command = Callable[[argparse.Namespace], int]
SHELLS = ("bash", "zsh", "fish")
WIDTH = 100  # columns of what argparse does not wrap


def parser(run: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Give the parser; ``run`` holds what each command does, by its name.

    What it reads has ``run``, and ``refuse``, which ends the process with the command's usage and a message.
    """
    found = _parser_of(argparse.ArgumentParser, texts.PROGRAM, prog="shardwatch")
    found.add_argument("--version", action="version", version=f"shardwatch {__version__}")
    commands = found.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for name, (page, options) in COMMANDS.items():
        command = _parser_of(commands.add_parser, page, name=name, help=page.summary)
        options(command)
        command.set_defaults(run=run[name], refuse=command.error)
    return found


def _parser_of(
    make: Callable[..., argparse.ArgumentParser], page: texts.Page, **more: Any
) -> argparse.ArgumentParser:
    name = more.pop("name", None)
    return make(
        *([name] if name else []),
        description=textwrap.fill(page.description, WIDTH),
        epilog=_epilog(page),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )


def _epilog(page: texts.Page) -> str:
    sections = (
        ("examples", page.examples),
        ("files", page.files),
        ("environment", page.environment),
        ("signals", page.signals),
        ("exit codes", page.exit_codes),
    )
    return "\n\n".join(f"{title}:\n{_pairs(pairs)}" for title, pairs in sections if pairs)


def _pairs(pairs: tuple[tuple[str, str], ...]) -> str:
    """Give short names beside their explanation, long ones above it."""
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
        "--config", metavar="FILE", help="YAML configuration; SHARDWATCH_* variables override scalars"
    )
    command.add_argument(
        "--listen", metavar="HOST:PORT", help="address to serve on (default 0.0.0.0:9853, or what FILE says)"
    )


def _demo(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--scenario", metavar="NAME", default="healthy", help="what happens on the node (default %(default)s)")
    add("--listen", metavar="HOST:PORT", help="address to serve on (default 127.0.0.1:9853)")
    add("--seed", type=int, default=0, metavar="NUMBER", help="another seed is another day (default %(default)s)")
    add("--fault-at", type=_seconds, metavar="SECONDS", help="when the scenario's fault begins (default: as it says)")
    add("--fault-until", type=_seconds, metavar="SECONDS", help="when it is mended (default never)")
    add("--node", type=_node, default=0, metavar="N", help="which node, where a service's nodes differ (default 0)")
    add("--list", action="store_true", help="list the scenarios and end")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError("expected seconds from the start, such as 60")
    return seconds


def _node(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise argparse.ArgumentTypeError("expected a number from 0 to 999999")
    return int(text)


def _once(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help="YAML configuration (default: find cards and engines)")


def _check(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="YAML configuration")


def _completion(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=SHELLS, help="whose script")


COMMANDS: Mapping[str, tuple[texts.Page, Callable[[argparse.ArgumentParser], None]]] = {
    "run": (texts.RUN, _run),
    "demo": (texts.DEMO, _demo),
    "once": (texts.ONCE, _once),
    "check-config": (texts.CHECK, _check),
    "completion": (texts.COMPLETION, _completion),
}
