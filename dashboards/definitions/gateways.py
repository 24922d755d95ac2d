"""Gateways: the distribution of requests over backends, and the replica of each backend; part of Imbalance."""

from __future__ import annotations

from alerts import panel_ids as ids
from dashboards.definitions.status import TO_REPLICA, UP
from dashboards.no_data_text import Requires
from dashboards.panels import Cell, NumberFormat, Panel, column, series, stat, table, time_series
from dashboards.thresholds import ANY_WARNING, THRESHOLDS
from dashboards.variables import EXPORTER_WINDOW, NODE, RANGE, RATE_INTERVAL, selected
from exporter.catalog import metrics as m
from exporter.model.text import Text
from exporter.promql import Expr, increase, join, max_by, rate, regex, select, unless

GATEWAY = (Requires.GATEWAY, Requires.TRAFFIC)
SHORT_WINDOW = "1m"  # the daemon's shorter window: shows early that a backend receives nothing
BACKEND = (*NODE, "gateway", "kind", "pool", "backend")


def _named(expr: Expr) -> Expr:
    """Return a backend's value with the name of its replica, where that is known."""
    facts = select(m.GATEWAY_BACKEND_REPLICA_INFO, job=regex("$job"), instance=regex("$instance"))
    known = join(expr, max_by(facts, *BACKEND, "replica"), on=BACKEND, group_left=("replica",))
    assert expr.unit is not None
    return known.as_unit(expr.unit, per_second=expr.per_second) | unless(expr, facts, on=BACKEND)


GATEWAY_PANELS: tuple[Panel, ...] = (
    time_series(
        Text("Share of requests by backend", "各后端请求占比"),
        Text(
            "Share of the pool's requests that each backend received in 1 minute. Intended unevenness comes from "
            "weights.",
            "1 分钟内各后端分到的请求占比。有意的不均是权重。",
        ),
        series(
            lambda: max_by(selected(m.GATEWAY_REQUEST_SHARE_RATIO, window=SHORT_WINDOW), "gateway", "pool", "backend"),
            "{{pool}} {{backend}}",
        ),
        requires=GATEWAY, max_value=1, panel_id=ids.IMBALANCE_GATEWAY, width=24, height=8,
    ),
    table(
        Text("Gateways", "网关"),
        Text(
            "Whether each gateway can be read, age of its data, response time, and restarts in the selected time "
            "range. A slow response is a gateway short of CPU.",
            "各网关是否可读、数据年龄、应答耗时，及所选时间内的重启。应答慢说明网关缺 CPU。",
        ),
        column(lambda: selected(m.GATEWAY_UP), Text("State", "状态"), cell=Cell.COLOUR, value_mappings=UP),
        column(lambda: selected(m.GATEWAY_DATA_AGE_SECONDS), Text("Age of data", "数据年龄"), cell=Cell.COLOUR, threshold=THRESHOLDS.replica_data_age),
        column(lambda: selected(m.GATEWAY_SCRAPE_DURATION_SECONDS), Text("Response time", "应答耗时")),
        column(
            lambda: increase(selected(m.GATEWAY_RESTARTS_TOTAL), RANGE), Text("Restarts", "重启"), cell=Cell.COLOUR,
            threshold=ANY_WARNING, decimals=0,
        ),
        rows=("instance", "gateway"), requires=(Requires.GATEWAY,), width=12, height=7, panel_id=ids.IMBALANCE_GATEWAYS,
    ),
    table(
        Text("Gateway pools", "网关后端池"),
        Text(
            "Requests to each pool, those answered 5xx by a backend or by the gateway itself, active, and "
            "queued. Errors here without errors at the backends come from the gateway.",
            "客户端对各池的请求与结果：请求、由后端或网关返回的 5xx、处理中、等待后端。此处有错误而后端没有，就是网关自己的错误。",
        ),
        column(lambda: rate(selected(m.GATEWAY_POOL_REQUESTS_TOTAL), RATE_INTERVAL), Text("Requests", "请求"), number_format=NumberFormat.REQUESTS),
        column(lambda: rate(selected(m.GATEWAY_POOL_ERRORS_TOTAL), RATE_INTERVAL), Text("Errors", "错误"), number_format=NumberFormat.REQUESTS),
        column(lambda: selected(m.GATEWAY_POOL_REQUESTS_ACTIVE), Text("Active", "处理中"), cell=Cell.BAR),
        column(lambda: selected(m.GATEWAY_POOL_REQUESTS_QUEUED), Text("Queued", "排队"), cell=Cell.BAR),
        rows=("instance", "gateway", "pool"), requires=(Requires.GATEWAY,), width=12, height=7, panel_id=ids.IMBALANCE_POOLS,
    ),
    table(
        Text("Gateway backends", "网关后端"),
        Text(
            "Backends as the gateway sees them, and the replica behind each. A backend that is down while its "
            "replica is up has a broken path; errors here without errors in the engine are in between.",
            "网关眼中的后端及其对应副本。后端下线而副本在线：路径有问题；此处有错误而引擎没有：问题在两者之间。",
        ),
        column(lambda: _named(selected(m.GATEWAY_BACKEND_UP)), Text("Up", "在线"), cell=Cell.COLOUR, value_mappings=UP),
        column(lambda: _named(selected(m.GATEWAY_REQUESTS_ACTIVE)), Text("Active", "处理中"), cell=Cell.BAR),
        column(lambda: _named(selected(m.GATEWAY_REQUESTS_QUEUED)), Text("Queued", "排队"), cell=Cell.BAR),
        column(
            lambda: _named(rate(selected(m.GATEWAY_REQUESTS_TOTAL), RATE_INTERVAL)), Text("Requests", "请求"), number_format=NumberFormat.REQUESTS,
        ),
        column(lambda: _named(rate(selected(m.GATEWAY_ERRORS_TOTAL), RATE_INTERVAL)), Text("Errors", "错误"), number_format=NumberFormat.REQUESTS),
        rows=("instance", "gateway", "pool", "backend", "replica"), requires=(Requires.GATEWAY,), width=24, height=7,
        drill_down=(TO_REPLICA,), panel_id=ids.IMBALANCE_BACKENDS,
    ),
    time_series(
        Text("Queued in gateway pools", "网关后端池的排队"),
        Text(
            "Requests without a backend yet, by pool. A queue here with free replicas is a limit of the gateway.",
            "尚未分到后端的请求（按池）。此处排队而副本空闲，是网关的限制而非引擎。",
        ),
        series(lambda: max_by(selected(m.GATEWAY_POOL_REQUESTS_QUEUED), "gateway", "pool"), "{{gateway}} {{pool}}"),
        requires=(Requires.GATEWAY,), width=16, height=7,
    ),
    time_series(
        Text("Endpoint picker: stale endpoints and poll errors", "端点选择器：过期端点与读取失败"),
        Text(
            "Endpoints whose metrics are too old to choose by, and failures to read them per second. With flow control a picker "
            "takes stale endpoints for saturated: requests wait although engines are free.",
            "指标过旧而无法据以选择的端点数，以及每秒读取失败次数。启用流控时过期端点被视为饱和：引擎空闲，请求却在等待。",
        ),
        series(
            lambda: max_by(selected(m.GATEWAY_POOL_STALE_ENDPOINTS), "gateway", "pool"), Text("{{gateway}} stale", "{{gateway}} 过期"),
            number_format=NumberFormat.COUNT,
        ),
        series(
            lambda: max_by(rate(selected(m.GATEWAY_POOL_POLL_ERRORS_TOTAL), RATE_INTERVAL), "gateway", "pool"),
            Text("{{gateway}} errors", "{{gateway}} 失败"), number_format=NumberFormat.COUNT,
        ),
        requires=(Requires.GATEWAY, Requires.PICKER), width=12, height=7, panel_id=ids.IMBALANCE_PICKER,
    ),
    time_series(
        Text("Decisions about disaggregation", "预填充/解码分离的判定"),
        Text(
            "Requests per second by what the endpoint picker decided. Only decode_only while prefill replicas are up: their GPUs "
            "are idle.",
            "端点选择器的判定（每秒请求数）。预填充副本在线却只有 decode_only：其 GPU 空闲。",
        ),
        series(
            lambda: max_by(rate(selected(m.GATEWAY_POOL_DISAGGREGATION_DECISIONS_TOTAL), RATE_INTERVAL), "gateway", "pool", "decision"),
            "{{gateway}} {{decision}}", number_format=NumberFormat.REQUESTS,
        ),
        requires=(Requires.GATEWAY, Requires.PICKER), width=12, height=7, panel_id=ids.IMBALANCE_DISAGGREGATION,
    ),
    stat(
        Text("Busiest backend over mean", "最忙后端/均值"),
        Text(
            "Requests to the busiest backend of a pool over the mean, 5 minutes. 1 is even.",
            "池中最忙后端的请求与均值之比（5 分钟）。1 为均衡。",
        ),
        series(
            lambda: max_by(selected(m.GATEWAY_BACKEND_IMBALANCE_MAX_TO_MEAN_RATIO, window=EXPORTER_WINDOW), "pool"), "{{pool}}",
            number_format=NumberFormat.FACTOR,
        ),
        requires=(Requires.REPLICAS, *GATEWAY), threshold=THRESHOLDS.gateway_imbalance, width=8, height=7, decimals=2, panel_id=ids.IMBALANCE_BUSIEST,
    ),
)  # fmt: skip
