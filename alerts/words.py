"""Label values that messages show as words: recommended actions, verdicts, meanings of XIDs.

Prometheus' templates choose the word; a value that is not listed is shown as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exporter.diagnosis.verdict_names import VERDICT_REASONS
from exporter.diagnosis.xid_meanings import CHINESE
from exporter.model.straggler import Cause
from exporter.model.text import Language, Text
from exporter.model.xid_catalog import CATALOGUE

ACTIONS: Mapping[str, Text] = {
    "none": Text("none", "无需处理"),
    "restart_application": Text("restart the application", "重启应用"),
    "reset_card": Text("reset the GPU", "复位该卡"),
    "gpu_reset": Text("reset the GPU", "复位该卡"),
    "drain_and_reset_card": Text("drain and reset the GPU", "排空并复位该卡"),
    "drain_and_reset": Text("drain and reset the GPU", "排空并复位该卡"),
    "drain_p2p": Text("drain peer-to-peer traffic", "排空 P2P 流量"),
    "check_nvlink_and_reset_card": Text("check the NVLink, reset the GPU", "检查 NVLink 并复位该卡"),
    "reboot_node": Text("reboot the node", "重启节点"),
    "node_reboot": Text("reboot the node", "重启节点"),
    "restart_virtual_machine": Text("restart the virtual machine", "重启虚拟机"),
    "follow_other_xid": Text("follow the other XID", "按另一个 XID 处理"),
    "check_power_cabling": Text("check the power cabling", "检查供电线缆"),
    "update_software": Text("update the driver", "升级驱动"),
    "contact_support": Text("contact NVIDIA support", "联系 NVIDIA 技术支持"),
    "check_unified_memory": Text("check unified memory", "检查统一内存"),
    "read_recovery_action": Text("see the driver's recovery action", "查看驱动要求的恢复操作"),
    "decode_nvlink_sub_code": Text("decode the NVLink sub-code in the kernel log", "解析内核日志中的 NVLink 子代码"),
    "none_published": Text("none published; inspect", "厂商未公布；请人工检查"),
    "look_up": Text("look up the XID", "查询该 XID"),
}
CAUSE_ACTIONS: Mapping[str, Text] = {
    Cause.THERMAL.value: Text(
        "Check fan, filter and airflow of GPU {{ $labels.gpu }}; until then move load off the replica.",
        "检查 {{ $labels.gpu }} 号卡的风扇、滤网与风道；在此之前把流量移出该副本。",
    ),
    Cause.POWER_BRAKE.value: Text(
        "Check the power supplies in the BMC; replace or reconnect the faulty one.",
        "在 BMC 中检查电源，更换或重新连接故障电源。",
    ),
    Cause.POWER_CAP.value: Text(
        "Set GPU {{ $labels.gpu }} to the power limit of the other GPUs of its group: nvidia-smi -i {{ $labels.gpu }} -pl "
        "WATTS.",
        "把 {{ $labels.gpu }} 号卡的功率上限设为与同组其他卡一致：nvidia-smi -i {{ $labels.gpu }} -pl 瓦数。",
    ),
    Cause.CLOCK_LOCK.value: Text(
        "Unlock the clocks: nvidia-smi -i {{ $labels.gpu }} -rgc -rmc.",
        "解除时钟锁定：nvidia-smi -i {{ $labels.gpu }} -rgc -rmc。",
    ),
    Cause.OTHER_TENANT.value: Text(
        "List the processes on GPU {{ $labels.gpu }} (nvidia-smi); end or move the process that is not the replica's.",
        "用 nvidia-smi 列出 {{ $labels.gpu }} 号卡上的进程；结束或迁走不属于该副本的进程。",
    ),
    Cause.PCIE.value: Text(
        "Drain the replica; reseat GPU {{ $labels.gpu }}, check riser and slot (nvidia-smi -q -d PCIE under load).",
        "排空该副本；重新插接 {{ $labels.gpu }} 号卡，检查转接板与插槽（负载下 nvidia-smi -q -d PCIE）。",
    ),
    Cause.NVLINK.value: Text(
        "Drain the node and reset all GPUs of the baseboard; reseat the bridge.",
        "排空节点并复位整板的卡；重新插接桥接器。",
    ),
    Cause.MEMORY_PRESSURE.value: Text(
        "List the processes on GPU {{ $labels.gpu }}; restart the replica with a lower --gpu-memory-utilization.",
        "列出 {{ $labels.gpu }} 号卡上的进程；降低 --gpu-memory-utilization 后重启副本。",
    ),
    Cause.UNKNOWN.value: Text(
        "Compare GPU {{ $labels.gpu }} with its peers (nvidia-smi -q, dcgmi diag -r 3); move the replica.",
        "把 {{ $labels.gpu }} 号卡与同组其他卡比较（nvidia-smi -q、dcgmi diag -r 3）；迁移副本。",
    ),
}
VERDICTS: Mapping[str, Text] = {
    "serve": Text("serve", "正常服务（serve）"),
    "drain": Text("drain", "排空（drain）"),
    "eject": Text("eject", "摘除（eject）"),
    "unknown": Text("unknown", "未知（unknown）"),
}

REASONS: Mapping[str, Text] = VERDICT_REASONS


def chosen(words: Mapping[str, Text], language: Language) -> str:
    """Return a template that writes the word of the current value (``.``), or the value where there is none."""
    return _chain((f'eq . "{value}"', text.in_(language)) for value, text in words.items())


def meaning(language: Language) -> str:
    """Return a template that writes the meaning of the XID whose series the query has found."""
    if language is Language.ENGLISH:
        return '{{ . | first | label "meaning" }}'
    by_meaning: dict[str, list[str]] = {}
    for code in sorted(CATALOGUE):
        by_meaning.setdefault(CHINESE[code], []).append(str(code))
    conditions = ((f'match "^({"|".join(codes)})$" .', text) for text, codes in by_meaning.items())
    return f'{{{{ with . | first | label "xid" }}}}{_chain(conditions)}{{{{ end }}}}'


def _chain(conditions: Iterator[tuple[str, str]]) -> str:
    cases = "".join(
        f"{{{{ {'else if' if number else 'if'} {condition} }}}}{text}"
        for number, (condition, text) in enumerate(conditions)
    )
    return f"{cases}{{{{ else }}}}{{{{ . }}}}{{{{ end }}}}"


def by_label(label: str, words: Mapping[str, Text]) -> Text:
    """Return a template that writes the word of one of the alert's labels."""

    def part(language: Language) -> str:
        return f"{{{{ with $labels.{label} }}}}{chosen(words, language)}{{{{ end }}}}"

    return Text(part(Language.ENGLISH), part(Language.CHINESE))
