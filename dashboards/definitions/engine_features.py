"""Replica, features of engines: speculation, tiers of the KV cache, LoRA, experts, start-up."""

from __future__ import annotations

from alerts import panel_ids as ids
from dashboards.definitions.latency import REPLICA_NAME
from dashboards.definitions.status import UP
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, NumberFormat, Panel, column, series, table, time_series
from dashboards.variables import EXPORTER_WINDOW, RATE_INTERVAL, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric, Unit
from exporter.model.text import Text
from exporter.promql import Expr, binary, max_by, rate, sum_by

FEATURE = (Requires.FULL, Requires.FEATURE)
STORE = (Requires.STORE,)


def _per_second(metric: Metric) -> Expr:
    tokens = sum_by(rate(selected(metric), RATE_INTERVAL), "instance", "replica")
    return tokens.as_unit(Unit.TOKENS, per_second=True)  # of hits: of most engines


def _prefill_share() -> Expr:
    computed = _per_second(m.LLM_PROMPT_TOKENS_TOTAL) - _per_second(m.LLM_PREFIX_CACHE_HITS_TOTAL)
    return (computed / (computed + _per_second(m.LLM_GENERATION_TOKENS_TOTAL))).as_unit(Unit.RATIO)


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
        series(
            lambda: max_by(selected(m.LLM_SPEC_DECODE_REPORTED_ACCEPTANCE_RATIO), "instance", "replica"),
            Text(f"{REPLICA_NAME} reported", f"{REPLICA_NAME} 引擎报告"),
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
        Text("Acceptance by position", "各位置的接受率"),
        Text(
            "Accepted tokens over drafts by position in the draft, of engines that count them. Where the last positions are near "
            "zero, draft fewer tokens.",
            "草稿中各位置接受的 token 与草稿数之比（引擎统计时）。末尾位置接近零时，减少草稿 token 数。",
        ),
        series(
            lambda: binary(
                "/",
                sum_by(rate(selected(m.LLM_SPEC_DECODE_ACCEPTED_TOKENS_BY_POSITION_TOTAL), RATE_INTERVAL), "instance", "replica", "position"),
                sum_by(rate(selected(m.LLM_SPEC_DECODE_DRAFTS_TOTAL), RATE_INTERVAL), "instance", "replica"),
                on=("instance", "replica"), group_left=(),
            ),
            Text(f"{REPLICA_NAME} position {{{{position}}}}", f"{REPLICA_NAME} 位置 {{{{position}}}}"),
        ),
        requires=FEATURE, max_value=1,
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
        Text("Prompt tokens by source", "提示 token 的来源"),
        Text(
            "Tokens per second: computed, found in the KV cache, transferred; and, where the engine tells, by the tier that had "
            "them (device, host, disk or storage). What is computed is the work of the prefill.",
            "每秒 token：计算所得、KV 缓存命中、传输所得；引擎报告时还按命中的层级（device、host、disk 或 storage）。计算部分即预填充的工作量。",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_PROMPT_TOKENS_BY_SOURCE_TOTAL), RATE_INTERVAL), "instance", "replica", "source"),
            f"{REPLICA_NAME} {{{{source}}}}",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_CACHED_TOKENS_BY_SOURCE_TOTAL), RATE_INTERVAL), "instance", "replica", "source"),
            Text(f"{REPLICA_NAME} cached in {{{{source}}}}", f"{REPLICA_NAME} 缓存于 {{{{source}}}}"),
        ),
        requires=FEATURE,
    ),
    table(
        Text("KV-cache stores", "KV 缓存存储"),
        Text(
            "Whether each configured store can be read; LMCache and Mooncake.",
            "各已配置存储是否可读：LMCache 与 Mooncake。",
        ),
        column(lambda: selected(m.KV_STORE_UP), Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(lambda: rate(selected(m.KV_STORE_QUERIES_TOTAL), RATE_INTERVAL), Text("Queries", "查询")),
        rows=("instance", "store"), requires=STORE, panel_id=ids.REPLICA_STORES,
    ),
    time_series(
        Text("Hits in KV-cache stores", "KV 缓存存储命中率"),
        Text(
            "Hits over queries of each configured store, 5 minutes: LMCache in tokens, Mooncake in objects. Low beside a full "
            "store: it evicts what would be asked for again.",
            "各已配置存储 5 分钟内命中数占查询数之比：LMCache 按 token，Mooncake 按对象。存储已满而命中低：会再次用到的内容已被淘汰。",
        ),
        series(
            lambda: max_by(selected(m.KV_STORE_HIT_RATIO, window=EXPORTER_WINDOW), "instance", "store"), "{{store}}",
        ),
        requires=STORE, max_value=1,
    ),
    time_series(
        Text("Lookups in KV-cache stores", "KV 缓存存储的查询"),
        Text(
            "Hits per second, in all and by the tier that had them; in tokens with LMCache, in objects with Mooncake.",
            "每秒命中数：总数，及按命中层级；LMCache 按 token，Mooncake 按对象。",
        ),
        series(
            lambda: sum_by(rate(selected(m.KV_STORE_HITS_TOTAL), RATE_INTERVAL), "instance", "store"),
            Text("{{store}} hits", "{{store}} 命中"),
        ),
        series(
            lambda: sum_by(rate(selected(m.KV_STORE_TIER_HITS_TOTAL), RATE_INTERVAL), "instance", "store", "tier"),
            Text("{{store}} {{tier}} hits", "{{store}} {{tier}} 命中"),
        ),
        requires=STORE,
    ),
    time_series(
        Text("Usage of KV-cache stores", "KV 缓存存储使用率"),
        Text(
            "Used over capacity by tier. A full tier is normal while hits stay high. LMCache inside an engine tells no capacity.",
            "按层级的已用占容量之比。命中仍高时，满是正常的。引擎内的 LMCache 不报告容量。",
        ),
        series(lambda: max_by(selected(m.KV_STORE_USAGE_RATIO), "instance", "store", "tier"), "{{store}} {{tier}}"),
        requires=STORE, max_value=1,
    ),
    time_series(
        Text("Bytes in KV-cache stores", "KV 缓存存储已用字节"),
        Text("Bytes that each tier holds, and can hold.", "各层级持有的字节数与可持有的字节数。"),
        series(
            lambda: max_by(selected(m.KV_STORE_USED_BYTES), "instance", "store", "tier"),
            Text("{{store}} {{tier}} used", "{{store}} {{tier}} 已用"),
        ),
        series(
            lambda: max_by(selected(m.KV_STORE_CAPACITY_BYTES), "instance", "store", "tier"),
            Text("{{store}} {{tier}} capacity", "{{store}} {{tier}} 容量"),
        ),
        requires=STORE,
    ),
    time_series(
        Text("Errors and evictions of KV-cache stores", "KV 缓存存储的错误与淘汰"),
        Text(
            "Per second: operations that failed, by kind, and objects that were evicted. Errors mean prompts computed again.",
            "每秒失败的操作（按类别）与被淘汰的对象。出错意味着提示需重新计算。",
        ),
        series(
            lambda: sum_by(rate(selected(m.KV_STORE_ERRORS_TOTAL), RATE_INTERVAL), "instance", "store", "operation"),
            Text("{{store}} {{operation}} failed", "{{store}} {{operation}} 失败"),
        ),
        series(
            lambda: sum_by(rate(selected(m.KV_STORE_EVICTIONS_TOTAL), RATE_INTERVAL), "instance", "store"),
            Text("{{store}} evicted", "{{store}} 淘汰"),
        ),
        requires=STORE, panel_id=ids.REPLICA_STORE_ERRORS,
    ),
    time_series(
        Text("Prefill share of tokens", "预填充 token 占比"),
        Text(
            "Prompt tokens that were computed over those and the generated ones: what was found in the prefix cache is left out. "
            "A high share delays the answers beside it; more cache hits or disaggregation lower it. Too high where the engine "
            "counts cache hits in blocks.",
            "实际计算的提示 token 占其与生成 token 之和的比例（不含前缀缓存命中）。占比高会拖慢同批回答；提高命中率或分离预填充可降低。按块统计命中的引擎会偏高。",
        ),
        series(_prefill_share, REPLICA_NAME),
        requires=(Requires.TRAFFIC,), max_value=1,
    ),
    time_series(
        Text("Waiting requests by reason", "排队请求的原因"),
        Text(
            "As vLLM tells: capacity, or deferred, such as until a KV cache or a grammar is ready.",
            "由 vLLM 报告：capacity（容量不足）或 deferred（等待 KV 缓存、语法等）。",
        ),
        series(
            lambda: sum_by(selected(m.LLM_REQUESTS_WAITING_BY_REASON), "instance", "replica", "reason"),
            f"{REPLICA_NAME} {{{{reason}}}}", number_format=NumberFormat.COUNT,
        ),
        requires=FEATURE,
    ),
    time_series(
        Text("Time of the scheduler by stage", "调度循环各阶段耗时"),
        Text(
            "Seconds per second of the scheduler's loop, as SGLang tells. Much beside run_batch and idle: the CPU delays the GPUs.",
            "由 SGLang 报告的调度循环各阶段每秒耗时。run_batch 与 idle 之外占比大：CPU 拖慢了 GPU。",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_SCHEDULER_STAGE_DURATION_SECONDS_TOTAL), RATE_INTERVAL), "instance", "replica", "stage"),
            f"{REPLICA_NAME} {{{{stage}}}}",
        ),
        requires=FEATURE,
    ),
    time_series(
        Text("Balance of experts", "专家均衡度"),
        Text(
            "Mean over maximum of the tokens that the GPUs' experts were given, 5 minutes: 1 is balanced, and at 0.5 the busiest "
            "GPU has twice its share. SGLang with --expert-balancedness-report-mode prometheus.",
            "5 分钟内各 GPU 的专家所得 token 的均值与最大值之比：1 为均衡，0.5 表示最忙的 GPU 承担两倍份额。需 SGLang 的 --expert-balancedness-report-mode prometheus。",
        ),
        series(
            lambda: max_by(selected(m.LLM_EXPERT_BALANCEDNESS_RATIO, window=EXPORTER_WINDOW), "instance", "replica"),
            REPLICA_NAME,
        ),
        requires=FEATURE, max_value=1,
    ),
    time_series(
        Text("Duration of the engine's start", "引擎启动耗时"),
        Text(
            "Of the newest start, by phase: load_weight is the reading of the model, the e2e phases hold the others.",
            "最近一次启动的各阶段：load_weight 为读取模型，e2e 阶段包含其他阶段。",
        ),
        series(
            lambda: max_by(selected(m.LLM_STARTUP_DURATION_SECONDS), "instance", "replica", "phase"),
            f"{REPLICA_NAME} {{{{phase}}}}",
        ),
        requires=FEATURE, panel_id=ids.REPLICA_STARTUP,
    ),
    time_series(
        Text("LoRA slots", "LoRA 槽位"),
        Text(
            "Slots for adapters in GPU memory, used and in total, and with vLLM the adapters that requests ask for. Full slots are "
            "normal, since unused adapters stay loaded; with requests waiting and room in the KV cache, requests wait for a slot.",
            "显存中适配器槽位的已用数与总数；vLLM 另有请求所需的适配器数。满是正常的（未用的适配器仍驻留）；若有排队而 KV 缓存有空间，请求就在等槽位。",
        ),
        series(
            lambda: sum_by(selected(m.LLM_LORA_SLOTS), "instance", "replica", "state"),
            f"{REPLICA_NAME} {{{{state}}}}", number_format=NumberFormat.COUNT,
        ),
        requires=FEATURE, panel_id=ids.REPLICA_LORA,
    ),
)  # fmt: skip
