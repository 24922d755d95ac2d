"""From a fault to a message: the daemon on a simulated fault, a real Prometheus, a real Alertmanager, a webhook.

Times of rules are compressed (``compressed.py``) and Alertmanager waits for seconds by its own configuration;
thresholds, expressions, routes and inhibition are those that ship.  What the other faults of the field fire is known
from ``fault_days``, and posted to the same Alertmanager.  The first test prints how long its fault took to become a
message.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pytest

from alerts import alertmanager
from alerts.alertmanager import reader
from alerts.registry import groups
from alerts.tuning import Tuning
from exporter.model.text import Language
from tests.support import compressed, servers
from tests.support.fault_days import fault_days
from tests.support.prometheus_replay import rules
from tests.support.tools import tool
from tests.support.waiting import until

PACE = 30  # rules run this many times as fast
PATIENCE = 110.0  # seconds for a message to come
RECEIVERS = """
receivers:
  pager: [{{webhook: {{url: "{url}/pager"}}}}]
  tickets: [{{webhook: {{url: "{url}/tickets"}}}}]
  outside: [{{webhook: {{url: "{url}/outside"}}}}]
routes: {{critical: pager, warning: tickets, info: tickets, watchdog: outside}}
timing:
  critical: {{wait: 1s, interval: 2s, repeat: 1h}}
  warning: {{wait: 2s, interval: 2s, repeat: 1h}}
  info: {{wait: 2s, interval: 2s, repeat: 1h}}
"""
LOST_AT, LOST_UNTIL = 12.0, 45.0
DEMO = ("--scenario", "hang", "--fault-at", str(LOST_AT), "--fault-until", str(LOST_UNTIL))


@dataclass
class Field:
    """Everything that runs."""

    inbox: servers.Inbox
    prometheus: servers.Server
    alertmanager: servers.Server
    started: float
    address: str
    history: list  # (monotonic time, all alerts that Alertmanager knew)

    def wait_for_alert(self, alert, path, job, status="firing", seconds=PATIENCE, **labels):
        """Wait for a message about such an alert; gives (time, message, alert)."""

        def find(posts):
            for at, where, message in posts:
                for alert_sent in message["alerts"]:
                    wanted = {"alertname": alert, "job": job, **labels}
                    if (
                        where == path
                        and alert_sent["status"] == status
                        and wanted.items() <= alert_sent["labels"].items()
                    ):
                        return at, message, alert_sent
            return None

        notification = self.inbox.wait(find, seconds)
        if notification is None:
            state = self.prometheus.get("/api/v1/alerts")["data"]["alerts"]
            active = [(a["labels"]["alertname"], a["state"]) for a in state if a["labels"].get("job") == job]
            raise AssertionError(f"{alert} {status} of {job} never came to {path}; Prometheus has {active}")
        return notification

    def over(self, alert, path, job, **labels):
        """Wait for the all-clear."""
        return self.wait_for_alert(alert, path, job, status="resolved", **labels)


@pytest.fixture(scope="module")
def field():
    for name in ("prometheus", "alertmanager"):
        tool(name)
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(servers.scratch())
        inbox = stack.enter_context(servers.webhook())
        started = time.monotonic()
        log = f"{place}/hang.log"
        address = stack.enter_context(servers.daemon("demo", "--listen", "127.0.0.1:0", *DEMO, log=log))
        manager = stack.enter_context(_alertmanager(place, inbox.url))
        prometheus = stack.enter_context(_prometheus(place, address, manager.url))
        history = []
        stack.enter_context(_watching(manager, history))
        yield Field(inbox, prometheus, manager, started, address, history)


@contextlib.contextmanager
def _watching(manager, history):
    """Record twice a second what Alertmanager knows: tests run in any order, and what they ask about may be over."""
    stopping = threading.Event()

    def watch():
        while not stopping.wait(0.5):
            history.append((time.monotonic(), manager.get("/api/v2/alerts")))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _alertmanager(place, url):
    made = alertmanager.files(groups(Tuning()), reader.read(RECEIVERS.format(url=url)), [Language.ENGLISH])
    for path, text in made.items():
        with open(f"{place}/{path.name}", "w", encoding="utf-8") as file:
            file.write(text)
    return servers.alertmanager(f"{place}/alertmanager.yaml", folder=place)


def _prometheus(place, address, manager):
    with open(f"{place}/rules.yaml", "w", encoding="utf-8") as file:
        file.write(compressed.rules(Tuning(), PACE))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{place}/rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.removeprefix("http://")]}]}]},
        "scrape_configs": [{"job_name": "hang", "static_configs": [{"targets": [address]}]}],
    }
    return servers.prometheus(config, folder=place)


@pytest.fixture
def tell(capsys):
    """Print although pytest captures: the figures are the point."""

    def say(what, seconds):
        with capsys.disabled():
            print(f"\n    {what}: {seconds:.1f} s")

    return say


pytestmark = pytest.mark.slow


def test_a_lost_gpu_is_one_page_that_its_frozen_replica_does_not_repeat(field, tell):
    fault = field.started + LOST_AT
    notified_at, message, lost = field.wait_for_alert("GpuLost", "/pager", "hang", gpu="6")
    tell("lost GPU (8 s of link trouble before it is gone) to page", notified_at - fault)
    assert lost["labels"]["severity"] == "critical"
    assert lost["labels"]["replica"] == "chat-b"
    assert len(message["alerts"]) == 1, "one GPU, one alert"
    assert message["groupLabels"]["instance"] == field.address
    cleared, _, _ = field.over("GpuLost", "/pager", "hang", gpu="6")
    # Alertmanager notifies a little later than it knows; the margins are that.
    begin, end = notified_at + 1.0, cleared - 3.5
    xids = _inhibited(field, begin, end, but="GpuLost", uuid=lost["labels"]["uuid"])
    assert "79" in {labels.get("xid") for labels in xids}
    assert _inhibited(field, begin, end, alertname="EngineFrozen", replica="chat-b"), "the replica froze"
    assert not _told_of(field, "EngineFrozen")


def _inhibited(field, begin, end, but=None, **labels):
    """Return the labels of such alerts that Alertmanager knew meanwhile; each must have been inhibited."""
    known = []
    for at, alerts in list(field.history):
        if begin < at < end:
            found = [a for a in alerts if labels.items() <= a["labels"].items() and a["labels"]["alertname"] != but]
            assert all(a["status"]["inhibitedBy"] for a in found), (at - begin, found)
            known += [a["labels"] for a in found]
    return known


def _told_of(field, alert, **labels):
    wanted = {"alertname": alert, **labels}
    return [
        alert_sent
        for _, _, m in list(field.inbox.posts)
        for alert_sent in m["alerts"]
        if wanted.items() <= alert_sent["labels"].items()
    ]


@pytest.fixture
def posted(field, tmp_path_factory):
    """Post what fired in the replay of a job to Alertmanager, as Prometheus would; gives those alerts."""
    fired = fault_days(tmp_path_factory)

    def post(job):
        end = datetime.now(timezone.utc) + timedelta(minutes=5)
        alerts = [
            {
                "labels": {**rule.labels, **labels, "alertname": rule.name, "severity": rule.severity.value},
                "endsAt": end.isoformat(),
            }
            for rule in rules()[1]
            for labels, _ in fired.of(job, rule.name, rule.severity.value)
        ]
        field.alertmanager.post("/api/v2/alerts", alerts)
        return {alert["labels"]["alertname"] for alert in alerts}

    return post


@pytest.mark.parametrize(
    ("job", "alert", "labels"),
    [
        ("oom", "GpuMemoryFull", {"gpu": "5"}),
        ("pcie", "ReplicaUsesPcie", {"replica": "chat"}),
        ("skew", "RanksUneven", {"replica": "chat"}),
        ("brake", "GpuStraggler", {"gpu": "1"}),
        ("drift", "DriverVersionsDiffer", {}),
    ],
)
def test_what_each_fault_of_the_field_fires_becomes_a_ticket(field, posted, job, alert, labels):
    assert alert in posted(job)
    _, _, alert_sent = field.wait_for_alert(alert, "/tickets", job, **labels)
    assert alert_sent["labels"]["severity"] == "warning"


def test_nodes_whose_versions_differ_are_one_message_for_the_service(field, posted):
    posted("drift")
    _, message, drivers = field.wait_for_alert("DriverVersionsDiffer", "/tickets", "drift")
    assert len(message["alerts"]) == 1
    assert message["groupLabels"] == {
        "alertname": "DriverVersionsDiffer",
        "job": "drift",
        "model": drivers["labels"]["model"],
    }


@pytest.mark.parametrize(
    ("job", "cause", "effect"),
    [
        ("pcie", "ReplicaUsesPcie", "GroupUtilizationUneven"),
        ("oom", "GpuMemoryFull", "GroupMemoryUneven"),
        ("drift", "DriverVersionsDiffer", "EngineVersionsDiffer"),
    ],
)
def test_the_cause_silences_its_effect(field, posted, job, cause, effect):
    assert {cause, effect} <= posted(job)
    field.wait_for_alert(cause, "/tickets", job)
    until(lambda: _known(field, effect, job))
    assert all(alert["status"]["inhibitedBy"] for alert in _known(field, effect, job))
    assert not _told_of(field, effect, job=job)


def _known(field, alert, job):
    labels = {"alertname": alert, "job": job}.items()
    return [known for known in field.alertmanager.get("/api/v2/alerts") if labels <= known["labels"].items()]


def test_the_watchdog_comes_from_the_start_and_only_outside(field):
    def beats(posts):
        return [
            where
            for _, where, message in posts
            for alert_sent in message["alerts"]
            if alert_sent["labels"]["alertname"] == "Watchdog"
        ]

    # Newer ones may look at the group before the alert is in it; then the next look tells, 50 s later.
    assert field.inbox.wait(beats, 70)
    assert set(beats(field.inbox.posts)) == {"/outside"}
    assert {where for _, where, _ in field.inbox.posts} <= {"/outside", "/pager", "/tickets"}
    assert all(
        alert_sent["labels"]["severity"] == "critical"
        for _, where, m in list(field.inbox.posts)
        if where == "/pager"
        for alert_sent in m["alerts"]
    )
