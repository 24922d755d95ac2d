"""The commands and options that a parser knows, as plain records for whoever writes completion or a manual."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from exporter.cli import parser


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option (``flags``) or operand (no flags); ``values`` are those that can be listed."""

    flags: tuple[str, ...]
    metavar: str  # "" where it takes no value
    help: str
    values: tuple[str, ...] = ()

    @property
    def takes_file(self) -> bool:
        """Whether its value is the name of a file."""
        return self.metavar == "FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Everything that may stand after ``shardwatch``."""

    options: tuple[Option, ...]
    commands: Mapping[str, tuple[Option, ...]]


def known() -> Known:
    """Read the parser; the scenarios of the demo are listed, since their names are what is hard to remember."""
    from exporter.simulate.node import NAMES  # noqa: PLC0415 - no other command needs the simulation

    program = parser.parser(dict.fromkeys(parser.COMMANDS, lambda _: 0))
    (commands,) = (action for action in program._actions if isinstance(action, argparse._SubParsersAction))
    return Known(
        options=tuple(_option(action) for action in program._actions if action is not commands),
        commands={
            name: tuple(_option(action, scenarios=NAMES) for action in command._actions)
            for name, command in commands.choices.items()
        },
    )


def _option(action: argparse.Action, scenarios: tuple[str, ...] = ()) -> Option:
    values = tuple(map(str, action.choices or ()))
    if "--scenario" in action.option_strings:
        values = scenarios
    metavar = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    text = (action.help or "") % {"default": action.default}
    return Option(flags=tuple(action.option_strings), metavar=metavar, help=text, values=values)
