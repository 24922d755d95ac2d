"""The page's own words in English and Chinese.  Findings, evidence and XIDs bring theirs from ``diagnosis``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exporter.diagnosis.verdict_names import VERDICT_NAMES
from exporter.model.text import Language, Text

Words = Callable[[str], str]

TEXTS: Mapping[str, Text] = {
    # the page
    "title": Text("{node} · Shardwatch", "{node} · Shardwatch"),
    "skip": Text("Skip to the content", "跳到正文"),
    "sections": Text("Sections", "本页内容"),
    "other_language": Text("中文", "English"),
    "data_of": Text("data of {time}", "数据时间 {time}"),
    "data_aged": Text("data of {time}, {age} old", "数据时间 {time}（{age}前）"),
    "reloads": Text("This page reloads every {count} s.", "本页每 {count} 秒自动刷新。"),
    "no_data": Text("no data yet", "尚无数据"),
    "old": Text(
        "The data is {age} old: the daemon has stopped reading. The values below are those of {time}.",
        "数据已有 {age}未更新：守护进程已停止读取。以下数值的时间为 {time}。",
    ),
    "lost": Text(
        "No answer from the daemon ({problem}) since {since}. The values below are those of {time}.",
        "自 {since} 起守护进程无应答（{problem}）。以下数值的时间为 {time}。",
    ),
    "lost_short": Text("no connection", "连接中断"),
    "starting": Text(
        "No snapshot yet: the daemon is starting. This page fills as soon as the first sources answer.",
        "尚无快照：守护进程正在启动。数据源应答后，本页会自动显示数据。",
    ),
    "more": Text("As data", "原始数据"),
    "not_known": Text("not known", "未知"),
    # findings
    "findings": Text("Findings", "诊断结果"),
    "none_found": Text("No findings: {gpus} GPUs, {replicas} replicas and {sources} sources answer.",
                       "未发现问题：{gpus} 张 GPU、{replicas} 个副本、{sources} 个数据源均有应答。"),
    "none_found_partly": Text("No findings; not everything answers yet: see Sources.",
                              "未发现问题；但部分数据源尚无应答，见“数据源”。"),
    "critical": Text("CRITICAL", "严重"),
    "warning": Text("WARNING", "警告"),
    "info": Text("INFO", "提示"),
    "one_critical": Text("1 critical finding", "1 个严重问题"),
    "one_warning": Text("1 warning", "1 个警告"),
    "one_info": Text("1 note", "1 个提示"),
    "count_critical": Text("{count} critical findings", "{count} 个严重问题"),
    "count_warning": Text("{count} warnings", "{count} 个警告"),
    "count_info": Text("{count} notes", "{count} 个提示"),
    "colon": Text("{name}: {value}", "{name}：{value}"),
    "reason": Text("{text} ({reason})", "{text}（{reason}）"),
    "cause": Text("Cause", "原因"),
    "evidence": Text("Evidence", "依据"),
    "do": Text("What to do", "处理"),
    "runbook": Text("runbook", "运行手册"),
    "since": Text("since {time} ({age})", "自 {time} 起（{age}）"),
    # tables
    "replicas": Text("Replicas", "副本"),
    "ranks": Text("Ranks", "Rank"),
    "gpus": Text("GPUs", "GPU"),
    "topology": Text("GPU topology", "GPU 拓扑"),
    "gateways": Text("Gateways", "网关"),
    "sources": Text("Sources", "数据源"),
    "events": Text("Events", "事件"),
    "only_problems": Text("problems only", "只看有问题的"),
    "last": Text("rates and latencies over the last {window}, errors over {errors}",
                 "速率与延迟取最近 {window}，错误率取最近 {errors}"),
    "last_shares": Text("shares over the last {window}, errors over {errors}",
                        "份额取最近 {window}，错误率取最近 {errors}"),
    "more_items": Text("+{count} more", "另有 {count} 项"),
    "nothing_wrong": Text("No GPU has a problem.", "没有 GPU 存在问题。"),
    "slowest_path": Text("slowest path of {replica}: {path}", "{replica} 的最慢路径：{path}"),
    "curve": Text("{series}, 10 min: {low} to {high}", "{series}，10 分钟：{low} 至 {high}"),
    "no_events": Text("None since the daemon started.", "守护进程启动以来没有事件。"),
    # columns
    "replica": Text("Replica", "副本"),
    "verdict": Text("Verdict", "判定"),
    "running": Text("Running", "运行中"),
    "waiting": Text("Waiting", "排队"),
    "ttft": Text("TTFT p99", "TTFT p99"),
    "ttft_title": Text("time to first token", "首 token 延迟"),
    "itl": Text("ITL p50", "ITL p50"),
    "itl_title": Text("inter-token latency", "token 间延迟"),
    "hit_ratio": Text("Hit ratio", "命中率"),
    "hit_ratio_title": Text("prefix cache hit ratio", "前缀缓存命中率"),
    "kv": Text("KV cache", "KV 缓存"),
    "kv_title": Text("KV cache usage of the fullest rank", "最满 rank 的 KV 缓存使用率"),
    "errors": Text("Errors", "错误率"),
    "tokens": Text("Tokens/s", "Token/s"),
    "tokens_title": Text("generated tokens per second", "每秒生成的 token"),
    "cost": Text("Cost", "成本"),
    "cost_title": Text("per million generated tokens, and joules per token",
                       "每百万生成 token 的成本，以及每 token 焦耳数"),
    "rank": Text("Rank", "Rank"),
    "gpu": Text("GPU", "GPU"),
    "state": Text("State", "状态"),
    "work": Text("Utilization", "利用率"),
    "work_title": Text("share of time with a kernel resident; beside it the useful work: SM and tensor cores active",
                       "有 kernel 驻留的时间占比；旁为有效计算：SM 与 Tensor Core 活跃率"),
    "memory": Text("Memory", "显存"),
    "temperature": Text("Temperature", "温度"),
    "temperature_title": Text("and how far it is from the slowdown temperature", "及距降频温度的余量"),
    "power": Text("Power", "功耗"),
    "clock": Text("SM clock", "SM 时钟"),
    "clock_title": Text("and the throttle reason", "及降频原因"),
    "links": Text("Links", "链路"),
    "links_title": Text("NVLinks active, and the PCIe link", "活跃的 NVLink 与 PCIe 链路"),
    "xid": Text("XID", "XID"),
    "xid_title": Text("the newest GPU errors, how often, and when", "最近的 GPU 错误、次数及时间"),
    "path": Text("Path", "路径"),
    "pairs": Text("GPU pairs", "GPU 对数"),
    "gateway": Text("Gateway", "网关"),
    "backend": Text("Backend", "后端"),
    "share": Text("Share", "份额"),
    "share_title": Text("of the pool's requests", "占该池请求的比例"),
    "active": Text("Open", "进行中"),
    "queued": Text("Queued", "排队"),
    "source": Text("Source", "数据源"),
    "age": Text("Age", "数据龄"),
    "duration": Text("Duration", "耗时"),
    # values
    "ok": Text("ok", "正常"),
    "up": Text("up", "正常"),
    "down": Text("down", "异常"),
    "straggler": Text("straggler", "慢卡"),
    "waits": Text("waits", "等待"),
    "waits_for": Text("for GPU {gpu}", "{gpu} 号卡"),
    **{state.value: name for state, name in VERDICT_NAMES.items()},
    "limit": Text("of {total}", "上限 {total}"),
    "margin": Text("margin {degrees}", "余量 {degrees}"),
    "sm": Text("SM {sm}", "SM {sm}"),
    "tensor": Text("tensor {tensor}", "Tensor {tensor}"),
    "processes": Text("processes: {processes}", "进程：{processes}"),
    "pid": Text("pid {pid} {bytes}", "pid {pid} {bytes}"),
    "rank_number": Text("rank {rank}", "rank {rank}"),
    "sends_to_ejected": Text("still sends to an ejected replica", "仍在向已摘除的副本发送请求"),
    "driver": Text("driver {version}", "驱动 {version}"),
    "replicas_count": Text("{count} replicas", "{count} 个副本"),
    "one_replica": Text("1 replica", "1 个副本"),
    "gpus_count": Text("{up} of {count} GPUs", "{up}/{count} 张 GPU"),
    "seconds": Text("{count} s", "{count} 秒"),
    "minutes": Text("{count} min", "{count} 分钟"),
    "hours": Text("{count} h", "{count} 小时"),
    "days": Text("{count} d", "{count} 天"),
    # throttle reasons; gpu_idle is none
    "applications_clocks_setting": Text("application clocks", "应用时钟设置"),
    "sw_power_cap": Text("power cap", "功耗限制"),
    "hw_slowdown": Text("hardware slowdown", "硬件降频"),
    "sync_boost": Text("sync boost", "同步加速"),
    "sw_thermal_slowdown": Text("thermal", "过热"),
    "hw_thermal_slowdown": Text("thermal (hardware)", "过热（硬件）"),
    "hw_power_brake_slowdown": Text("power brake", "功率制动"),
    "display_clock_setting": Text("display clocks", "显示时钟设置"),
}  # fmt: skip

# Reasons are closed words, which the API has too; in English they are shown as they are.
REASONS: Mapping[str, str] = {
    "certificate": "证书即将到期", "down": "拒绝连接", "gpu_lost": "GPU 掉卡", "gpu_reset_required": "GPU 需要复位",
    "hung": "无响应", "lost": "掉卡", "no_data": "无数据", "no_progress": "没有进展",
    "no_replica_serves": "没有可服务的副本",
    "refused": "拒绝连接", "reset_required": "需要复位", "row_remap_failed": "行重映射失败",
    "row_remap_pending": "行重映射待复位", "starting": "正在启动", "timeout": "超时", "slow": "响应慢",
    "remote": "不在本节点", "no_driver": "无驱动", "no_processes": "无 GPU 进程",
    "pid_namespace": "PID 命名空间不可见",
    "no_permission": "无权限", "no_listener": "端口未监听", "ambiguous": "无法唯一确定", "unknown_gpu": "未知 GPU",
}  # fmt: skip


def pair(words: Words, key: str, value: str) -> str:
    """Return a value behind the name that ``key`` stands for."""
    return words("colon").format(name=words(key), value=value)


def words(language: Language) -> Words:
    """Return what looks up a text in one language."""
    return lambda key: TEXTS[key].in_(language)
