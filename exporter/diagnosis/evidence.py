"""Names of evidence for people; programs read the names themselves, which do not change within v1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from exporter.model.text import Text

_LABELS = {
    "accepted": Text("accepted", "接受"),
    "accepted_before": Text("accepted before", "此前接受"),
    "adapters_requested": Text("adapters requested", "请求所需适配器数"),
    "backend": Text("backend", "后端"),
    "best_rate": Text("best rate", "曾达到的速率"),
    "backends": Text("backends", "后端数"),
    "clock_events": Text("throttle reasons", "降频原因"),
    "driver_events": Text("driver messages", "驱动消息"),
    "dram_active": Text("memory bandwidth used", "显存带宽占用"),
    "error": Text("error", "错误"),
    "error_ratio": Text("error ratio", "错误率"),
    "failed_transfers": Text("failed transfers", "失败的传输"),
    "failures_to_requests": Text("failures over requests", "失败数/请求数"),
    "generated_tokens_per_second": Text("generated tokens per second", "每秒生成 token"),
    "gpu_work": Text("GPUs", "GPU"),
    "gpus_unanswered": Text("GPUs without an answer", "无应答的 GPU"),
    "gpus": Text("GPUs", "GPU 数"),
    "hit_ratio": Text("hit rate", "命中率"),
    "hit_ratio_before": Text("hit rate before", "此前命中率"),
    "interface": Text("interface", "网络接口"),
    "itl_mean": Text("mean ITL", "平均 ITL"),
    "itl_mean_of_fastest": Text("mean ITL of the fastest", "最快副本的平均 ITL"),
    "kv_cache_usage": Text("KV cache used", "KV 缓存使用率"),
    "link_downs": Text("times down", "断开次数"),
    "lookups_per_second": Text("lookups per second", "每秒查询"),
    "lora_slots": Text("LoRA slots", "LoRA 槽位"),
    "max_to_mean": Text("maximum over mean", "最大值/均值"),
    "memory_used": Text("memory used", "已用显存"),
    "model": Text("model", "模型"),
    "nearest_gpus": Text("nearest GPUs", "相邻 GPU"),
    "nvlinks_down": Text("NVLinks down", "断开的 NVLink"),
    "owner": Text("owner", "使用者"),
    "other_owner": Text("other owner", "其他使用者"),
    "pci_bus_id": Text("PCI", "PCI"),
    "pcie_generation": Text("PCIe generation", "PCIe 代"),
    "pcie_width": Text("PCIe lanes", "PCIe 通道数"),
    "preemptions_per_second": Text("preemptions per second", "每秒抢占"),
    "poll_errors": Text("failed polls", "失败的轮询"),
    "power": Text("power", "功耗"),
    "processes": Text("processes", "进程数"),
    "rank": Text("rank", "rank"),
    "rate": Text("rate", "速率"),
    "reason": Text("reason", "原因"),
    "remaining": Text("remaining", "剩余"),
    "requests": Text("requests", "请求数"),
    "requests_running": Text("running", "运行"),
    "requests_waiting": Text("waiting", "排队"),
    "replica_key": Text("replica key", "副本 key"),
    "nodes": Text("nodes", "节点数"),
    "restarts": Text("restarts", "重启次数"),
    "sm_active": Text("SM active", "SM 活跃"),
    "stale_endpoints": Text("stale endpoints", "数据过期的端点"),
    "state": Text("state", "状态"),
    "sxid": Text("SXid", "SXid"),
    "slowdown": Text("slowdown", "变慢倍数"),
    "slowest_path": Text("slowest path", "最慢路径"),
    "sm_clock": Text("SM clock", "SM 时钟"),
    "sm_clock_max": Text("maximum SM clock", "最高 SM 时钟"),
    "temperature": Text("temperature", "温度"),
    "temperature_margin": Text("margin to slowdown", "距降频温度"),
    "throttled": Text("throttled for", "降频时间占比"),
    "ttft_mean": Text("mean TTFT", "平均 TTFT"),
    "uncorrectable_errors": Text("uncorrectable errors", "不可纠正的错误"),
    "utilization": Text("utilization", "利用率"),
    "version": Text("version", "版本"),
    "xid": Text("XID", "XID"),
}
_PATTERNS = (
    (re.compile(r"gateway_(.+)_share"), Text("share of gateway {0}", "网关 {0} 的份额")),
    (
        re.compile(r"prompt_tokens_per_second_rank_(.*)"),
        Text("prompt tokens per second on rank {0}", "rank {0} 每秒提示词 token"),
    ),
    (re.compile(r"errors_(.+)"), Text("{0} errors", "{0} 错误")),
    (re.compile(r"process_(\d+)"), Text("process {0}", "进程 {0}")),
    (re.compile(r"owner_of_(\d+)"), Text("owner of process {0}", "进程 {0} 的使用者")),
    (re.compile(r"xid_(\d+)"), Text("meaning", "含义")),
    (re.compile(r"share_of_(.+)"), Text("share of {0}", "{0} 的份额")),
    (re.compile(r"waiting_rank_(.*)"), Text("waiting on rank {0}", "rank {0} 排队")),
    (re.compile(r"running_rank_(.*)"), Text("running on rank {0}", "rank {0} 运行")),
    (re.compile(r"running_(.+)"), Text("running on {0}", "{0} 运行")),
    (re.compile(r"utilization_gpu_(.+)"), Text("utilization of GPU {0}", "{0} 号卡利用率")),
)


class _EvidenceLike(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def value(self) -> object: ...


_AnyEvidence = TypeVar("_AnyEvidence", bound=_EvidenceLike)


def own_evidence(evidence: Iterable[_AnyEvidence], of_causes: Iterable[_EvidenceLike]) -> Sequence[_AnyEvidence]:
    """Return the evidence of a finding that its causes, which stand above it, do not show with the same value."""
    shown = [(item.name, item.value) for item in of_causes]
    return tuple(item for item in evidence if (item.name, item.value) not in shown)


def label(name: str) -> Text:
    """Return the name of a piece of evidence for people; of one that is not listed, its words."""
    known = _LABELS.get(name)
    if known is not None:
        return known
    if name.endswith("_of_peers"):
        return label(name.removesuffix("_of_peers")) + Text(" of its peers", "（同组）")
    if name.endswith("_of_gpus"):
        return label(name.removesuffix("_of_gpus")) + Text(" of its GPUs", "（所用 GPU）")
    for pattern, text in _PATTERNS:
        if match := pattern.fullmatch(name):
            return Text(text.en.format(match[1]), text.zh.format(match[1]))
    return Text(name.replace("_", " "), name)
