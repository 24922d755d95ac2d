"""What can be typed: the help of each command, suggestions, completion in the shells, the manual page."""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from exporter.cli import generate, main
from exporter.cli.daemon import print_urls
from exporter.cli.parser import COMMANDS, SHELLS, parser
from exporter.config import settings
from exporter.errors import ThreadLimitError
from exporter.simulate.node import NAMES
from tests.support.tools import tool

ROOT = pathlib.Path(__file__).parents[3]
CLI = ROOT / "exporter" / "cli"
PAGE = CLI / "shardwatch.1"
OURS = [name for name, command in COMMANDS.items() if command.function]


def help_of(capsys, *command):
    with pytest.raises(SystemExit) as ended:
        main.main([*command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", OURS)
def test_the_help_of_a_command_answers_like_a_manual(name, capsys):
    text = help_of(capsys, name)
    titles = re.findall(r"^([a-z ]+):$", text, re.MULTILINE)
    assert {"examples", "exit codes"} <= set(titles)
    assert ("files" in titles) == (" FILE" in text)
    assert len(COMMANDS[name].help.description) > 60
    assert COMMANDS[name].help.summary[0].islower()
    assert not [line for line in text.splitlines() if len(line) > 100]


def commands():
    _, names = generate.program()
    return names


@pytest.mark.parametrize("name", OURS)
def test_every_option_that_takes_a_value_says_its_default(name):
    silent = [
        action.option_strings for action in commands()[name]._actions
        if action.option_strings and action.nargs != 0 and "default" not in action.help
        and "--config" not in action.option_strings
    ]  # fmt: skip
    assert silent == []


def test_the_examples_are_accepted_by_the_parser():
    parsers = commands()
    for name, command in COMMANDS.items():
        assert command.help.examples
        for example, _ in command.help.examples:
            first, *words = re.search(r"shardwatch ((?!\.)[^|>)\"]*)", example)[1].split()
            assert first == name
            assert parsers[name].parse_args(words)


def test_the_help_of_the_program_names_every_command(capsys):
    text = help_of(capsys)
    for name, command in COMMANDS.items():
        assert name in text
        assert command.help.summary.split()[0] in text


def test_no_command_loads_what_only_generates_its_completion():
    code = "import sys, exporter.cli.main as c\ntry: c.main(['--version'])\nexcept SystemExit: print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "exporter.cli.parser" in loaded
    assert not {"exporter.cli.generate", "shtab", "exporter.simulate.node", "alerts", "dashboards"} & set(loaded)


# --- suggestions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chek-config x", "unknown command 'chek-config'; did you mean check-config?"),
        ("check_config x", "did you mean check-config?"),
        ("deme", "did you mean demo?"),
        ("alert", "did you mean alerts?"),
        ("rnu", "did you mean run?"),
        ("rum", "did you mean run?"),
        ("serve", "expected one of: run, demo, once"),
        ("demo --scenaro heat", "did you mean --scenario?"),
        ("run --konfig=x", "did you mean --config?"),
    ],
)
def test_a_word_that_is_close_to_a_known_one_is_answered_with_that(line, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(line.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [("power", "did you mean powercap?"), ("hot", "expected one of: healthy, mixed"), ("Heat", "did you mean heat?")],
)
def test_a_scenario_that_does_not_exist_is_answered_with_the_nearest(name, message, capsys):
    assert main.main(["demo", "--scenario", name]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--language", "--lang"])
def test_check_names_its_language_as_the_other_commands_do(option):
    assert main._parse(["check", option, "zh"]).lang == "zh"


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7")])
def test_where_to_look_is_printed_with_the_command_that_diagnoses(host, address, capsys):
    print_urls(host, 7, ("Watch x.",))
    assert capsys.readouterr().out.splitlines() == [
        f"metrics    http://{address}/metrics",
        f"node page  http://{address}/",
        f"diagnosis  shardwatch check {address}",
        "Watch x.",
        "stop with Ctrl-C",
    ]


# --- completion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shardwatch.1", *(f"completion.{shell}" for shell in SHELLS)])
def test_the_committed_files_are_what_the_parser_makes(name):
    assert (CLI / name).read_text() == generate.files()[name], "run make generate"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script_of_a_shell(shell, capsys):
    assert main.main(["completion", shell]) == 0
    assert capsys.readouterr().out == (CLI / f"completion.{shell}").read_text()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_every_command_option_and_scenario(shell):
    text = (CLI / f"completion.{shell}").read_text()
    for name, command in commands().items():
        assert name in text
        for action in command._actions:
            for flag in action.option_strings:
                assert flag.lstrip("-") in text
    assert all(scenario in text for scenario in NAMES)


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err


def completed_by_bash(line, tmp_path):
    words = line.split(" ")
    quoted = " ".join(f"'{argument}'" for argument in words)
    code = (
        f"source {CLI}/completion.bash; compopt() {{ :; }}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        "_shtab_shardwatch; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-uc", code], capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.stderr == ""
    return set(done.stdout.split())


def completed_by_fish(line, tmp_path):
    code = f'source {CLI}/completion.fish; complete -C"{line}"'
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [tool("fish"), "--no-config", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=30,
    )
    assert done.stderr == ""
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


CASES = [
    ("shardwatch ", set(COMMANDS)),
    ("shardwatch d", {"demo", "dashboards"}),
    ("shardwatch demo --scenario h", {"healthy", "heat", "hang"}),
    ("shardwatch run --l", {"--listen"}),
    ("shardwatch alerts --l", {"--language"}),
    ("shardwatch run --config here", {"here.yaml"}),
    ("shardwatch check-config here", {"here.yaml"}),
    ("shardwatch completion ", {"bash", "zsh", "fish"}),
]


@pytest.mark.parametrize("shell", [completed_by_bash, completed_by_fish])
@pytest.mark.parametrize(("line", "expected"), CASES)
def test_a_shell_completes_the_line(shell, line, expected, tmp_path):
    (tmp_path / "here.yaml").touch()
    completions = {
        argument for argument in shell(line, tmp_path) if not argument.startswith("-") or line.endswith("--l")
    }
    assert completions == expected


ZSH = """\
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=; stty -echo; autoload -U compinit; {load}'
zpty -w z "zstyle ':completion:*' list-prompt ''; LISTMAX=1000; setopt NO_ALWAYS_LAST_PROMPT; bindkey '^I' list-choices"
sleep 0.1
zpty -w -n z '{line}'$'\\t'
zpty -r -m z REPLY '*{last}*'
print -r -- "$REPLY"
zpty -d z
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "load", ['compinit -u -d {0}/dump; eval "$(<{0}/_shardwatch)"', "fpath=({0} $fpath); compinit -u -d {0}/dump"]
)
@pytest.mark.parametrize(
    ("line", "expected"), [("shardwatch ", "check-config"), ("shardwatch demo --scenario h", "heat")]
)
def test_zsh_completes_the_line_whether_the_script_is_evaluated_or_found(load, line, expected, tmp_path):
    zsh = tool("zsh")
    (tmp_path / "_shardwatch").write_text((CLI / "completion.zsh").read_text())
    code = ZSH.format(load=load.format(tmp_path), line=line, last=expected)
    done = subprocess.run(
        [zsh, "-f", "-c", code], capture_output=True, text=True, timeout=60,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TERM": "dumb", "ZDOTDIR": str(tmp_path)},
    )  # fmt: skip
    assert expected in done.stdout, done.stderr


def test_man_understands_the_manual_page():
    done = subprocess.run(
        [tool("man"), "--warnings", "-l", str(PAGE)], capture_output=True, text=True, timeout=60,
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for heading in (
        "NAME",
        "SYNOPSIS",
        "check-config",
        "--fault-at SECONDS",
        "EXIT STATUS",
        "SIGUSR1",
        "SHARDWATCH_*",
    ):
        assert heading in done.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run --bogus", "unknown arguments: --bogus"),
        ("run extra", "unknown arguments: extra"),
        ("check-config a b", "unknown arguments: b"),
        ("demo --fault-at nan", "--fault-at: expected seconds"),
        ("demo --fault-at -5", "--fault-at: expected seconds"),
        ("demo --fault-until inf", "--fault-until: expected seconds"),
        ("demo --scenario heat --fault-at 10 --fault-until 10", "before it begins"),
        ("demo --scenario heat --fault-until 0", "before it begins"),
        ("demo --scenario pcie --fault-at 10", "scenario pcie has no fault"),
        ("demo --scenario skew --fault-until 10", "scenario skew has no fault"),
        ("demo --node -1", "--node: expected a number from 0"),
        ("demo --seed x", "invalid int value"),
    ],
)
def test_wrong_usage_is_answered_with_the_usage_of_that_command(line, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(line.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: shardwatch {line.split()[0]} ") and message in error


@pytest.mark.parametrize("command", ["run --config", "once --config", "check-config"])
def test_a_configuration_that_is_not_there_is_not_looked_for_beside_itself(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main([*command.split(), "missing.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"shardwatch {command.split()[0]}: missing.yaml: 1 problem\n  cannot be opened: No such file"
    )
    assert "folder of the configuration" not in error
    assert main.main([*command.split(), ""]) == 2
    assert "unset" in capsys.readouterr().err


def test_a_configuration_that_sets_nothing_is_valid_and_says_so(capsys, tmp_path):
    empty, other = tmp_path / "empty.yaml", tmp_path / "other.yaml"
    empty.write_text("# nothing yet\n")
    other.write_text("listen: 127.0.0.1:9999\n")
    assert main.main(["check-config", str(empty)]) == main.main(["check-config", str(other)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(": ", 1)[1] for line in said if "sets nothing" in line] == [
        "hint: the file sets nothing, so the defaults apply; shardwatch config --example shows every key"
    ]
    assert not any("sets nothing" in line for line in said if str(other) in line)


def test_without_a_command_those_that_exist_are_listed(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert all(name in error for name in COMMANDS) and "shardwatch --help" in error


def test_a_limit_of_threads_is_said_in_a_sentence(monkeypatch, capsys):
    def out_of_threads(_):
        raise ThreadLimitError("can't start new thread")

    monkeypatch.setattr(main, "_main", out_of_threads)
    assert main.main(["once"]) == 1
    stderr = capsys.readouterr().err
    assert "ulimit -u" in stderr and "ulimit -v" in stderr and "Traceback" not in stderr


def test_any_other_error_of_that_kind_is_a_bug_and_shown_whole(monkeypatch):
    def broken(_):
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(main, "_main", broken)
    with pytest.raises(RuntimeError, match="changed size"):
        main.main(["once"])


# --- what the short commands do -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_the_garbage_collector_is_off_only_while_a_daemon_is_imported(name, monkeypatch):
    during = []
    monkeypatch.setattr(main, "_call", lambda *_: during.append(gc.isenabled()) or 0)
    monkeypatch.setattr(main, "_run_entry_point", lambda *_: during.append(gc.isenabled()) or 0)
    operands = {"check-config": ["x"], "completion": ["bash"], "config": ["--example"]}
    assert main.main([name, *operands.get(name, [])]) == 0
    assert during == [name not in ("run", "demo")] and gc.isenabled()


def test_the_example_that_is_printed_is_a_valid_configuration_that_sets_nothing(tmp_path, capsys):
    assert main.main(["config", "--example"]) == 0
    path = tmp_path / "shardwatch.yaml"
    path.write_text(capsys.readouterr().out)
    assert settings.load(str(path), {}) == settings.Settings()
    assert main.main(["check-config", str(path)]) == 0


def test_the_schema_and_the_reference_are_printed(capsys):
    assert main.main(["config", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Configuration of Shardwatch"
    assert main.main(["config", "--reference"]) == 0
    assert capsys.readouterr().out.startswith("# Configuration\n")


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("", "GPUs through NVML; 0 engines and 0 gateways configured; engines also discovered from processes"),
        (
            "gpu: {pages: [{url: 'http://127.0.0.1:9400'}]}",
            "GPUs through 1 exporter; 0 engines and 0 gateways configured; engines also discovered from processes",
        ),
        ("gpu: {enabled: false}\ndiscovery: {processes: false}", "no GPUs; 0 engines and 0 gateways configured; discovery of engines is off"),
        (
            "engines: [{url: 'http://a'}]\ngateways: [{url: 'http://b'}]\ndiscovery: {ray: true, file_sd: [a.json]}",
            "GPUs through NVML; 1 engine and 1 gateway configured; engines also discovered from Ray, files",
        ),
    ],
)  # fmt: skip
def test_a_valid_configuration_is_answered_with_what_it_monitors(text, summary, tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert main.main(["check-config", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{path}: valid; {summary}"


# --- commands of the packages above -------------------------------------------------------------------------------


def test_alerts_and_dashboards_are_commands_of_the_installed_program(tmp_path, capsys):
    assert main.main(["alerts", "--output", str(tmp_path), "--language", "en"]) == 0
    assert (tmp_path / "en" / "rules.yaml").read_text() == (ROOT / "alerts/generated/en/rules.yaml").read_text()
    assert main.main(["dashboards", "--output", str(tmp_path / "d"), "--language", "en"]) == 0
    assert (tmp_path / "d" / "en" / "shardwatch-fleet.json").is_file()
    capsys.readouterr()
    (tmp_path / "en" / "rules.yaml").write_text("")
    assert main.main(["alerts", "--output", str(tmp_path), "--language", "en", "--check"]) == 1
    assert "run shardwatch alerts" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["alerts", "dashboards"])
def test_what_is_written_by_an_installed_program_needs_a_place(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main([name])
    assert ended.value.code == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"usage: shardwatch {name} ") and "--output" in stderr


def test_a_checkout_that_is_not_installed_names_the_module(monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert main.main(["alerts", "--help"]) == 1
    assert "python -m alerts" in capsys.readouterr().err


def test_the_parser_of_a_command_is_known_to_whoever_runs_it():
    assert isinstance(parser().parse_args(["once"]).command, argparse.ArgumentParser)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["exporter", "run", "--listen", "nonsense"], "HOST:PORT"),
        (["alerts", "--no-such"], "--no-such"),
        (["dashboards", "--no-such"], "--no-such"),
    ],
)
def test_with_pythoninspect_an_error_is_one_line_and_no_prompt(words, error):
    environment = os.environ | {"PYTHONINSPECT": "1"}
    command = [sys.executable, "-m", *words]
    ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert error in ended.stderr
    assert "Traceback" not in ended.stderr
