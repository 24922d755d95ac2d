"""Replica, details: all stages of a request, limits of the measurement, and engine-specific metrics.

Most of it needs the full set of series, so its rows are collapsed.
"""

from __future__ import annotations

from dashboards.definitions.latency import REPLICA_NAME, curves
from dashboards.definitions.status import TO_GPU
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, NumberFormat, Panel, column, series, status_history, table, time_series
from dashboards.thresholds import ANY_WARNING, CLOCK_LAG, THRESHOLDS
from dashboards.variables import EXPORTER_WINDOW, NODE, RANGE, RATE_INTERVAL, by_replica, selected
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import Expr, binary, increase, max_by, rate, sum_by

ENGINE = (Requires.ENGINE,)
TRAFFIC = (Requires.TRAFFIC,)
FULL = (Requires.FULL, Requires.TRAFFIC)


def _behind() -> Expr:
    clocks = max_by(by_replica(selected(m.GPU_CLOCK_HERTZ, domain="sm")), "instance", "replica", "gpu")
    fastest = max_by(clocks, "instance", "replica")
    return binary("/", clocks, fastest, on=("instance", "replica"), group_left=())


def _restarts() -> Expr:
    counted = max_by(increase(selected(m.LLM_RESTARTS_TOTAL), RANGE), *NODE, "replica")
    return binary("*", selected(m.LLM_ENGINE_DIALECT_INFO), counted, on=(*NODE, "replica"), group_left=())


_STAGES = (
    (m.LLM_TIME_PER_OUTPUT_TOKEN_SECONDS, Text("Time per output token (TPOT)", "每输出 token 时间（TPOT）"),
     Text("Mean time per token of each finished request. High p99: some answers are slow.",
       "每个完成请求的平均每 token 时间，即用户感到的速度。p99 高：部分回答很慢。")),
    (m.LLM_REQUEST_DURATION_SECONDS, Text("Request duration", "请求总时长"),
     Text("Arrival to last token, from the engine's buckets. Depends on the length of answers.",
       "从到达到最后一个 token（引擎分桶）。需结合回答长度看。")),
    (m.LLM_QUEUE_DURATION_SECONDS, Text("Queue time", "排队时间"),
     Text("Wait for the scheduler. When it dominates TTFT, capacity is the bottleneck, not speed.",
       "等待调度的时间。若占首 token 时间的大部分，缺的是容量而不是速度。")),
    (m.LLM_PREFILL_DURATION_SECONDS, Text("Prefill", "预填充时间"),
     Text("Scheduling to first token: grows with prompts and shrinks with cache hits.",
       "从调度到首 token：随提示变长，随命中缩短。")),
    (m.LLM_DECODE_DURATION_SECONDS, Text("Decode", "解码时间"),
     Text("First to last token: length of answers times ITL.",
       "从首 token 到末 token：回答长度乘以 token 间隔。")),
)  # fmt: skip
_OTHER_STAGES = (
    (m.LLM_INFERENCE_DURATION_SECONDS, Requires.KIND, Text("Inference", "推理时间"),
     Text("Scheduling to last token, for engines that do not separate prefill and decode.",
       "从调度到末 token；适用于不区分预填充与解码的引擎。")),
    (m.LLM_BATCH_PREFILL_DURATION_SECONDS, Requires.BATCH, Text("Batch prefill", "批次预填充"),
     Text("Prefill time of one batch, for engines without per-request timing. Grows with prompts and batch "
"size.",
       "单个批次的预填充时间；适用于不按请求计时的引擎。随提示与批次变长。")),
    (m.LLM_BATCH_DECODE_DURATION_SECONDS, Requires.BATCH, Text("Batch decode step", "批次解码步"),
     Text("One decode step of one batch, for engines without per-request timing: ITL without queueing.",
       "单个批次的一个解码步；适用于不按请求计时的引擎：即不含排队的 token 间隔。")),
    (m.LLM_REQUEST_PROMPT_TOKENS, Requires.KIND, Text("Prompt length", "提示长度"),
     Text("Tokens of the prompts, from the engine's buckets. Longer prompts lengthen TTFT and fill the KV cache.",
       "提示的 token 数（引擎分桶）。提示越长，首 token 越慢，KV 缓存越满。")),
    (m.LLM_REQUEST_GENERATION_TOKENS, Requires.KIND, Text("Answer length", "回答长度"),
     Text("Tokens of finished requests' answers, from the engine's buckets. Longer answers lengthen requests.",
       "完成请求的回答 token 数（引擎分桶）。回答越长，请求总时长越长。")),
    (m.LLM_STEP_TOKENS, Requires.KIND, Text("Tokens per step", "每步 token 数"),
     Text("Tokens of all requests in one engine step. Steps full of prompt tokens delay the answers beside them.",
       "引擎一步内所有请求的 token 数。提示占满的步会拖慢同批的回答。")),
)  # fmt: skip
MORE: tuple[Panel, ...] = (
    table(
        Text("Verdicts on replicas", "副本判定"),
        Text(
            "What load balancers and probes are told (llm_verdict): serve, drain, eject or unknown, with the reason. "
            "Unknown never ejects.",
            "告知负载均衡与探针的判定（llm_verdict）：serve、drain、eject 或 unknown，并附原因。unknown 不会摘除副本。",
        ),
        column(lambda: selected(m.LLM_VERDICT), Text("In force", "生效"), cell=Cell.FACT),
        rows=("instance", "replica", "state", "reason"), requires=ENGINE, width=24, height=6,
    ),
    *(time_series(title, description, *curves(metric), requires=FULL) for metric, title, description in _STAGES),
    *(time_series(title, description, *curves(metric), requires=(*FULL, requires)) for metric, requires, title, description in _OTHER_STAGES),
    time_series(
        Text("Responses by HTTP status", "应答（按 HTTP 状态）"),
        Text(
            "Responses of the inference paths by status class. A stream that fails after its head counts as 2xx: "
            "see the outcomes above.",
            "推理接口的应答，按状态类别。流式应答在头部之后失败仍算 2xx：看上面的结果。",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_RESPONSES_TOTAL), RATE_INTERVAL), "instance", "replica", "status"),
            f"{REPLICA_NAME} {{{{status}}}}", number_format=NumberFormat.REQUESTS,
        ),
        requires=(Requires.FULL, Requires.KIND),
    ),
    time_series(
        Text("Observations per stage", "分位数背后的观测数"),
        Text(
            "Observations within 5 minutes by stage: with twenty, p99 is their maximum.",
            "5 分钟窗口内各阶段的观测数：二十个观测的 p99 就是最大值。",
        ),
        series(
            lambda: max_by(selected(m.LLM_LATENCY_OBSERVATIONS, window=EXPORTER_WINDOW), "instance", "replica", "stage"),
            f"{REPLICA_NAME} {{{{stage}}}}",
        ),
        requires=(Requires.FULL, Requires.ENGINE),
    ),
    time_series(
        Text("Above the last bucket", "超出最后一个桶的占比"),
        Text(
            "Share of observations above the last bucket; quantiles are capped there. Above zero, p99 is a lower "
            "bound.",
            "引擎分桶已无法区分的观测占比；分位数会停在上界。大于零时，上面的 p99 只是下限。",
        ),
        series(
            lambda: max_by(selected(m.LLM_LATENCY_ABOVE_TOP_BUCKET_RATIO, window=EXPORTER_WINDOW), "instance", "replica", "stage"),
            f"{REPLICA_NAME} {{{{stage}}}}",
        ),
        requires=TRAFFIC, threshold=THRESHOLDS.saturated_share,
    ),
    time_series(
        Text("Ray Serve proxies", "Ray Serve 代理"),
        Text(
            "Proxies of the whole cluster by state, as the controller sees them. An unhealthy proxy drops "
            "requests regardless of the replicas.",
            "接收请求的代理数（控制器所见的整个集群）。不健康的代理会丢掉客户端的请求，与副本无关。",
        ),
        series(lambda: max_by(selected(m.LLM_PROXIES), "instance", "replica", "state"), f"{REPLICA_NAME} {{{{state}}}}"),
        requires=(Requires.RAY, Requires.ENGINE),
    ),
    status_history(
        Text("SM clock relative to the fastest", "SM 频率与最快卡之比"),
        Text(
            "SM clock of each GPU over the fastest of its replica: below 100 % the GPU slows the others down. "
            "The causes are in the throttle timeline of Node.",
            "各卡 SM 频率与同副本最快卡之比：低于 100 % 的格子即因频率拖慢他人的卡。原因见节点的降频时间线。",
        ),
        series(_behind, "{{replica}} GPU {{gpu}}"),
        requires=ENGINE, threshold=CLOCK_LAG, width=8, height=8, drill_down=(TO_GPU,),
    ),
    table(
        Text("Engine metric prefix and restarts", "引擎的指标前缀与重启"),
        Text(
            "The prefix of the engine's own metric names, and its restarts in the selected time range.",
            "引擎自身指标名的前缀，及所选时间内的重启次数。",
        ),
        column(_restarts, Text("Restarts", "重启"), cell=Cell.COLOUR, threshold=ANY_WARNING, decimals=0),
        rows=("instance", "replica", "dialect"), requires=(Requires.FULL, Requires.ENGINE), width=16, height=8,
    ),
    table(
        Text("Data not provided by the engine", "引擎不提供的数据"),
        Text(
            "Values that this kind of engine does not provide, with the reason. The panels are empty for this "
            "reason.",
            "此类引擎没有的数据及原因：相应面板为空属正常。",
        ),
        column(lambda: selected(m.LLM_SIGNAL_MISSING_INFO), Text("Missing", "缺失"), cell=Cell.FACT),
        rows=("instance", "replica", "engine", "signal", "reason"), requires=(Requires.ABSENT,), width=24, height=7,
    ),
)  # fmt: skip
