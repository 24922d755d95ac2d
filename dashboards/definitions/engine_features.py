"""Replica, features of engines: speculation, tiers of the KV cache, transfers between prefill and decode, LoRA."""

from __future__ import annotations

from alerts import panel_ids as ids
from dashboards.definitions.latency import REPLICA_NAME
from dashboards.no_data_text import Requires
from dashboards.panels import NumberFormat, Panel, series, time_series
from dashboards.variables import EXPORTER_WINDOW, RATE_INTERVAL, selected
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import max_by, rate, sum_by

FEATURE = (Requires.FULL, Requires.FEATURE)

FEATURES: tuple[Panel, ...] = (
    time_series(
        Text("Accepted share of speculated tokens", "投机 token 接受率"),
        Text(
            "Accepted over drafted tokens, 5 minutes. A drop against its own past: the drafts do not fit the model or the "
            "prompts any more. Compare with ITL and with the cost per token: rejected drafts cost both.",
            "5 分钟内接受的 token 占草稿 token 的比例。相对自身历史下降：草稿不再适合模型或提示词。与 token 间隔和单 token 成本对照。",
        ),
        series(
            lambda: max_by(selected(m.LLM_SPEC_DECODE_ACCEPTANCE_RATIO, window=EXPORTER_WINDOW), "instance", "replica"),
            REPLICA_NAME,
        ),
        requires=FEATURE, max_value=1, panel_id=ids.REPLICA_SPECULATION,
    ),
    time_series(
        Text("Accepted tokens per draft", "每次草稿接受的 token"),
        Text(
            "Mean over 5 minutes of engines that count drafts; a step yields one token more. Engines that count none "
            "report the tokens of a step themselves.",
            "统计草稿的引擎 5 分钟均值；每步另产生一个 token。不统计草稿的引擎自行报告每步的 token 数。",
        ),
        series(
            lambda: max_by(selected(m.LLM_SPEC_DECODE_ACCEPTED_LENGTH_TOKENS, window=EXPORTER_WINDOW), "instance", "replica"),
            Text(f"{REPLICA_NAME} per draft", f"{REPLICA_NAME} 每次草稿"),
        ),
        series(
            lambda: max_by(selected(m.LLM_SPEC_DECODE_REPORTED_ACCEPTED_LENGTH_TOKENS), "instance", "replica"),
            Text(f"{REPLICA_NAME} per step, reported", f"{REPLICA_NAME} 每步（引擎报告）"),
        ),
        requires=FEATURE,
    ),
    time_series(
        Text("KV cache to and from host memory", "KV 缓存与主机内存往来"),
        Text(
            "Bytes per second by direction. Much stored and little loaded: the tier is too small, or no prompt repeats.",
            "按方向的每秒字节数。写入多而读回少：该层太小，或提示词没有重复。",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_KV_OFFLOAD_BYTES_TOTAL), RATE_INTERVAL), "instance", "replica", "direction"),
            f"{REPLICA_NAME} {{{{direction}}}}",
        ),
        requires=FEATURE, panel_id=ids.REPLICA_OFFLOAD,
    ),
    time_series(
        Text("Tiers of the KV cache", "KV 缓存层级"),
        Text(
            "Usage of the tier in host memory, and the share of tokens found in caches outside of the engine. A full tier with "
            "few hits evicts what it would need.",
            "主机内存层的使用率，以及在引擎外部缓存中命中的 token 占比。满而命中少：需要的内容已被淘汰。",
        ),
        series(
            lambda: max_by(selected(m.LLM_KV_HOST_CACHE_USAGE_RATIO), "instance", "replica"),
            Text(f"{REPLICA_NAME} host memory used", f"{REPLICA_NAME} 主机内存使用率"),
        ),
        series(
            lambda: max_by(selected(m.LLM_EXTERNAL_CACHE_HIT_RATIO, window=EXPORTER_WINDOW), "instance", "replica"),
            Text(f"{REPLICA_NAME} external hits", f"{REPLICA_NAME} 外部命中"),
        ),
        requires=FEATURE, max_value=1,
    ),
    time_series(
        Text("Failed transfers of KV caches", "失败的 KV 缓存传输"),
        Text(
            "Per second: failed, unconfirmed, or expired before the decode replica took them. Each prompt is computed again, or "
            "its request fails.",
            "每秒失败、未确认，或在解码副本取走前过期的传输。对应的提示需重新计算，或请求失败。",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_KV_TRANSFER_FAILURES_TOTAL), RATE_INTERVAL), "instance", "replica", "kind"),
            f"{REPLICA_NAME} {{{{kind}}}}",
        ),
        requires=FEATURE, panel_id=ids.REPLICA_TRANSFERS,
    ),
    time_series(
        Text("Queues of disaggregation", "预填充/解码分离的队列"),
        Text(
            "Requests by stage: prefill_bootstrap, prefill_inflight, decode_prealloc, decode_transfer, and those that wait "
            "for a grammar. A queue that grows names the stage that is too small.",
            "各阶段的请求：prefill_bootstrap、prefill_inflight、decode_prealloc、decode_transfer，以及等待语法编译的请求。增长的队列即容量不足的阶段。",
        ),
        series(
            lambda: sum_by(selected(m.LLM_SCHEDULER_QUEUE_REQUESTS), "instance", "replica", "queue"),
            f"{REPLICA_NAME} {{{{queue}}}}", number_format=NumberFormat.COUNT,
        ),
        requires=FEATURE,
    ),
    time_series(
        Text("LoRA slots", "LoRA 槽位"),
        Text(
            "Slots for adapters in GPU memory, used and in total. Full slots are normal, since unused adapters stay loaded; with "
            "requests waiting and room in the KV cache, requests wait for a slot.",
            "显存中适配器槽位的已用数与总数。满是正常的（未用的适配器仍驻留）；若有排队而 KV 缓存有空间，请求就在等槽位。",
        ),
        series(
            lambda: sum_by(selected(m.LLM_LORA_SLOTS), "instance", "replica", "state"),
            f"{REPLICA_NAME} {{{{state}}}}", number_format=NumberFormat.COUNT,
        ),
        requires=FEATURE, panel_id=ids.REPLICA_LORA,
    ),
)  # fmt: skip
