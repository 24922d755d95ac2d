"""Whether each replica and GPU should get work, judged from one snapshot; holding times are the runtime's."""

from __future__ import annotations

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.history import Past
from exporter.diagnosis.view import View, is_misread, requests
from exporter.diagnosis.xid_meanings import meaning
from exporter.model import CardState, EngineReading, Quantity, ReplicaState, Signal, Snapshot
from exporter.model.finding import NO_REPLICA_SERVES, Verdict, Verdicts, VerdictState, gpu_name
from exporter.model.text import Text
from exporter.model.xid_catalog import Class, describe

NO_PROGRESS = "no_progress"  # the reason of a replica that has requests and does nothing
RELEASED = "released"  # the reason of what nobody can know, because the GPUs are given away on purpose
_NO_PAST = Past()
_SERVE = Verdict(VerdictState.SERVE)
# What a failed poll proves: nobody listens.  A timeout proves nothing, since a saturated engine answers late.
_CERTAINLY_DOWN = frozenset({"refused"})
_GPU_OUT = {
    "lost": ("gpu_lost", Text(" is lost", "掉卡")),
    "reset_required": ("gpu_reset_required", Text(" needs a reset", "需要复位")),
}


def verdicts(snapshot: Snapshot, past: Past = _NO_PAST) -> Verdicts:
    """Return the verdicts that this snapshot and its past support; unknown wherever they do not say."""
    view = View(snapshot)
    gpus = {card.facts.uuid: _gpu(view, card) for card in snapshot.cards}
    replicas = {replica.name: _replica(view, past, replica, gpus) for replica in snapshot.replicas}
    return Verdicts(replicas=replicas, gpus=gpus, node=_node(snapshot, replicas, gpus))


def _gpu(view: View, card: CardState) -> Verdict:
    label = gpu_name(card.labels.gpu)
    if card.status.reason in _GPU_OUT:
        reason, detail = _GPU_OUT[card.status.reason]
        return Verdict(VerdictState.EJECT, reason, label + detail)
    if card.reading is None:
        detail = label + Text(" has no fresh data", "没有最新数据")
        return Verdict(VerdictState.UNKNOWN, card.status.reason or "no_data", detail)
    if card.reading.signals.get(Signal.ROW_REMAP_FAILED):
        detail = label + Text(" cannot replace a defective memory row", "无法替换损坏的显存行")
        return Verdict(VerdictState.EJECT, "row_remap_failed", detail)
    for count in view.recent_xids(card.facts.uuid, limit.XID_RECENT_SECONDS):
        xid = describe(count.xid or 0)
        if xid.kind in (Class.RESET_CARD, Class.RESET_NODE):
            detail = label + Text(f" reported XID {xid.code}: ", f"报告 XID {xid.code}：") + meaning(xid.code)
            return Verdict(VerdictState.DRAIN, f"xid_{xid.code}", detail)
    if card.reading.signals.get(Signal.ROW_REMAP_PENDING):
        detail = label + Text(" waits for a reset to replace a memory row", "等待复位以替换显存行")
        return Verdict(VerdictState.DRAIN, "row_remap_pending", detail)
    return _SERVE


def _same(text: str) -> Text:
    """Return a name that is the same in every language."""
    return Text(text, text)


def _replica(view: View, past: Past, replica: ReplicaState, gpus: dict[str, Verdict]) -> Verdict:
    below = [gpus[uuid] for uuid in view.uuids_of.get(replica.name, ()) if uuid in gpus]
    lost = next((found for found in below if found.state is VerdictState.EJECT), None)
    if lost is not None:
        return lost
    if not replica.status.up:
        return _unread(replica)
    stopped = _stopped(view, past, replica)
    if stopped is not None:
        return stopped
    expires = replica.certificate_expires
    if expires is not None and expires - view.snapshot.unix_time < limit.CERTIFICATE_DRAIN_SECONDS:
        name = replica.name
        detail = Text(f"the certificate of {name} ends within an hour", f"{name} 的证书将在一小时内到期")
        return Verdict(VerdictState.DRAIN, "certificate", detail)
    draining = next((found for found in below if found.state is VerdictState.DRAIN), None)
    return draining or (_unread(replica) if _is_blank(replica.reading) else _SERVE)


def _stopped(view: View, past: Past, replica: ReplicaState) -> Verdict | None:
    """Return the verdict of a replica that does nothing, on purpose or although it has requests; else None."""
    name = _same(replica.name)
    if replica.reading is not None and replica.reading.is_asleep:
        wake = Text(" is asleep: wake it up (POST /wake_up)", " 处于休眠：请唤醒（POST /wake_up）")
        return Verdict(VerdictState.DRAIN, "asleep", name + wake)
    if replica.frozen:
        detail = name + Text(" has requests and makes no progress", " 有请求但没有进展")
        return Verdict(VerdictState.EJECT, NO_PROGRESS, detail)
    if _stands_still(view, past, replica):
        detail = name + Text(
            " has requests, its counters do not move and its GPUs compute nothing",
            " 有请求，但计数器不变且 GPU 没有计算",
        )
        return Verdict(VerdictState.EJECT, NO_PROGRESS, detail)
    return None


def _stands_still(view: View, past: Past, replica: ReplicaState) -> bool:
    """Return whether requests run, no counter moves, and no GPU of the replica has computed for ``idle_after``.

    That time begins when the counters last moved or the replica was idle, and ends with the newest reading of each
    GPU: neither an idle time before the request nor a reading from before it says what the GPUs do now.  The page
    must have been read while they were idle: what ran on an older one may have ended.  Of a replica that spans nodes,
    the GPUs of another one may compute.
    """
    reading, moved_at = replica.reading, replica.moved_at
    if reading is None or reading.idle_after is None or moved_at is None:
        return False
    if not requests(replica, Quantity.REQUESTS_RUNNING) or _spans_nodes(view, replica.name):
        return False
    gpus = [past.idle_gpus.get(uuid) for uuid in view.uuids_of.get(replica.name, ())]
    return (
        bool(gpus)
        and all(gpu is not None and gpu.idle_from(moved_at) >= reading.idle_after for gpu in gpus)
        and all(gpu is not None and reading.at >= gpu.since for gpu in gpus)
        and reading.at - moved_at >= limit.COUNTERS_STILL_SECONDS
    )


def _spans_nodes(view: View, name: str) -> bool:
    return any(gpu.replica == name for gpu in view.snapshot.multi_node)


def _is_blank(reading: EngineReading | None) -> bool:
    """Return whether no number of the page could be read; an idle engine has some, if only zeros.

    The capacity alone, which stands in labels, is what vLLM shows before the first request.
    """
    if reading is None:
        return True
    known = {quantity for numbers in reading.ranks.values() for quantity in numbers}
    if reading.parse_warnings:
        known.discard(Quantity.KV_CACHE_CAPACITY)
    return not (known or reading.finished or reading.histograms or reading.responses)


def _unread(replica: ReplicaState) -> Verdict:
    name = _same(replica.name)
    if replica.status.reason in _CERTAINLY_DOWN and replica.last_read_at is not None:
        return Verdict(VerdictState.EJECT, "down", name + Text(" refuses connections", " 拒绝连接"))
    detail = name + Text(" could not be read", " 无法读取")
    if is_misread(replica.status):
        detail += Text(f": {replica.status.error}", f"：{replica.status.error}")
    return Verdict(VerdictState.UNKNOWN, replica.status.reason or "no_data", detail)


def _node(snapshot: Snapshot, replicas: dict[str, Verdict], gpus: dict[str, Verdict]) -> Verdict:
    """Return the node's verdict; its GPUs come first, since a scheduler drains for them and not for its engines."""
    reboot = next(
        (found for found in gpus.values() if found.state is VerdictState.EJECT or found.reason.startswith("xid_")),
        None,
    )
    if reboot is not None:
        return Verdict(VerdictState.DRAIN, reboot.reason, reboot.detail)
    if replicas and all(found.state is VerdictState.EJECT for found in replicas.values()):
        detail = Text("no replica of this node can serve", "本节点没有可服务的副本")
        return Verdict(VerdictState.EJECT, NO_REPLICA_SERVES, detail)
    if snapshot.cards and all(card.status.reason == RELEASED for card in snapshot.cards):
        detail = Text("the GPUs are released (SIGUSR1)", "GPU 已释放（SIGUSR1）")
        return Verdict(VerdictState.UNKNOWN, RELEASED, detail)
    known = [found for found in (*replicas.values(), *gpus.values()) if found.state is not VerdictState.UNKNOWN]
    if not known or (snapshot.cards and all(found.state is VerdictState.UNKNOWN for found in gpus.values())):
        detail = Text("nothing on this node could be read", "本节点的数据均无法读取")
        return Verdict(VerdictState.UNKNOWN, "no_data", detail)
    return _SERVE
