"""Parts of a panel's field configuration as Grafana's JSON: threshold steps, value mappings, links."""

from __future__ import annotations

import json
from typing import Any

from alerts.thresholds import Threshold
from dashboards.no_data_text import EXPORTER_DOWN_TEXT
from dashboards.panels.panel import Colour, DrillDown, ValueMapping
from dashboards.variables import VARIABLES
from exporter.model.text import Language, Text

Json = dict[str, Any]

LABELS: dict[str, Text] = {
    "instance": Text("Node", "节点"),
    "gpu": Text("GPU", "GPU"),
    "replica": Text("Replica", "副本"),
    "model": Text("Model", "模型"),
    "engine": Text("Engine", "引擎"),
    "rank": Text("Rank", "Rank"),
    "signal": Text("Signal", "信号"),
    "reason": Text("Reason", "原因"),
    "limit": Text("Limit", "上限"),
    "source": Text("Source", "数据源"),
    "target": Text("Receiver", "接收端"),
    "gateway": Text("Gateway", "网关"),
    "store": Text("Store", "存储"),
    "pool": Text("Pool", "后端池"),
    "backend": Text("Backend", "后端"),
    "component": Text("Component", "组件"),
    "version": Text("Version", "版本"),
    "driver_version": Text("Driver", "驱动"),
    "cuda_version": Text("CUDA", "CUDA"),
    "action": Text("Action", "建议操作"),
    "xid": Text("XID", "XID"),
    "cause": Text("Cause", "原因"),
    "profile": Text("Profile", "配置"),
    "gpu_instance": Text("GPU instance", "GPU 实例"),
    "compute_instance": Text("Compute instance", "计算实例"),
    "currency": Text("Currency", "货币"),
    "path": Text("Path", "路径"),
    "peer_gpu": Text("Other GPU", "对端 GPU"),
    "owner": Text("Owner", "使用者"),
    "workload": Text("Workload", "工作负载"),
    "slurm_job": Text("Slurm job", "Slurm 作业"),
    "unit": Text("systemd unit", "systemd 单元"),
    "user": Text("User", "用户"),
    "p2p": Text("Peer access", "对等访问"),
    "name": Text("Name", "型号"),
    "serial": Text("Serial", "序列号"),
    "pci_bus_id": Text("PCI address", "PCI 地址"),
    "vbios_version": Text("VBIOS", "VBIOS"),
    "numa_node": Text("NUMA node", "NUMA 节点"),
    "sxid": Text("SXid", "SXid"),
    "severity": Text("Severity", "严重程度"),
    "remote": Text("Other end", "对端"),
    "type": Text("Type", "类型"),
    "dialect": Text("Metric names", "指标前缀"),
    "class": Text("Class", "类别"),
    "meaning": Text("Meaning", "含义"),
    "problem": Text("Problem", "问题"),
    "image": Text("Image", "镜像"),
    "digest": Text("Digest", "摘要"),
    "state": Text("State", "状态"),
    "physical_state": Text("Physical state", "物理状态"),
    "device": Text("Device", "设备"),
    "port": Text("Port", "端口"),
    "link_layer": Text("Link layer", "链路层"),
    "interface": Text("Interface", "网络接口"),
    "adapter": Text("Adapter", "适配器"),
    "firmware": Text("Firmware", "固件"),
    "pkey": Text("PKey", "PKey"),
    "event": Text("Event", "事件"),
    "gpus": Text("GPUs", "卡数"),
    "ranks": Text("Data-parallel ranks", "数据并行 rank 数"),
    "tensor": Text("Tensor parallel", "张量并行"),
    "pipeline": Text("Pipeline parallel", "流水线并行"),
}


def label_name(label: str, language: Language) -> str:
    """Return the column title of a label in a table."""
    return LABELS[label].in_(language)


def steps(threshold: Threshold | None) -> list[Json]:
    """Return threshold steps, the lowest first; a single neutral step without a threshold."""
    if threshold is None:
        return [_step(Colour.PLAIN, None)]
    tiers = dict(threshold.tiers())
    warning, critical = tiers["warning"], tiers.get("critical")
    if threshold.above:
        found = [_step(Colour.GOOD, None), _step(Colour.WARNING, warning)]
        return found if critical is None else [*found, _step(Colour.CRITICAL, critical)]
    if critical is None:
        return [_step(Colour.WARNING, None), _step(Colour.GOOD, warning)]
    return [_step(Colour.CRITICAL, None), _step(Colour.WARNING, critical), _step(Colour.GOOD, warning)]


def _step(colour: Colour, value: float | None) -> Json:
    return {"color": colour.value, "value": value}


def mappings(
    value_mappings: tuple[ValueMapping, ...],
    language: Language,
    *,
    no_value: str,
    no_value_colour: str = Colour.OFF.value,
) -> list[Json]:
    """Return Grafana's value mappings; null and NaN are shown as ``no_value``."""
    options = {
        f"{state.value:g}": {"text": state.text.in_(language), "color": state.colour.value, "index": place}
        for place, state in enumerate(value_mappings)
    }
    result = {"text": no_value, "color": no_value_colour, "index": len(value_mappings)}
    special = {"match": "null+nan", "result": result}
    found: list[Json] = [{"type": "value", "options": options}] if options else []
    return [*found, {"type": "special", "options": special}]


def exporter_down_field(ref: str, language: Language) -> Json:
    """Return the override of the field that has data while the exporters are down: a text in red."""
    down = ValueMapping(0, EXPORTER_DOWN_TEXT, Colour.CRITICAL)
    properties = [
        {"id": "unit", "value": "none"},
        {"id": "thresholds", "value": {"mode": "absolute", "steps": [_step(Colour.CRITICAL, None)]}},
        {"id": "mappings", "value": mappings((down,), language, no_value="–")},
    ]
    return {"matcher": {"id": "byFrameRefID", "options": ref}, "properties": properties}


def link(drill_down: DrillDown, language: Language, *, table: bool) -> Json:
    """Return the link to another dashboard that keeps time and variables and sets variables from the series' labels."""
    parts = ["${__url_time_range}", "${datasource:queryparam}"]
    for name in VARIABLES:
        if name not in drill_down.labels:
            parts.append(f"${{{name}:queryparam}}")
        elif table:
            parts.append(f"var-{name}=${{__data.fields[{json.dumps(label_name(name, language))}]:percentencode}}")
        else:
            parts.append(f"var-{name}=${{__field.labels.{name}:percentencode}}")
    title = LINK_TITLES[drill_down.to.name].in_(language)
    return {"title": title, "url": f"/d/{drill_down.to.value}?{'&'.join(parts)}", "targetBlank": False}


LINK_TITLES: dict[str, Text] = {
    "FLEET": Text("Open Fleet", "打开集群总览"),
    "NODE": Text("Open Node", "打开节点"),
    "REPLICA": Text("Open Replica", "打开副本"),
    "IMBALANCE": Text("Open Imbalance", "打开不均衡"),
    "EFFICIENCY": Text("Open Efficiency", "打开效率"),
    "GPU_HEALTH": Text("Open GPU health", "打开 GPU 健康"),
    "SELF": Text("Open Shardwatch health", "打开 Shardwatch 健康"),
}
