"""What several alerts and boards ask of every replica and model, recorded once."""

from __future__ import annotations

from alerts.rule import Recording
from exporter.catalog import metrics as m
from exporter.catalog.spec import Metric, Unit
from exporter.promql import Expr, aggregate, binary, no_regex, rate, select

CARD = ("job", "instance", "gpu", "uuid")
REPLICA = ("job", "instance", "replica", "engine", "model")
POOL = ("job", "instance", "gateway", "kind", "pool")
OF_CLIENTS = "abort|rejected|invalid"  # outcomes that are no fault of the service
RECENT = 3600  # seconds: an error by number is news for an hour, also when daemon or Prometheus started in between
WINDOW = "5m"  # of the daemon's windows, the one that rules read; WindowMissing tells of a page without it


def without_rank(expr: Expr) -> Expr:
    """Sum over the ranks of a replica."""
    return aggregate("sum", expr, without=("rank",))


def token_rate(metric: Metric, window: str = "5m") -> Expr:
    """Give a counter's rate, summed over ranks."""
    return without_rank(rate(select(metric), window))


_UTILIZATION = binary(
    "*", select(m.GPU_REPLICA_INFO), select(m.GPU_UTILIZATION_RATIO), on=CARD, bring=()
).as_unit(Unit.RATIO)  # fmt: skip

RUNNING = Recording(
    level=REPLICA, noun="llm_requests_running", operations="sum", expr=without_rank(select(m.LLM_REQUESTS_RUNNING))
)
WAITING = Recording(
    level=REPLICA, noun="llm_requests_waiting", operations="sum", expr=without_rank(select(m.LLM_REQUESTS_WAITING))
)
UTILIZATION = Recording(
    level=REPLICA, noun="gpu_utilization_ratio", operations="avg", expr=aggregate("avg", _UTILIZATION, by=REPLICA)
)
GENERATED = Recording(
    level=REPLICA, noun="llm_generation_tokens", operations="rate5m", expr=token_rate(m.LLM_GENERATION_TOKENS_TOTAL)
)
FINISHED = Recording(
    level=REPLICA,
    noun="llm_requests_served",
    operations="rate5m",
    expr=aggregate(
        "sum", rate(select(m.LLM_REQUESTS_TOTAL, outcome=no_regex(OF_CLIENTS)), "5m"), without=("outcome",)
    ),
)
HIT_RATIO = Recording(
    level=REPLICA,
    noun="llm_prefix_cache_hit_ratio",
    operations="rate30m",
    expr=token_rate(m.LLM_PREFIX_CACHE_HITS_TOTAL, "30m") / token_rate(m.LLM_PREFIX_CACHE_QUERIES_TOTAL, "30m"),
)


def recordings() -> tuple[Recording, ...]:
    """Give the recordings by replica."""
    return (RUNNING, WAITING, UTILIZATION, GENERATED, HIT_RATIO)
