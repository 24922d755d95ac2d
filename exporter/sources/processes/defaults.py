"""Where each kind of server shows its metrics: which port, which path, and whether over TLS.

A command line says what somebody wanted, so the port counts only where the process listens on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.sources.processes.kind import engine_kind, module_or_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How a kind of server is told its port, and what it does untold.

    ``flags``, then ``variable`` of its environment, then ``ports``.  ``certificate``: the flags that make it speak
    TLS.  ``certain``: its page is an engine's, also while it does not answer; else the page must be seen first,
    because such a server may show nothing, or be no model's.
    """

    flags: tuple[str, ...] = ("--port", "-p")
    variable: str = ""
    ports: tuple[int, ...] = ()
    path: str = "/metrics"
    certificate: tuple[str, ...] = ()
    certain: bool = True


_SSL = ("--ssl-certfile", "--ssl_certfile")
HABITS = {
    "vllm": Habit(ports=(8000,), certificate=_SSL),
    "sglang": Habit(ports=(30000,), certificate=_SSL),
    "tgi": Habit(ports=(3000,)),
    # Under /metrics it answers with JSON, and here only where its own configuration asks for it.
    "tensorrt_llm": Habit(ports=(8000,), path="/prometheus/metrics", certain=False),
    "triton": Habit(flags=("--metrics-port",), ports=(8002,), certain=False),
    "dynamo": Habit(
        flags=("--http-port",),
        variable="DYN_HTTP_PORT",
        ports=(8000, 8080),
        certificate=("--tls-cert-path",),
        certain=False,
    ),
    "dynamo_worker": Habit(flags=(), variable="DYN_SYSTEM_PORT", certain=False),
}
_DYNAMO = {"dynamo.frontend": "dynamo"} | dict.fromkeys(
    ("dynamo.vllm", "dynamo.sglang", "dynamo.trtllm"), "dynamo_worker"
)


def habit_of(command: tuple[str, ...]) -> tuple[str, Habit] | None:
    """Give the kind and the habit of a server that shows an engine's metrics; None for all other command lines.

    Wider than ``engine_kind``: Dynamo's frontend uses no card, and is not to be taken for the engine behind it.
    """
    kind = engine_kind(command) or _DYNAMO.get(module_or_command(command), "")
    return (kind, HABITS[kind]) if kind else None
