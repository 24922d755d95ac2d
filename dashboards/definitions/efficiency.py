"""Efficiency: energy and cost per token, and GPUs that are reserved but idle."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.panel_ids import DashboardUid as Uid
from dashboards.dashboard import Dashboard, Row
from dashboards.definitions.annotations import OF_NODE
from dashboards.definitions.status import TO_GPU, TO_NODE, TO_REPLICA, status
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, NumberFormat, Panel, bar_gauge, column, gauge, series, stat, table, time_series
from dashboards.thresholds import THRESHOLDS, TOP_N
from dashboards.variables import EXPORTER_WINDOW, NODE, RANGE, RATE_INTERVAL, by_replica, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    and_on,
    avg_by,
    binary,
    bottomk,
    count_by,
    increase,
    max_by,
    rate,
    sum_by,
    topk,
    unless,
)

ENGINE = (Requires.ENGINE,)
TRAFFIC = (Requires.TRAFFIC,)
PRICE = (Requires.PRICE,)
GPU_LEGEND = "{{instance}} GPU {{gpu}}"


MIN_IDLE = 0.05  # share of time; less is the pause between two requests


def _idle() -> Expr:
    return max_by(rate(selected(m.GPU_IDLE_SECONDS_TOTAL), RATE_INTERVAL), "instance", "gpu")


def _where_idle(expr: Expr) -> Expr:
    return and_on(max_by(expr, "instance", "gpu"), _idle() > MIN_IDLE, on=("instance", "gpu"))


def _while_moving(expr: Expr) -> Expr:
    return unless(expr, selected(m.LLM_FROZEN).equals(1), on=(*NODE, "replica"))


_NOW: tuple[Panel, ...] = (
    stat(
        Text("Power", "总功率"),
        Text("Power draw of the selected GPUs.", "所选各卡的总功耗。高而 token 少即在空耗。"),
        series(lambda: sum_by(selected(m.GPU_POWER_WATTS)), Text("power", "功率")),
        width=6,
    ),
    stat(
        Text("Tokens per second", "每秒 token"),
        Text(
            "Tokens generated per second on the selected nodes. Low at high power is waste.",
            "所选节点每秒生成的 token。功率高而此值低即浪费。",
        ),
        series(lambda: sum_by(rate(selected(m.LLM_GENERATION_TOKENS_TOTAL), RATE_INTERVAL)), Text("tokens", "token")),
        requires=ENGINE, width=6,
    ),
    stat(
        Text("Tokens per joule", "每焦耳 token"),
        Text(
            "Generated tokens per joule of the GPUs, idle GPUs included. Falls when GPUs wait or are idle.",
            "每焦耳生成的 token，含空闲卡。卡等待或空闲时下降。",
        ),
        series(
            lambda: (
                sum_by(rate(selected(m.LLM_GENERATION_TOKENS_TOTAL), RATE_INTERVAL)) / sum_by(selected(m.GPU_POWER_WATTS))
            ).as_unit(Unit.NONE),
            Text("tokens per joule", "token/焦耳"),
        ),
        requires=ENGINE, width=6, decimals=3,
    ),
    gauge(
        Text("Idle share of GPU time", "GPU 空闲时间占比"),
        Text(
            "Share of GPU time without requests on the replica.",
            "所属副本没有请求的 GPU 时间占比。",
        ),
        series(lambda: avg_by(rate(selected(m.GPU_IDLE_SECONDS_TOTAL), RATE_INTERVAL)), Text("idle", "空闲")),
        min_value=0, max_value=1, threshold=THRESHOLDS.idle_share, width=6,
    ),
)  # fmt: skip


_TOKENS: tuple[Panel, ...] = (
    time_series(
        Text("Energy per token", "每 token 能耗"),
        Text(
            f"Energy of the replica's GPUs per generated token over 5 minutes, the {TOP_N} highest. Rises with "
            "small batches, waiting GPUs and low clocks; compare replicas of one model.",
            f"副本各卡生成一个 token 的能耗（5 分钟，最高的 {TOP_N} 个）。批次小、卡在等待、频率低都会升高；同模型副本互相比较。",
        ),
        series(
            lambda: topk(
                TOP_N,
                max_by(selected(m.LLM_ENERGY_JOULES_PER_GENERATED_TOKEN, window=EXPORTER_WINDOW), "instance", "replica").as_unit(Unit.JOULES),
            ),
            "{{replica}} {{instance}}",
        ),
        requires=TRAFFIC, panel_id=ids.EFFICIENCY_ENERGY, drill_down=(TO_REPLICA,),
    ),
    time_series(
        Text("Cost per million tokens", "每百万 token 成本"),
        Text(
            f"Cost of the replica's GPUs, busy or idle, per million generated tokens, the {TOP_N} highest. "
            "Doubles when traffic halves. Without frozen replicas, which generate none.",
            f"生成百万 token 的时间内该副本各卡的价格（无论忙闲，最高的 {TOP_N} 个）。流量减半则翻倍。不含冻结的副本：它们不产出 token。",
        ),
        series(
            lambda: topk(
                TOP_N,
                max_by(
                    _while_moving(selected(m.LLM_COST_PER_MILLION_GENERATED_TOKENS, window=EXPORTER_WINDOW)), "instance", "replica", "currency",
                ),
            ),
            "{{replica}} {{instance}} {{currency}}",
        ),
        requires=(Requires.PRICE, Requires.TRAFFIC), panel_id=ids.EFFICIENCY_COST, drill_down=(TO_REPLICA,),
    ),
    time_series(
        Text("Tokens by replica", "各副本 token 速率"),
        Text(
            f"Tokens generated per second, the {TOP_N} highest replicas.",
            f"每秒生成的 token（最多的 {TOP_N} 个副本）。同模型副本相差大即浪费。",
        ),
        series(lambda: topk(TOP_N, sum_by(rate(selected(m.LLM_GENERATION_TOKENS_TOTAL), RATE_INTERVAL), "instance", "replica")),
            "{{replica}} {{instance}}"),
        requires=ENGINE, drill_down=(TO_REPLICA,),
    ),
)  # fmt: skip


_GPUS: tuple[Panel, ...] = (
    table(
        Text("Idle GPUs and the memory they hold", "空闲 GPU 及其占用"),
        Text(
            "GPUs that were idle for more than 5 % of the time, and the memory that is still allocated. Idle with memory "
            "allocated: a loaded model without requests; idle without memory: free capacity.",
            "空闲时间超过 5 % 的卡，以及仍被占用的显存。空闲且占满：加载了没人用的模型；空闲且空：可以让出。",
        ),
        column(lambda: _idle() > MIN_IDLE, Text("Idle", "空闲"), cell=Cell.BAR, threshold=THRESHOLDS.idle_share, max_value=1),
        column(
            lambda: _where_idle(selected(m.GPU_MEMORY_USED_BYTES) / selected(m.GPU_MEMORY_TOTAL_BYTES)), Text("Memory held", "占用显存"),
            cell=Cell.BAR, max_value=1,
        ),
        column(lambda: _where_idle(selected(m.GPU_POWER_WATTS)), Text("Power", "功率")),
        column(lambda: _where_idle(increase(selected(m.GPU_IDLE_SECONDS_TOTAL), RANGE)), Text("Idle time", "空闲时长")),
        rows=("instance", "gpu"), sort=("Idle",), requires=(Requires.TROUBLE,), panel_id=ids.EFFICIENCY_IDLE, drill_down=(TO_GPU,), width=24, height=7,
    ),
    time_series(
        Text("Idle share by GPU", "各卡空闲占比"),
        Text(f"Share of time without work, the {TOP_N} highest GPUs.",
          f"空闲时间占比（最闲的 {TOP_N} 张）。一小时都在 100 % 就不是间歇。"),
        series(lambda: topk(TOP_N, _idle()), GPU_LEGEND),
        threshold=THRESHOLDS.idle_share, max_value=1, drill_down=(TO_GPU,), width=24, height=8,
    ),
    time_series(
        Text("Power by replica", "各副本功率"),
        Text(f"Power draw of a replica's GPUs, the {TOP_N} highest. High power with few tokens is busy-waiting.",
          f"副本各卡功率之和（最高的 {TOP_N} 个）。功率高而 token 少即空转。"),
        series(lambda: topk(TOP_N, sum_by(by_replica(selected(m.GPU_POWER_WATTS)), "instance", "replica")), "{{replica}} {{instance}}"),
        requires=ENGINE, stacked=True, drill_down=(TO_REPLICA,),
    ),
    bar_gauge(
        Text("Energy in the selected time range", "所选时间内的能耗"),
        Text(f"Energy by node from the GPUs' own counters, the {TOP_N} highest.", f"各节点的能耗（焦耳，最高的 {TOP_N} 个），取自卡的计数器。同型节点相差大则需查。"),
        series(lambda: topk(TOP_N, sum_by(increase(selected(m.GPU_ENERGY_JOULES_TOTAL), RANGE), "instance")), "{{instance}}"),
        height=8, drill_down=(TO_NODE,),
    ),
    bar_gauge(
        Text("Cost per hour", "每小时成本"),
        Text(f"Cost per hour of the selected GPUs by node, from costs.gpu_hour, the {TOP_N} highest.",
          f"所选各卡每小时的价格（按节点，最高的 {TOP_N} 个），来自 costs.gpu_hour。"),
        series(
            lambda: topk(TOP_N, sum_by(selected(m.GPU_PRICE_PER_HOUR), "instance", "currency")), "{{instance}} {{currency}}"
        ),
        requires=PRICE, height=8, drill_down=(TO_NODE,),
    ),
)  # fmt: skip


_LAYOUT = ("model", "gpus", "ranks", "tensor", "pipeline")


def _by_layout(expr: Expr) -> Expr:
    of_replica = max_by(expr, *NODE, "replica")
    joined = binary("*", selected(m.LLM_PARALLEL_LAYOUT_INFO), of_replica, on=(*NODE, "replica"), group_left=())
    return avg_by(joined, *_LAYOUT).as_unit(expr.unit or Unit.NONE)


def _tokens_per_gpu() -> Expr:
    tokens = sum_by(rate(selected(m.LLM_GENERATION_TOKENS_TOTAL), RATE_INTERVAL), *NODE, "replica")
    gpus = count_by(selected(m.GPU_REPLICA_INFO), *NODE, "replica")
    return (tokens / gpus).as_unit(Unit.NONE)


def _where_drafted(expr: Expr) -> Expr:
    drafted = max_by(selected(m.LLM_SPEC_DECODE_ACCEPTANCE_RATIO, window=EXPORTER_WINDOW), "instance", "replica")
    return and_on(max_by(expr, "instance", "replica"), drafted, on=("instance", "replica"))


_FULL: tuple[Panel, ...] = (
    table(
        Text("Cost by parallel layout", "按并行布局的成本"),
        Text(
            "Mean of the replicas of one model with the same GPUs on a node, data-parallel ranks, and tensor and pipeline sizes, "
            "which are empty where the engine does not tell them. Compare layouts under the same load. Cost in the currency of costs.currency.",
            "同一模型中单节点卡数、数据并行 rank 数、张量并行与流水线并行规模均相同的副本的均值；引擎未告知规模时为空。请在相同负载下比较。成本以 costs.currency 的货币计。",
        ),
        column(
            lambda: _by_layout(selected(m.LLM_COST_PER_MILLION_GENERATED_TOKENS, window=EXPORTER_WINDOW)),
            Text("Cost per million tokens", "每百万 token 成本"),
        ),
        column(
            lambda: _by_layout(selected(m.LLM_ENERGY_JOULES_PER_GENERATED_TOKEN, window=EXPORTER_WINDOW)).as_unit(Unit.JOULES),
            Text("Energy per token", "每 token 能耗"),
        ),
        column(lambda: _by_layout(_tokens_per_gpu()), Text("Tokens/s per GPU", "每卡每秒 token")),
        rows=_LAYOUT, requires=(Requires.FULL, Requires.TRAFFIC), width=12,
    ),
    table(
        Text("Speculation against cost", "投机解码与成本"),
        Text(
            "Accepted share of drafted tokens and accepted tokens per draft, beside energy and cost per token, 5 minutes. Rejected "
            "drafts cost both: with a low share, draft fewer tokens or compare with a replica that does not speculate.",
            "5 分钟内草稿 token 的接受率与每次草稿接受的 token，对照单 token 能耗与成本。被拒绝的草稿两者都要耗费：接受率低时减少草稿 token，或与不投机的副本比较。",
        ),
        column(
            lambda: max_by(selected(m.LLM_SPEC_DECODE_ACCEPTANCE_RATIO, window=EXPORTER_WINDOW), "instance", "replica"),
            Text("Accepted", "接受率"), cell=Cell.BAR, max_value=1,
        ),
        column(
            lambda: max_by(selected(m.LLM_SPEC_DECODE_ACCEPTED_LENGTH_TOKENS, window=EXPORTER_WINDOW), "instance", "replica"),
            Text("Per draft", "每次草稿"),
        ),
        column(
            lambda: _where_drafted(selected(m.LLM_ENERGY_JOULES_PER_GENERATED_TOKEN, window=EXPORTER_WINDOW)).as_unit(Unit.JOULES),
            Text("Energy per token", "每 token 能耗"),
        ),
        column(
            lambda: _where_drafted(selected(m.LLM_COST_PER_MILLION_GENERATED_TOKENS, window=EXPORTER_WINDOW)),
            Text("Cost per million tokens", "每百万 token 成本"),
        ),
        rows=("instance", "replica"), requires=(Requires.FULL, Requires.FEATURE), width=12, drill_down=(TO_REPLICA,),
    ),
    time_series(
        Text("Tokens per joule by replica", "各副本每焦耳 token"),
        Text(f"As computed by the daemon over 5 minutes, the {TOP_N} highest; 0 without requests.", f"守护进程计算（5 分钟，最高的 {TOP_N} 个）；只空转时为 0。"),
        series(
            lambda: topk(
                TOP_N,
                max_by(selected(m.LLM_GENERATION_TOKENS_PER_JOULE, window=EXPORTER_WINDOW), "instance", "replica").as_unit(Unit.NONE),
            ),
            "{{replica}} {{instance}}", number_format=NumberFormat.COUNT,
        ),
        requires=(Requires.FULL, Requires.TRAFFIC), width=12,
    ),
    bar_gauge(
        Text("Cost of idle time", "空闲成本"),
        Text(f"Cost of idle GPU time in the selected time range, the {TOP_N} highest GPUs.", f"所选时间内空闲的花费（按当时价格，最高的 {TOP_N} 张卡）。"),
        series(
            lambda: topk(TOP_N, sum_by(increase(selected(m.GPU_IDLE_COST_TOTAL), RANGE), "instance", "gpu", "currency")),
            f"{GPU_LEGEND} {{{{currency}}}}",
        ),
        requires=(Requires.FULL, Requires.PRICE), width=12, height=8,
    ),
    time_series(
        Text("Revenue over cost", "收入与成本之比"),
        Text(
            f"What a replica's tokens are sold for over the price of its GPUs, 5 minutes, the {TOP_N} lowest. Below 1 it costs "
            "more than it earns.",
            f"副本 token 的售价与其各卡价格之比（5 分钟，最低的 {TOP_N} 个）。低于 1 即入不敷出。",
        ),
        series(
            lambda: bottomk(TOP_N, max_by(selected(m.LLM_REVENUE_TO_COST_RATIO, window=EXPORTER_WINDOW), "instance", "replica").as_unit(Unit.NONE)),
            "{{replica}} {{instance}}",
        ),
        requires=(Requires.FULL, Requires.MODEL_PRICE, Requires.PRICE), width=12, drill_down=(TO_REPLICA,),
    ),
    time_series(
        Text("Revenue per hour", "每小时收入"),
        Text(
            f"What the tokens of each model are sold for per hour at the rate of 5 minutes, the {TOP_N} highest.",
            f"各模型 token 按 5 分钟速率折算的每小时售价（最高的 {TOP_N} 个）。",
        ),
        series(
            lambda: topk(TOP_N, sum_by(selected(m.LLM_REVENUE_PER_HOUR, window=EXPORTER_WINDOW), "model", "currency")),
            "{{model}} {{currency}}",
        ),
        requires=(Requires.FULL, Requires.MODEL_PRICE), width=12,
    ),
)  # fmt: skip


EFFICIENCY = Dashboard(
    uid=Uid.EFFICIENCY,
    title=Text("Shardwatch / Efficiency", "Shardwatch / 效率"),
    description=Text(
        "Energy and cost per token, and GPUs that do no work.",
        "每个 token 的能耗与成本，以及没有工作的 GPU。",
    ),
    rows=(
        status(),
        Row(title=Text("Now", "当前"), panels=_NOW),
        Row(title=Text("Tokens", "token"), panels=_TOKENS),
        Row(title=Text("Idle GPUs", "空闲的卡"), panels=_GPUS[:1]),
        Row(title=Text("Idle time, power, cost", "空闲、功率与成本"), panels=_GPUS[1:], collapsed=True),
        Row(title=Text("More (series: full)", "更多（series: full）"), panels=_FULL, collapsed=True),
    ),
    annotations=OF_NODE,
)
