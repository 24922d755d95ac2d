"""Which alert silences which: what follows from another is not told, and nothing else is kept from people."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from alerts.alertmanager import inhibition
from alerts.registry import groups
from alerts.rule import RuleError, seconds
from alerts.tuning import Tuning
from exporter.model.finding import Severity
from tests.support import servers
from tests.support.alertmanager_texts import write
from tests.support.records import replace


def every_alert():
    return [alert for group in groups(Tuning()) for alert in group.alerts()]


def test_an_inhibition_that_names_an_alert_that_is_gone_is_refused():
    with pytest.raises(RuleError, match="GpuLost"):
        inhibition.inhibitions([alert for alert in every_alert() if alert.name != "GpuLost"])


def test_nothing_that_pages_is_silenced_by_what_does_not():
    weaker = [replace(a, severity=Severity.WARNING) if a.name == "EngineFrozen" else a for a in every_alert()]
    with pytest.raises(RuleError, match="EngineFrozen would inhibit .*, which is more severe"):
        inhibition.inhibitions(weaker)


def test_an_inhibition_over_a_label_that_both_sides_may_lack_is_refused():
    rule = inhibition.Inhibition(why="test", sources=("GpuLost",), targets=("GpuRecoveryNeeded",), equal=("replica",))
    with pytest.raises(RuleError, match="neither GpuLost nor GpuRecoveryNeeded has replica"):
        inhibition._check(rule, tuple(every_alert()))


def test_what_explains_another_alert_fires_no_later_than_it():
    """Else people are told of the effect first, and of the cause when they already look."""
    named = {}
    for alert in every_alert():
        named.setdefault(alert.name, []).append(alert)
    late, judged = [], 0
    for rule in inhibition.inhibitions(every_alert()):
        if rule.ends or rule.equal[0] == "alertname":  # the same alert grows worse
            continue
        for source in (alert for name in rule.sources for alert in named[name]):
            for target in (alert for name in rule.targets for alert in named[name]):
                judged += 1
                if seconds(source.for_) > seconds(target.for_):
                    late.append((source.identity, target.identity))
    assert not late
    assert judged > 30


GPU = {"job": "j", "instance": "n1", "gpu": "3", "uuid": "GPU-3"}
OTHER = {**GPU, "gpu": "4", "uuid": "GPU-4"}
REPLICA = {"job": "j", "instance": "n1", "replica": "a", "engine": "vllm", "model": "m"}
POSTED = {
    # what fires, and whether it may be told
    "lost": ({"alertname": "GpuLost", "severity": "critical", **GPU}, True),
    "xid of the lost GPU": ({"alertname": "GpuXidResetNode", "severity": "warning", "xid": "79", **GPU}, False),
    "heat of the lost GPU": ({"alertname": "GpuHot", "severity": "warning", **GPU}, False),
    "heat of another GPU": ({"alertname": "GpuHot", "severity": "warning", **OTHER}, True),
    "heat of that GPU elsewhere": ({"alertname": "GpuHot", "severity": "warning", **GPU, "instance": "n2"}, True),
    "frozen": ({"alertname": "EngineFrozen", "severity": "critical", **REPLICA}, True),
    "failing because frozen": ({"alertname": "HighErrorRatio", "severity": "critical", "window": "5m", **REPLICA}, False),
    "failing elsewhere": ({"alertname": "HighErrorRatio", "severity": "critical", "window": "5m", **REPLICA, "replica": "b"}, True),
    "failing elsewhere, milder": ({"alertname": "HighErrorRatio", "severity": "warning", "window": "5m", **REPLICA, "replica": "b"}, False),
    "an expired certificate": ({"alertname": "CertificateExpires", "severity": "warning", **REPLICA}, True),
    "daemon down": ({"alertname": "ShardwatchDown", "severity": "critical", "job": "j", "instance": "n9"}, True),
    "GPU lost where the daemon is down": ({"alertname": "GpuLost", "severity": "critical", **GPU, "instance": "n9"}, False),
    "engine down where the daemon is down": ({"alertname": "EngineDown", "severity": "critical", **REPLICA, "instance": "n9"}, False),
    "the daemon restarts": ({"alertname": "ShardwatchRestarting", "severity": "warning", "job": "j", "instance": "n9"}, True),
    "Prometheus on that machine": ({"alertname": "RulesFail", "severity": "warning", "job": "prometheus", "instance": "n9"}, True),
    "fast burn": ({"alertname": "TtftSloBurn", "severity": "critical", "window": "1h", "job": "j", "model": "m", "class": "c", "objective": "first_token"}, True),
    "slow burn": ({"alertname": "TtftSloBurn", "severity": "warning", "window": "3d", "job": "j", "model": "m", "class": "c", "objective": "first_token"}, False),
    "burn of another model": ({"alertname": "TtftSloBurn", "severity": "warning", "window": "3d", "job": "j", "model": "n", "class": "c", "objective": "first_token"}, True),
    "over PCIe": ({"alertname": "ReplicaUsesPcie", "severity": "warning", "job": "j", "instance": "n1", "replica": "p"}, True),
    "uneven because of PCIe": ({"alertname": "GroupUtilizationUneven", "severity": "warning", "job": "j", "instance": "n1", "replica": "p"}, False),
    "forgotten by the gateway": ({"alertname": "ReplicaNotReceivingTraffic", "severity": "warning", **REPLICA, "replica": "f", "model": "f"}, True),
    "uneven because one is forgotten": ({"alertname": "ReplicasUneven", "severity": "warning", "job": "j", "model": "f"}, False),
    "uneven replicas of another model": ({"alertname": "ReplicasUneven", "severity": "warning", "job": "j", "model": "g"}, True),
    "a switch failed": ({"alertname": "GpuNvswitchFatal", "severity": "critical", "job": "j", "instance": "s", "pci_bus_id": "0000:c1:00", "sxid": "24007"}, True),
    "a link of that node": ({"alertname": "GpuNvlinkDown", "severity": "warning", **GPU, "instance": "s"}, False),
    "a GPU of that node is lost": ({"alertname": "GpuLost", "severity": "critical", **OTHER, "instance": "s"}, True),
    "a link elsewhere": ({"alertname": "GpuNvlinkDown", "severity": "warning", **OTHER}, True),
    "GPU lost in another cluster, where a daemon of the same name is up": ({"alertname": "GpuLost", "severity": "critical", **GPU, "instance": "n9", "cluster": "b"}, True),
    "an engine dies after its GPU": ({"alertname": "EngineDown", "severity": "critical", **REPLICA, "replica": "g"}, False),
    "the GPU before": ({"alertname": "GpuLost", "severity": "critical", **REPLICA, "gpu": "6", "uuid": "GPU-6", "replica": "g"}, True),
    "the replica of that GPU vanishes": ({"alertname": "ReplicaVanished", "severity": "critical", **REPLICA, "replica": "g"}, False),
    "an engine dies after it froze": ({"alertname": "EngineDown", "severity": "critical", **REPLICA}, False),
    "a local pool is down": ({"alertname": "GatewayPoolDown", "severity": "critical", "job": "j", "instance": "n1", "gateway": "127.0.0.1:8404", "kind": "haproxy", "pool": "p"}, True),
    "its errors": ({"alertname": "GatewayErrors", "severity": "critical", "job": "j", "instance": "n1", "gateway": "127.0.0.1:8404", "kind": "haproxy", "pool": "p"}, False),
    "errors of the same address on another node": ({"alertname": "GatewayErrors", "severity": "critical", "job": "j", "instance": "n2", "gateway": "127.0.0.1:8404", "kind": "haproxy", "pool": "p"}, True),
    "a shared pool is down": ({"alertname": "GatewayPoolDown", "severity": "critical", "job": "j", "gateway": "edge", "kind": "haproxy", "pool": "p"}, True),
    "errors of the shared pool": ({"alertname": "GatewayErrors", "severity": "critical", "job": "j", "instance": "n2", "gateway": "edge", "kind": "haproxy", "pool": "p"}, False),
    "a worker of a replica that spans nodes": ({"alertname": "GpuLost", "severity": "critical", **GPU, "instance": "w", "replica_key": "k"}, True),
    "its head waits": ({"alertname": "ReplicaPeerLost", "severity": "critical", "job": "j", "instance": "h", "replica": "big", "replica_key": "k"}, False),
    "the head's engine is frozen": ({"alertname": "EngineFrozen", "severity": "critical", **REPLICA, "instance": "h", "replica": "big"}, False),
    "the head of another replica waits": ({"alertname": "ReplicaPeerLost", "severity": "critical", "job": "j", "instance": "h", "replica": "other", "replica_key": "l"}, True),
    "watchdog": ({"alertname": "Watchdog", "severity": "none"}, True),
}  # fmt: skip


def test_a_real_alertmanager_silences_what_follows_and_nothing_else(tmp_path):
    with servers.alertmanager(write(tmp_path), folder=tmp_path) as manager:
        ends = (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat()
        body = [{"labels": {**labels, "case": name}, "endsAt": ends} for name, (labels, _) in POSTED.items()]
        manager.post("/api/v2/alerts", body)
        wanted = {name: notifies for name, (_, notifies) in POSTED.items()}
        deadline = time.monotonic() + 20
        while True:
            alerts = manager.get("/api/v2/alerts")
            # Every case must be known; "unprocessed" ones have not met the inhibitor yet.
            notified = {a["labels"]["case"]: not a["status"]["inhibitedBy"] for a in alerts}
            if notified == wanted or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        assert notified == wanted
