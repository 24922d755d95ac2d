"""Recordings by replica and model that several alerts and dashboards read, and label sets."""

from __future__ import annotations

from dataclasses import replace

from alerts.rule import Recording
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric, Unit
from exporter.promql import (
    TARGET,
    Expr,
    ExternalMetric,
    aggregate,
    and_on,
    avg_by,
    binary,
    count_by,
    max_by,
    no_regex,
    observations,
    over_time,
    rate,
    regex,
    select,
    sum_by,
    topk,
    total,
    unless,
    without_value,
)  # fmt: skip

NODE = ("job", "instance")
GPU = (*NODE, "gpu", "uuid")
REPLICA = (*NODE, "replica", "engine", "model")
MODEL = ("job", "model")
POOL = (*NODE, "gateway", "kind", "pool")
_OF_ALERT = ("alertname", "alertstate", "severity", "component")
ALERTS_LABELS = TARGET | set(_OF_ALERT)  # labels of ALERTS, beside an alert's own
CLIENT_OUTCOMES = "cancelled|rejected|invalid"  # not failures of the service
RECENT_SECONDS = 3600  # an XID or SXid fires for an hour, also across restarts of the daemon or Prometheus
WINDOW = "5m"  # the daemon's window that rules read; WindowMissing fires without it
# The daemon was told to release the GPUs (SIGUSR1): none is read, and none is lost.
RELEASED = select(m.SHARDWATCH_SOURCE_DOWN_INFO, source="driver", reason="released")
# The exporter that GPUs are read from does not answer: nothing is known about them, and none is lost.
GPU_EXPORTER_DOWN = select(m.SHARDWATCH_SOURCE_UP, source=regex("gpu_page:.+")).equals(0)

REPLICA_INFO = frozenset({"replica", "engine", "model"})


def with_replica(gpus: Expr, alert: str) -> Expr:
    """Return the GPUs with the labels of the replica that uses them, where there is one.

    The replica of a lost GPU may not be known any more.  Then it is the one of the last 10 minutes, and after that the
    one that the firing alert already names: an alert whose labels change resolves and fires again.
    """
    now = aggregate("max", select(m.GPU_REPLICA_INFO), without=("rank",))
    recent = aggregate("max", over_time("last", select(m.GPU_REPLICA_INFO), "10m"), without=("rank",))
    own = select(
        ExternalMetric(name="ALERTS", labels=ALERTS_LABELS | set(GPU) | REPLICA_INFO),
        alertname=alert,
        replica=without_value(""),
    )
    owners = now | unless(recent | aggregate("max", own, without=_OF_ALERT), now, on=GPU)
    owned = binary("*", owners, gpus, on=GPU, group_left=())
    return replace(binary("or", owned, gpus, on=GPU), labels=gpus.labels, unit=gpus.unit)


def with_key(gpus: Expr, alert: str) -> Expr:
    """Return the GPUs with the label ``replica_key`` where they belong to a replica that spans nodes.

    One of them where a claim is forged, and the one that the firing alert names once it is not known any more.
    """
    key = (*NODE, "uuid", "replica_key")
    known = over_time("last", select(m.GPU_MULTI_NODE_REPLICA_INFO), "10m")
    own = select(
        ExternalMetric(name="ALERTS", labels=ALERTS_LABELS | set(key)), alertname=alert, replica_key=without_value("")
    )
    named = max_by(own, *key)
    keys = topk(1, named | unless(max_by(known, *key), named, on=key[:3]), by=key[:3])
    joined = binary("*", gpus, keys, on=key[:3], group_left=("replica_key",))
    return replace(binary("or", joined, gpus, on=key[:3]), labels=gpus.labels, unit=gpus.unit)


def without_rank(expr: Expr) -> Expr:
    """Sum over the ranks of a replica."""
    return aggregate("sum", expr, without=("rank",))


def token_rate(metric: Metric, window: str = "5m") -> Expr:
    """Return a counter's rate, summed over ranks."""
    return without_rank(rate(select(metric), window))


def mean_latency(metric: Metric, window: str) -> Expr:
    """Return the mean of a latency's histogram, in seconds; absent without observations."""
    observed = rate(observations(metric), window)
    return (rate(total(metric), window) / (observed > 0)).as_unit(Unit.SECONDS)


def share_of_past(now: Expr, past: Expr, *, below: float, floor: float) -> Expr:
    """Return what a figure of a replica is of its own past, where that is below a share and the past above a floor."""
    return and_on((now / past).as_unit(Unit.RATIO) < below, past > floor, on=REPLICA)


def memory_to_mean() -> Expr:
    """Return the memory of each GPU of a replica over the mean of the replica's GPUs; absent for a single GPU.

    Not recorded: its series would grow with the GPUs.
    """
    owners = aggregate("max", select(m.GPU_REPLICA_INFO), without=("rank",))
    used = binary("*", owners, select(m.GPU_MEMORY_USED_BYTES), on=GPU, group_left=())
    several = and_on(avg_by(used, *REPLICA), count_by(used, *REPLICA) > 1, on=REPLICA)
    return binary("/", used, several, on=REPLICA, group_left=()).as_unit(Unit.RATIO)


def failing(ratio: float, requests: float) -> Expr:
    """Return the replicas whose share of failed requests exceeds a ratio, among at least so many in 5 minutes."""
    enough = select(FINISHED.known) * 300 >= requests
    return and_on(select(m.LLM_ERROR_RATIO, window=WINDOW) > ratio, enough, on=REPLICA)


_UTILIZATION = binary(
    "*", select(m.GPU_REPLICA_INFO), select(m.GPU_UTILIZATION_RATIO), on=GPU, group_left=()
).as_unit(Unit.RATIO)  # fmt: skip

RUNNING = Recording(
    level=REPLICA, noun="llm_requests_running", operations="sum", expr=without_rank(select(m.LLM_REQUESTS_RUNNING))
)
WAITING = Recording(
    level=REPLICA, noun="llm_requests_waiting", operations="sum", expr=without_rank(select(m.LLM_REQUESTS_WAITING))
)
UTILIZATION = Recording(
    level=REPLICA,
    noun="gpu_utilization_ratio",
    operations="avg",
    expr=aggregate("avg", _UTILIZATION, without=("gpu", "uuid", "rank")),
)
GENERATED = Recording(
    level=REPLICA, noun="llm_generation_tokens", operations="rate5m", expr=token_rate(m.LLM_GENERATION_TOKENS_TOTAL)
)
FINISHED = Recording(
    level=REPLICA,
    noun="llm_requests_served",
    operations="rate5m",
    expr=aggregate(
        "sum", rate(select(m.LLM_REQUESTS_TOTAL, outcome=no_regex(CLIENT_OUTCOMES)), "5m"), without=("outcome",)
    ),
)
ITL = Recording(
    level=REPLICA,
    noun="llm_inter_token_latency_seconds",
    operations="mean5m",
    expr=mean_latency(m.LLM_INTER_TOKEN_LATENCY_SECONDS, "5m"),
)
HIT_RATIO = Recording(
    level=REPLICA,
    noun="llm_prefix_cache_hit_ratio",
    operations="rate30m",
    expr=token_rate(m.LLM_PREFIX_CACHE_HITS_TOTAL, "30m") / token_rate(m.LLM_PREFIX_CACHE_QUERIES_TOTAL, "30m"),
)
UP_BY_MODEL = Recording(level=MODEL, noun="llm_up", operations="sum", expr=sum_by(select(m.LLM_UP), *MODEL))
RUNNING_BY_MODEL = Recording(
    level=MODEL, noun=RUNNING.noun, operations=RUNNING.operations, expr=sum_by(select(RUNNING.known), *MODEL)
)


def recordings() -> tuple[Recording, ...]:
    """Return the recordings by replica."""
    return (RUNNING, WAITING, UTILIZATION, GENERATED, HIT_RATIO, ITL)
