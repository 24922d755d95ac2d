"""The snapshot as documents of /api/v1, in the language that the reader asked for."""

from __future__ import annotations

import msgspec

from exporter import __version__
from exporter.diagnosis.evidence import label as evidence_label
from exporter.diagnosis.thresholds import WINDOW
from exporter.diagnosis.view import ReplicaPart, replica_parts
from exporter.model import CardState, GatewayState, GpuOwner, LinkHealth, ReplicaState, Signal, Snapshot
from exporter.model.finding import Evidence, Finding, Verdict, VerdictState
from exporter.model.nic import NicState
from exporter.model.store import StoreQuantity, StoreState
from exporter.model.text import Language, Text
from exporter.render.api import (
    AdapterDocument,
    BackendDocument,
    EvidenceDocument,
    FindingDocument,
    FindingsDocument,
    GatewayDocument,
    GpuDocument,
    HealthDocument,
    NodeDocument,
    OwnerDocument,
    ReplicaDocument,
    ReplicaPartDocument,
    StoreDocument,
    VerdictDocument,
    VerdictsDocument,
    WindowDocument,
    XidDocument,
)

_MAX_PIDS = 64  # of one owner on one GPU


def node(snapshot: Snapshot, language: Language = Language.ENGLISH, name: str = "") -> NodeDocument:
    """Return everything that the snapshot holds and a program may want; ``name``: of the node."""
    driver = snapshot.driver
    return NodeDocument(
        api="v1",
        version=__version__,
        time=snapshot.unix_time,
        verdict=verdict(snapshot.verdicts.node, language),
        driver={} if driver is None else {name: getattr(driver, name) for name in driver.__struct_fields__},
        software=_software(snapshot),
        fabric_manager=snapshot.software.fabric_manager,
        findings=tuple(finding(found, language) for found in snapshot.findings),
        gpus=tuple(_gpu(snapshot, card, language) for card in snapshot.cards),
        replicas=tuple(_replica(snapshot, replica, language) for replica in snapshot.replicas),
        gateways=tuple(_gateway(gateway) for gateway in snapshot.gateways),
        stores=tuple(_store(store) for store in snapshot.stores),
        sources=tuple(
            HealthDocument(
                source=status.source,
                up=status.up,
                reason=status.reason,
                age=None if status.last_success is None else max(0.0, snapshot.at - status.last_success),
                duration=status.duration,
            )
            for status in snapshot.sources
        ),
        node=name,
        adapters=tuple(_adapter(nic) for nic in snapshot.nics),
        replica_parts=tuple(_part(part) for part in replica_parts(snapshot)),
    )


def _part(part: ReplicaPart) -> ReplicaPartDocument:
    place = part.place
    return ReplicaPartDocument(
        replica_key=place.key,
        replica=place.replica,
        engine=place.engine,
        role="head" if place.head else "worker",
        node_rank=place.node_rank,
        nodes=place.nodes,
        gpus=part.uuids,
    )


def _adapter(nic: NicState) -> AdapterDocument:
    port = nic.port
    return AdapterDocument(
        device=port.key.device,
        port=port.key.port,
        up=port.is_up,
        down=nic.is_down,
        state=port.state,
        physical_state=port.physical_state,
        link_layer=port.link_layer,
        interface=port.interface,
        pci_bus_id=port.location.address,
        rate=port.rate if port.is_up else None,
        max_rate=nic.max_rate,
        link_downs=port.link_downs,
        errors=dict(port.errors),
        gpus=tuple(near.uuid for near in nic.nearest),
    )


def _software(snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    versions: dict[str, tuple[str, ...]] = {}
    for component, version in snapshot.software.versions:
        versions[component] = (*versions.get(component, ()), version)
    return versions


def _modes(snapshot: Snapshot, card: CardState) -> dict[str, str]:
    """Return the modes of a GPU that are known."""
    modes, reading = card.facts.modes, card.reading
    if reading is None:  # of a GPU that stopped answering nobody knows them any more
        return {}
    found = {"persistence_mode": modes.persistence, "compute_mode": modes.compute}
    for name, active in (
        ("ecc_mode", reading.signals.get(Signal.ECC_MODE)),
        ("mps", snapshot.software.mps.get(card.facts.uuid)),
    ):
        found[name] = "" if active is None else "enabled" if active else "disabled"
    return {name: mode for name, mode in found.items() if mode}


def findings(snapshot: Snapshot, language: Language = Language.ENGLISH) -> FindingsDocument:
    """Return the findings in order of urgency."""
    found = tuple(finding(found, language) for found in snapshot.findings)
    return FindingsDocument(api="v1", time=snapshot.unix_time, findings=found)


def verdicts(snapshot: Snapshot, language: Language = Language.ENGLISH) -> VerdictsDocument:
    """Return the verdicts on node, replicas and GPUs."""
    return VerdictsDocument(
        api="v1",
        time=snapshot.unix_time,
        node=verdict(snapshot.verdicts.node, language),
        replicas={name: verdict(found, language) for name, found in snapshot.verdicts.replicas.items()},
        gpus={uuid: verdict(found, language) for uuid, found in snapshot.verdicts.gpus.items()},
    )


def verdict(found: Verdict, language: Language = Language.ENGLISH) -> VerdictDocument:
    """Return one verdict."""
    return VerdictDocument(state=found.state, reason=found.reason, detail=found.detail.in_(language))


def finding(found: Finding, language: Language) -> FindingDocument:
    """Return one finding with its causes."""
    steps = tuple(step.in_(language) for step in found.steps)
    return FindingDocument(
        id=found.id,
        severity=found.severity,
        subject_kind=found.subject.kind,
        subject=found.subject.name,
        label=found.subject.label,
        summary=found.summary.in_(language),
        action=("" if language is Language.CHINESE else " ").join(steps),
        steps=steps,
        runbook=found.id,
        cause=found.cause.in_(language) if found.cause is not None else "",
        replica=found.replica,
        since=found.since,
        evidence=tuple(_evidence(item, language) for item in found.evidence),
        causes=tuple(finding(cause, language) for cause in found.causes),
    )


def _evidence(item: Evidence, language: Language) -> EvidenceDocument:
    value = item.value.in_(language) if isinstance(item.value, Text) else item.value
    label = evidence_label(item.name).in_(language)
    return EvidenceDocument(name=item.name, value=value, unit=item.unit, label=label)


def _gpu(snapshot: Snapshot, card: CardState, language: Language) -> GpuDocument:
    facts, reading = card.facts, card.reading
    straggler = next((found for found in snapshot.stragglers.found if found.uuid == facts.uuid), None)
    known = snapshot.verdicts.gpus.get(facts.uuid)
    owners = dict.fromkeys(owner.replica for owner in snapshot.assignments if owner.uuid == facts.uuid)
    document = GpuDocument(
        gpu=card.labels.gpu,
        uuid=facts.uuid,
        up=card.status.up,
        verdict=verdict(known, language)
        if known is not None
        else VerdictDocument(state=VerdictState.UNKNOWN, reason="starting"),
        reason=card.status.reason,
        name=facts.name,
        pci_bus_id=facts.pci_bus_id,
        mig_parent=facts.instance.parent if facts.instance is not None else "",
        modes=_modes(snapshot, card),
        gsp_firmware_version=facts.modes.gsp_firmware if reading is not None else "",
        replicas=tuple(owners),
        owners=tuple(_owner(held) for held in snapshot.owners if held.uuid == facts.uuid),
        xids=tuple(
            XidDocument(xid=count.labels.xid, count=count.count, last=count.last_unix_time)
            for count in snapshot.xids
            if count.labels.uuid == facts.uuid and count.last_unix_time is not None
        ),
        straggler=straggler.cause.value if straggler is not None else "",
        slowdown=straggler.slowdown if straggler is not None else None,
    )
    if reading is None:
        return document
    shared_memory = snapshot.software.shared_memory.get(facts.uuid)
    links, health = reading.nvlink_up, snapshot.topology.links.get(facts.uuid, LinkHealth())
    return msgspec.structs.replace(
        document,
        signals={name.value: value for name, value in reading.signals.items()},
        missing={name.value: reason.value for name, reason in reading.missing.items()},
        shared_memory=shared_memory.size if shared_memory is not None else None,
        nvlinks=max(len(links), sum(links.values()) + (health.nvlinks_down or 0)) if links else None,
        nvlinks_up=sum(links.values()) if links else None,
        clock_events=tuple(reason for reason, active in reading.clock_events.items() if active),
        processes={
            str(process.pid): process.memory for process in reading.processes or () if process.memory is not None
        },
    )


def _owner(held: GpuOwner) -> OwnerDocument:
    facts = {name: getattr(held.owner, name) for name in held.owner.__struct_fields__ if name != "name"}
    return OwnerDocument(
        owner=held.owner.name,
        **facts,
        memory=held.memory,
        pids=held.pids[:_MAX_PIDS],
        orphans=held.orphans[:_MAX_PIDS],
    )


def _replica(snapshot: Snapshot, replica: ReplicaState, language: Language) -> ReplicaDocument:
    known = snapshot.verdicts.replicas.get(replica.name)
    path = next((group.worst for group in snapshot.topology.groups if group.replica == replica.name), "")
    reading = replica.reading
    return ReplicaDocument(
        replica=replica.name,
        engine=replica.labels.engine,
        model=replica.labels.model,
        up=replica.status.up,
        verdict=verdict(known, language)
        if known is not None
        else VerdictDocument(state=VerdictState.UNKNOWN, reason="starting"),
        version=reading.version if reading is not None else "",
        reason=replica.status.reason,
        progress=None if replica.frozen is None else not replica.frozen,
        ranks={}
        if reading is None
        else {
            rank: {quantity.value: value for quantity, value in numbers.items()}
            for rank, numbers in reading.ranks.items()
        },
        windows={
            label: WindowDocument(
                seconds=figures.seconds,
                hit_ratio=figures.hit_ratio,
                error_ratio=figures.error_ratio,
                request_rate=figures.request_rate,
                rejected_rate=figures.rejected_rate,
                generation_token_rate=figures.generation_token_rate,
                latency={
                    stage.value: {f"{quantile:g}": seconds for quantile, seconds in summary.quantiles.items()}
                    for stage, summary in figures.latency.items()
                },
            )
            for label, figures in replica.windows.items()
        },
        gpus=tuple(dict.fromkeys(owner.uuid for owner in snapshot.assignments if owner.replica == replica.name)),
        slowest_path=path,
    )


def _gateway(gateway: GatewayState) -> GatewayDocument:
    figures = next(iter(gateway.windows.values()), None)
    judged = gateway.windows.get(WINDOW)
    loads = gateway.reading.backends if gateway.reading is not None else {}
    return GatewayDocument(
        gateway=gateway.name,
        kind=gateway.labels.kind,
        up=gateway.status.up,
        reason=gateway.status.reason,
        backends=tuple(
            BackendDocument(
                pool=backend.pool,
                backend=backend.name,
                replica=gateway.replicas.get(backend, ""),
                up=load.up,
                active=load.active,
                queued=load.queued,
                share=figures.shares.get(backend) if figures is not None else None,
                error_ratio=judged.error_ratios.get(backend) if judged is not None else None,
            )
            for backend, load in loads.items()
        ),
    )


def _store(store: StoreState) -> StoreDocument:
    quantities = store.reading.quantities if store.reading is not None else {}
    return StoreDocument(
        store=store.name,
        kind=store.labels.kind,
        up=store.status.up,
        reason=store.status.reason,
        hit_ratio=dict(store.hit_ratio),
        usage=dict(store.usage),
        used=dict(quantities.get(StoreQuantity.USED, {})),
        capacity=dict(quantities.get(StoreQuantity.CAPACITY, {})),
        errors=dict(quantities.get(StoreQuantity.ERRORS, {})),
    )
