"""Scripts that complete ``shardwatch`` in a shell, written from the parser; they run nothing while completing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from exporter.cli.options import Known, Option, known
from exporter.cli.parser import COMMANDS

_BASH = """\
_shardwatch() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $word in
      %(names)s) command=$word; break ;;
    esac
  done
  COMPREPLY=()
  case $command:$previous in
%(values)s
  esac
  case $command in
%(words)s
  esac
}
complete -F _shardwatch shardwatch
"""


def script(shell: str) -> str:
    """Give the script for ``bash``, ``zsh`` or ``fish``."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](known())


def _bash(found: Known) -> str:
    values, words = [], [f"    '') {_reply([*found.commands, *_flags(found.options)])} ;;"]
    for name, options in found.commands.items():
        for option in options:
            if option.flags and option.metavar:
                pattern = "|".join(f"{name}:{flag}" for flag in option.flags)
                values.append(f"    {pattern}) {_value(option)}; return ;;")
        operands = [option for option in options if not option.flags]
        listed = [value for option in operands for value in option.values]
        files = any(option.takes_file for option in operands)
        more = "; [[ $current == -* ]] || " + _FILES if files else ""
        words.append(f"    {name}) {_reply([*listed, *_flags(options)])}{more} ;;")
    return _BASH % {"names": "|".join(found.commands), "values": "\n".join(values), "words": "\n".join(words)}


_FILES = 'mapfile -t COMPREPLY < <(compgen -f -- "$current"); compopt -o filenames'


def _value(option: Option) -> str:
    return _FILES if option.takes_file else _reply(option.values)


def _reply(words: Iterable[str]) -> str:
    return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(words))} -- "$current")'


def _flags(options: Iterable[Option]) -> Iterator[str]:
    return (flag for option in options for flag in option.flags)


# ---------------------------------------------------------------------- zsh


def _zsh(found: Known) -> str:
    commands = " ".join(_quoted(f"{name}:{COMMANDS[name][0].summary}") for name in found.commands)
    cases = [
        f"    {name}) _arguments -S {' '.join(_zsh_argument(option) for option in options)} ;;"
        for name, options in found.commands.items()
    ]
    program = " ".join(_zsh_argument(option) for option in found.options)
    lines = [
        "#compdef shardwatch",
        "_shardwatch() {",
        "  local context state state_descr line",
        "  typeset -A opt_args",
        f"  _arguments -C -S {program} '1: :->command' '*:: :->operands' && return",
        "  case $state in",
        f"  command) local -a commands; commands=({commands}); _describe command commands ;;",
        "  operands) case $line[1] in",
        *cases,
        "    esac ;;",
        "  esac",
        "}",
        "# Works loaded by compinit as well as by eval.",
        'if [ "$funcstack[1]" = "_shardwatch" ]; then _shardwatch "$@"; else compdef _shardwatch shardwatch; fi',
    ]
    return "\n".join(lines) + "\n"


def _zsh_argument(option: Option) -> str:
    help_text = option.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
    action = "_files" if option.takes_file else f"({' '.join(option.values)})"
    if not option.flags:
        return _quoted(f"1:{option.metavar.lower()}:{action}")
    value = f":{option.metavar.replace(':', ' ')}:{action}" if option.metavar else ""
    return " ".join(_quoted(f"{flag}[{help_text}]{value}") for flag in option.flags)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# ---------------------------------------------------------------------- fish


def _fish(found: Known) -> str:
    lines = ["complete -c shardwatch -f"]
    lines += [_fish_option(option, "__fish_use_subcommand") for option in found.options]
    for name, options in found.commands.items():
        summary = _fish_quoted(COMMANDS[name][0].summary)
        lines.append(f"complete -c shardwatch -n __fish_use_subcommand -a {name} -d {summary}")
        lines += [_fish_option(option, f"'__fish_seen_subcommand_from {name}'") for option in options]
    return "\n".join(lines) + "\n"


def _fish_option(option: Option, when: str) -> str:
    parts = [f"complete -c shardwatch -n {when}"]
    parts += [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    if option.metavar and option.flags:
        parts.append("-r" if option.takes_file else "-x")
    if option.takes_file:
        parts.append("-F")
    elif option.values:
        parts.append(f"-a {_fish_quoted(' '.join(option.values))}")
    return " ".join([*parts, f"-d {_fish_quoted(option.help)}"])


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
