"""Which program runs, by command line and title: a shell or supervisor, a relay, CUDA's MPS.

Both are what the process claims about itself.  Titles are compared as the kernel keeps them, cut at 15 bytes.
"""

from __future__ import annotations

import re

_INTERPRETER = re.compile(r"^(?:python|pypy)[0-9.]*$")
# Each starts arbitrary programs, so two processes below it need have nothing in common.
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


def is_shared(title: str, command: tuple[str, ...]) -> bool:
    """Return whether it is a shell, supervisor or container runtime: what stands below it is not one server."""
    names = (title, program_of(command)[0].rpartition("/")[2])
    return any(_SHARED.match(name) for name in names)


def is_relay(title: str) -> bool:
    """Return whether it only passes a published port on into a container."""
    return title in _RELAYS


def is_mps(title: str) -> bool:
    """Return whether it is CUDA's multi-process service, which holds a GPU for its clients."""
    return title.startswith("nvidia-cuda-mps")


def program_of(command: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the program, script or module that runs, without its interpreter, and its arguments."""
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
