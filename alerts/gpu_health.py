"""Alerts about GPU health: lost, recovery requested by the driver, XIDs by recommended action, memory errors, links."""

from __future__ import annotations

from alerts import gpu_links, gpu_memory_errors, lookups, nics, words
from alerts.panel_ids import GPU_RECOVERY, GPU_VERDICTS, GPU_XIDS
from alerts.recordings import GPU_EXPORTER_DOWN, NODE, RECENT_SECONDS, RELEASED, REPLICA_INFO, with_key, with_replica
from alerts.rule import Alert, Component, Group
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.model.xid_catalog import CATALOGUE, Class
from exporter.promql import (
    Expr,
    aggregate,
    and_on,
    label_replace,
    no_regex,
    over_time,
    regex,
    select,
    since,
    unless,
    without_value,
)  # fmt: skip


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the group about GPU health."""
    rules = (
        _recovery(),
        *_xids(),
        *gpu_memory_errors.alerts(tuning),
        *gpu_links.alerts(tuning),
        *nics.alerts(tuning),
    )
    # Evaluated as often as GPUs are scraped: who is paged waits for the evaluation, too.
    return (
        Group(name="shardwatch-gpu-lost", rules=(_lost(),), interval="15s"),
        Group(name="shardwatch-gpu-health", rules=rules),
    )


def _unanswered() -> Expr:
    """Return the GPUs that have not answered for a minute.

    A subquery rather than ``for``, which would hold the GPUs of ``_confirmed`` as well.  It sees each instant as ``for``
    does: a release, or an exporter that did not answer, begins the minute anew.
    """
    silent = unless(unless(select(m.GPU_UP).equals(0), RELEASED, on=NODE), GPU_EXPORTER_DOWN, on=NODE)
    return over_time("count", silent, "75s", step="15s") >= 5


def _confirmed() -> Expr:
    """Return the GPUs that the driver itself said are lost, in two scrapes of the last minute.

    Not of a driver that was down within two minutes: after a start or a restart it may count its GPUs one by one.  Nor
    a MIG instance, which may answer no call while it is removed, or a GPU that another exporter's page leaves out.
    """
    said = over_time("count", select(m.SHARDWATCH_SOURCE_DOWN_INFO, source=regex("gpu:.+"), reason="lost"), "1m") >= 2
    lost = label_replace(said, "uuid", "$1", "source", "gpu:(.+)")
    silent = and_on(select(m.GPU_UP, gpu=no_regex(".+:.+")).equals(0), lost, on=(*NODE, "uuid"))
    restarted = over_time("max", select(m.SHARDWATCH_SOURCE_DOWN_INFO, source="driver"), "2m")
    exporters = select(m.SHARDWATCH_SOURCE_UP, source=regex("gpu_page:.+"))
    return unless(unless(silent, restarted, on=NODE), exporters, on=NODE)


def _lost() -> Alert:
    return Alert(
        name="GpuLost",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.GPU,
        expr=with_key(with_replica(_unanswered() | _confirmed(), "GpuLost"), "GpuLost"),
        optional_labels=REPLICA_INFO | {"replica_key"},
        for_="0s",
        held="a GPU is lost in two scrapes, or it does not answer at five instants 15 s apart",
        keep_firing_for="5m",  # as long as what it inhibits, which would notify when the GPU comes back
        panel=GPU_VERDICTS,
        summary=Text(
            "GPU {{ $labels.gpu }} on {{ $labels.instance }} is lost{{ with $labels.replica }}: {{ . }} ran on it{{ end }}",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡掉卡（无应答）{{ with $labels.replica }}，{{ . }} 在其上运行{{ end }}",
        ),
        description=Text(
            "The GPU ({{ $labels.uuid }}) does not answer.",
            "该卡（{{ $labels.uuid }}）无应答。",
        )
        + lookups.HEAD
        + lookups.XID
        + lookups.RESET_FIRST
        + lookups.FROZEN
        + lookups.RUNNING
        + lookups.WAITING
        + lookups.GATEWAY_SHARE
        + lookups.OWNER  # of a GPU without a replica, too
        + lookups.VERDICT,
        action=Text(
            "1. Take {{ with $labels.replica }}{{ . }}{{ else }}its replica{{ end }} out of the gateway. 2. Drain the node "
            "and end the replica's processes. 3. Reboot the node; power-cycle it if the GPU stays lost.",
            "1. 把{{ with $labels.replica }} {{ . }} {{ else }}其副本{{ end }}从网关摘除。2. 排空节点，结束该副本的全部进程。"
            "3. 重启节点；若该卡仍缺失则断电冷启动。",
        ),
    )


_RECOVERY = words.by_label("action", words.ACTIONS)


def _recovery() -> Alert:
    return Alert(
        name="GpuRecoveryNeeded",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=select(m.GPU_RECOVERY_ACTION, action=without_value("none")).equals(1),
        for_="1m",
        panel=GPU_RECOVERY,
        summary=Text(
            "The driver requests {{ $labels.action }} for GPU {{ $labels.gpu }} on {{ $labels.instance }}",
            f"驱动要求对 {{{{ $labels.instance }}}} 的 {{{{ $labels.gpu }}}} 号卡执行：{_RECOVERY.zh}",
        ),
        description=Text(
            f"The GPU ({{{{ $labels.uuid }}}}) may fail at any time until this is done: {_RECOVERY.en}.",
            f"在执行以下操作之前，该卡（{{{{ $labels.uuid }}}}）随时可能失效：{_RECOVERY.zh}。",
        )
        + lookups.XID,
        action=Text(
            f"Drain the replicas on this GPU, then: {_RECOVERY.en}.",
            f"先排空该卡上的副本，再{_RECOVERY.zh}。",
        ),
    )


def _xids() -> tuple[Alert, ...]:
    return (_reset_node(), _reset_gpu(), _inspect(), _application())


def _seen(kind: Class) -> Expr:
    """Return the XIDs of a class that occurred within the last hour.

    By timestamp, not by the counter's increase: the first event of a code creates its series at 1, and increase()
    ignores a first sample.
    """
    codes = [code for code in sorted(CATALOGUE) if (CATALOGUE[code].kind is kind) is not (kind is Class.INSPECT)]
    match = no_regex if kind is Class.INSPECT else regex  # unknown codes need inspection too
    return since(select(m.GPU_XID_LAST_TIMESTAMP_SECONDS, xid=match("|".join(map(str, codes))))) < RECENT_SECONDS


def _xid(name: str, kind: Class, severity: Severity, what: Text, action: Text) -> Alert:
    return Alert(
        name=name,
        severity=severity,
        component=Component.GPU,
        expr=aggregate("max", _seen(kind), without=("source",)),
        for_="1m",
        panel=GPU_XIDS,
        summary=Text(
            f"XID {{{{ $labels.xid }}}} on GPU {{{{ $labels.gpu }}}} of {{{{ $labels.instance }}}}: {what.en}",
            f"{{{{ $labels.instance }}}} 的 {{{{ $labels.gpu }}}} 号卡出现 XID {{{{ $labels.xid }}}}：{what.zh}",
        ),
        description=Text(
            "XID {{ $labels.xid }} occurred {{ $value | humanizeDuration }} ago ({{ $labels.uuid }}).",
            "{{ $value | humanizeDuration }} 前出现 XID {{ $labels.xid }}（{{ $labels.uuid }}）。",
        )
        + lookups.XID_ADVICE
        + lookups.OWNER,
        action=action,
    )


def _reset_node() -> Alert:
    return _xid(
        "GpuXidResetNode",
        Class.RESET_NODE,
        Severity.WARNING,
        Text("the node must be rebooted", "需要重启节点"),
        Text(
            "Drain the node and reboot it; power-cycle it if the XID recurs.",
            "排空节点并重启；再次出现则断电冷启动。",
        ),
    )


def _reset_gpu() -> Alert:
    return _xid(
        "GpuXidResetGpu",
        Class.RESET_CARD,
        Severity.WARNING,
        Text("the GPU must be reset", "需要复位该卡"),
        Text(
            "Drain the GPU's replicas and reset it: nvidia-smi --gpu-reset -i {{ $labels.gpu }}.",
            "排空该卡上的副本并复位：nvidia-smi --gpu-reset -i {{ $labels.gpu }}。",
        ),
    )


def _inspect() -> Alert:
    return _xid(
        "GpuXidInspect",
        Class.INSPECT,
        Severity.WARNING,
        Text("manual inspection required", "需要人工检查"),
        Text(
            "Follow the recommended action; the sub-code is in the kernel log (dmesg | grep -i xid).",
            "按建议操作处理；子代码见内核日志（dmesg | grep -i xid）。",
        ),
    )


def _application() -> Alert:
    return _xid(
        "GpuXidApplication",
        Class.APPLICATION,
        Severity.INFO,
        Text("a process on the GPU was ended", "该卡上的进程被终止"),
        Text(
            "Read the engine's log at that time and report it with the engine's version; the GPU itself is healthy.",
            "查看当时的引擎日志，连同引擎版本一并上报；该卡本身正常。",
        ),
    )
