"""The stack as one context: everything is checked first, then started in the order of the data, ended in reverse."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compose.native import configuration, ports, servers
from compose.native.child import Child
from compose.native.errors import StackError
from compose.native.programs import ALERTMANAGER, AMTOOL, PROMETHEUS, PROMTOOL, missing, refusal
from exporter.simulate.node import NAMES

_LOOK = 0.3  # seconds between looks whether all still run


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """What to start: the scenario and its times in seconds, ports (0: any free one), the files that count."""

    scenario: str = "healthy"
    fault_at: float | None = None
    fault_until: float | None = None
    seed: int = 0
    demo_port: int = 0
    prometheus_port: int = 0
    alertmanager_port: int = 0
    receiver_port: int = 0
    language: str = "en"
    rules: Path | None = None
    alertmanager_config: Path | None = None

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports by the flag that chooses each."""
        return {
            "--demo-port": self.demo_port,
            "--prometheus-port": self.prometheus_port,
            "--alertmanager-port": self.alertmanager_port,
            "--receiver-port": self.receiver_port,
        }

    @property
    def rule_file(self) -> Path:
        """The rules that count: those given, else the generated ones."""
        return (self.rules or configuration.rules(self.language)).absolute()

    @property
    def notification_file(self) -> Path:
        """Alertmanager's configuration: the one given, else the generated one."""
        return (self.alertmanager_config or configuration.notifications(self.language)).absolute()

    @property
    def demo_arguments(self) -> tuple[str, ...]:
        """Return the arguments of ``shardwatch demo``."""
        arguments = ["--scenario", self.scenario, "--seed", str(self.seed)]
        if self.fault_at is not None:
            arguments += ["--fault-at", str(self.fault_at)]
        if self.fault_until is not None:
            arguments += ["--fault-until", str(self.fault_until)]
        return tuple(arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What runs."""

    demo: Child
    prometheus: Child
    alertmanager: Child
    receiver: Child

    def watch(self) -> None:
        """Return never; StackError as soon as one of them ends by itself."""
        while True:
            for child in (self.demo, self.prometheus, self.alertmanager, self.receiver):
                if over := child.ended():
                    raise StackError(over)
            time.sleep(_LOOK)


def problems(plan: StackSettings) -> list[str]:
    """Return everything that would keep the plan from starting, each with its cure; nothing is started for it."""
    refusals = [missing((PROMETHEUS, PROMTOOL, ALERTMANAGER, AMTOOL))]
    refusals += ports.problems(plan.ports)
    if plan.scenario not in NAMES:
        refusals.append(f"--scenario {plan.scenario}: there is none of this name; there are {', '.join(NAMES)}")
    refusals += _times(plan)
    for file, checker, check in (
        (plan.rule_file, PROMTOOL, ("check", "rules")),
        (plan.notification_file, AMTOOL, ("check-config",)),
    ):
        if not file.is_file():
            refusals.append(f"{file}: no such file; `shardwatch alerts --output DIR` generates it")
        elif checker.path():
            refusals.append(refusal(checker, *check, str(file)))
    return [problem for problem in refusals if problem]


def _times(plan: StackSettings) -> list[str]:
    """Return what the demo would refuse when the others already run."""
    given = {"--fault-at": plan.fault_at, "--fault-until": plan.fault_until}
    refusals = [
        f"{flag} {value:g}: write seconds from 0 on"
        for flag, value in given.items()
        if value is not None and not 0 <= value < math.inf
    ]
    if (
        not refusals
        and plan.fault_at is not None
        and plan.fault_until is not None
        and plan.fault_until <= plan.fault_at
    ):
        refusals.append(
            f"--fault-until {plan.fault_until:g}: the fault would end before it begins, and nothing would happen"
        )
    return refusals


@contextlib.contextmanager
def stack(plan: StackSettings, folder: Path) -> Iterator[Stack]:
    """Start the plan, with data and logs in ``folder``; StackError, nothing left running, when it cannot."""
    wrong = problems(plan)
    if wrong:
        raise StackError("\n".join(wrong))
    with contextlib.ExitStack() as running:
        daemon = running.enter_context(servers.demo(folder, port=plan.demo_port, arguments=plan.demo_arguments))
        shown = running.enter_context(servers.receiver(folder, port=plan.receiver_port))
        notifier = running.enter_context(
            servers.alertmanager(folder, _notifications(plan, shown), port=plan.alertmanager_port)
        )
        own = f"{ports.LOOPBACK}:{plan.prometheus_port}" if plan.prometheus_port else ""
        settings = configuration.prometheus(
            rules=plan.rule_file, daemon=daemon.address, alertmanager=notifier.address, own=own
        )
        prometheus = running.enter_context(servers.prometheus(folder, settings, port=plan.prometheus_port))
        yield Stack(demo=daemon, prometheus=prometheus, alertmanager=notifier, receiver=shown)


def _notifications(plan: StackSettings, receiver: Child) -> Path | Mapping[str, Any]:
    if plan.alertmanager_config:
        return plan.notification_file  # as its owner wrote it, channels and all
    return configuration.alertmanager(plan.notification_file, receiver=f"{receiver.url}/")
