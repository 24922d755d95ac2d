"""Alerts about sick cards: lost, asking for a reset, fatal XIDs by what they ask for; with memory errors and links."""

from __future__ import annotations

from alerts import gpu_links, gpu_memory_errors
from alerts.panel_ids import FLEET_GPUS, GPU_RECOVERY, GPU_XIDS
from alerts.recordings import NODE, RECENT_SECONDS, RELEASED, REPLICA_INFO, with_replica
from alerts.rule import Alert, Component, Group, Severity
from alerts.text import Text
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.model.xid_catalog import CATALOGUE, Class
from exporter.promql import Expr, aggregate, no_regex, regex, select, since, unless, without_value


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Give the group about the health of cards."""
    rules = (_lost(), _recovery(), *_xids(), *gpu_memory_errors.alerts(tuning), *gpu_links.alerts(tuning))
    return (Group(name="shardwatch-gpu-health", rules=rules),)


def _lost() -> Alert:
    return Alert(
        name="GpuLost",
        severity=Severity.CRITICAL,
        symptom=True,
        component=Component.GPU,
        expr=with_replica(unless(select(m.GPU_UP).equals(0), RELEASED, on=NODE), "GpuLost"),
        optional_labels=REPLICA_INFO,
        for_="1m",
        panel=FLEET_GPUS,
        summary=Text(
            "Card {{ $labels.gpu }} of {{ $labels.instance }} is lost",
            "{{ $labels.instance }} 的 {{ $labels.gpu }} 号卡丢失",
        ),
        description=Text(
            "Card {{ $labels.gpu }} ({{ $labels.uuid }}) has not answered for a minute: fallen off the bus, hung, "
            "or waiting for a reset. {{ with $labels.replica }}{{ . }} used it. {{ end }}Every replica that uses it is about "
            "to freeze in its next collective.",
            "{{ $labels.gpu }} 号卡（{{ $labels.uuid }}）已有一分钟无应答：从总线掉落、挂死，或等待复位。"
            "{{ with $labels.replica }}此前由 {{ . }} 使用。{{ end }}使用它的所有副本都会在下一次集合通信中冻结。",
        ),
    )


def _recovery() -> Alert:
    return Alert(
        name="GpuRecoveryNeeded",
        severity=Severity.WARNING,
        component=Component.GPU,
        expr=select(m.GPU_RECOVERY_ACTION, action=without_value("none")).equals(1),
        for_="1m",
        panel=GPU_RECOVERY,
        summary=Text(
            "The driver asks for {{ $labels.action }} of card {{ $labels.gpu }} on {{ $labels.instance }}",
            "驱动要求对 {{ $labels.instance }} 的 {{ $labels.gpu }} 号卡执行 {{ $labels.action }}",
        ),
        description=Text(
            "Card {{ $labels.gpu }} ({{ $labels.uuid }}) works on borrowed time: drain its replicas, then do what "
            "the driver asks for ({{ $labels.action }}).",
            "{{ $labels.gpu }} 号卡（{{ $labels.uuid }}）随时可能失效：先迁走其上的副本，再执行驱动要求的操作"
            "（{{ $labels.action }}）。",
        ),
    )


def _xids() -> tuple[Alert, ...]:
    return (_reset_node(), _reset_gpu(), _inspect(), _application())


def _seen(kind: Class) -> Expr:
    """Select the XIDs of a class that were seen within the hour.

    By their time, not by the counter's increase: the first event of a code creates its series at 1, and increase()
    never sees a first sample.
    """
    codes = [code for code in sorted(CATALOGUE) if (CATALOGUE[code].kind is kind) is not (kind is Class.INSPECT)]
    match = no_regex if kind is Class.INSPECT else regex  # a code that nobody knows yet needs a look as well
    return since(select(m.GPU_XID_LAST_TIMESTAMP_SECONDS, xid=match("|".join(map(str, codes))))) < RECENT_SECONDS


def _xid(name: str, kind: Class, severity: Severity, what: Text, cure: Text) -> Alert:
    return Alert(
        name=name,
        severity=severity,
        component=Component.GPU,
        expr=aggregate("max", _seen(kind), without=("source",)),
        for_="1m",
        panel=GPU_XIDS,
        summary=Text(
            f"XID {{{{ $labels.xid }}}} on card {{{{ $labels.gpu }}}} of {{{{ $labels.instance }}}}: {what.en}",
            f"{{{{ $labels.instance }}}} 的 {{{{ $labels.gpu }}}} 号卡出现 XID {{{{ $labels.xid }}}}：{what.zh}",
        ),
        description=Text(
            "XID {{ $labels.xid }} was seen {{ $value | humanizeDuration }} ago on card {{ $labels.gpu }} "
            f"({{{{ $labels.uuid }}}}). {cure.en}",
            "{{ $value | humanizeDuration }} 前在 {{ $labels.gpu }} 号卡（{{ $labels.uuid }}）上出现 "
            f"XID {{{{ $labels.xid }}}}。{cure.zh}",
        ),
    )


def _reset_node() -> Alert:
    return _xid(
        "GpuXidResetNode",
        Class.RESET_NODE,
        Severity.WARNING,
        Text("the node must be restarted", "需要重启节点"),
        Text(
            "Drain the node and restart it; cold if it comes back.",
            "请迁走节点上的负载后重启；若再次出现则断电重启。",
        ),
    )


def _reset_gpu() -> Alert:
    return _xid(
        "GpuXidResetGpu",
        Class.RESET_CARD,
        Severity.WARNING,
        Text("the card must be reset", "需要复位显卡"),
        Text("Drain its replicas and reset the card.", "请迁走其上的副本后复位该卡。"),
    )


def _inspect() -> Alert:
    return _xid(
        "GpuXidInspect",
        Class.INSPECT,
        Severity.WARNING,
        Text("somebody must look", "需要人工检查"),
        Text(
            "What to do depends on what the kernel log says beside it; gpu_xid_action_info holds the catalogue's "
            "advice, and says unknown of a code that it does not have.",
            "处理方式取决于内核日志中的上下文；目录建议见 gpu_xid_action_info，目录中没有的代码标为 unknown。",
        ),
    )


def _application() -> Alert:
    return _xid(
        "GpuXidApplication",
        Class.APPLICATION,
        Severity.INFO,
        Text("a process on it was ended", "其上的进程被终止"),
        Text(
            "The process that used the card is gone, the card is not: look at the engine's log and version first.",
            "丢失的是使用该卡的进程而不是显卡：请先查看引擎日志与版本。",
        ),
    )
