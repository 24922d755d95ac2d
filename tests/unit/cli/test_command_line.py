"""What can be typed: the help of each command, completion in the shells, the manual page."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from exporter.cli import main, manual
from exporter.cli.completion import script
from exporter.cli.options import known
from exporter.cli.parser import COMMANDS, SHELLS
from exporter.simulate.node import NAMES
from tests.support.tools import tool

ROOT = pathlib.Path(__file__).parents[3]
PAGE = ROOT / "exporter" / "cli" / "shardwatch.1"


def help_of(capsys, *command):
    with pytest.raises(SystemExit) as ended:
        main.main([*command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_answers_like_a_manual(name, capsys):
    text = help_of(capsys, name)
    titles = re.findall(r"^([a-z ]+):$", text, re.MULTILINE)
    assert {"examples", "exit codes"} <= set(titles)
    assert ("files" in titles) == ("FILE" in text)
    assert len(COMMANDS[name][0].description) > 80
    assert COMMANDS[name][0].summary[0].islower()
    assert not [line for line in text.splitlines() if len(line) > 100]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_that_takes_a_value_says_its_default(name):
    silent = [
        option.flags for option in known().commands[name]
        if option.flags and option.metavar and "default" not in option.help and option.flags[0] != "--config"
    ]  # fmt: skip
    assert silent == []


def test_the_examples_are_accepted_by_the_parser():
    for page, _ in COMMANDS.values():
        for example, _ in page.examples:
            words = re.search(r"shardwatch ((?!\.)[^|>)\"]*)", example)[1].split()
            assert main._parser().parse_args(words).run


def test_the_help_of_the_program_names_every_command(capsys):
    text = help_of(capsys)
    for name, (page, _) in COMMANDS.items():
        assert name in text
        assert page.summary.split()[0] in text


def test_completion_is_loaded_by_no_other_command():
    code = "import sys, exporter.cli.main as c\ntry: c.main(['--version'])\nexcept SystemExit: print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "exporter.cli.parser" in loaded
    assert not {"exporter.cli.completion", "exporter.cli.options", "exporter.simulate.node"} & set(loaded)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script_of_a_shell(shell, capsys):
    assert main.main(["completion", shell]) == 0
    assert capsys.readouterr().out == script(shell)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_every_command_option_and_scenario(shell):
    text = script(shell)
    for name, options in known().commands.items():
        assert name in text
        for option in options:
            for flag in option.flags:
                assert flag.lstrip("-") in text
    assert all(scenario in text for scenario in NAMES)


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err


def completed_by_bash(line, tmp_path):
    (tmp_path / "script").write_text(script("bash"))
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    code = (
        f"source {tmp_path}/script; compopt() {{ :; }}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        "_shardwatch; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    said = subprocess.run(["bash", "-uc", code], capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert said.stderr == ""
    return set(said.stdout.split())


def completed_by_fish(line, tmp_path):
    (tmp_path / "script").write_text(script("fish"))
    code = f'source {tmp_path}/script; complete -C"{line}"'
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(
        [tool("fish"), "--no-config", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=30,
    )
    assert said.stderr == ""
    return {line.split("\t")[0] for line in said.stdout.splitlines()}


CASES = [
    ("shardwatch ", {"run", "demo", "once", "check-config", "completion"}),
    ("shardwatch d", {"demo"}),
    ("shardwatch demo --scenario h", {"healthy", "heat", "hang"}),
    ("shardwatch run --l", {"--listen"}),
    ("shardwatch run --config here", {"here.yaml"}),
    ("shardwatch check-config here", {"here.yaml"}),
    ("shardwatch completion ", {"bash", "zsh", "fish"}),
]


@pytest.mark.parametrize("shell", [completed_by_bash, completed_by_fish])
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_a_shell_completes_the_line(shell, line, expected, tmp_path):
    (tmp_path / "here.yaml").touch()
    found = {one for one in shell(line, tmp_path) if not one.startswith("-") or line.endswith("--l")}
    assert found == expected


ZSH = """\
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=; stty -echo; autoload -U compinit; compinit -u -d {folder}/dump; source {folder}/script'
zpty -w z "zstyle ':completion:*' list-prompt ''; LISTMAX=1000; setopt NO_ALWAYS_LAST_PROMPT; bindkey '^I' list-choices"
sleep 0.1
zpty -w -n z '{line}'$'\\t'
zpty -r -m z REPLY '*{last}*'
print -r -- "$REPLY"
zpty -d z
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"), [("shardwatch ", "check-config"), ("shardwatch demo --scenario h", "heat")]
)
def test_zsh_completes_the_line(line, expected, tmp_path):
    zsh = tool("zsh")
    (tmp_path / "script").write_text(script("zsh"))
    code = ZSH.format(folder=tmp_path, line=line, last=expected)
    said = subprocess.run(
        [zsh, "-f", "-c", code], capture_output=True, text=True, timeout=60,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TERM": "dumb", "ZDOTDIR": str(tmp_path)},
    )  # fmt: skip
    assert expected in said.stdout, said.stderr


def test_the_committed_manual_page_is_what_the_parser_says():
    assert PAGE.read_text() == manual.page(), "run make generate"


def test_man_understands_the_manual_page():
    said = subprocess.run(
        [tool("man"), "--warnings", "-l", str(PAGE)], capture_output=True, text=True, timeout=60,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")
    assert "EXIT" not in said.stdout
    for word in ("NAME", "SYNOPSIS", "check-config", "--fault-at SECONDS", "SIGUSR1", "SHARDWATCH_*"):
        assert word in said.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --bogus", "unrecognized arguments: --bogus"),
        ("run extra", "unrecognized arguments: extra"),
        ("check-config a b", "unrecognized arguments: b"),
        ("demo --fault-at nan", "--fault-at: expected seconds"),
        ("demo --fault-at -5", "--fault-at: expected seconds"),
        ("demo --fault-until inf", "--fault-until: expected seconds"),
        ("demo --scenario heat --fault-at 10 --fault-until 10", "before it begins"),
        ("demo --scenario heat --fault-until 0", "before it begins"),
        ("demo --node -1", "--node: expected a number from 0"),
        ("demo --seed x", "invalid int value"),
    ],
)
def test_wrong_usage_is_answered_with_the_usage_of_that_command(line, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(line.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: shardwatch {line.split()[0]} ") and said in error


@pytest.mark.parametrize("command", ["run --config", "once --config", "check-config"])
def test_a_configuration_that_is_not_there_is_not_looked_for_beside_itself(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main([*command.split(), "missing.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("shardwatch: missing.yaml: 1 problem\n  cannot be opened: No such file")
    assert "folder of the configuration" not in error
    assert main.main([*command.split(), ""]) == 2
    assert "unset" in capsys.readouterr().err


def test_a_limit_of_threads_is_said_in_a_sentence(monkeypatch, capsys):
    def out_of_threads(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(main, "_main", out_of_threads)
    assert main.main(["once"]) == main.FAILED
    said = capsys.readouterr().err
    assert "ulimit -u" in said and "Traceback" not in said


def test_any_other_error_of_that_kind_is_a_bug_and_shown_whole(monkeypatch):
    def broken(_):
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(main, "_main", broken)
    with pytest.raises(RuntimeError, match="changed size"):
        main.main(["once"])
