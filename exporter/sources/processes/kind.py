"""Tells from a command line and a title what a process is: an engine's server, a shell or supervisor, a relay.

Both are what the process says of itself, so they decide only how a join is looked for, never that there is one.
Titles are compared as the kernel keeps them, cut at 15 bytes.
"""

from __future__ import annotations

import re

_INTERPRETER = re.compile(r"^(?:python|pypy)[0-9.]*$")
_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "tensorrt_llm.commands.serve": "tensorrt_llm",
}
_COMMANDS = {"vllm": "vllm", "vllm.entrypoints.cli.main": "vllm", "sglang": "sglang", "sglang.cli.main": "sglang"}
_TITLES = {"VLLM::APIServer": "vllm", "sglang::http_server": "sglang"}
# pt_main_thread: what torch 2.4 and newer call the main thread of any Python program, once it is loaded.
_MAY_SERVE = (
    "python", "pypy", "pt_main_thread", "vllm", "VLLM", "sglang", "text-generation", "trtllm-serve", "tritonserver"
)  # fmt: skip
# Each starts whatever it is told to, so two processes below it need have nothing in common.
_SHARED = re.compile(
    r"""^(?:
    init | systemd.* | \(sd-pam\) | tini | tini-static | dumb-init | catatonit | pause
    | sh | bash | dash | ash | zsh | fish | ksh | csh | tcsh | busybox | make | script | nohup | timeout | setsid
    | tmux | tmux:.* | screen | SCREEN | sshd | sshd-.* | login | su | sudo | runuser | doas | cron | crond | atd
    | supervisord | runsv | runsvdir | s6-.* | monit
    | docker | dockerd | docker-init | docker-proxy | containerd | containerd-shim.* | conmon | conmonrs | crio
    | podman | runc | crun | nerdctl | lxc-start | lxd | incusd | kubelet | nomad
    | raylet | gcs_server | slurmd | slurmstepd | srun
    )$""",
    re.VERBOSE,
)
_RELAYS = frozenset(("docker-proxy", "rootlessport", "rootlesskit", "slirp4netns", "pasta", "conmon"))


def engine_kind(command: tuple[str, ...]) -> str:
    """Give vllm, sglang, tgi, tensorrt_llm or triton when the command line starts that engine's server, else ""."""
    for title, kind in _TITLES.items():
        if command and command[0].startswith(title):
            return kind
    program, arguments = _program(command)
    name = program.rpartition("/")[2]
    # Not text-generation-server: that is a shard, which the launcher starts and the router talks to.
    if name.startswith("text-generation-router") or name == "text-generation-launcher":
        return "tgi"
    if name == "tritonserver":
        return "triton"
    if name == "trtllm-serve" and arguments:
        return "" if arguments[0] == "disaggregated" else "tensorrt_llm"  # that one is a router
    dotted = program.removesuffix(".py").replace("/", ".")
    for module, kind in _MODULES.items():
        if dotted == module or dotted.endswith(f".{module}"):
            return kind
    return _COMMANDS.get(name, "") if arguments[:1] == ("serve",) else ""


def module_or_command(command: tuple[str, ...]) -> str:
    """Give the name of the module or program that runs, without its folder."""
    return _program(command)[0].rpartition("/")[2]


def may_be_engine(title: str) -> bool:
    """Say whether the command line of a process with this title is worth reading."""
    return title.startswith(_MAY_SERVE)


def is_shared(title: str, command: tuple[str, ...]) -> bool:
    """Say whether it is a shell, supervisor or container runtime: what stands below it is not one server."""
    names = (title, _program(command)[0].rpartition("/")[2])
    return any(_SHARED.match(name) for name in names)


def is_relay(title: str) -> bool:
    """Say whether it only passes a published port on into a container."""
    return title in _RELAYS


def is_mps(title: str) -> bool:
    """Say whether it is CUDA's multi-process service, which holds a card for its clients."""
    return title.startswith("nvidia-cuda-mps")


def _program(command: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Give the program, script or module that runs, with the interpreter peeled off, and its arguments."""
    if not command:
        return "", ()
    if not _INTERPRETER.match(command[0].rpartition("/")[2]):
        return command[0], command[1:]
    rest = command[1:]
    while rest:
        if rest[0] == "-m":
            return "".join(rest[1:2]), rest[2:]
        if rest[0] == "-c":
            return "", ()
        if not rest[0].startswith("-"):
            return rest[0], rest[1:]
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    return command[0], ()
