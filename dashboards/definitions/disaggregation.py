"""Replica, disaggregation of prefill and decode: roles, queues by stage, transfers of KV caches."""

from __future__ import annotations

from alerts import panel_ids as ids
from dashboards.definitions.latency import REPLICA_NAME
from dashboards.no_data_text import Requires
from dashboards.panels import NumberFormat, Panel, series, time_series
from dashboards.variables import NODE, RATE_INTERVAL, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric, Unit
from exporter.model.text import Text
from exporter.promql import Expr, binary, rate, sum_by

FEATURE = (Requires.FULL, Requires.FEATURE)


def _by_role(metric: Metric) -> Expr:
    work = sum_by(selected(metric), *NODE, "replica")
    with_role = binary("*", selected(m.LLM_DISAGGREGATION_ROLE_INFO), work, on=(*NODE, "replica"), group_left=())
    return sum_by(with_role, "model", "role")


def _transferred(metric: Metric) -> Expr:
    return sum_by(rate(selected(metric), RATE_INTERVAL), "instance", "replica")


DISAGGREGATION: tuple[Panel, ...] = (
    time_series(
        Text("Requests by role", "各角色的请求"),
        Text(
            "Running and waiting requests of the replicas that prefill and of those that decode, where the engine tells its role "
            "(SGLang). One side full beside an empty one: move GPUs.",
            "承担预填充与解码的副本各自运行和排队的请求（引擎报告角色时，如 SGLang）。一侧满而另一侧空：应调配 GPU。",
        ),
        series(lambda: _by_role(m.LLM_REQUESTS_RUNNING), Text("{{model}} {{role}} running", "{{model}} {{role}} 运行"),
            number_format=NumberFormat.COUNT),
        series(lambda: _by_role(m.LLM_REQUESTS_WAITING), Text("{{model}} {{role}} waiting", "{{model}} {{role}} 排队"),
            number_format=NumberFormat.COUNT),
        requires=FEATURE,
    ),
    time_series(
        Text("Queues of disaggregation", "预填充/解码分离的队列"),
        Text(
            "Requests by stage. SGLang: prefill_bootstrap, prefill_inflight, decode_prealloc, decode_transfer, and those that wait "
            "for a grammar; vLLM: caches that wait to be loaded, are, or have been. A queue that grows names the stage that is "
            "too small.",
            "各阶段的请求。SGLang：prefill_bootstrap、prefill_inflight、decode_prealloc、decode_transfer 及等待语法编译；"
            "vLLM：待加载、加载中、已加载的缓存。增长的队列即容量不足的阶段。",
        ),
        series(
            lambda: sum_by(selected(m.LLM_SCHEDULER_QUEUE_REQUESTS), "instance", "replica", "queue"),
            f"{REPLICA_NAME} {{{{queue}}}}", number_format=NumberFormat.COUNT,
        ),
        requires=FEATURE, panel_id=ids.REPLICA_DISAGGREGATION,
    ),
    time_series(
        Text("Transfers of KV caches", "KV 缓存传输"),
        Text(
            "Transfers between prefill and decode per second. None beside requests: disaggregation is not used.",
            "预填充与解码之间每秒的传输。有请求而无传输：未使用分离处理。",
        ),
        series(lambda: _transferred(m.LLM_KV_TRANSFERS_TOTAL), REPLICA_NAME),
        requires=FEATURE,
    ),
    time_series(
        Text("Duration of KV-cache transfers", "KV 缓存传输耗时"),
        Text(
            "Mean per transfer: part of the time to first token, or before the second token. Rises with prompts, and where a "
            "network adapter is slow.",
            "每次传输的均值：计入首 token 时间，或在第二个 token 之前。随提示变长，或因网卡变慢而升高。",
        ),
        series(
            lambda: (
                _transferred(m.LLM_KV_TRANSFER_DURATION_SECONDS_TOTAL) / _transferred(m.LLM_KV_TRANSFERS_TOTAL)
            ).as_unit(Unit.SECONDS),
            REPLICA_NAME,
        ),
        requires=FEATURE,
    ),
    time_series(
        Text("Bytes of KV-cache transfers", "KV 缓存传输字节"),
        Text(
            "Bytes per second between prefill and decode. Compare with the rate of the network adapters.",
            "预填充与解码之间每秒的字节数。与网卡速率对照。",
        ),
        series(lambda: _transferred(m.LLM_KV_TRANSFER_BYTES_TOTAL), REPLICA_NAME),
        requires=FEATURE,
    ),
    time_series(
        Text("Failed transfers of KV caches", "失败的 KV 缓存传输"),
        Text(
            "Per second: failed, unconnected, unconfirmed, or expired before the decode replica took them. Each prompt is computed "
            "again, or its request fails.",
            "每秒失败、未连接、未确认，或在解码副本取走前过期的传输。对应的提示需重新计算，或请求失败。",
        ),
        series(
            lambda: sum_by(rate(selected(m.LLM_KV_TRANSFER_FAILURES_TOTAL), RATE_INTERVAL), "instance", "replica", "kind"),
            f"{REPLICA_NAME} {{{{kind}}}}",
        ),
        requires=FEATURE, panel_id=ids.REPLICA_TRANSFERS,
    ),
)  # fmt: skip
