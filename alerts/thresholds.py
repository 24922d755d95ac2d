"""Every threshold of an alert with its unit and reason; dashboards draw the same values.

Those of GPUs are in ``alerts.thresholds_gpus``, those of groups and engines in ``alerts.thresholds_replicas``.

``DEFAULTS`` are the shipped values; ``alerts.tuning.load`` returns the same record with a user's changes.  ``published``
names the commonly used threshold that this one replaces; ``corrected`` says what differs and why.  The critical value
pages only on symptoms; on a cause it is the dashboard's red.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from alerts.threshold import ANY, RATIO, Threshold
from alerts.thresholds_gpus import GpuThresholds
from alerts.thresholds_replicas import ReplicaThresholds
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.diagnosis import thresholds as shared

__all__ = ["DEFAULTS", "Threshold", "Thresholds"]


@dataclass(frozen=True, kw_only=True)
class Thresholds(ReplicaThresholds, GpuThresholds):
    """All thresholds, one field each, those of the bases first."""

    # Requests
    first_token: Threshold = Threshold(
        metric=m.LLM_TIME_TO_FIRST_TOKEN_SECONDS,
        unit=Unit.SECONDS,
        warning=shared.TTFT_SLOW_SECONDS,
        critical=2.5,
        for_="5m",
        reason="Colours of dashboards; alerts evaluate the share of slow requests against an SLO.",
        published="P99 above 1 / 2 s for 5 min",
        corrected="A whole answer of 500 tokens takes tens of seconds by design. TTFT and ITL are evaluated per "
        "class of model, as burn of an error budget with a minimum request count.",
    )
    error_ratio: Threshold = Threshold(
        metric=m.LLM_ERROR_RATIO,
        unit=Unit.RATIO,
        warning=shared.ERROR_RATIO_WARNING,
        critical=shared.ERROR_RATIO_CRITICAL,
        value_range=RATIO,
        for_="2m",
        reason="The published values, over 5 min; one failure in twenty requests is an outage.",
        published="errors above 1 % / 5 % for 1 min",
        corrected="One failure among three requests at night would page. Evaluated over 5 min with a minimum "
        "request count (error_requests); client errors, aborts and shed load do not count.",
    )
    error_requests: Threshold = Threshold(
        metric=m.LLM_REQUESTS_TOTAL,
        warning=shared.ERROR_REQUESTS,
        reason="Gate: with fewer requests in 5 min a single failure exceeds 1 %.",
    )
    slo_requests: Threshold = Threshold(
        metric=m.LLM_REQUESTS_TOTAL,
        warning=100,
        reason="Gate: with an objective of 99 %, one failure among fewer than 7 requests burns at 14.4; 100 in "
        "the long window are robust.",
    )
    slo_tokens: Threshold = Threshold(
        metric=m.LLM_INTER_TOKEN_LATENCY_SECONDS,
        warning=20_000,
        reason="Gate: as slo_requests, for tokens; about 100 answers of 200 tokens.",
    )

    # Efficiency
    idle_share: Threshold = Threshold(
        metric=m.GPU_IDLE_SECONDS_TOTAL,
        unit=Unit.RATIO,
        warning=0.95,
        value_range=RATIO,
        for_="1h",
        reason="One hour without work is not a pause between requests.",
    )
    held_memory: Threshold = Threshold(
        metric=m.GPU_MEMORY_USED_BYTES,
        unit=Unit.RATIO,
        warning=0.10,
        value_range=RATIO,
        reason="Gate: drivers and contexts take a few hundred MiB; a tenth of the memory is a loaded model.",
    )
    low_utilization: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_RATIO,
        unit=Unit.RATIO,
        warning=0.40,
        critical=0.20,
        above=False,
        value_range=RATIO,
        for_="30m",
        reason="With requests running for half an hour, below 40 % fewer GPUs or larger batches would do.",
        published="utilisation below 40 % / 20 % for 5 min",
        corrected="See idle_with_queue.",
    )
    cost_tokens: Threshold = Threshold(
        metric=m.LLM_GENERATION_TOKENS_TOTAL,
        per_second=True,
        warning=10,
        reason="Gate: a replica without traffic has a high cost per token; GpuMemoryHeldIdle covers that.",
    )
    energy_of_past: Threshold = Threshold(
        metric=m.LLM_ENERGY_JOULES_PER_GENERATED_TOKEN,
        unit=Unit.RATIO,
        warning=1.5,
        critical=3.0,
        for_="1h",
        reason="Half as much again as in the same hour yesterday; power scatters less than prices with traffic.",
    )
    energy_traffic: Threshold = Threshold(
        metric=m.LLM_GENERATION_TOKENS_TOTAL,
        unit=Unit.RATIO,
        warning=0.7,
        value_range=ANY,
        reason="Gate: with fewer tokens than yesterday, idle power alone raises the energy of each.",
    )
    cost_of_past: Threshold = Threshold(
        metric=m.LLM_COST_PER_MILLION_GENERATED_TOKENS,
        unit=Unit.RATIO,
        warning=2.0,
        critical=4.0,
        for_="1h",
        reason="Twice the price of the same hour yesterday: less traffic, slower requests, or more GPUs.",
    )

    def by_name(self) -> dict[str, Threshold]:
        """Return every threshold by its name, those of GPUs first, then of replicas and requests."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


DEFAULTS = Thresholds()
