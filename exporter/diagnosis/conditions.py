"""What the finding and the alert of one name judge alike, and why some have only one of the two.

A finding is shown after ``hold`` seconds, to whoever looks at the node; its alert fires after ``for_``, since it
interrupts somebody.  Tests hold alerts and findings to this table: severities, subject, holding times, and the
thresholds (of ``alerts.thresholds``) that the alert's expression must read and the finding must share.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from exporter.diagnosis import thresholds as limit
from exporter.model import EMPTY
from exporter.model.finding import Severity, SubjectKind

CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO
NODE, GPU, REPLICA = SubjectKind.NODE, SubjectKind.GPU, SubjectKind.REPLICA
GATEWAY, SOURCE, ADAPTER = SubjectKind.GATEWAY, SubjectKind.SOURCE, SubjectKind.ADAPTER
STORE = SubjectKind.STORE

DEFAULT_LINGER = 6.0  # seconds without the condition; a missing poll of an engine is no recovery


class Condition(Struct, frozen=True, kw_only=True):
    """One condition.  Times are seconds, but for the alert's ``for_``, which is Prometheus' duration.

    ``hold``: how long it must be seen until it is a finding.  ``linger``: how long a finding stays without it, as
    keep_firing_for of alerts, where the figure scatters about its threshold.  ``limits``: the thresholds and gates,
    by their name in ``alerts.thresholds``.
    """

    subject: SubjectKind
    for_: str
    severities: tuple[Severity, ...] = (WARNING,)
    hold: float = 0.0
    linger: float = DEFAULT_LINGER
    limits: Mapping[str, float | tuple[float, float]] = EMPTY


_Limits = Mapping[str, float | tuple[float, float]]
_ERRORS: _Limits = {
    "error_ratio": (limit.ERROR_RATIO_WARNING, limit.ERROR_RATIO_CRITICAL),
    "error_requests": limit.ERROR_REQUESTS,
}
CONDITIONS: Mapping[str, Condition] = {
    # GPUs
    "GpuLost": Condition(subject=GPU, severities=(CRITICAL,), for_="0s"),
    "GpuRecoveryNeeded": Condition(subject=GPU, for_="1m"),
    "GpuXidResetNode": Condition(subject=GPU, for_="1m"),
    "GpuXidResetGpu": Condition(subject=GPU, for_="1m"),
    "GpuXidInspect": Condition(subject=GPU, for_="1m"),
    "GpuXidApplication": Condition(subject=GPU, severities=(INFO,), for_="1m"),
    "GpuEccUncorrectable": Condition(subject=GPU, for_="1m"),
    "GpuSramEccThreshold": Condition(subject=GPU, for_="1m"),
    "GpuRowRemapPending": Condition(subject=GPU, for_="5m"),
    "GpuRowRemapFailed": Condition(subject=GPU, for_="1m"),
    "GpuNvlinkDown": Condition(subject=GPU, for_="2m"),
    "GpuFabricProblem": Condition(subject=GPU, for_="10m"),
    "GpuNvswitchFatal": Condition(subject=NODE, severities=(CRITICAL,), for_="1m"),
    "GpuPcieDowngraded": Condition(subject=GPU, for_="5m"),
    "GpuStraggler": Condition(subject=GPU, for_="2m", linger=30.0),
    "GpuHot": Condition(
        subject=GPU, for_="5m", hold=30.0, limits={"temperature_margin": limit.TEMPERATURE_MARGIN_CELSIUS}
    ),
    "GpuHotWithoutLimit": Condition(
        subject=GPU, for_="5m", hold=30.0, limits={"temperature": limit.TEMPERATURE_CELSIUS}
    ),
    "GpuThermalThrottling": Condition(
        subject=GPU,
        for_="10m",
        linger=30.0,
        limits={"throttled_share": limit.THROTTLED_SHARE, "busy_utilization": limit.BUSY_UTILIZATION},
    ),
    "GpuPowerBrake": Condition(subject=GPU, for_="5m", linger=30.0, limits={"power_brake": limit.POWER_BRAKE_SHARE}),
    "NodePowerCapped": Condition(
        subject=NODE,
        for_="15m",
        hold=60.0,
        linger=60.0,
        limits={
            "power_limit_share": limit.POWER_LIMIT_SHARE,
            "throttled_share": limit.THROTTLED_SHARE,
            "busy_utilization": limit.BUSY_UTILIZATION,
        },
    ),
    "GpuMemoryFull": Condition(
        subject=GPU,
        for_="1m",
        limits={"gpu_memory_used": limit.GPU_MEMORY_USED, "memory_even": limit.MEMORY_EVEN},
    ),
    "GroupMemoryUneven": Condition(subject=GPU, for_="5m", hold=30.0, limits={"memory_skew": limit.MEMORY_SKEW}),
    "GpuOrphanProcesses": Condition(subject=GPU, for_="5m", hold=60.0),
    "GpuDriverUnreadable": Condition(subject=NODE, for_="2m"),
    "GpusReleased": Condition(subject=NODE, severities=(INFO,), for_="1h"),
    # Network adapters
    "NicPortDown": Condition(subject=ADAPTER, for_="1m", hold=5.0),
    "NicLinkFlaps": Condition(
        subject=ADAPTER, for_="3m", linger=60.0, limits={"nic_link_downs": limit.NIC_LINK_DOWNS}
    ),
    "NicBelowRate": Condition(subject=ADAPTER, for_="5m", hold=30.0),
    "NicErrorsRise": Condition(subject=ADAPTER, for_="2m", linger=60.0, limits={"nic_errors": limit.NIC_ERRORS}),
    # Groups, ranks and replicas
    "ReplicaUsesPcie": Condition(
        subject=REPLICA,
        for_="5m",
        hold=30.0,
        linger=60.0,
        limits={"utilization_spread": limit.UTILIZATION_SPREAD},
    ),
    "GroupUtilizationUneven": Condition(
        subject=REPLICA,
        for_="5m",
        hold=180.0,
        linger=60.0,
        limits={"utilization_spread": limit.UTILIZATION_SPREAD},
    ),
    "RanksUneven": Condition(
        subject=REPLICA,
        for_="3m",
        hold=60.0,
        linger=60.0,
        limits={"rank_imbalance": limit.RANK_IMBALANCE, "balance_requests": limit.BALANCE_REQUESTS},
    ),
    "ReplicaSlowerThanSiblings": Condition(
        subject=REPLICA,
        for_="10m",
        hold=60.0,
        linger=60.0,
        limits={
            "sibling_slowdown": limit.SIBLING_SLOWDOWN,
            "sibling_tokens": limit.SIBLING_TOKENS,
            "canary_share": limit.CANARY_SHARE,
        },
    ),
    "ReplicasUneven": Condition(
        subject=NODE,
        for_="15m",
        hold=300.0,
        linger=120.0,
        limits={
            "replica_imbalance": limit.REPLICA_IMBALANCE,
            "balance_requests": limit.BALANCE_REQUESTS,
            "canary_share": limit.CANARY_SHARE,
        },
    ),
    "ReplicaNotReceivingTraffic": Condition(
        subject=REPLICA, for_="5m", hold=300.0, limits={"balance_requests": limit.BALANCE_REQUESTS}
    ),
    # Engines
    "EngineFrozen": Condition(subject=REPLICA, severities=(CRITICAL,), for_="1m"),
    "EngineDown": Condition(subject=REPLICA, severities=(WARNING, CRITICAL), for_="2m"),
    "EngineRestarting": Condition(subject=REPLICA, for_="1m", limits={"engine_restarts": limit.ENGINE_RESTARTS}),
    "EngineIdleWithQueue": Condition(
        subject=REPLICA,
        severities=(WARNING, CRITICAL),
        for_="5m",
        hold=180.0,
        limits={"idle_with_queue": (limit.IDLE_WITH_QUEUE_WARNING, limit.IDLE_WITH_QUEUE_CRITICAL)},
    ),
    "QueueGrowing": Condition(
        subject=REPLICA,
        for_="15m",
        hold=600.0,
        linger=60.0,
        limits={
            "queue_growth": limit.QUEUE_GROWTH,
            "balance_requests": limit.BALANCE_REQUESTS,
            "idle_with_queue": (limit.IDLE_WITH_QUEUE_WARNING, limit.IDLE_WITH_QUEUE_CRITICAL),
        },
    ),
    "KvCachePressure": Condition(
        subject=REPLICA,
        for_="10m",
        hold=180.0,
        linger=60.0,
        limits={"kv_cache_use": limit.KV_CACHE_USE, "first_token": limit.TTFT_SLOW_SECONDS},
    ),
    "PreemptionStorm": Condition(
        subject=REPLICA, for_="5m", hold=60.0, linger=60.0, limits={"preemption_rate": limit.PREEMPTIONS}
    ),
    "KvTransfersFail": Condition(
        subject=REPLICA,
        for_="5m",
        hold=60.0,
        linger=60.0,
        limits={"transfer_failures": limit.TRANSFER_FAILURES, "failed_transfers": limit.TRANSFERS_FAILED},
    ),
    "LoraSlotsExhausted": Condition(
        subject=REPLICA,
        for_="10m",
        hold=180.0,
        linger=60.0,
        limits={
            "lora_slots": limit.LORA_SLOTS,
            "first_token": limit.TTFT_SLOW_SECONDS,
            "kv_cache_use": limit.KV_CACHE_USE,
        },
    ),
    "SpeculationAcceptanceDropped": Condition(
        subject=REPLICA,
        for_="10m",
        hold=600.0,
        limits={
            "acceptance_of_past": limit.ACCEPTANCE_OF_PAST,
            "past_acceptance": limit.ACCEPTANCE_PAST,
            "past_accepted_length": limit.ACCEPTED_LENGTH_PAST,
            "acceptance_tokens": limit.ACCEPTANCE_TOKENS,
        },
    ),
    "PrefixCacheHitRateDropped": Condition(
        subject=REPLICA,
        for_="10m",
        hold=600.0,
        limits={
            "hit_rate_of_past": limit.HIT_RATIO_OF_PAST,
            "past_hit_rate": limit.HIT_RATIO_PAST,
            "hit_rate_lookups": limit.HIT_LOOKUPS,
        },
    ),
    "RankStale": Condition(subject=REPLICA, for_="5m", hold=30.0),
    "HighErrorRatio": Condition(
        subject=REPLICA, severities=(WARNING, CRITICAL), for_="2m", hold=10.0, linger=60.0, limits=_ERRORS
    ),
    "CertificateExpires": Condition(
        subject=REPLICA, for_="1h", limits={"certificate_remaining": limit.CERTIFICATE_REMAINING}
    ),
    "EngineVersionsDiffer": Condition(
        subject=NODE, for_="30m", hold=1800.0, limits={"canary_share": limit.CANARY_SHARE}
    ),
    "ReplicaUnassigned": Condition(subject=REPLICA, severities=(INFO,), for_="15m", hold=60.0),
    # Gateways
    "GatewayUnreadable": Condition(subject=GATEWAY, for_="2m"),
    "GatewayPoolDown": Condition(subject=GATEWAY, severities=(CRITICAL,), for_="1m", hold=5.0),
    "GatewayBackendDown": Condition(subject=GATEWAY, for_="15m", hold=30.0),
    "GatewayErrors": Condition(
        subject=GATEWAY, severities=(WARNING, CRITICAL), for_="2m", hold=10.0, linger=60.0, limits=_ERRORS
    ),
    "GatewayUneven": Condition(
        subject=GATEWAY,
        for_="10m",
        hold=300.0,
        linger=60.0,
        limits={
            "gateway_imbalance": limit.GATEWAY_IMBALANCE,
            "gateway_requests": limit.GATEWAY_REQUESTS,
            "canary_share": limit.CANARY_SHARE,
        },
    ),
    "EndpointPickerBlind": Condition(
        subject=GATEWAY,
        for_="5m",
        hold=60.0,
        linger=60.0,
        limits={
            "stale_endpoints": limit.STALE_ENDPOINTS,
            "picker_poll_errors": limit.PICKER_POLL_ERRORS,
            "gateway_requests": limit.GATEWAY_REQUESTS,
        },
    ),
    # KV-cache stores
    "KvStoreUnreadable": Condition(subject=STORE, for_="5m", hold=10.0),
    "KvStoreErrors": Condition(subject=STORE, for_="2m", linger=60.0, limits={"store_errors": limit.STORE_ERRORS}),
    # The daemon
    "SourceHung": Condition(subject=SOURCE, for_="2m"),
    "PushFailing": Condition(subject=SOURCE, for_="5m", hold=30.0),
    "ConfigurationNotLoaded": Condition(subject=NODE, for_="5m"),
}

_OF_SHARDWATCH = "about Shardwatch itself; who reads its findings sees the same on the metrics endpoint"
_OF_MONITORING = "about Prometheus and Alertmanager, which the daemon does not see"
_NODES = "compares nodes"
_OBJECTIVE = "evaluates an objective of many hours over all nodes"
_MONEY = "about efficiency: nobody is hurt, and the dashboards show it"
_ABSENT = "compares with a past that the daemon does not keep: of what is gone it knows nothing after a minute"
# Alerts without a finding, and why.
NO_FINDING: Mapping[str, str] = {
    "ShardwatchDown": "a daemon that is down has no findings",
    "ShardwatchAbsent": "a daemon that is down has no findings",
    "ShardwatchNotPushing": "a daemon that is down has no findings, and one that cannot push has PushFailing",
    "PushSamplesDropped": "counts over 15 minutes; PushFailing says how many while it lasts",
    "ShardwatchRestarting": "a daemon does not know of its earlier restarts",
    "ShardwatchBlind": "every source that it lacks has a finding of its own",
    "GpuDataStale": "the reading is withdrawn after three seconds, and the GPU is GpuLost or SourceHung",
    "SourceStale": _OF_SHARDWATCH,
    "SignalsUnreadable": _OF_SHARDWATCH,
    "ShardwatchFault": _OF_SHARDWATCH,
    "SeriesDropped": _OF_SHARDWATCH,
    "SeriesLimitNear": _OF_SHARDWATCH,
    "ParseErrors": _OF_SHARDWATCH,
    "WindowMissing": _OF_SHARDWATCH,
    "GpuEccCorrectedOften": "counts over a day, and no data was lost; the daemon keeps five minutes",
    "GpuNvlinkErrors": "counts over 15 minutes; a link that fails is GpuNvlinkDown or GpuStraggler",
    "GpuPcieReplays": "counts over an hour; a link that has become slow is GpuPcieDowngraded",
    "EngineNoTokens": "covers engines whose progress cannot be judged in seconds; the others are EngineFrozen",
    "LatencyBeyondBuckets": "says that a quantile is too low, not that something is wrong",
    "ReplicaVanished": _ABSENT,
    "ModelHasNoReplica": _ABSENT,
    "GpuCountDecreased": _ABSENT,
    "DriverVersionsDiffer": _NODES,
    "ReplicaPeerLost": _NODES,
    "ReplicaNodeMissing": _NODES,
    "ReplicaPeerStraggler": _NODES,
    "ReplicaNodesUneven": _NODES,
    "ReplicaHeadUnknown": _NODES,
    "AvailabilitySloBurn": _OBJECTIVE,
    "TtftSloBurn": _OBJECTIVE,
    "ItlSloBurn": _OBJECTIVE,
    "DurationSloBurn": _OBJECTIVE,
    "SloNotEvaluable": _OBJECTIVE,
    "GpuMemoryHeldIdle": _MONEY,
    "UtilizationLow": _MONEY,
    "TokenCostIncreased": _MONEY,
    "TokenEnergyIncreased": _MONEY,
    "HostKvCacheThrashing": _MONEY,
    "DisaggregationUnused": _MONEY,
    "ModelLoadSlow": "says of a start that is over how long it took",
    "PrefillDecodeUneven": "compares replicas of all nodes",
    "EndpointCertificateExpiring": _OF_SHARDWATCH,
    "Watchdog": _OF_MONITORING,
    "RulesFail": _OF_MONITORING,
    "RulesSlow": _OF_MONITORING,
    "NotificationsNotSent": _OF_MONITORING,
    "NoAlertmanager": _OF_MONITORING,
    "PrometheusConfigurationNotLoaded": _OF_MONITORING,
    "AlertmanagerNotificationsFailing": _OF_MONITORING,
    "AlertmanagerConfigurationNotLoaded": _OF_MONITORING,
}
# Findings without an alert: how long they are held, and why there is none.
NO_ALERT: Mapping[str, str] = {
    "GpusRemoved": "GpuCountDecreased says that there are fewer; this says which, and that it is no fault",
    "ReplicaPlaceDisputed": "nobody knows which claim is true; ReplicaNodeMissing says that a node is gone",
    "DiscoveryLimitReached": "the log and the metrics endpoint report it; what is missing is not known",
    "SourceDown": "discovery, the kernel log or the driver's events cannot be read: what is lost by that has alerts",
}
NO_ALERT_HOLD = 30.0
_NO_ALERT_HOLDS = {"GpusRemoved": 0.0}  # seen for as long as it takes until the driver's count is the truth


def hold(name: str) -> float:
    """Return for how many seconds a condition must be seen until it is a finding."""
    known = CONDITIONS.get(name)
    return known.hold if known is not None else _NO_ALERT_HOLDS.get(name, NO_ALERT_HOLD)


def linger(name: str) -> float:
    """Return for how many seconds a finding stays without its condition."""
    known = CONDITIONS.get(name)
    return known.linger if known is not None else DEFAULT_LINGER
