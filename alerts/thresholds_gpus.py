"""Thresholds of alerts about sources and GPUs; ``alerts.thresholds`` has them all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from alerts.threshold import RATIO, UNEVEN, Threshold
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.diagnosis import thresholds as shared


@dataclass(frozen=True, kw_only=True)
class GpuThresholds:
    """What is judged of each source and each GPU."""

    # Sources
    gpu_data_age: Threshold = Threshold(
        metric=m.GPU_DATA_AGE_SECONDS,
        unit=Unit.SECONDS,
        warning=30,
        critical=120,
        for_="3m",
        reason="GPUs are read every second; the alert about a daemon that reads nothing fires first.",
    )
    replica_data_age: Threshold = Threshold(
        metric=m.LLM_DATA_AGE_SECONDS,
        unit=Unit.SECONDS,
        warning=60,
        critical=180,
        for_="2m",
        reason="Engines are read every 5 s with a timeout of 2 s; one minute is a dozen failed reads.",
    )
    daemon_restarts: Threshold = Threshold(
        warning=3,
        for_="1m",
        reason="More than three restarts in 30 min are neither an upgrade nor manual work.",
    )
    certificate_remaining: Threshold = Threshold(
        metric=m.LLM_CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS,
        unit=Unit.SECONDS,
        warning=shared.CERTIFICATE_REMAINING,
        critical=3 * 86_400,
        above=False,
        for_="1h",
        reason="Two weeks are enough to renew a certificate by hand.",
    )

    # GPUs
    temperature_margin: Threshold = Threshold(
        metric=m.GPU_TEMPERATURE_MARGIN_CELSIUS,
        unit=Unit.CELSIUS,
        warning=shared.TEMPERATURE_MARGIN_CELSIUS,
        critical=3,
        above=False,
        for_="5m",
        reason="Below 8 °C a small rise of the inlet temperature is enough to reach the slowdown temperature.",
        published="temperature above 85 °C for 5 min",
        corrected="Slowdown temperatures differ by 20 °C between GPU models: 85 °C is normal for one and too hot "
        "for another. The margin to the GPU's own slowdown temperature means the same on all; 85 °C "
        "remains the fallback for GPUs that report none (temperature).",
    )
    temperature: Threshold = Threshold(
        metric=m.GPU_TEMPERATURE_CELSIUS,
        unit=Unit.CELSIUS,
        warning=shared.TEMPERATURE_CELSIUS,
        critical=92,
        for_="5m",
        reason="The published value, used only for GPUs that report no slowdown temperature.",
    )
    throttled_share: Threshold = Threshold(
        metric=m.GPU_CLOCK_EVENT_SECONDS_TOTAL,
        unit=Unit.RATIO,
        warning=shared.THROTTLED_SHARE,
        critical=0.50,
        value_range=RATIO,
        for_="10m",
        reason="Throttling for a tenth of the time slows the whole group down by at least a tenth.",
    )
    power_brake: Threshold = replace(
        throttled_share,
        warning=shared.POWER_BRAKE_SHARE,
        critical=0.10,
        for_="5m",
        reason="With healthy power supplies the brake is never asserted.",
    )
    power_limit_share: Threshold = Threshold(
        metric=m.GPU_POWER_LIMIT_WATTS,
        unit=Unit.RATIO,
        warning=shared.POWER_LIMIT_SHARE,
        critical=0.60,
        above=False,
        value_range=RATIO,
        for_="15m",
        reason="A tenth less power costs a few percent of the clock; below that, prompts take noticeably longer.",
    )
    busy_utilization: Threshold = Threshold(
        metric=m.GPU_UTILIZATION_RATIO,
        unit=Unit.RATIO,
        warning=shared.BUSY_UTILIZATION,
        value_range=RATIO,
        reason="Gate: an idle GPU lowers clocks and link speed on purpose; only a busy one is evaluated.",
    )
    gpu_memory_used: Threshold = Threshold(
        metric=m.GPU_MEMORY_USED_BYTES,
        unit=Unit.RATIO,
        warning=shared.GPU_MEMORY_USED,
        critical=0.985,
        value_range=RATIO,
        for_="1m",
        reason="Engines allocate 85 to 95 % at start and keep it; above 97 % further allocations fail.",
        published="memory above 85 % / 95 % for 1 min",
        corrected="Engines allocate 90 % at start: at 85 % every healthy GPU would fire. What runs out while "
        "serving is the KV cache (kv_cache_use, with requests waiting); what ends an engine is a GPU that "
        "is really full.",
    )
    memory_skew: Threshold = Threshold(
        metric=m.GPU_IMBALANCE_MAX_TO_MEAN_RATIO,
        unit=Unit.RATIO,
        warning=shared.MEMORY_SKEW,
        critical=1.12,
        value_range=UNEVEN,
        for_="5m",
        reason="Shards are equal; extra buffers of the first rank make 1 to 3 %, a leak or a second tenant makes "
        "more.",
    )
    memory_even: Threshold = replace(
        memory_skew,
        warning=shared.MEMORY_EVEN,
        critical=None,
        reason="Gate: a group whose GPUs are equally full was configured so; nothing grows.",
    )
    nvlink_errors: Threshold = Threshold(
        metric=m.GPU_NVLINK_ERRORS_TOTAL,
        warning=10,
        critical=1000,
        for_="2m",
        reason="A healthy link has none in 15 min; replays cost bandwidth before the link fails.",
    )
    pcie_replays: Threshold = Threshold(
        metric=m.GPU_PCIE_REPLAYS_TOTAL,
        warning=60,
        critical=1000,
        for_="2m",
        reason="A few replays per hour are normal; one per minute is a faulty riser, slot or cable.",
    )
    corrected_ecc: Threshold = Threshold(
        metric=m.GPU_ECC_ERRORS_TOTAL,
        warning=100,
        critical=1000,
        for_="2m",
        reason="Single corrected errors are harmless; a hundred per day often precede an uncorrectable one.",
    )
    nic_link_downs: Threshold = Threshold(
        metric=m.NIC_PORT_LINK_DOWNS_TOTAL,
        warning=shared.NIC_LINK_DOWNS,
        for_="3m",  # a port that soon stays down is NicPortDown, which inhibits this
        reason="In 5 min: a link that goes down once may be maintenance, one that does it twice flaps.",
    )
    nic_errors: Threshold = Threshold(
        metric=m.NIC_PORT_ERRORS_TOTAL,
        warning=shared.NIC_ERRORS,
        for_="2m",
        reason="Of one type in 5 min: good links correct theirs unseen, and lossy Ethernet repeats a few packets.",
    )
