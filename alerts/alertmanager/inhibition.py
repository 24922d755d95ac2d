"""Inhibition rules, derived from the alerts' labels.

A cause inhibits its consequences on the same subject, never the reverse, and nothing that pages is inhibited by something
less severe.  Two alerts have the same subject when the labels in ``equal`` are equal on both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from alerts.gateways import LOOPBACK
from alerts.rule import Alert, Component, RuleError
from exporter.model.finding import Severity

NODE = ("job", "instance")
GPU = (*NODE, "uuid")
REPLICA = (*NODE, "replica")
MODEL = ("job", "model")
POOL = ("job", "gateway", "pool")
PORT = (*NODE, "device", "port")
_WORSE = {
    Severity.CRITICAL: (Severity.WARNING, Severity.INFO),
    Severity.WARNING: (Severity.INFO,),
}
# Never inhibited by an alert of their replica: each may be the reason why it is down.
_CAUSES_OF_ENGINE_DOWN = frozenset(
    {"CertificateExpires", "EngineRestarting", "ReplicaNodeMissing", "ReplicaPeerLost", "ReplicaVanished"}
)
_CAUSES_OF_DAEMON_DOWN = frozenset({"ShardwatchRestarting"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Inhibition:
    """While one of ``sources`` fires, no notification is sent for ``targets`` with equal labels.

    ``where`` are further matchers of the sources.  ``ends``: the series of the targets end with the source, which
    therefore need not fire first.
    """

    why: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    equal: tuple[str, ...]
    where: tuple[tuple[str, str, str], ...] = ()
    above: Severity | None = None
    below: tuple[Severity, ...] = ()
    ends: bool = False


def inhibitions(alerts: Iterable[Alert], off: Collection[str] = ()) -> tuple[Inhibition, ...]:
    """Return all rules; raises RuleError for an alert that does not exist, or a rule that would inhibit what pages.

    ``off``: the names of alerts that are switched off or that have another severity than the shipped one.
    """
    every = tuple(alerts)
    found = tuple(item for item in (_without(rule, off) for rule in (*_tiers(every), *_causes(every))) if item)
    for item in found:
        _check(item, every)
    return found


def _without(rule: Inhibition, off: Collection[str]) -> Inhibition | None:
    """Return the rule without the alerts that are off; None if no source or no target is left."""
    if rule.above is not None and rule.sources == rule.targets:
        return rule  # the tiers of alerts, made of those that exist
    sources, targets = (tuple(name for name in names if name not in off) for names in (rule.sources, rule.targets))
    return replace(rule, sources=sources, targets=targets) if sources and targets else None


def _tiers(alerts: tuple[Alert, ...]) -> Iterator[Inhibition]:
    """Yield the rules by which a higher severity of an alert inhibits the lower ones."""
    by_name: dict[str, list[Alert]] = defaultdict(list)
    for alert in alerts:
        by_name[alert.name].append(alert)
    for worse, milder in _WORSE.items():
        by_subject: dict[tuple[str, ...], list[str]] = defaultdict(list)
        below: set[Severity] = set()
        for name, tiers in by_name.items():
            lower = {tier.severity for tier in tiers} & set(milder)
            if lower and worse in {tier.severity for tier in tiers}:
                # Labels of a tier's own (the window of a burn rate) are not part of what it is about.
                subject = frozenset.intersection(*(tier.expr.labels for tier in tiers))
                by_subject[tuple(sorted(subject))].append(name)
                below |= lower
        for equal, names in sorted(by_subject.items()):
            yield Inhibition(
                why=f"{worse.value} includes what is less severe",
                sources=tuple(sorted(names)),
                targets=tuple(sorted(names)),
                equal=("alertname", *equal),
                above=worse,
                below=tuple(severity for severity in milder if severity in below),
            )


def _causes(alerts: tuple[Alert, ...]) -> Iterator[Inhibition]:
    def about(*labels: str, but: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the names of the alerts with all of these labels, without ``but``."""
        left = set(but)
        return tuple(sorted({a.name for a in alerts if set(labels) <= a.result_labels and a.name not in left}))

    fed = {a.name for a in alerts if a.component is not Component.MONITORING}
    gpus = about("uuid", but={"GpuLost"})
    stopped = ("EngineDown", "EngineFrozen", "EngineNoTokens")
    engines = {*about("replica", but={*stopped, *_CAUSES_OF_ENGINE_DOWN})} - set(about("uuid"))
    engines -= {a.name for a in alerts if a.component is Component.EXPORTER}
    engines -= {"ModelLoadSlow"}  # says of a start that is over how long it took
    yield _rule("a lost GPU explains its other alerts", ("GpuLost",), gpus, GPU)
    # The page about the GPU names the replica, and says that it is frozen.
    yield _rule("a lost GPU stops its replica", ("GpuLost",), (*stopped, "ReplicaVanished", *engines), REPLICA)
    yield _rule(
        "a lost GPU on another node freezes its replica", ("ReplicaPeerLost",), (*stopped[1:], *engines), REPLICA
    )
    yield _rule("the page about the GPU names its node", ("GpuLost",), ("ReplicaPeerLost",), ("job", "replica_key"))
    yield from _of_stragglers()
    yield _rule("a replica without progress explains its latency", stopped[1:], engines, REPLICA)
    ended = ("EngineDown", "ReplicaVanished")  # as the page about a frozen engine says to do
    yield _rule("a frozen engine is ended", ("EngineFrozen",), ended, REPLICA)
    down = _rule("an engine that is down explains its other alerts", stopped[:1], (*stopped[2:], *engines), REPLICA)
    yield replace(down, above=Severity.CRITICAL, ends=True)
    yield replace(
        down, above=Severity.WARNING, ends=True, below=_below(Severity.WARNING), targets=tuple(sorted(engines))
    )
    yield _rule("a model without a replica misses all of its SLOs", ("ModelHasNoReplica",), _burns(alerts), MODEL)
    silent = ("ShardwatchDown", "ShardwatchNotPushing")
    feeds = fed & set(about(*NODE, but={*silent, "ShardwatchAbsent", *_CAUSES_OF_DAEMON_DOWN}))
    every = fed & set(about("job", but={"ShardwatchAbsent"}))
    yield replace(_rule("without the daemon its metrics are stale", silent, feeds, NODE), ends=True)
    yield replace(_rule("no daemon is scraped", ("ShardwatchAbsent",), every, ("job",)), ends=True)
    yield _rule(
        "a daemon that reads nothing has stale data", ("ShardwatchBlind",), ("GpuDataStale", "SourceStale"), NODE
    )
    yield _rule("a driver that does not answer lists no GPUs", ("GpuDriverUnreadable",), ("GpuCountDecreased",), NODE)
    yield from _of_pools(about("pool", but={"GatewayPoolDown"}))
    links = ("GpuFabricProblem", "GpuNvlinkDown", "GpuNvlinkErrors")
    yield _rule("a failed switch takes the links of all GPUs down", ("GpuNvswitchFatal",), links, NODE)
    yield _rule("a port that is down", ("NicPortDown",), ("NicBelowRate", "NicErrorsRise", "NicLinkFlaps"), PORT)
    yield _rule("a failed row remap explains a pending one", ("GpuRowRemapFailed",), ("GpuRowRemapPending",), GPU)
    yield from _of_load()
    memory = ("GroupMemoryUneven",)
    yield _rule("a full GPU holds more memory than its group", ("GpuMemoryFull",), memory, REPLICA)
    yield from _of_errors()
    yield _rule(
        "nodes of another driver version run another image",
        ("DriverVersionsDiffer",),
        ("EngineVersionsDiffer",),
        MODEL,
    )
    yield _rule("the cause of uneven replicas", ("ReplicaNotReceivingTraffic",), ("ReplicasUneven",), MODEL)


def _of_load() -> Iterator[Inhibition]:
    uneven = ("GroupUtilizationUneven",)
    explained = ("ReplicaUsesPcie", "RanksUneven", "GpuStraggler")
    yield _rule("the cause of unevenly utilised GPUs", explained, uneven, REPLICA)
    nodes = ("RanksUneven", "ReplicaNodeMissing", "ReplicaPeerStraggler")
    yield _rule("the cause of unevenly utilised nodes", nodes, ("ReplicaNodesUneven",), REPLICA)
    slower = ("ReplicaSlowerThanSiblings",)
    stragglers = ("GpuStraggler", "ReplicaPeerStraggler")
    yield _rule("the cause of a slow replica", (*stragglers, "ReplicaUsesPcie"), slower, REPLICA)
    growing = ("QueueGrowing",)
    slow = (*stragglers, "KvCachePressure", "PreemptionStorm", "RanksUneven", *slower, "ReplicaUsesPcie")
    yield _rule("what slows a replica lets its queue grow", slow, growing, REPLICA)
    yield _rule("a lowered power limit lets queues grow", ("NodePowerCapped",), growing, NODE)


_SYMPTOMS_OF_STRAGGLER = {
    "thermal": ("GpuHot", "GpuHotWithoutLimit", "GpuThermalThrottling"),
    "power_brake": ("GpuPowerBrake",),
    "pcie": ("GpuPcieDowngraded",),
}


def _of_stragglers() -> Iterator[Inhibition]:
    """Yield the rules by which a straggler with a known cause inhibits the alerts about that cause."""
    for cause, symptoms in _SYMPTOMS_OF_STRAGGLER.items():
        rule = _rule(f"a straggler names its cause, {cause}", ("GpuStraggler",), symptoms, GPU)
        yield replace(rule, where=(("cause", "=", cause),))


def _of_pools(targets: tuple[str, ...]) -> Iterator[Inhibition]:
    """Yield the rules of a pool without a healthy backend; a loopback address is another gateway on each node."""
    rule = _rule("a pool without a healthy backend explains its errors", ("GatewayPoolDown",), targets, POOL)
    yield replace(rule, where=(("gateway", "!~", LOOPBACK),))
    yield replace(rule, where=(("gateway", "=~", LOOPBACK),), equal=(*POOL, "instance"))


def _of_errors() -> Iterator[Inhibition]:
    """Yield the rules of requests that fail: why, and which budget they burn."""
    errors = _rule("a full GPU fails requests of its replica", ("GpuMemoryFull",), ("HighErrorRatio",), REPLICA)
    yield replace(errors, below=_below(Severity.WARNING))
    burn = _rule(
        "the errors of a replica burn its model's budget", ("HighErrorRatio",), ("AvailabilitySloBurn",), MODEL
    )
    yield replace(burn, above=Severity.CRITICAL)


def _below(severity: Severity) -> tuple[Severity, ...]:
    return (severity, *_WORSE[severity])


def _burns(alerts: tuple[Alert, ...]) -> tuple[str, ...]:
    return tuple(sorted({a.name for a in alerts if {*MODEL, "objective"} <= a.result_labels}))


def _rule(why: str, sources: Iterable[str], targets: Iterable[str], equal: tuple[str, ...]) -> Inhibition:
    return Inhibition(why=why, sources=tuple(sources), targets=tuple(sorted(targets)), equal=equal)


def _check(inhibition: Inhibition, alerts: tuple[Alert, ...]) -> None:
    named = {name: [a for a in alerts if a.name == name] for name in (*inhibition.sources, *inhibition.targets)}
    gone = sorted(name for name, found in named.items() if not found)
    if gone or not inhibition.targets:
        raise RuleError(f"inhibition ({inhibition.why}): no alert is called {', '.join(gone) or 'anything'}")
    subject = set(inhibition.equal) - {"alertname"}
    for source in inhibition.sources:
        if lacking := {label for label, *_ in inhibition.where} - _certain_labels(named[source]):
            raise RuleError(f"inhibition ({inhibition.why}): {source} has no {', '.join(sorted(lacking))}")
        for target in inhibition.targets:
            # A label that is missing on both sides counts as equal, and everything would inhibit everything.
            if lacking := subject - _certain_labels(named[source]) - _certain_labels(named[target]):
                both = f"neither {source} nor {target} has"
                raise RuleError(f"inhibition ({inhibition.why}): {both} {', '.join(sorted(lacking))}")
            if unknown := subject - _possible_labels(named[source]) | subject - _possible_labels(named[target]):
                raise RuleError(f"inhibition ({inhibition.why}): no {', '.join(sorted(unknown))} to compare")
    if inhibition.above is None and not inhibition.below:
        _check_weight(inhibition, named)


def _certain_labels(tiers: list[Alert]) -> frozenset[str]:
    return frozenset.intersection(*(alert.result_labels for alert in tiers))


def _possible_labels(tiers: list[Alert]) -> frozenset[str]:
    return frozenset.intersection(*(alert.result_labels | alert.optional_labels for alert in tiers))


def _check_weight(inhibition: Inhibition, named: dict[str, list[Alert]]) -> None:
    weight = {Severity.NONE: 0, Severity.INFO: 1, Severity.WARNING: 2, Severity.CRITICAL: 3}
    for source in inhibition.sources:
        min_weight = min(weight[a.severity] for a in named[source])
        for target in inhibition.targets:
            if source != target and max(weight[a.severity] for a in named[target]) > min_weight:
                raise RuleError(
                    f"inhibition ({inhibition.why}): {source} would inhibit {target}, which is more severe"
                )
