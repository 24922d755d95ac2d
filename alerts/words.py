"""Label values that messages show as words: recommended actions, causes of stragglers, verdicts, meanings of XIDs.

Prometheus' templates choose the word; a value that is not listed is shown as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
CAUSES: Mapping[str, Text] = {
    Cause.THERMAL.value: Text("thermal throttling", "过热降频"),
    Cause.POWER_BRAKE.value: Text("power brake", "外部功率制动"),
    Cause.POWER_CAP.value: Text("lower power limit", "功率上限偏低"),
    Cause.CLOCK_LOCK.value: Text("locked clocks", "时钟被锁定"),
    Cause.OTHER_TENANT.value: Text("shared with another tenant", "被其他租户占用"),
    Cause.PCIE.value: Text("degraded PCIe link", "PCIe 链路降级"),
    Cause.NVLINK.value: Text("NVLinks down", "NVLink 断开"),
    Cause.MEMORY_PRESSURE.value: Text("memory nearly full", "显存将满"),
    Cause.UNKNOWN.value: Text("unknown cause", "原因未知"),
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
        "Set the power limit of the other GPUs of the group: nvidia-smi -i {{ $labels.gpu }} -pl WATTS.",
        "把功率上限设为与同组其他卡一致：nvidia-smi -i {{ $labels.gpu }} -pl 瓦数。",
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
_COPY, _DECODE, _JPEG = "复制引擎报告错误", "视频解码器报告错误", "JPEG 引擎报告错误"
XIDS_ZH: Mapping[int, str] = {
    8: "通道停止工作", 11: "命令流无效或损坏", 13: "计算引擎异常，例如内核访问非法地址或非法指令", 25: "命令流无效或非法",
    31: "内核或拷贝访问了未映射的显存", 32: "命令缓冲读取到无效或损坏的命令流", 60: "安全引擎报告错误",
    69: "计算引擎收到类别错误的命令", 80: "命令缓冲校验和错误", 86: "光流引擎报告错误",
    94: "不可纠正的显存错误，影响仅限使用该显存的进程", 139: "第二光流引擎报告错误",
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _COPY),
    **dict.fromkeys((68, 83, 84, 88, 89, 96, 97, 98), _DECODE), **dict.fromkeys((82, *range(99, 106)), _JPEG),
    37: "计算引擎固件拒绝了命令", 38: "计算引擎固件超时", 43: "进程因自身错误被停止", 44: "切换上下文时出错",
    63: "故障显存行已重映射或页已停用：该卡已自行修复", 66: "驱动访问了不允许的计算引擎寄存器", 67: "计算引擎固件报告违规",
    92: "单比特显存错误频繁被纠正", 93: "该卡配置存储写入次数超出预期", 106: "管理总线测试消息", 107: "管理总线静默测试消息",
    108: "无法转换其他卡经 NVLink 的请求", 121: "CPU 与该卡之间链路的已纠正错误", 137: "经 NVLink 访问其他卡显存被拒绝",
    141: "通道快速路径错误", 152: "深度学习加速器的地址转换出错", 153: "深度学习加速器未按时响应", 157: "故障部件无法停用",
    160: "故障显存通道已停用", 161: "故障显存通道无法停用", 45: "通道因其他错误或进程结束而被移除", 46: "该卡不再响应驱动",
    62: "电源管理控制器停止工作", 64: "故障显存行无法重映射，或页无法停用", 95: "不可纠正的显存错误，可能波及该卡上的所有进程",
    109: "上下文切换超时", 110: "安全引擎发现故障", 119: "GPU 系统处理器（GSP）响应超时：驱动调用可能挂死",
    120: "GPU 系统处理器（GSP）故障：驱动调用可能挂死", 136: "NVLink 训练失败", 140: "硬件未能隔离的不可纠正显存错误",
    143: "该卡无法初始化", 155: "NVLink 被软件或有意断开；链路休眠时也会出现", 156: "故障部件将在下次复位时停用",
    158: "该卡发生致命超时", 48: "不可纠正的显存错误（双比特）", 74: "到其他卡或交换机的 NVLink 故障：集合通信可能变慢或挂死",
    79: "GPU 已从总线掉落（fallen off the bus），驱动无法访问", 151: "机密虚拟机密钥轮换失败", 54: "供电连接不完整，该卡降频运行",
    78: "vGPU 无法启动", 142: "视频编码器报告错误", 159: "与 CPU 的一致性链路报告错误，无详细数据",
    154: "因另一个 XID，驱动要求的恢复操作已改变", 144: "NVLink 5：SAW 单元错误", 145: "NVLink 5：RLW 单元错误",
    146: "NVLink 5：TLW 单元错误", 147: "NVLink 5：TREX 单元错误", 148: "NVLink 5：NVLPW 单元错误",
    149: "NVLink 5：链路事件，例如断开或误码过多", 150: "NVLink 5：MSE 管理单元错误", 162: "功率平滑重新生效",
    163: "功率平滑失效", 164: "功率平滑电路接近寿命终点", 165: "功率平滑电路已到寿命终点", 166: "NVLink 加密错误",
    167: "PCIe 请求未完成", 168: "该卡可用显存少于出厂容量", 169: "安全处理器停止工作", 170: "加密 NVLink 的其他错误",
    171: "XID 48 的补充信息：错误位于显存堆栈", 172: "XID 48 的补充信息：错误位于芯片内部",
}  # fmt: skip


def chosen(words: Mapping[str, Text], language: Language) -> str:
    """Return a template that writes the word of the current value (``.``), or the value where there is none."""
    return _chain((f'eq . "{value}"', text.in_(language)) for value, text in words.items())


def meaning(language: Language) -> str:
    """Return a template that writes the meaning of the XID whose series the query has found."""
    if language is Language.ENGLISH:
        return '{{ . | first | label "meaning" }}'
    by_meaning: dict[str, list[str]] = {}
    for code in sorted(CATALOGUE):
        by_meaning.setdefault(XIDS_ZH[code], []).append(str(code))
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
