"""Whether each replica and GPU should get work, judged from one snapshot; holding times are the runtime's."""

from __future__ import annotations

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.view import View
from exporter.model import CardState, ReplicaState, Signal, Snapshot
from exporter.model.finding import Verdict, Verdicts, VerdictState
from exporter.model.xid_catalog import Class, describe

NO_PROGRESS = "no_progress"  # the reason of a replica that has requests and does nothing
_SERVE = Verdict(VerdictState.SERVE)
# What a failed poll proves: nobody listens.  A timeout proves nothing, since a saturated engine answers late.
_CERTAINLY_DOWN = frozenset({"refused"})
_GPU_OUT = {"lost": "gpu_lost", "reset_required": "gpu_reset_required"}


def verdicts(snapshot: Snapshot) -> Verdicts:
    """Return the verdicts that this snapshot alone supports; unknown wherever it does not say."""
    view = View(snapshot)
    gpus = {card.facts.uuid: _gpu(view, card) for card in snapshot.cards}
    replicas = {replica.name: _replica(view, replica, gpus) for replica in snapshot.replicas}
    return Verdicts(replicas=replicas, gpus=gpus, node=_node(snapshot, replicas, gpus))


def _gpu(view: View, card: CardState) -> Verdict:
    label = f"GPU {card.labels.gpu}"
    if card.status.reason in _GPU_OUT:
        return Verdict(VerdictState.EJECT, _GPU_OUT[card.status.reason], f"{label}: {card.status.reason}")
    if card.reading is None:
        return Verdict(VerdictState.UNKNOWN, card.status.reason or "no_data", f"{label} has no fresh data")
    if card.reading.signals.get(Signal.ROW_REMAP_FAILED):
        return Verdict(VerdictState.EJECT, "row_remap_failed", f"{label} cannot replace a defective memory row")
    for count in view.recent_xids(card.facts.uuid, limit.XID_RECENT_SECONDS):
        xid = describe(count.xid or 0)
        if xid.kind in (Class.RESET_CARD, Class.RESET_NODE):
            return Verdict(VerdictState.DRAIN, f"xid_{xid.code}", f"{label} reported XID {xid.code}: {xid.action}")
    if card.reading.signals.get(Signal.ROW_REMAP_PENDING):
        return Verdict(VerdictState.DRAIN, "row_remap_pending", f"{label} waits for a reset to replace a memory row")
    return _SERVE


def _replica(view: View, replica: ReplicaState, gpus: dict[str, Verdict]) -> Verdict:
    below = [gpus[uuid] for uuid in view.uuids_of.get(replica.name, ()) if uuid in gpus]
    lost = next((found for found in below if found.state is VerdictState.EJECT), None)
    if lost is not None:
        return lost
    if not replica.status.up:
        return _unread(replica)
    if replica.frozen:
        return Verdict(VerdictState.EJECT, NO_PROGRESS, f"{replica.name} has requests and makes no progress")
    expires = replica.certificate_expires
    if expires is not None and expires - view.snapshot.unix_time < limit.CERTIFICATE_DRAIN_SECONDS:
        return Verdict(VerdictState.DRAIN, "certificate", f"the certificate of {replica.name} ends within an hour")
    return next((found for found in below if found.state is VerdictState.DRAIN), _SERVE)


def _unread(replica: ReplicaState) -> Verdict:
    if replica.status.reason in _CERTAINLY_DOWN and replica.last_read_at is not None:
        return Verdict(VerdictState.EJECT, "down", f"{replica.name} refuses connections")
    return Verdict(VerdictState.UNKNOWN, replica.status.reason or "no_data", f"{replica.name} could not be read")


def _node(snapshot: Snapshot, replicas: dict[str, Verdict], gpus: dict[str, Verdict]) -> Verdict:
    reboot = next(
        (found for found in gpus.values() if found.state is VerdictState.EJECT or found.reason.startswith("xid_")),
        None,
    )
    if replicas and all(found.state is VerdictState.EJECT for found in replicas.values()):
        return Verdict(VerdictState.EJECT, "no_replica_serves", "no replica of this node can serve")
    if reboot is not None:
        return Verdict(VerdictState.DRAIN, reboot.reason, reboot.detail)
    known = [found for found in (*replicas.values(), *gpus.values()) if found.state is not VerdictState.UNKNOWN]
    if not known or (snapshot.cards and all(found.state is VerdictState.UNKNOWN for found in gpus.values())):
        return Verdict(VerdictState.UNKNOWN, "no_data", "nothing on this node could be read")
    return _SERVE
