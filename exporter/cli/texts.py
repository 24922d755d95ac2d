"""The help of each command beyond its options: what it does, examples, files, environment, exit codes.  No code."""

from __future__ import annotations

from typing import NamedTuple


class Page(NamedTuple):
    """The texts of one command; pairs are (what is typed or named, what it does or is)."""

    summary: str
    description: str
    examples: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    signals: tuple[tuple[str, str], ...] = ()
    exit_codes: tuple[tuple[str, str], ...] = ()


_SETTINGS = (
    ("SHARDWATCH_*", "overrides a scalar of the configuration: SHARDWATCH_GPU_INTERVAL for gpu.interval"),
    ("NODE_NAME", "the host's name where the daemon cannot know it, as in a pod"),
)
_CONFIG = (
    (
        "FILE",
        "YAML; every key is optional.  Secrets are read from the files that it names, and again when they change",
    ),
)
_STOPPED = ("0", "stopped by SIGTERM or Ctrl-C")
_FAILED = ("1", "failed: the address is taken, for example")
_UNWRITTEN = ("1", "failed: standard output cannot be written")
_BAD_USAGE = ("2", "bad usage, or a configuration that is refused; nothing was started")

PROGRAM = Page(
    summary="joins GPU telemetry with what LLM engines say, for Prometheus",
    description=(
        "Shardwatch runs once on each node that serves language models on several cards.  It reads the cards through "
        "NVML and the engines' and gateways' metrics pages, and answers on one page: which card belongs to which "
        "replica, which card the others wait for and why, where an imbalance arises, latencies and cache hits "
        "whatever the engine, and whether a card is sick, an engine wedged or the monitor itself blind."
    ),
    examples=(
        ("shardwatch run", "watch this node; the page is at port 9853"),
        ("shardwatch demo --scenario heat", "see it without a GPU: one card's cooler fails"),
        ("shardwatch COMMAND --help", "options, files, environment and exit codes of a command"),
    ),
)

RUN = Page(
    summary="the daemon; without a configuration it finds cards and engines by itself",
    description=(
        "Read the cards and engines of this node and serve their metrics until stopped.  Cards, engines and gateways "
        "are read in the background, each with a deadline; a scrape waits for none of them, and what could not be "
        "read is absent rather than old."
    ),
    examples=(
        ("shardwatch run", "find everything, listen on 0.0.0.0:9853"),
        ("shardwatch run --config /etc/shardwatch/shardwatch.yaml", "read what is configured"),
        ("SHARDWATCH_SERIES=full shardwatch run --listen 127.0.0.1:9853", "all series, for this host only"),
    ),
    files=_CONFIG,
    environment=(
        *_SETTINGS,
        ("NOTIFY_SOCKET", "set by systemd: told when the daemon serves, reloads, stops, and that it lives"),
    ),
    signals=(
        ("SIGTERM, SIGINT", "stop, within two seconds"),
        (
            "SIGHUP",
            "read the configuration again; a bad one is refused whole, and the log names what waits for a restart",
        ),
        ("SIGUSR1, SIGUSR2", "let go of all cards, so that MIG or the driver can be changed; take them up again"),
    ),
    exit_codes=(_STOPPED, _FAILED, _BAD_USAGE),
)

DEMO = Page(
    summary="the daemon on a simulated node with eight cards and real HTTP engines",
    description=(
        "Start engines that are simulated behind real HTTP, simulate eight cards, and run the daemon on them.  Needs "
        "no GPU and no root.  What happens on the node is the scenario; --list names them."
    ),
    examples=(
        ("shardwatch demo", "a healthy node"),
        ("shardwatch demo --list", "all scenarios"),
        ("shardwatch demo --scenario hang --fault-at 60 --fault-until 300", "a card is lost for four minutes"),
    ),
    environment=_SETTINGS[:1],
    exit_codes=(_STOPPED, _FAILED, ("2", "bad usage: there is no such scenario, for example")),
)

ONCE = Page(
    summary="one cycle; the metrics page goes to standard output",
    description=(
        "Read every card and engine once, print the page and end.  Counters are there; what needs two readings "
        "(rates, windows) is not.  Waits up to 35 seconds for a driver that initialises slowly."
    ),
    examples=(
        ("shardwatch once | grep gpu_up", "which cards answer"),
        ("shardwatch once --config FILE", "try a configuration on this node"),
    ),
    files=_CONFIG,
    environment=_SETTINGS,
    exit_codes=(
        ("0", "the page was printed; sources that failed are said on it"),
        ("1", "failed: interrupted, for example, or standard output cannot be written"),
        _BAD_USAGE,
    ),
)

CHECK = Page(
    summary="name every problem of a configuration, with path and line",
    description=(
        "Read a configuration as `run` would, environment included, and name all problems at once.  "
        "Nothing is started.  Hints, at what the shipped alerts and dashboards would lack for one, are no problems."
    ),
    examples=(("shardwatch check-config shardwatch.yaml", "before a reload"),),
    files=_CONFIG,
    environment=_SETTINGS[:1],
    exit_codes=(("0", "it is good"), _UNWRITTEN, ("2", "it is not; the problems stand on standard error")),
)

COMPLETION = Page(
    summary="print a script that completes the command line in bash, zsh or fish",
    description="Print a script for the shell.  It names what this version knows, so make it anew after an upgrade.",
    examples=(
        ('eval "$(shardwatch completion bash)"', "in ~/.bashrc"),
        ("shardwatch completion zsh > ~/.zfunc/_shardwatch", "with ~/.zfunc in fpath, before compinit"),
        ("shardwatch completion fish > ~/.config/fish/completions/shardwatch.fish", "found by itself"),
    ),
    exit_codes=(("0", "printed"), _UNWRITTEN, ("2", "bad usage")),
)
