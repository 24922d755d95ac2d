"""The command line: arguments to a command, and its exit code.

Exit codes: 0 stopped cleanly, 1 failed, 2 invalid usage or configuration; those of ``check`` are its own.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence

from exporter.cli import signals, streams
from exporter.cli.exit_codes import BAD_USAGE, FAILED, UNKNOWN
from exporter.cli.parser import COMMANDS, parser
from exporter.config.suggest import did_you_mean, nearest
from exporter.errors import ReaderGoneError, SettingsError, ShardwatchError, ThreadLimitError

ENTRY_POINTS = "shardwatch.commands"  # of commands in packages that the daemon must not import
DAEMONS = ("run", "demo")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names, None for this process's own; return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        signals.install_early_handlers(words)
    streams.ensure_fds_open()
    if argv is None:
        streams.bound_stderr()
    if list(words[:1]) == ["check"]:
        return _as_plugin(words)
    return _guarded(words)


def _as_plugin(words: Sequence[str]) -> int:
    """Run ``check``; whatever keeps it from judging is unknown, never a warning or critical."""
    try:
        return _guarded(words, failed=UNKNOWN, bad_usage=UNKNOWN)
    except SystemExit as ended:
        raise SystemExit(UNKNOWN if ended.code else ended.code) from None


def _guarded(words: Sequence[str], failed: int = FAILED, bad_usage: int = BAD_USAGE) -> int:
    program = f"shardwatch {words[0]}" if words and words[0] in COMMANDS else "shardwatch"
    try:
        return _main(words)
    except SettingsError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return bad_usage
    except ThreadLimitError:
        limits = (
            "of processes (ulimit -u, TasksMax, the pids limit of the container) or of memory (ulimit -v, ulimit -d)"
        )
        print(f"{program}: no more threads can be started; raise the limit {limits}", file=sys.stderr)
        return failed
    except ReaderGoneError:
        return failed
    except ShardwatchError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return failed
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return failed


def _main(words: Sequence[str]) -> int:
    if words and words[0] in COMMANDS and not COMMANDS[words[0]].function:
        return _run_entry_point(words[0], words[1:])
    try:
        arguments = _parse(words)
    except SystemExit as ended:
        if not ended.code:  # --help or --version
            streams.flush()
        raise
    module, _, function = arguments.function.partition(":")
    if words[0] not in DAEMONS:
        return _call(module, function, arguments)
    gc.disable()  # until tune_memory: nothing that is imported is garbage
    try:
        return _call(module, function, arguments)
    finally:
        gc.enable()


def _call(module: str, function: str, arguments: argparse.Namespace) -> int:
    run: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(module), function)
    return run(arguments)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    program = parser()
    if not words:
        program.error(f"expected a command: {', '.join(COMMANDS)}; see shardwatch --help")
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        program.error(did_you_mean(words[0], COMMANDS, f"unknown command {words[0]!r}"))
    arguments, unknown = program.parse_known_args(words)
    if unknown:
        arguments.command.error(_unknown_arguments(unknown, arguments.command._option_string_actions))
    return arguments


def _unknown_arguments(unknown: Sequence[str], options: Iterable[str]) -> str:
    message = f"unknown arguments: {' '.join(unknown)}"
    meant = nearest(unknown[0].partition("=")[0], options) if unknown[0].startswith("-") else None
    return f"{message}; did you mean {meant}?" if meant else message


def _run_entry_point(name: str, words: Sequence[str]) -> int:
    from importlib.metadata import entry_points  # noqa: PLC0415 - 20 ms that no other command pays

    found = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        print(f"shardwatch {name}: is not installed; in a checkout run python -m {name}", file=sys.stderr)
        return FAILED
    run: Callable[[Sequence[str]], int] = found[0].load()
    try:
        code = run(words)
    except OSError as error:
        if error.filename is not None:  # not standard output
            raise
        streams.give_up(error)
    if sys.stdout is not None:
        streams.flush()
    return code
