"""What operators do to simulated nodes within a normal week: deploys, a canary, scaling to zero, nightly batches.

A plan is a list of steps by time; ``soak_day`` carries them out on the virtual node that it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from exporter.simulate.products import H100, LLAMA_8B, LLAMA_70B, QWEN_32B
from exporter.simulate.records import ReplicaSpec, Scenario, Traffic
from exporter.simulate.scenarios import CHAT, CODE, FIRST_FOUR
from tests.support.virtual_node import VirtualNode

MINUTE = 60.0
MON, TUE, WED, THU, FRI, SAT, SUN = range(7)
DRAINING, LOADING = 3 * MINUTE, 7 * MINUTE
DEV = replace(LLAMA_8B, name="llama-3.1-8b-dev")
SCENARIOS = {
    # Two models of many users, one that runs at night, and one that developers use in the daytime.
    "week": Scenario(
        name="week",
        summary="four models on one node, two of them for some hours of the day",
        product=H100,
        replicas=(
            ReplicaSpec(name="chat", model=LLAMA_70B, traffic=CHAT, ranks=FIRST_FOUR),
            ReplicaSpec(name="code", model=QWEN_32B, traffic=replace(CODE, daily=0.3), ranks=((4, 5),)),
            ReplicaSpec(name="nightly", model=LLAMA_8B, traffic=Traffic(rate=4.0), ranks=((6,),)),
            ReplicaSpec(name="dev", model=DEV, traffic=Traffic(rate=0.3), ranks=((7,),)),
        ),
    )
}


@dataclass(frozen=True)
class Step:
    """Something that is done ``at`` so many seconds after the start of the node."""

    at: float
    act: Callable[[VirtualNode], None]


@dataclass(frozen=True)
class Week:
    """A week whose days take so many hours; what operators do takes as long in any."""

    day: float

    def at(self, day: int, hour: float) -> float:
        """Return the seconds after the start at an hour (0 to 24) of a day."""
        return (day + hour / 24.0) * self.day * 3600.0


def plan(name: str, day: float) -> list[Step]:
    """Return the steps of a plan by time, none for the plan without a name; a day takes ``day`` hours."""
    return sorted(PLANS[name](Week(day)), key=lambda step: step.at) if name else []


def _weigh(at: float, name: str, weight: float) -> Step:
    return Step(at, lambda node: node.world.replica(name).weigh(weight))


def _drain(at: float, name: str) -> Step:
    def drain(node: VirtualNode) -> None:
        node.world.replica(name).drained = True

    return Step(at, drain)


def _stop(at: float, name: str, *, listed: bool) -> Step:
    """End a server.  ``listed``: the configuration names it, so that it is down; else discovery forgets it."""

    def stop(node: VirtualNode) -> None:
        node.world.stop(name)
        if not listed:
            node.undiscovered.add(name)

    return Step(at, stop)


def _start(at: float, name: str, version: str = "") -> Step:
    def start(node: VirtualNode) -> None:
        node.versions[name] = version or node.world.software.engine
        node.world.start(name)
        node.discover(name)

    return Step(at, start)


def _replaced(at: float, name: str, *, listed: bool, version: str = "") -> Iterator[Step]:
    """Drain a replica, end it, and start it again when its weights are loaded."""
    yield _drain(at, name)
    yield _stop(at + DRAINING, name, listed=listed)
    yield _start(at + DRAINING + LOADING, name, version)


def _hours_of(week: Week, name: str, begin: float, end: float, days: tuple[int, ...]) -> Iterator[Step]:
    """Scale a replica from zero at the hour ``begin`` of these days, and back to zero at ``end``."""
    yield _stop(0.0, name, listed=False)
    for day in days:
        yield _start(week.at(day, begin), name)
        yield _drain(week.at(day, end), name)
        yield _stop(week.at(day, end) + 10 * MINUTE, name, listed=False)


ROLLOUT = ("chat-a", "chat-b", "chat")  # one after the other; the others carry its load
CANARY = ((FRI, 10.0), (FRI, 16.0))


def _rollout(begin: float, mine: tuple[str, ...], *, listed: bool) -> Iterator[Step]:
    for number, name in enumerate(ROLLOUT):
        at = begin + number * 15 * MINUTE
        for other in mine:
            if other != name:
                yield _weigh(at, other, 1.5)
                yield _weigh(at + DRAINING + LOADING, other, 1.0)
        if name in mine:
            yield from _replaced(at, name, listed=listed)


def _first(week: Week) -> Iterator[Step]:
    mine = ("chat-a", "chat-b")
    yield from _rollout(week.at(TUE, 10), mine, listed=True)
    yield from _rollout(week.at(THU, 14), mine, listed=False)
    yield Step(week.at(WED, 15), lambda node: node.start_daemon())
    for time, version, weight, other in zip(CANARY, ("0.33.0", ""), (0.1, 1.0), (1.4, 1.0), strict=True):
        at = week.at(*time)
        yield from _replaced(at, "chat-b", listed=True, version=version)
        yield _weigh(at, "chat-b", weight)
        yield _weigh(at, "chat-a", other)


def _second(week: Week) -> Iterator[Step]:
    weekdays = (MON, TUE, WED, THU, FRI)
    yield from _rollout(week.at(TUE, 10), ("chat",), listed=True)
    yield from _rollout(week.at(THU, 14), ("chat",), listed=False)
    yield from (_weigh(week.at(*time), "chat", weight) for time, weight in zip(CANARY, (1.4, 1.0), strict=True))
    yield from _hours_of(week, "nightly", 1.0, 5.0, (*weekdays, SAT, SUN))
    yield from _hours_of(week, "dev", 9.0, 18.0, weekdays)


PLANS: dict[str, Callable[[Week], Iterator[Step]]] = {"first": _first, "second": _second}
