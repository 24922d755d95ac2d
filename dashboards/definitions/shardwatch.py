"""Shardwatch health: sources, data age, hung calls and dropped series of the daemon."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.panel_ids import DashboardUid as Uid
from dashboards.dashboard import Dashboard, Row
from dashboards.definitions.annotations import OF_DAEMON
from dashboards.definitions.status import TO_GPU, TO_NODE, TO_REPLICA, UP, YES_IS_BAD, status
from dashboards.no_data_text import Requires
from dashboards.panels import (
    Cell,
    NumberFormat,
    Panel,
    ValueMapping,
    column,
    series,
    state_timeline,
    table,
    text_panel,
    time_series,
)
from dashboards.panels.panel import Colour
from dashboards.thresholds import ANY_CRITICAL, ANY_WARNING, THRESHOLDS, TOP_N
from dashboards.variables import NODE, RANGE, RATE_INTERVAL, selected, targets
from exporter.catalog import metrics as m
from exporter.catalog.spec import MetricKind, Unit
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    ExternalMetric,
    and_on,
    binary,
    increase,
    max_by,
    no_regex,
    over_time,
    rate,
    since,
    sum_by,
    topk,
    until,
)
from exporter.promql.selectors import TARGET

TROUBLE = (Requires.TROUBLE,)
FULL = (Requires.FULL,)
SCRAPE = ExternalMetric(name="scrape_duration_seconds", labels=TARGET, unit=Unit.SECONDS)
CPU = ExternalMetric(name="process_cpu_seconds_total", labels=TARGET, kind=MetricKind.COUNTER, unit=Unit.SECONDS)
MEMORY = ExternalMetric(name="process_resident_memory_bytes", labels=TARGET, unit=Unit.BYTES)
FILES = ExternalMetric(name="process_open_fds", labels=TARGET)
SAMPLES = ExternalMetric(name="scrape_samples_scraped", labels=TARGET)
RELOADED = (
    ValueMapping(0, Text("rejected", "被拒绝"), Colour.CRITICAL),
    ValueMapping(1, Text("ok", "成功"), Colour.GOOD),
)

HOW_TO_READ = Text(
    "**Why a panel has no data.** *exporter down* (red) or a strip that ends: not collected. *not "
    "supported*, *needs series: full*, *no price*, *no gateway configured*: not available here. *no "
    "traffic*: healthy, nothing to measure. A value that could not be read is absent, never zero.",
    "**面板为何没有数据。** *采集器失联*（红）或条带中断：没有采集。*不支持*、*需要 series: "
    "full*、*未设价格*、*未配置网关*：此处不可用。*无流量*：一切正常，只是没有可测的。读不到的值是缺失，绝不写成零。",
)


def ours(metric: ExternalMetric) -> Expr:
    """Return process metrics of the daemons alone: with the job variable on All, other jobs expose them too."""
    build = max_by(selected(m.SHARDWATCH_BUILD_INFO), *NODE)
    figure = selected(metric) if metric.kind is MetricKind.GAUGE else rate(selected(metric), RATE_INTERVAL)
    return and_on(figure, build, on=NODE)


def _last_read() -> Expr:
    ago = since(max_by(selected(m.SHARDWATCH_SOURCE_LAST_SUCCESS_TIMESTAMP_SECONDS), *NODE, "source"))
    down = selected(m.SHARDWATCH_SOURCE_DOWN_INFO)
    return binary("*", down, ago, on=(*NODE, "source"), group_left=()).as_unit(Unit.SECONDS)


def _loaded() -> Expr:
    at = since(max_by(selected(m.SHARDWATCH_CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS), *NODE))
    return binary("*", selected(m.SHARDWATCH_BUILD_INFO), at, on=NODE, group_left=()).as_unit(Unit.SECONDS)


def _hung() -> Expr:
    each, ever = selected(m.SHARDWATCH_SOURCE_HUNG), over_time("max", selected(m.SHARDWATCH_SOURCE_HUNG), RANGE)
    return max_by(and_on(each, ever > 0, on=(*NODE, "source")), "instance", "source")


_SOURCES: tuple[Panel, ...] = (
    text_panel(
        Text("How to read an empty panel", "如何理解空面板"),
        Text("The three reasons why a panel has no data.", "面板没有数据的三种原因，含义各不相同。"),
        HOW_TO_READ, height=3,
    ),
    state_timeline(
        Text("Exporters up", "采集器可达性"),
        Text("up of each daemon. Down: the node has no data anywhere.", "各守护进程的 up。停：该节点所有数据缺失。"),
        series(lambda: max_by(targets(), "instance"), "{{instance}}"),
        value_mappings=UP, width=12, height=7, drill_down=(TO_NODE,),
    ),
    table(
        Text("The daemon", "守护进程"),
        Text(
            "Version, reload, internal errors and dropped series by node. 'rejected': the previous configuration "
            "stays in use.",
            "各节点的版本、重载、内部错误与丢弃的序列。“被拒绝”表示仍用旧配置；内部错误请上报。",
        ),
        column(targets, Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(
            lambda: selected(m.SHARDWATCH_CONFIG_LAST_RELOAD_SUCCESSFUL), Text("Reload", "重载"), cell=Cell.COLOUR,
            value_mappings=RELOADED,
        ),
        column(
            lambda: increase(selected(m.SHARDWATCH_LOOP_RESTARTS_TOTAL), RANGE), Text("Errors", "内部错误"),
            cell=Cell.COLOUR, threshold=ANY_WARNING, summed=True, decimals=0, requires=TROUBLE,
        ),
        column(
            lambda: selected(m.SHARDWATCH_DROPPED_SERIES), Text("Dropped", "丢弃的序列"), cell=Cell.COLOUR,
            threshold=ANY_WARNING,
        ),
        column(
            lambda: increase(selected(m.SHARDWATCH_LOG_LINES_DROPPED_TOTAL), RANGE), Text("Lost lines", "丢失的日志行"),
            cell=Cell.COLOUR, threshold=ANY_WARNING, decimals=0,
        ),
        column(lambda: ours(MEMORY), Text("Memory", "内存")),
        column(lambda: ours(MEMORY), Text("Trend", "趋势"), cell=Cell.TREND),
        rows=("instance",), width=12, height=7, panel_id=ids.SELF_DAEMON, drill_down=(TO_NODE,),
    ),
    state_timeline(
        Text("Sources up", "数据源状态"),
        Text(
            "Sources of each daemon: driver, engines, gateways, discovery. Down with the exporter up: a problem "
            "of that source. GPUs are on Node.",
            "每个守护进程的各数据源：驱动、引擎、网关、发现。采集器在线而某源停，是该源自身的问题。各卡见“节点”仪表盘。",
        ),
        series(
            lambda: max_by(selected(m.SHARDWATCH_SOURCE_UP, source=no_regex("gpu:.*")), "instance", "source"),
            "{{instance}} {{source}}",
        ),
        value_mappings=UP, width=12, height=9, panel_id=ids.SELF_SOURCES,
    ),
    table(
        Text("Sources down and reasons", "停止的数据源及原因"),
        Text("Empty is healthy. Reasons such as refused, timeout, lost, hung, library; and the age of the last "
"read.",
          "为空即正常。原因如 refused、timeout、lost、hung、library 等；以及最近一次读到的时间距今。"),
        column(lambda: selected(m.SHARDWATCH_SOURCE_DOWN_INFO), Text("Down", "停止"), cell=Cell.COLOUR, threshold=ANY_CRITICAL),
        column(_last_read, Text("Last read", "最近读取"), number_format=NumberFormat.AGE, requires=(Requires.READ,)),
        rows=("instance", "source", "reason"), requires=TROUBLE, width=12, height=9, panel_id=ids.SELF_DOWN,
        drill_down=(TO_NODE,),
    ),
)  # fmt: skip


_AGES: tuple[Panel, ...] = (
    time_series(
        Text("Age of GPU data", "GPU 数据年龄"),
        Text(f"Age of the last reading, the {TOP_N} oldest GPUs. Rising steadily: the driver hangs on that GPU.",
          f"各卡最新读数的年龄（最旧的 {TOP_N} 张）。持续上升：驱动卡在这张卡上。"),
        series(lambda: topk(TOP_N, max_by(selected(m.GPU_DATA_AGE_SECONDS), "instance", "gpu")), "{{instance}} GPU {{gpu}}"),
        threshold=THRESHOLDS.gpu_data_age, drill_down=(TO_GPU,), panel_id=ids.SELF_GPU_AGES,
    ),
    time_series(
        Text("Age of engine data", "引擎数据年龄"),
        Text(f"Age of the last reading, the {TOP_N} oldest replicas. Rising: the engine no longer answers.",
          f"各副本最新读数的年龄（最旧的 {TOP_N} 个）。上升：该引擎不再应答。"),
        series(lambda: topk(TOP_N, max_by(selected(m.LLM_DATA_AGE_SECONDS), "instance", "replica")), "{{instance}} {{replica}}"),
        requires=(Requires.ENGINE,), threshold=THRESHOLDS.replica_data_age, drill_down=(TO_REPLICA,),
    ),
    state_timeline(
        Text("Hung calls", "未返回的调用"),
        Text("Sources with a hung call in the selected time range. The daemon continues without them.",
          "所选时间内调用挂住过的数据源。守护进程会绕开它继续工作。"),
        series(_hung, "{{instance}} {{source}}"),
        value_mappings=YES_IS_BAD, requires=TROUBLE, width=8, panel_id=ids.SELF_HUNG,
    ),
    time_series(
        Text("Failed reads", "读取失败"),
        Text(f"Failed reads per second by source and reason, the {TOP_N} highest. A few per day are network; a "
"constant level is a fault.",
          f"每秒失败次数（按数据源与原因，最多的 {TOP_N} 条）。一天几次是网络抖动，持续存在即故障。"),
        series(
            lambda: topk(
                TOP_N,
                sum_by(rate(selected(m.SHARDWATCH_SOURCE_FAILURES_TOTAL), RATE_INTERVAL), "instance", "source", "reason"),
            ),
            "{{instance}} {{source}} {{reason}}", number_format=NumberFormat.EVENTS,
        ),
        requires=TROUBLE, width=6,
    ),
    time_series(
        Text("Parse errors", "解析错误"),
        Text(f"Lines and numbers that were unreadable, repeated or not finite, the {TOP_N} highest sources. Above "
"zero: an engine whose metrics are not fully supported.",
          f"指标中不可读、重复或非有限的行与数（最多的 {TOP_N} 条）。大于零：某引擎的指标未被完全支持。"),
        series(
            lambda: topk(
                TOP_N,
                sum_by(rate(selected(m.SHARDWATCH_SOURCE_ODDITIES_TOTAL), RATE_INTERVAL), "instance", "source", "reason"),
            ),
            "{{instance}} {{source}} {{reason}}", number_format=NumberFormat.EVENTS,
        ),
        requires=TROUBLE, width=6, panel_id=ids.SELF_PARSE_ERRORS,
    ),
    table(
        Text("Replicas without GPUs and reasons", "未找到卡的副本"),
        Text("Replicas whose GPUs are unknown. Empty is healthy.",
          "没有找到对应 GPU 的副本。为空即正常。"),
        column(lambda: selected(m.SHARDWATCH_REPLICA_UNASSIGNED_INFO), Text("Seen", "已见"), cell=Cell.COLOUR, threshold=ANY_WARNING),
        rows=("instance", "replica", "reason"), requires=TROUBLE, width=6, height=8, drill_down=(TO_REPLICA,), panel_id=ids.SELF_UNASSIGNED,
    ),
    table(
        Text("Discovery limits reached", "自动发现达到的上限"),
        Text("Engines may be missing. Empty is healthy.", "可能有引擎未被发现。为空即正常。"),
        column(lambda: selected(m.SHARDWATCH_DISCOVERY_LIMIT_REACHED_INFO), Text("Seen", "已见"), cell=Cell.COLOUR, threshold=ANY_WARNING),
        rows=("instance", "limit"), requires=TROUBLE, width=6, height=8,
    ),
    table(
        Text("TLS certificates of the engines", "引擎的 TLS 证书"),
        Text("Remaining time; after that clients and Shardwatch are rejected. Absent over plain HTTP.",
          "证书剩余时间；到期后客户端与 Shardwatch 都会被拒绝。明文 HTTP 时无此项。"),
        column(
            lambda: until(selected(m.LLM_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS)), Text("Remaining", "剩余"), cell=Cell.COLOUR,
            number_format=NumberFormat.AGE, threshold=THRESHOLDS.certificate_remaining,
        ),
        rows=("instance", "replica"), requires=(Requires.TLS,), width=6, height=8, drill_down=(TO_REPLICA,),
    ),
    table(
        Text("Access to the metrics endpoint", "指标端点的访问"),
        Text("Remaining time of the daemon's own certificate, and clients that were refused. Absent over plain HTTP without "
          "users.",
          "守护进程自身证书的剩余时间，以及被拒绝的客户端。明文 HTTP 且无用户时无此项。"),
        column(
            lambda: until(selected(m.SHARDWATCH_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS)), Text("Remaining", "剩余"),
            cell=Cell.COLOUR, number_format=NumberFormat.AGE, threshold=THRESHOLDS.certificate_remaining,
        ),
        column(
            lambda: rate(selected(m.SHARDWATCH_TLS_HANDSHAKE_FAILURES_TOTAL), RATE_INTERVAL),
            Text("Failed handshakes", "失败的握手"), number_format=NumberFormat.EVENTS,
        ),
        column(
            lambda: sum_by(rate(selected(m.SHARDWATCH_AUTHENTICATION_FAILURES_TOTAL), RATE_INTERVAL), "job", "instance"),
            Text("Refused users", "被拒绝的用户"), number_format=NumberFormat.EVENTS,
        ),
        rows=("instance",), requires=(Requires.ACCESS,), width=6, height=8, panel_id=ids.SELF_CERTIFICATES,
    ),
)  # fmt: skip


_PUSH: tuple[Panel, ...] = (
    table(
        Text("Push", "推送"),
        Text(
            "Receivers that nodes push to: samples accepted, dropped, and what waits in memory. A growing age: the "
            "receiver accepts nothing; its state is push:TARGET in Sources up.",
            "节点推送的接收端：已接受与已丢弃的样本，以及内存中等待的数据。等待时间不断增长：接收端未接受数据；其状态见“数据源状态”中的 push:TARGET。",
        ),
        column(
            lambda: rate(selected(m.SHARDWATCH_PUSH_SAMPLES_TOTAL), RATE_INTERVAL), Text("Accepted", "已接受"),
            number_format=NumberFormat.EVENTS,
        ),
        column(
            lambda: sum_by(
                increase(selected(m.SHARDWATCH_PUSH_SAMPLES_DROPPED_TOTAL), RANGE), "job", "instance", "target"
            ),
            Text("Dropped", "已丢弃"), cell=Cell.COLOUR, threshold=ANY_WARNING, decimals=0,
        ),
        column(lambda: rate(selected(m.SHARDWATCH_PUSH_SENT_BYTES_TOTAL), RATE_INTERVAL), Text("Sent", "发送")),
        column(lambda: selected(m.SHARDWATCH_PUSH_QUEUE_BYTES), Text("Waiting", "等待")),
        column(
            lambda: selected(m.SHARDWATCH_PUSH_QUEUE_AGE_SECONDS), Text("Oldest", "最久等待"),
            number_format=NumberFormat.AGE,
        ),
        rows=("instance", "target"), requires=(Requires.PUSH,), width=24, height=7, panel_id=ids.SELF_PUSH,
        drill_down=(TO_NODE,),
    ),
)  # fmt: skip


_COST: tuple[Panel, ...] = (
    time_series(
        Text("Daemon CPU", "守护进程 CPU"),
        Text(
            f"Share of one core, the {TOP_N} highest daemons, without the driver's worker process. A few percent "
            "at most; a higher level comes from more GPUs, engines or scrapers.",
            f"占单核的比例（最高的 {TOP_N} 个守护进程），不含驱动 worker 进程。至多百分之几；台阶上升来自更多的卡、引擎、抓取者或变大的页面。",
        ),
        series(lambda: topk(TOP_N, max_by(ours(CPU), "instance")), "{{instance}}"),
        drill_down=(TO_NODE,),
    ),
    time_series(
        Text("Daemon memory", "守护进程内存"),
        Text(
            f"Resident memory, the {TOP_N} highest daemons. It grows for 5 minutes until the windows are full, "
            "then only with engines; a rise for a day is a leak to report.",
            f"常驻内存（最多的 {TOP_N} 个守护进程）。启动后五分钟内随窗口填满而增长，之后只随引擎数变化；整天持续上升即泄漏，值得报告。",
        ),
        series(lambda: topk(TOP_N, max_by(ours(MEMORY), "instance")), "{{instance}}"),
        drill_down=(TO_NODE,), panel_id=ids.SELF_MEMORY,
    ),
    time_series(
        Text("Daemon open files", "守护进程打开的文件"),
        Text(
            f"Open file descriptors, connections included, the {TOP_N} highest daemons. A steady rise is a leak.",
            f"使用中的文件描述符，含连接（最多的 {TOP_N} 个守护进程）。持续上升说明有连接没有关闭。",
        ),
        series(lambda: topk(TOP_N, max_by(ours(FILES), "instance")), "{{instance}}"),
        drill_down=(TO_NODE,),
    ),
    time_series(
        Text("Scrape duration", "抓取耗时"),
        Text(f"As seen by Prometheus, the {TOP_N} longest. Milliseconds are normal; more is the network or a node "
"without CPU.",
          f"Prometheus 侧的抓取耗时（最长的 {TOP_N} 个）。正常为毫秒级；偏高是网络或节点缺 CPU。"),
        series(lambda: topk(TOP_N, max_by(selected(SCRAPE), "instance")), "{{instance}}"),
        width=8,
    ),
    time_series(
        Text("Samples per scrape", "每次抓取的样本"),
        Text(f"Series per scrape, the {TOP_N} highest. A jump is new GPUs, engines or series: full.", f"每次抓取的序列数（最多的 {TOP_N} 个）。跳变来自新卡、新引擎或 series: full。"),
        series(lambda: topk(TOP_N, max_by(selected(SAMPLES), "instance")), "{{instance}}"),
        width=8,
    ),
    table(
        Text("Versions and configurations in use", "版本与生效的配置"),
        Text("Version of the daemon, and age of the configuration in use.",
          "守护进程的版本，以及生效配置的加载时间距今多久。远早于修改时间说明重载未成功。"),
        column(_loaded, Text("Configuration loaded", "配置加载"), number_format=NumberFormat.AGE),
        rows=("instance", "version"), width=8, height=8,
    ),
)  # fmt: skip


_FULL: tuple[Panel, ...] = (
    time_series(
        Text("Read duration by source", "读取耗时"),
        Text(f"Duration of the last read, the {TOP_N} longest. Close to the timeout the source is overloaded.",
          f"最近一次读取耗时（按数据源，最长的 {TOP_N} 个）。接近超时说明该源过载。"),
        series(
            lambda: topk(TOP_N, max_by(selected(m.SHARDWATCH_SOURCE_POLL_DURATION_SECONDS), "instance", "source")),
            "{{instance}} {{source}}",
        ),
        requires=FULL, width=12,
    ),
    time_series(
        Text("Polls skipped", "跳过的轮询"),
        Text(f"Polls skipped because the previous one was still running, the {TOP_N} highest. Above zero: the "
"interval is too short.",
          f"因前一次未结束而跳过的轮询（最多的 {TOP_N} 个）。大于零：间隔过短。"),
        series(
            lambda: topk(
                TOP_N,
                sum_by(rate(selected(m.SHARDWATCH_SOURCE_POLLS_SKIPPED_TOTAL), RATE_INTERVAL), "instance", "source"),
            ),
            "{{instance}} {{source}}", number_format=NumberFormat.EVENTS,
        ),
        requires=FULL, width=12,
    ),
)  # fmt: skip


SHARDWATCH = Dashboard(
    uid=Uid.SELF,
    title=Text("Shardwatch / Shardwatch health", "Shardwatch / Shardwatch 健康"),
    description=Text(
        "Can the other dashboards be trusted? Sources, ages, hung calls, dropped series.",
        "其他仪表盘可信吗？数据源、数据年龄、挂起与丢弃。",
    ),
    rows=(
        status(),
        Row(title=Text("Sources", "数据源"), panels=_SOURCES),
        Row(title=Text("Ages", "年龄"), panels=_AGES[:3]),
        Row(title=Text("Failures and certificates", "失败与证书"), panels=_AGES[3:], collapsed=True),
        Row(title=Text("Push", "推送"), panels=_PUSH, collapsed=True),
        Row(title=Text("Resource usage", "自身开销"), panels=_COST, collapsed=True),
        Row(title=Text("More (series: full)", "更多（series: full）"), panels=_FULL, collapsed=True),
    ),
    annotations=OF_DAEMON,
)
