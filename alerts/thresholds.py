"""Every number that an alert compares with, its unit and why it is that number; dashboards draw the same.

``DEFAULTS`` holds what ships; ``alerts.tuning.load`` gives the same record with a user's changes.  A threshold whose
``published`` is not empty answers a row of the table that the field passes around; ``corrected`` says what is
different here and why.  The critical value pages only where users feel it; on a cause it is the dashboard's red.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from alerts.threshold import RATIO, UNEVEN, Threshold
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit

__all__ = ["DEFAULTS", "Threshold", "Thresholds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """All thresholds, one field each; ``by_name`` gives them by name."""

    # Sources
    gpu_data_age: Threshold = Threshold(
        metric=m.GPU_DATA_AGE_SECONDS,
        unit=Unit.SECONDS,
        warning=30,
        critical=120,
        for_="3m",
        reason="Cards are read every second; a daemon that reads nothing at all is told first.",
    )
    replica_data_age: Threshold = Threshold(
        metric=m.LLM_DATA_AGE_SECONDS,
        unit=Unit.SECONDS,
        warning=60,
        critical=180,
        for_="2m",
        reason="Engines are read every 5 s with a timeout of 2 s; a minute is a dozen missed pages.",
    )
    daemon_restarts: Threshold = Threshold(
        warning=3,
        for_="1m",
        reason="More than three new processes in 30 min are no upgrade and no hand at work.",
    )
    certificate_remaining: Threshold = Threshold(
        metric=m.LLM_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS,
        unit=Unit.SECONDS,
        warning=14 * 86_400,
        critical=3 * 86_400,
        above=False,
        for_="1h",
        reason="Two weeks leave time for a certificate that somebody must sign by hand.",
    )

    # Cards
    temperature_margin: Threshold = Threshold(
        metric=m.GPU_TEMPERATURE_MARGIN_CELSIUS,
        unit=Unit.CELSIUS,
        warning=8,
        critical=3,
        above=False,
        for_="5m",
        reason="Below 8 °C a warm afternoon or one dusty filter is enough to reach the slowdown limit.",
        published="temperature above 85 °C for 5 min",
        corrected="Limits differ by 20 °C between makes of card: 85 °C is normal for one and past the limit of "
        "another. The margin to the card's own slowdown limit means the same on all; 85 °C stays as the fallback for "
        "cards that tell no limit (temperature).",
    )
    temperature: Threshold = Threshold(
        metric=m.GPU_TEMPERATURE_CELSIUS,
        unit=Unit.CELSIUS,
        warning=85,
        critical=92,
        for_="5m",
        reason="The published figure, used only for cards that tell no slowdown limit.",
    )
    throttled_share: Threshold = Threshold(
        metric=m.GPU_CLOCK_EVENT_SECONDS_TOTAL,
        unit=Unit.RATIO,
        warning=0.10,
        critical=0.50,
        value_range=RATIO,
        for_="10m",
        reason="A tenth of the time with clocks held down by heat costs the whole group more than a tenth.",
    )
    power_brake: Threshold = replace(
        throttled_share,
        warning=0.01,
        critical=0.10,
        for_="5m",
        reason="A chassis whose power is in order never pulls the brake.",
    )
    busy_utilization: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_RATIO,
        unit=Unit.RATIO,
        warning=0.30,
        value_range=RATIO,
        reason="Gate: an idle card lowers clocks and link speed on purpose; only a busy one is judged.",
    )
    gpu_memory_used: Threshold = Threshold(
        metric=m.GPU_MEMORY_USED_BYTES,
        unit=Unit.RATIO,
        warning=0.97,
        critical=0.985,
        value_range=RATIO,
        for_="1m",
        reason="Engines take 85 to 95 % at start and keep it; beyond 97 % the next allocation fails.",
        published="memory above 85 % / 95 % for 1 min",
        corrected="Engines allocate 90 % when they start: at 85 % every healthy card would alarm for ever. What runs "
        "out while serving is the KV cache (kv_cache_use, with requests waiting); what kills is a card that is "
        "really full.",
    )
    memory_skew: Threshold = Threshold(
        metric=m.GPU_IMBALANCE_MAX_TO_MEAN_RATIO,
        unit=Unit.RATIO,
        warning=1.07,
        critical=1.12,
        value_range=UNEVEN,
        for_="5m",
        reason="Shards are equal; a first rank's extra buffers make 1 to 3 %, a leak or a second tenant makes more.",
    )
    nvlink_errors: Threshold = Threshold(
        metric=m.GPU_NVLINK_ERRORS_TOTAL,
        warning=10,
        critical=1000,
        for_="2m",
        reason="A good link makes none in 15 min; replays cost bandwidth before they cost the link.",
    )
    pcie_replays: Threshold = Threshold(
        metric=m.GPU_PCIE_REPLAYS_TOTAL,
        warning=60,
        critical=1000,
        for_="2m",
        reason="A few replays an hour are background; one a minute is a bad riser, slot or cable.",
    )
    corrected_ecc: Threshold = Threshold(
        metric=m.GPU_ECC_ERRORS_TOTAL,
        warning=100,
        critical=1000,
        for_="2m",
        reason="Corrected errors are harmless one by one; a hundred a day often precede an uncorrectable one.",
    )

    # Balance
    utilization_spread: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_SPREAD_RATIO,
        unit=Unit.RATIO,
        warning=0.40,
        critical=0.60,
        value_range=RATIO,
        for_="5m",
        reason="Cards of one group work in step: 40 points between them is work that somebody waits for.",
        published="highest minus lowest utilisation above 40 points for 5 min",
        corrected="Judged inside each group and only while the group works: over a node, one busy model beside an "
        "idle one would alarm.",
    )
    utilization_stddev: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_STDDEV_RATIO,
        unit=Unit.RATIO,
        warning=0.25,
        critical=0.35,
        value_range=(0.0, 0.5),
        for_="5m",
        reason="In a group of eight, 0.25 is about four cards at 90 % and four at 40 %.",
        published="standard deviation of utilisation above 30 / 50 points",
        corrected="The standard deviation of shares cannot exceed 50 points, so the published critical value could "
        "never be exceeded; and over a whole node one busy card of eight already makes 33. Judged inside a group "
        "under load, at 25 and 35 points.",
    )
    replica_imbalance: Threshold = Threshold(
        metric=m.LLM_REPLICA_IMBALANCE_MAX_TO_MEAN_RATIO,
        unit=Unit.RATIO,
        warning=1.5,
        critical=1.8,
        value_range=UNEVEN,
        for_="15m",
        reason="Of two replicas, 1.5 is three quarters of the work on one; two replicas cannot exceed 2.",
    )
    rank_imbalance: Threshold = Threshold(
        metric=m.LLM_RANK_IMBALANCE_MAX_TO_MEAN_RATIO,
        unit=Unit.RATIO,
        warning=1.35,
        critical=1.8,
        value_range=UNEVEN,
        for_="3m",
        reason="Ranks of one engine get the same work; a third above the mean over 5 min is not chance.",
    )
    canary_share: Threshold = Threshold(
        metric=m.LLM_REQUESTS_RUNNING,
        unit=Unit.RATIO,
        warning=0.25,
        value_range=RATIO,
        reason="Gate: a replica that runs something, but less than a quarter of the mean, is given a canary's share.",
    )
    gateway_imbalance: Threshold = replace(
        replica_imbalance,
        metric=m.GATEWAY_BACKEND_IMBALANCE_MAX_TO_MEAN_RATIO,
        for_="10m",
        reason="As between replicas; weights that somebody set on purpose need a higher value here.",
    )
    balance_requests: Threshold = Threshold(
        metric=m.LLM_REQUESTS_RUNNING,
        warning=8,
        for_="10m",
        reason="Gate: among fewer requests, one more on a side is chance.",
    )
    gateway_requests: Threshold = Threshold(
        metric=m.GATEWAY_POOL_REQUESTS_TOTAL,
        warning=0.2,
        per_second=True,
        for_="10m",
        reason="Gate: below one request in five seconds the shares of 5 min are chance.",
    )

    # Engines
    engine_down: Threshold = Threshold(
        metric=m.LLM_UP,
        warning=1,
        above=False,
        value_range=RATIO,
        for_="2m",
        reason="Engines are read every 5 s; two minutes are two dozen missed pages and more than a quick restart.",
    )
    engine_loading: Threshold = replace(
        engine_down, for_="10m", reason="Weights and graphs of a large model take five to ten minutes to load."
    )
    idle_with_queue: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_RATIO,
        unit=Unit.RATIO,
        warning=0.40,
        critical=0.20,
        above=False,
        value_range=RATIO,
        for_="5m",
        reason="Requests wait while their cards have nothing to do: the engine, not the hardware, is the limit.",
        published="utilisation below 40 % / 20 % for 5 min",
        corrected="An idle node would alarm all night. Low utilisation matters when requests wait (warning and "
        "critical), and costs money when some run (info).",
    )
    kv_cache_use: Threshold = Threshold(
        metric=m.LLM_KV_CACHE_USAGE_RATIO,
        unit=Unit.RATIO,
        warning=0.90,
        critical=0.97,
        value_range=RATIO,
        for_="10m",
        reason="A full cache is well used; with requests waiting it is what they wait for.",
        published="memory above 85 % / 95 % for 1 min",
        corrected="See gpu_memory_used: the pressure that users feel is that of the KV cache while requests wait.",
    )
    preemption_rate: Threshold = Threshold(
        metric=m.LLM_PREEMPTIONS_TOTAL,
        per_second=True,
        warning=0.2,
        critical=1.0,
        for_="5m",
        reason="Each preemption computes a request's tokens again; one in five seconds is felt at the tail.",
    )
    engine_restarts: Threshold = Threshold(
        metric=m.LLM_GENERATION_TOKENS_TOTAL,
        warning=1,
        for_="1m",
        reason="One restart in 30 min is a rollout, two are a loop: loading the model alone takes minutes.",
    )
    hit_rate_of_past: Threshold = Threshold(
        metric=m.LLM_PREFIX_CACHE_HITS_TOTAL,
        unit=Unit.RATIO,
        warning=0.5,
        critical=0.25,
        above=False,
        value_range=RATIO,
        for_="10m",
        reason="Half of its own past day, with as many lookups: routing, prompts or the cache have changed.",
        published="hit rate below 40 % / 20 % for 10 min",
        corrected="The hit rate belongs to the workload: 10 % is right for one service and 90 % for another. Judged "
        "against the replica's own past day, and only with lookups.",
    )
    hit_rate: Threshold = Threshold(
        metric=m.LLM_KV_CACHE_HIT_RATIO,
        unit=Unit.RATIO,
        warning=0.40,
        critical=0.20,
        above=False,
        value_range=RATIO,
        for_="10m",
        reason="The published figures; dashboards colour by them, no alert uses them (see hit_rate_of_past).",
    )
    past_hit_rate: Threshold = Threshold(
        metric=m.LLM_PREFIX_CACHE_HITS_TOTAL,
        unit=Unit.RATIO,
        warning=0.10,
        value_range=RATIO,
        reason="Gate: a cache that never served a tenth of the tokens has little to lose.",
    )
    hit_rate_lookups: Threshold = Threshold(
        metric=m.LLM_PREFIX_CACHE_QUERIES_TOTAL,
        per_second=True,
        warning=50,
        reason="Gate: 50 looked-up tokens a second are a few prompts a minute; fewer say nothing.",
    )
    saturated_share: Threshold = Threshold(
        metric=m.LLM_LATENCY_ABOVE_TOP_BUCKET_RATIO,
        unit=Unit.RATIO,
        warning=0.01,
        critical=0.05,
        value_range=RATIO,
        for_="10m",
        reason="Beyond the last bound quantiles stand still at it; with 1 % there, the p99 is no longer true.",
    )

    # Requests
    first_token: Threshold = Threshold(
        metric=m.LLM_TIME_TO_FIRST_TOKEN_SECONDS,
        unit=Unit.SECONDS,
        warning=1.0,
        critical=2.5,
        for_="5m",
        reason="Colours of dashboards; alerts judge the share of slow requests against an objective.",
        published="P99 above 1 / 2 s for 5 min",
        corrected="A whole answer of 500 tokens takes tens of seconds by design. Judged are time to first token and "
        "time between tokens, per class of model, as burn of an error budget with a floor of traffic.",
    )
    error_ratio: Threshold = Threshold(
        metric=m.LLM_ERROR_RATIO,
        unit=Unit.RATIO,
        warning=0.01,
        critical=0.05,
        value_range=RATIO,
        for_="2m",
        reason="The published figures, over 5 min; one in twenty failing is an outage to somebody.",
        published="errors above 1 % / 5 % for 1 min",
        corrected="One failure among three requests at night would page. Judged over 5 min with a floor of requests "
        "(error_requests); clients' mistakes, aborts and shed load do not count.",
    )
    error_requests: Threshold = Threshold(
        metric=m.LLM_REQUESTS_TOTAL,
        warning=50,
        reason="Gate: among fewer requests in 5 min a single failure would exceed 1 %.",
    )
    slo_requests: Threshold = Threshold(
        metric=m.LLM_REQUESTS_TOTAL,
        warning=100,
        reason="Gate: with an objective of 99 %, fewer than 7 requests let one failure burn at 14.4; a hundred "
        "in the long window leave room for chance.",
    )
    slo_tokens: Threshold = Threshold(
        metric=m.LLM_INTER_TOKEN_LATENCY_SECONDS,
        warning=20_000,
        reason="Gate: as slo_requests, for tokens; about a hundred answers of 200 tokens.",
    )

    # Efficiency
    idle_share: Threshold = Threshold(
        metric=m.GPU_IDLE_SECONDS_TOTAL,
        unit=Unit.RATIO,
        warning=0.95,
        value_range=RATIO,
        for_="1h",
        reason="An hour without work is no pause between requests.",
    )
    held_memory: Threshold = Threshold(
        metric=m.GPU_MEMORY_USED_BYTES,
        unit=Unit.RATIO,
        warning=0.10,
        value_range=RATIO,
        reason="Gate: drivers and contexts take a few hundred MiB; a tenth of the card is a loaded model.",
    )
    low_utilization: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_RATIO,
        unit=Unit.RATIO,
        warning=0.40,
        critical=0.20,
        above=False,
        value_range=RATIO,
        for_="30m",
        reason="With requests running for half an hour, less than 40 % asks for fewer cards or larger batches.",
        published="utilisation below 40 % / 20 % for 5 min",
        corrected="See idle_with_queue.",
    )
    cost_tokens: Threshold = Threshold(
        metric=m.LLM_GENERATION_TOKENS_TOTAL,
        per_second=True,
        warning=10,
        reason="Gate: at night a replica without traffic makes dear tokens, and that is GpuMemoryHeldIdle.",
    )
    cost_of_past: Threshold = Threshold(
        metric=m.LLM_COST_PER_MILLION_TOKENS,
        unit=Unit.RATIO,
        warning=2.0,
        critical=4.0,
        for_="1h",
        reason="Twice the price of the same hours yesterday: less traffic, a slower model, or more cards.",
    )

    def by_name(self) -> dict[str, Threshold]:
        """Give every threshold by its name, in the order of this file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


DEFAULTS = Thresholds()
