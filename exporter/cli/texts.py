"""The help of each command beyond its options: what it does, examples, files, environment, exit codes.  No code."""

from __future__ import annotations

from msgspec import Struct

Pairs = tuple[tuple[str, str], ...]  # what is typed or named, and what it does or is


class CommandHelp(Struct, frozen=True, kw_only=True):
    """The texts of one command."""

    summary: str
    description: str
    examples: Pairs = ()
    files: Pairs = ()
    environment: Pairs = ()
    signals: Pairs = ()
    exit_codes: Pairs = ()


_SETTINGS = (
    ("SHARDWATCH_*", "overrides a key of the configuration: SHARDWATCH_GPU_INTERVAL overrides gpu.interval"),
    ("NODE_NAME", "the name of the node where the daemon cannot know it, as in a pod"),
)
_CONFIG = (
    (
        "FILE",
        "YAML; every key is optional.  Secrets are read from the files that it names, again whenever they change",
    ),
)
_STOPPED = ("0", "stopped by SIGTERM or Ctrl-C")
_FAILED = ("1", "failed, for example because the address is in use")
_UNWRITTEN = ("1", "standard output cannot be written")
_BAD_USAGE = ("2", "invalid usage or configuration; nothing was started")

PROGRAM = CommandHelp(
    summary="joins GPU telemetry with the metrics of LLM inference engines, for Prometheus",
    description=(
        "Shardwatch runs once on each node that serves language models on several GPUs.  It reads the GPUs through "
        "NVML and the metrics endpoints of engines and gateways, and exposes on one metrics endpoint: which GPU "
        "belongs to which replica, which GPU the others wait for and why, where an imbalance arises, latencies and "
        "cache hit rates whatever the engine, and whether a GPU, an engine or the monitor itself is unhealthy."
    ),
    examples=(
        ("shardwatch run", "monitor this node; the metrics endpoint is http://localhost:9853/metrics"),
        ("shardwatch demo --scenario heat", "try it without a GPU: the cooler of one GPU fails"),
        ("shardwatch COMMAND --help", "options, files, environment and exit codes of a command"),
    ),
)

RUN = CommandHelp(
    summary="run the daemon; without a configuration it finds GPUs and engines by itself",
    description=(
        "Read the GPUs and engines of this node and serve their metrics until stopped.  GPUs, engines and gateways "
        "are read in the background, each with a deadline; a scrape waits for none of them.  What could not be read "
        "is absent rather than stale."
    ),
    examples=(
        ("shardwatch run", "find everything, listen on 0.0.0.0:9853"),
        ("shardwatch run --config /etc/shardwatch/shardwatch.yaml", "use a configuration"),
        ("SHARDWATCH_SERIES=full shardwatch run --listen 127.0.0.1:9853", "all series, for this host only"),
    ),
    files=_CONFIG,
    environment=(
        *_SETTINGS,
        ("NOTIFY_SOCKET", "set by systemd, which is notified of readiness, reloads, stopping, and liveness"),
    ),
    signals=(
        ("SIGTERM, SIGINT", "stop within two seconds"),
        (
            "SIGHUP",
            "reload the configuration; an invalid one is refused, and keys that need a restart are logged",
        ),
        ("SIGUSR1, SIGUSR2", "release all GPUs, so that MIG or the driver can be changed; acquire them again"),
    ),
    exit_codes=(_STOPPED, _FAILED, _BAD_USAGE),
)

DEMO = CommandHelp(
    summary="run the daemon on a simulated node with eight GPUs and real HTTP engines",
    description=(
        "Simulate a node: engines behind real HTTP, a gateway, and eight GPUs, and run the daemon on it.  Needs no "
        "GPU and no root.  The scenario decides what happens on the node; what to watch is printed."
    ),
    examples=(
        ("shardwatch demo", "a healthy node"),
        ("shardwatch demo --list", "all scenarios"),
        ("shardwatch demo --scenario hang --fault-at 60 --fault-until 300", "a GPU is lost for four minutes"),
    ),
    environment=_SETTINGS[:1],
    exit_codes=(_STOPPED, _FAILED, ("2", "invalid usage, for example an unknown scenario")),
)

ONCE = CommandHelp(
    summary="read everything once and print the metrics",
    description=(
        "Read every GPU and engine once, print what the metrics endpoint would show, and exit.  Counters are "
        "included; rates and windows, which need two readings, are not.  Waits up to 35 seconds for a driver that "
        "initialises slowly."
    ),
    examples=(
        ("shardwatch once | grep gpu_up", "which GPUs respond"),
        ("shardwatch once --config FILE", "try a configuration on this node"),
    ),
    files=_CONFIG,
    environment=_SETTINGS,
    exit_codes=(
        ("0", "the metrics were printed; the metrics themselves say which sources failed"),
        ("1", "neither a GPU nor an engine was found, or standard output cannot be written"),
        _BAD_USAGE,
    ),
)

DIAGNOSE = CommandHelp(
    summary="diagnose one or many nodes: what is wrong, the evidence, and what to do",
    description=(
        "Ask the daemons at the given addresses what they found, and print it in order of urgency: what users feel "
        "first, its causes under it.  Of several nodes each has a line, the worst first.  Without an address the "
        "daemon on this node is asked; where none listens, the node is read for some seconds without one.  The exit "
        "codes are those of Nagios and Icinga plugins."
    ),
    examples=(
        ("shardwatch check", "this node"),
        ("shardwatch check node1:9853 node2:9853", "two nodes"),
        ("shardwatch check --json --fail-on critical", "for programs; only critical findings fail"),
        ("shardwatch check --fail-on verdict", "for schedulers: 2 if the GPUs of this node should get no jobs"),
        ("shardwatch check --ca-file ca.pem https://node1:9853", "over TLS"),
    ),
    files=(("FILE", "PEM certificates and keys, and a password in plain text; each is only read"),),
    environment=(("NO_COLOR", "no colours, also on a terminal"),),
    exit_codes=(
        ("0", "healthy"),
        ("1", "a warning"),
        ("2", "critical"),
        ("3", "unknown: a node does not answer, its data are not of now, nothing could be read, or invalid usage"),
    ),
)

TOP = CommandHelp(
    summary="show one or many nodes live in a terminal (needs the extra `top`)",
    description=(
        "Show the findings, GPUs, replicas and nodes of the daemons at the given addresses, and keep them current: "
        "sort, filter, and read the cause and the next step of what is selected.  The key ? lists the keys.  Without "
        "an address the daemon on this node is asked.  --once works without the extra."
    ),
    examples=(
        ("shardwatch top", "this node"),
        ("shardwatch top node1:9853 node2:9853", "two nodes"),
        ("shardwatch top --once node1:9853", "the tables as plain text"),
    ),
    files=(("FILE", "PEM certificates and keys, and a password in plain text; each is only read"),),
    environment=(("NO_COLOR", "no colours"),),
    exit_codes=(
        ("0", "ended by q or Ctrl-C; with --once, every node answered"),
        ("1", "with --once, a node did not answer or its data are not of now; or standard output cannot be written"),
        ("2", "invalid usage, no terminal, or the extra is not installed"),
    ),
)

CHECK = CommandHelp(
    summary="print every problem of a configuration with its path and line",
    description=(
        "Read a configuration as `run` would, environment included, and print all problems at once.  Nothing is "
        "started.  Hints, for example at what the shipped alerts and dashboards would lack, are not problems."
    ),
    examples=(("shardwatch check-config shardwatch.yaml", "before a reload"),),
    files=_CONFIG,
    environment=_SETTINGS[:1],
    exit_codes=(("0", "the configuration is valid"), _UNWRITTEN, ("2", "it is not; see standard error")),
)

CONFIG = CommandHelp(
    summary="print an example, the JSON Schema or the reference of the configuration",
    description="Print what this version knows of its configuration: every key with its type, default and meaning.",
    examples=(
        ("shardwatch config --example > shardwatch.yaml", "every key, explained"),
        ("shardwatch config --schema > shardwatch.schema.json", "for editors that check YAML"),
    ),
    exit_codes=(("0", "printed"), _UNWRITTEN, ("2", "invalid usage")),
)

COMPLETION = CommandHelp(
    summary="print a script that completes the command line in bash, zsh or fish",
    description="Print the completion script of a shell.  Print it again after an upgrade.",
    examples=(
        ('eval "$(shardwatch completion bash)"', "in ~/.bashrc"),
        ("shardwatch completion zsh > ~/.zfunc/_shardwatch", "with ~/.zfunc in fpath, before compinit"),
        ("shardwatch completion fish > ~/.config/fish/completions/shardwatch.fish", "loaded by fish itself"),
    ),
    exit_codes=(("0", "printed"), _UNWRITTEN, ("2", "invalid usage")),
)

ALERTS = CommandHelp(
    summary="write the Prometheus alert rules and the Alertmanager configuration",
    description="Write alert rules and an Alertmanager configuration, with your thresholds and receivers.",
    examples=(("shardwatch alerts --output DIR --language en", "rules and Alertmanager configuration in English"),),
    exit_codes=(
        ("0", "written, or equal with --check"),
        ("1", "a file differs, with --check, or cannot be written"),
        ("2", "invalid usage, thresholds or receivers"),
    ),
)

DASHBOARDS = CommandHelp(
    summary="write the Grafana dashboards (needs the extra `dashboards`)",
    description="Write Grafana dashboards and their provisioning, with your thresholds.",
    examples=(("shardwatch dashboards --output DIR --language en", "dashboards in English"),),
    exit_codes=(
        ("0", "written, or equal with --check"),
        ("1", "a file differs, with --check, or cannot be written"),
        ("2", "invalid usage or thresholds, or the extra is not installed"),
    ),
)
