"""Shardwatch itself: can the other boards be believed?  Sources, ages, hangs, and what the daemon drops."""

from __future__ import annotations

from alerts import panel_ids as ids
from alerts.panel_ids import DashboardUid as Uid
from alerts.text import Text
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
    ValueMapping(0, Text("refused", "被拒绝"), Colour.CRITICAL),
    ValueMapping(1, Text("good", "成功"), Colour.GOOD),
)

HOW_TO_READ = Text(
    "**Three kinds of nothing.** *exporter dead* (red) or a strip that ends: nobody measures. *not supported*, *needs "
    "series: full*, *no price*, *no gateway configured*: nothing can measure it here. *no traffic*: all well, nothing "
    "to measure. A value that could not be read is absent, never zero.",
    "**三种“没有”。** *采集器已停*（红）或条带中断：没人在采集。*不支持*、*需要 series: full*、*未设价格*、*未配置网关*："
    "此处无法测量。*无流量*：一切正常，只是没有可测的。读不到的值是缺失，绝不写成零。",
)


def ours(metric: ExternalMetric) -> Expr:
    """Return what every process tells of itself, of the daemons alone: with all jobs chosen there are strangers' too."""
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
        Text("The three reasons why a panel may have no data.", "面板没有数据的三种原因，含义各不相同。"),
        HOW_TO_READ, height=3,
    ),
    state_timeline(
        Text("Exporters reached by Prometheus", "采集器可达性"),
        Text("up of each daemon. Down: the node's figures are absent everywhere.", "各守护进程的 up。停：该节点所有数据缺失。"),
        series(lambda: max_by(targets(), "instance"), "{{instance}}"),
        value_mappings=UP, width=12, height=7, drill_down=(TO_NODE,),
    ),
    table(
        Text("The daemon", "守护进程"),
        Text(
            "Version, reload, survived errors and dropped series by node. 'refused' means that the old "
            "configuration goes on; an error survived is a bug worth a report.",
            "各节点的版本、重载、挺过的错误与丢弃的序列。“被拒绝”表示仍用旧配置；挺过的错误值得报告。",
        ),
        column(targets, Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(
            lambda: selected(m.SHARDWATCH_CONFIG_LAST_RELOAD_SUCCESSFUL), Text("Reload", "重载"), cell=Cell.COLOUR,
            value_mappings=RELOADED,
        ),
        column(
            lambda: increase(selected(m.SHARDWATCH_LOOP_RESTARTS_TOTAL), RANGE), Text("Errors", "挺过的错误"),
            cell=Cell.COLOUR, threshold=ANY_WARNING, summed=True, decimals=0, requires=TROUBLE,
        ),
        column(
            lambda: selected(m.SHARDWATCH_DROPPED_SERIES), Text("Dropped", "丢弃的序列"), cell=Cell.COLOUR,
            threshold=ANY_WARNING,
        ),
        column(lambda: ours(MEMORY), Text("Memory", "内存")),
        column(lambda: ours(MEMORY), Text("Trend", "趋势"), cell=Cell.TREND),
        rows=("instance",), width=12, height=7, panel_id=ids.SELF_DAEMON, drill_down=(TO_NODE,),
    ),
    state_timeline(
        Text("Sources up", "数据源状态"),
        Text(
            "Each source of each daemon: driver, engines, gateways, discovery. Down with the exporter up is that "
            "source's trouble. Cards have a strip of their own on the board Node.",
            "每个守护进程的各数据源：驱动、引擎、网关、发现。采集器在线而某源停，是该源自身的问题。各卡的条带在“节点”看板。",
        ),
        series(
            lambda: max_by(selected(m.SHARDWATCH_SOURCE_UP, source=no_regex("gpu:.*")), "instance", "source"),
            "{{instance}} {{source}}",
        ),
        value_mappings=UP, width=12, height=9, panel_id=ids.SELF_SOURCES,
    ),
    table(
        Text("Sources that are down, and why", "停止的数据源及原因"),
        Text("Empty is healthy. refused, timeout, lost, hung, library and so on; and how long ago it was last read.",
          "为空即正常。原因如 refused、timeout、lost、hung、library 等；以及最近一次读到的时间距今。"),
        column(lambda: selected(m.SHARDWATCH_SOURCE_DOWN_INFO), Text("Down", "停止"), cell=Cell.COLOUR, threshold=ANY_CRITICAL),
        column(_last_read, Text("Last read", "最近读取"), number_format=NumberFormat.AGE, requires=(Requires.READ,)),
        rows=("instance", "source", "reason"), requires=TROUBLE, width=12, height=9, panel_id=ids.SELF_DOWN,
        drill_down=(TO_NODE,),
    ),
)  # fmt: skip


_AGES: tuple[Panel, ...] = (
    time_series(
        Text("Age of cards' data", "卡数据年龄"),
        Text(f"Age of each card's newest reading, the {TOP_N} oldest. Rising steadily: the driver hangs on that card.",
          f"各卡最新读数的年龄（最旧的 {TOP_N} 张）。持续上升：驱动卡在这张卡上。"),
        series(lambda: topk(TOP_N, max_by(selected(m.GPU_DATA_AGE_SECONDS), "instance", "gpu")), "{{instance}} GPU {{gpu}}"),
        threshold=THRESHOLDS.gpu_data_age, drill_down=(TO_GPU,), panel_id=ids.SELF_GPU_AGES,
    ),
    time_series(
        Text("Age of engines' data", "引擎数据年龄"),
        Text(f"Age of each replica's newest reading, the {TOP_N} oldest. Rising: its page answers no more.",
          f"各副本最新读数的年龄（最旧的 {TOP_N} 个）。上升：其页面不再应答。"),
        series(lambda: topk(TOP_N, max_by(selected(m.LLM_DATA_AGE_SECONDS), "instance", "replica")), "{{instance}} {{replica}}"),
        requires=(Requires.ENGINE,), threshold=THRESHOLDS.replica_data_age, drill_down=(TO_REPLICA,),
    ),
    state_timeline(
        Text("Calls that do not return", "未返回的调用"),
        Text("Sources in which a call hung within the chosen time. The daemon goes on without them.",
          "所选时间内调用挂住过的数据源。守护进程会绕开它继续工作。"),
        series(_hung, "{{instance}} {{source}}"),
        value_mappings=YES_IS_BAD, requires=TROUBLE, width=8, panel_id=ids.SELF_HUNG,
    ),
    time_series(
        Text("Failed readings", "读取失败"),
        Text(f"Failed attempts per second, by source and reason, the {TOP_N} most. A few a day are network; a level is a fault.",
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
        Text("Lines left out of pages", "被舍弃的行"),
        Text(f"Lines and numbers of sources' pages that were unreadable, twice or not finite, the {TOP_N} most. Above zero: an engine "
          "that Shardwatch does not quite understand.",
          f"数据源页面中不可读、重复或非有限的行与数（最多的 {TOP_N} 条）。大于零：某引擎未被完全理解。"),
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
        Text("Replicas without cards, and why", "未找到卡的副本"),
        Text("Replicas for which no card was found: their boards show no cards. Empty is healthy.",
          "没有找到对应卡的副本：其看板上没有卡。为空即正常。"),
        column(lambda: selected(m.SHARDWATCH_REPLICA_UNASSIGNED_INFO), Text("Seen", "已见"), cell=Cell.COLOUR, threshold=ANY_WARNING),
        rows=("instance", "replica", "reason"), requires=TROUBLE, width=6, height=8, drill_down=(TO_REPLICA,), panel_id=ids.SELF_UNASSIGNED,
    ),
    table(
        Text("TLS certificates of the engines", "引擎的 TLS 证书"),
        Text("Time that is left; then clients and Shardwatch are refused. Absent over plain HTTP.",
          "证书剩余时间；到期后客户端与 Shardwatch 都会被拒绝。明文 HTTP 时无此项。"),
        column(
            lambda: until(selected(m.LLM_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS)), Text("Left", "剩余"), cell=Cell.COLOUR,
            number_format=NumberFormat.AGE, threshold=THRESHOLDS.certificate_remaining,
        ),
        rows=("instance", "replica"), requires=(Requires.TLS,), width=6, height=8, drill_down=(TO_REPLICA,),
    ),
)  # fmt: skip


_COST: tuple[Panel, ...] = (
    time_series(
        Text("CPU of the daemon", "守护进程 CPU"),
        Text(
            f"Share of one core, of the {TOP_N} daemons with the highest, the driver's worker process not included. A few percent at most; a level that rose is more "
            "cards, engines or scrapers, or a page that grew.",
            f"占单核的比例（最高的 {TOP_N} 个守护进程），不含驱动 worker 进程。至多百分之几；台阶上升来自更多的卡、引擎、抓取者或变大的页面。",
        ),
        series(lambda: topk(TOP_N, max_by(ours(CPU), "instance")), "{{instance}}"),
        drill_down=(TO_NODE,),
    ),
    time_series(
        Text("Memory of the daemon", "守护进程内存"),
        Text(
            f"Resident memory, of the {TOP_N} daemons with the most. It grows for five minutes until the windows are full, and then only with engines; a line "
            "that climbs for a day is a leak worth a report.",
            f"常驻内存（最多的 {TOP_N} 个守护进程）。启动后五分钟内随窗口填满而增长，之后只随引擎数变化；整天持续上升即泄漏，值得报告。",
        ),
        series(lambda: topk(TOP_N, max_by(ours(MEMORY), "instance")), "{{instance}}"),
        drill_down=(TO_NODE,), panel_id=ids.SELF_MEMORY,
    ),
    time_series(
        Text("Open files of the daemon", "守护进程打开的文件"),
        Text(
            f"File descriptors in use, connections included, of the {TOP_N} daemons with the most. A climb without an end are connections that nobody closes.",
            f"使用中的文件描述符，含连接（最多的 {TOP_N} 个守护进程）。持续上升说明有连接没有关闭。",
        ),
        series(lambda: topk(TOP_N, max_by(ours(FILES), "instance")), "{{instance}}"),
        drill_down=(TO_NODE,),
    ),
    time_series(
        Text("Scrape duration", "抓取耗时"),
        Text(f"As Prometheus sees it, the {TOP_N} longest. The page is made beforehand: milliseconds; more is the network or a starved node.",
          f"Prometheus 侧的抓取耗时（最长的 {TOP_N} 个）。页面是预先生成的，应为毫秒级；偏高是网络或节点缺 CPU。"),
        series(lambda: topk(TOP_N, max_by(selected(SCRAPE), "instance")), "{{instance}}"),
        width=8,
    ),
    time_series(
        Text("Samples per scrape", "每次抓取的样本"),
        Text(f"Series on the page, of the {TOP_N} with the most. A jump is new cards, engines or series: full.", f"页面上的序列数（最多的 {TOP_N} 个）。跳变来自新卡、新引擎或 series: full。"),
        series(lambda: topk(TOP_N, max_by(selected(SAMPLES), "instance")), "{{instance}}"),
        width=8,
    ),
    table(
        Text("Versions and configurations in use", "版本与生效的配置"),
        Text("The daemon's version, and how long ago the configuration in use was loaded.",
          "守护进程的版本，以及生效配置的加载时间距今多久。远早于修改时间说明重载未成功。"),
        column(_loaded, Text("Configuration loaded", "配置加载"), number_format=NumberFormat.AGE),
        rows=("instance", "version"), width=8, height=8,
    ),
)  # fmt: skip


_FULL: tuple[Panel, ...] = (
    time_series(
        Text("Time to read a source", "读取耗时"),
        Text(f"How long the last attempt took, by source, the {TOP_N} longest. Near the timeout, the source is overloaded.",
          f"最近一次读取耗时（按数据源，最长的 {TOP_N} 个）。接近超时说明该源过载。"),
        series(
            lambda: topk(TOP_N, max_by(selected(m.SHARDWATCH_SOURCE_POLL_DURATION_SECONDS), "instance", "source")),
            "{{instance}} {{source}}",
        ),
        requires=FULL, width=12,
    ),
    time_series(
        Text("Polls skipped", "跳过的轮询"),
        Text(f"Polls not started because the one before still ran, the {TOP_N} most. Above zero: the interval is too short.",
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
    title=Text("Shardwatch / Itself", "Shardwatch / 自身"),
    description=Text(
        "Can the other boards be believed? Sources, their ages, hangs, and what the daemon drops.",
        "其他看板可信吗？数据源、数据年龄、挂起与丢弃。",
    ),
    rows=(
        status(),
        Row(title=Text("Sources", "数据源"), panels=_SOURCES),
        Row(title=Text("Ages and failures", "年龄与失败"), panels=_AGES),
        Row(title=Text("What it costs", "自身开销"), panels=_COST),
        Row(title=Text("More, with series: full", "更多（series: full）"), panels=_FULL, collapsed=True),
    ),
    annotations=OF_DAEMON,
)
