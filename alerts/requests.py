"""SLO burn-rate alerts over two windows at once, and error ratios.

Events are counted by replica first, so that a replica without a bucket at the target is excluded from both sides, then
summed by job and model.  Longer windows add up what was recorded every ``STEP`` seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from alerts import lookups
from alerts.panel_ids import REPLICA_DURATION, REPLICA_ERRORS, REPLICA_FIRST_TOKEN, REPLICA_TOKEN, PanelId
from alerts.recordings import CLIENT_OUTCOMES, FINISHED, REPLICA, failing
from alerts.rule import Alert, Component, Group, Recording, Rule
from alerts.slo import FASTEST_BURN, Latency, ModelClass, bucket_bound
from alerts.tuning import Tuning
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.finding import Severity
from exporter.model.text import Text
from exporter.promql import (
    Expr,
    ExternalMetric,
    Match,
    aggregate,
    and_on,
    binary,
    buckets,
    no_regex,
    observations,
    over_time,
    rate,
    regex,
    select,
    unless,
    vector,
)  # fmt: skip

STEP = 30  # seconds: the interval of the group, by which recorded rates become numbers of requests
_OBJECTIVE = ("class", "objective")
LEVEL = ("job", "model", *_OBJECTIVE)
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


class Burn(Struct, frozen=True, kw_only=True):
    """How fast an error budget may burn, over two windows at once, before an alert fires."""

    long: str
    short: str
    factor: float
    for_: str
    severity: Severity


# 2, 5, 10 and 10 % of a 30 days' budget
BURNS = (
    Burn(long="1h", short="5m", factor=FASTEST_BURN, for_="2m", severity=Severity.CRITICAL),
    Burn(long="6h", short="30m", factor=6.0, for_="15m", severity=Severity.CRITICAL),
    Burn(long="1d", short="2h", factor=3.0, for_="1h", severity=Severity.WARNING),
    Burn(long="3d", short="6h", factor=1.0, for_="3h", severity=Severity.WARNING),
)


EVENTS, BROKEN = (
    ExternalMetric(name=f"job_model_class_objective:{noun}:rate5m", labels=frozenset(LEVEL), per_second=True)
    for noun in ("llm_slo_events", "llm_slo_bad_events")
)
BUDGET = ExternalMetric(name="class_objective:llm_error_budget:ratio", labels=frozenset(_OBJECTIVE), unit=Unit.RATIO)


def groups(tuning: Tuning) -> tuple[Group, ...]:
    """Return the group about SLOs, where classes have models, and the one about errors."""
    failures = Group(name="shardwatch-requests", rules=(FINISHED, *_failures(tuning)))
    counted = tuple(_counted(tuning.classes))
    if not counted:
        return (failures,)
    burns = {window: _burn(window) for window in WINDOWS}
    seen = {burn.long: _seen(burn.long) for burn in BURNS}
    rules: tuple[Rule, ...] = (
        *counted,
        *_budgets(tuning.classes),
        *burns.values(),
        *seen.values(),
        *_alerts(tuning, burns, seen),
        *_not_evaluable(tuning.classes),
    )
    return (Group(name="shardwatch-slo", rules=rules, interval=f"{STEP}s"), failures)


def _counted(classes: tuple[ModelClass, ...]) -> Iterator[Recording]:
    """Yield events and bad events per second, for every objective of every class that has models."""
    earlier: list[str] = []
    for model_class in classes:
        if model_class.models:
            where = _models(model_class.models, earlier)
            if model_class.availability is not None:
                yield from _pair(model_class.name, "availability", *_availability(where))
            for name, latency in model_class.latencies.items():
                yield from _pair(model_class.name, name, *_slow(latency, where))
        earlier += model_class.models


def _models(models: tuple[str, ...], earlier: list[str]) -> tuple[Match, ...]:
    """Match the models of a class that no earlier class has."""
    mine = regex("|".join(models))
    return (mine, no_regex("|".join(earlier))) if earlier else (mine,)


def _pair(class_: str, objective: str, events: Expr, bad: Expr) -> Iterator[Recording]:
    for noun, expr in (("llm_slo_events", events), ("llm_slo_bad_events", bad)):
        yield Recording(
            level=LEVEL,
            noun=noun,
            operations="rate5m",
            expr=aggregate("sum", expr, by=("job", "model")),
            labels={"class": class_, "objective": objective},
        )


def _availability(models: tuple[Match, ...]) -> tuple[Expr, Expr]:
    events = rate(select(m.LLM_REQUESTS_TOTAL, outcome=no_regex(CLIENT_OUTCOMES), model=models), "5m")
    return events, rate(select(m.LLM_REQUESTS_TOTAL, outcome="error", model=models), "5m")


def _by_bound(latency: Latency) -> Mapping[str, list[str]]:
    """Return the engines that share each bound, by the bound."""
    found: dict[str, list[str]] = {}
    for engine, target in latency.targets.items():
        found.setdefault(bucket_bound(engine, latency.metric, target), []).append(engine)
    return found


def _slow(latency: Latency, models: tuple[Match, ...]) -> tuple[Expr, Expr]:
    events: Expr | None = None
    bad: Expr | None = None
    for bound, engines in _by_bound(latency).items():
        these = regex("|".join(engines))
        seen = rate(observations(latency.metric, engine=these, model=models), "5m")
        quick = rate(buckets(latency.metric, le=bound, engine=these, model=models), "5m")
        judged = and_on(seen, quick, on=REPLICA)
        slow = binary("-", seen, quick, ignoring=("le",))  # clusters may have nodes of one name
        events = judged if events is None else events | judged
        bad = slow if bad is None else bad | slow
    assert events is not None and bad is not None  # noqa: PT018 - the reader rejects a latency without targets
    return events, bad


def _budgets(classes: tuple[ModelClass, ...]) -> Iterator[Recording]:
    for model_class in classes:
        if model_class.models:
            for objective, share in model_class.slo():
                yield Recording(
                    level=_OBJECTIVE,
                    noun="llm_error_budget",
                    operations="ratio",
                    expr=vector(round(1 - share, 9)).as_unit(Unit.RATIO),
                    labels={"class": model_class.name, "objective": objective},
                )


def _added_up(known: ExternalMetric, window: str) -> Expr:
    return select(known) if window == "5m" else over_time("sum", select(known), window)


def _burn(window: str) -> Recording:
    share = _added_up(BROKEN, window) / _added_up(EVENTS, window)
    return Recording(
        level=LEVEL,
        noun="llm_error_budget_burn",
        operations=f"ratio_rate{window}",
        expr=binary("/", share, select(BUDGET), on=_OBJECTIVE, group_left=()),
    )


def _seen(window: str) -> Recording:
    events = over_time("sum", select(EVENTS), window) * STEP
    return Recording(
        level=LEVEL,
        noun="llm_slo_events",
        operations=f"increase{window}",
        expr=events.as_unit(Unit.NONE),
    )


_WITHOUT_WHOLE_REQUESTS = (
    "Without the histogram of request durations nothing is evaluated; TtftSloBurn and ItlSloBurn evaluate the stages."
)
_REPLICA_OUT = Text(
    "Find the replica with the errors (llm_error_ratio) and remove it from the gateway; if all fail, roll back the last "
    "change.",
    "找出出错的副本（llm_error_ratio）并从网关摘除；若全部副本都失败，请回滚最近的变更。",
)
_MORE_CAPACITY = Text(
    "Queue and busy GPUs: add replicas or shed load. Queue and idle GPUs: see EngineIdleWithQueue. No queue: longer "
    "prompts, a lower hit rate, or a straggler.",
    "有排队且 GPU 繁忙：扩容或限流；有排队而 GPU 空闲：见 EngineIdleWithQueue；无排队：提示词变长、命中率下降或有慢卡。",
)
_FASTER_DECODE = Text(
    "Check for a straggler, thermal throttling, preemptions and larger batches; lower --max-num-seqs or chunk prefills.",
    "检查是否有慢卡、过热降频、抢占或批次变大；降低 --max-num-seqs 或启用分块预填充。",
)
_SLOW_STAGE = Text(
    "Check TTFT, ITL and the length of answers: fix the stage that became slower; for longer answers change the target.",
    "检查 TTFT、ITL 与回答长度：处理变慢的阶段；若只是回答变长，请修改目标。",
)


class Objective(Struct, frozen=True, kw_only=True):
    """The alert of one objective.  ``symptom`` says what users see of the model {m}."""

    alert: str
    panel: PanelId
    symptom: Text
    action: Text


OBJECTIVES: Mapping[str, Objective] = {
    "availability": Objective(
        alert="AvailabilitySloBurn",
        panel=REPLICA_ERRORS,
        symptom=Text("requests to {m} fail", "{m} 的请求失败"),
        action=_REPLICA_OUT,
    ),
    "first_token": Objective(
        alert="TtftSloBurn",
        panel=REPLICA_FIRST_TOKEN,
        symptom=Text("slow first tokens of {m}", "{m} 首 token 过慢"),
        action=_MORE_CAPACITY,
    ),
    "token": Objective(
        alert="ItlSloBurn",
        panel=REPLICA_TOKEN,
        symptom=Text("slow token generation of {m}", "{m} 生成 token 过慢"),
        action=_FASTER_DECODE,
    ),
    "duration": Objective(
        alert="DurationSloBurn",
        panel=REPLICA_DURATION,
        symptom=Text("slow requests of {m}", "{m} 的请求耗时过长"),
        action=_SLOW_STAGE,
    ),
}


def _alerts(tuning: Tuning, burns: Mapping[str, Recording], seen: Mapping[str, Recording]) -> Iterator[Alert]:
    has_objective = {name for model_class in tuning.classes if model_class.models for name, _ in model_class.slo()}
    for objective in OBJECTIVES:
        if objective in has_objective:
            for burn in BURNS:
                yield _alert(tuning, objective, burn, burns, seen)


def _alert(
    tuning: Tuning,
    objective: str,
    burn: Burn,
    burns: Mapping[str, Recording],
    seen: Mapping[str, Recording],
) -> Alert:
    limits = tuning.thresholds
    floor = (limits.slo_tokens if objective == "token" else limits.slo_requests).warning
    over_long, over_short = (
        select(burns[window].known, objective=objective) > burn.factor for window in (burn.long, burn.short)
    )
    enough = select(seen[burn.long].known, objective=objective) >= floor
    texts = OBJECTIVES[objective]
    return Alert(
        name=texts.alert,
        severity=burn.severity,
        symptom=True,
        component=Component.REQUEST,
        expr=and_on(and_on(over_long, over_short, on=LEVEL), enough, on=LEVEL),
        for_=burn.for_,
        keep_firing_for="5m" if burn.severity is Severity.CRITICAL else "30m",
        labels={"window": burn.long},
        full_series=_WITHOUT_WHOLE_REQUESTS if objective == "duration" else "",
        panel=texts.panel,
        summary=_burning(texts.symptom),
        description=_pace(burn, floor),
        action=texts.action,
    )


def _burning(symptom: Text) -> Text:
    model = "{{ $labels.model }}"
    return Text(
        f"Error budget of class {{{{ $labels.class }}}} burns fast: {symptom.en.format(m=model)}",
        f"{{{{ $labels.class }}}} 类的错误预算正在快速消耗：{symptom.zh.format(m=model)}",
    )


def _pace(burn: Burn, floor: float) -> Text:
    return (
        Text(
            "Burn rate of the objective {{ $labels.objective }}: {{ $value | humanize }} over "
            f"{burn.long} and {burn.short} (threshold {burn.factor:g}, at least {floor:g} events; job {{{{ $labels.job }}}}).",
            "目标 {{ $labels.objective }} 的消耗速率："
            f"{burn.long} 与 {burn.short} 窗口内均为允许值的 {{{{ $value | humanize }}}} 倍"
            f"（阈值 {burn.factor:g}，且不少于 {floor:g} 次事件；作业 {{{{ $labels.job }}}}）。",
        )
        + lookups.BUDGET_LASTS
    )


def _not_evaluable(classes: tuple[ModelClass, ...]) -> Iterator[Alert]:
    """Yield one alert per objective about replicas that serve requests and lack the bucket at the target."""
    lacking: dict[str, Expr] = {}
    earlier: list[str] = []
    for model_class in classes:
        if model_class.models:
            where = _models(model_class.models, earlier)
            for name, latency in model_class.latencies.items():
                blind = _without_bucket(latency, where)
                lacking[name] = lacking[name] | blind if name in lacking else blind
        earlier += model_class.models
    for name, expr in lacking.items():
        texts = OBJECTIVES[name]
        yield Alert(
            name="SloNotEvaluable",
            severity=Severity.WARNING,
            component=Component.REQUEST,
            expr=expr,
            for_="30m",
            labels={"objective": name},
            full_series=_WITHOUT_WHOLE_REQUESTS if name == "duration" else "",
            panel=texts.panel,
            summary=Text(
                f"{texts.alert} cannot evaluate {{{{ $labels.replica }}}} on {{{{ $labels.instance }}}}: no bucket at the target",
                f"{texts.alert} 无法评估 {{{{ $labels.instance }}}} 上的 {{{{ $labels.replica }}}}：目标处没有直方图桶",
            ),
            description=Text(
                "It serves requests, and its histogram has no bucket at the target of the objective "
                "{{ $labels.objective }}, so its requests count neither as good nor as slow.",
                "它在处理请求，但其直方图在目标 {{ $labels.objective }} 处没有桶，因此它的请求既不计为达标也不计为超时。",
            ),
            action=Text(
                "Set the target of the class to a bucket bound of this engine, or restore the engine's default buckets.",
                "把该类的目标改为此引擎已有的桶边界，或恢复引擎默认的桶。",
            ),
        )


def _without_bucket(latency: Latency, models: tuple[Match, ...]) -> Expr:
    found: Expr | None = None
    for bound, engines in _by_bound(latency).items():
        these = regex("|".join(engines))
        answers = rate(observations(latency.metric, engine=these, model=models), "5m") > 0
        lacks = unless(answers, buckets(latency.metric, le=bound, engine=these, model=models), on=REPLICA)
        found = lacks if found is None else found | lacks
    assert found is not None  # the reader rejects a latency without targets
    return found


def _failures(tuning: Tuning) -> Iterator[Alert]:
    limits = tuning.thresholds
    for tier, value in limits.error_ratio.tiers():
        yield Alert(
            name="HighErrorRatio",
            severity=Severity(tier),
            symptom=True,
            component=Component.REQUEST,
            expr=failing(value, limits.error_requests.warning),
            for_=limits.error_ratio.for_,
            keep_firing_for="3m",
            panel=REPLICA_ERRORS,
            summary=Text(
                "Requests to {{ $labels.replica }} ({{ $labels.model }}) on {{ $labels.instance }} fail",
                "{{ $labels.instance }} 上的 {{ $labels.replica }}（{{ $labels.model }}）的请求失败",
            ),
            description=Text(
                f"{{{{ $value | humanizePercentage }}}} of the requests of 5 minutes failed (threshold {value:.0%} of "
                f"at least {limits.error_requests.warning:g}). Client errors, aborted requests and shed load do "
                "not count.",
                f"5 分钟内 {{{{ $value | humanizePercentage }}}} 的请求失败（阈值 {value:.0%}，且请求数不少于 "
                f"{limits.error_requests.warning:g}）。客户端错误、主动中止与限流不计入。",
            )
            + lookups.LOST_GPU
            + lookups.FULL_GPU
            + lookups.REPLICA,
            action=Text(
                "Take {{ $labels.replica }} out of the gateway, save its log, restart it; with a full GPU, with a lower "
                "--gpu-memory-utilization.",
                "把 {{ $labels.replica }} 从网关摘除，保留日志后重启；若有卡显存已满，请降低 --gpu-memory-utilization。",
            ),
        )
