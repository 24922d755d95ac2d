"""From a fault to a message: the daemon on simulated faults, a real Prometheus, a real Alertmanager, a webhook.

All scenarios run at once in one pair of servers.  Times of rules are compressed (``compressed.py``) and Alertmanager
waits for seconds by its own configuration; thresholds, expressions, routes and inhibition are those that ship.
Each test prints how long its fault took to become a message.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass

import pytest

from alerts import alertmanager
from alerts.alertmanager import reader
from alerts.registry import groups
from alerts.text import Language
from alerts.tuning import Tuning
from tests.support import compressed, servers
from tests.support.tools import tool

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
# By job: the demo's arguments, and where a scenario has no end of its own, what the node is replaced by.
LOST_AT, LOST_UNTIL, FULL_AT, FULL_UNTIL = 15.0, 60.0, 12.0, 75.0
NODES = {
    "pcie": ("--scenario", "pcie"),
    "oom": ("--scenario", "oom", "--fault-at", str(FULL_AT), "--fault-until", str(FULL_UNTIL)),
    "hang": ("--scenario", "hang", "--fault-at", str(LOST_AT), "--fault-until", str(LOST_UNTIL)),
    "skew": ("--scenario", "skew"),
    "shardwatch": ("--scenario", "drift", "--node", "0"),
    "drifted": ("--scenario", "drift", "--node", "1"),
}
SERVICE = "shardwatch"  # the job of both nodes of the scenario drift


@dataclass
class Field:
    """Everything that runs."""

    inbox: servers.Inbox
    prometheus: servers.Server
    alertmanager: servers.Server
    started: dict
    addresses: dict
    restart: object
    history: list  # (monotonic time, all alerts that Alertmanager knew)

    def told(self, alert, path, job, status="firing", seconds=PATIENCE, **labels):
        """Wait for a message about such an alert; gives (time, message, alert)."""

        def find(posts):
            for at, where, message in posts:
                for one in message["alerts"]:
                    wanted = {"alertname": alert, "job": job, **labels}
                    if where == path and one["status"] == status and wanted.items() <= one["labels"].items():
                        return at, message, one
            return None

        found = self.inbox.wait(find, seconds)
        if found is None:
            state = self.prometheus.get("/api/v1/alerts")["data"]["alerts"]
            here = [(a["labels"]["alertname"], a["state"]) for a in state if a["labels"].get("job") == job]
            raise AssertionError(f"{alert} {status} of {job} never came to {path}; Prometheus has {here}")
        return found

    def over(self, alert, path, job, **labels):
        """Wait for the all-clear."""
        return self.told(alert, path, job, status="resolved", **labels)


@pytest.fixture(scope="module")
def field():
    for name in ("prometheus", "alertmanager"):
        tool(name)
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(servers.scratch())
        inbox = stack.enter_context(servers.webhook())
        nodes, started, addresses = {}, {}, {}

        def run(job, *arguments, listen="127.0.0.1:0"):
            nodes[job] = contextlib.ExitStack()
            started[job] = time.monotonic()
            log = f"{place}/{job}.log"
            addresses[job] = nodes[job].enter_context(servers.daemon("demo", "--listen", listen, *arguments, log=log))

        def restart(job, *arguments):
            nodes.pop(job).close()
            run(job, *arguments, listen=addresses[job])

        stack.callback(lambda: [node.close() for node in nodes.values()])
        for job, arguments in NODES.items():
            run(job, *arguments)
        manager = stack.enter_context(_alertmanager(place, inbox.url))
        prometheus = stack.enter_context(_prometheus(place, addresses, manager.url))
        history = []
        stack.enter_context(_watching(manager, history))
        yield Field(inbox, prometheus, manager, started, addresses, restart, history)


@contextlib.contextmanager
def _watching(manager, history):
    """Note twice a second what Alertmanager knows: tests run in any order, and what they ask about may be over."""
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


def _prometheus(place, addresses, manager):
    with open(f"{place}/rules.yaml", "w", encoding="utf-8") as file:
        file.write(compressed.rules(Tuning(), PACE))
    jobs = {job: [address] for job, address in addresses.items() if job != "drifted"}
    jobs[SERVICE].append(addresses["drifted"])
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{place}/rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.removeprefix("http://")]}]}]},
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": found}]} for job, found in jobs.items()],
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


def test_a_lost_card_pages_with_the_card_and_its_replica_freezes(field, tell):
    fault = field.started["hang"] + LOST_AT
    told, message, lost = field.told("GpuLost", "/pager", "hang", gpu="6")
    tell("lost card (8 s of link trouble before it is gone) to page", told - fault)
    assert lost["labels"]["severity"] == "critical"
    assert len(message["alerts"]) == 1, "one card, one alert"
    assert message["groupLabels"]["instance"] == field.addresses["hang"]
    at, _, frozen = field.told("EngineFrozen", "/pager", "hang", replica="chat-b")
    tell("frozen replica to page", at - fault)
    assert frozen["labels"]["severity"] == "critical"
    assert "chat-b" in frozen["annotations"]["summary"]
    cleared, _, _ = field.over("GpuLost", "/pager", "hang", gpu="6")
    # Alertmanager tells a little later than it knows; the margins are that.
    assert "79" in _silenced(field, lost["labels"]["uuid"], told + 1.0, cleared - 3.5)
    field.over("EngineFrozen", "/pager", "hang", replica="chat-b")
    assert not _told_of(field, "EngineFrozen", replica="chat-a"), "the other replica works"


def _silenced(field, uuid, begin, end):
    """Give the XIDs of the card's alerts that Alertmanager knew meanwhile; each must have been told to nobody."""
    known = set()
    for at, alerts in list(field.history):
        if begin < at < end:
            of_card = [a for a in alerts if a["labels"].get("uuid") == uuid and a["labels"]["alertname"] != "GpuLost"]
            assert all(a["status"]["inhibitedBy"] for a in of_card), (at - begin, of_card)
            known |= {a["labels"].get("xid") for a in of_card}
    return known


def _told_of(field, alert, **labels):
    wanted = {"alertname": alert, **labels}
    return [
        one for _, _, m in list(field.inbox.posts) for one in m["alerts"] if wanted.items() <= one["labels"].items()
    ]


def test_a_full_card_that_is_not_the_first_is_named(field, tell):
    fault = field.started["oom"] + FULL_AT
    at, _, full = field.told("GpuMemoryFull", "/tickets", "oom", gpu="5")
    tell("memory that grows for 40 s until the card is full, to ticket", at - fault)
    assert full["labels"]["severity"] == "warning"
    at, _, uneven = field.told("GroupMemoryUneven", "/tickets", "oom", replica="chat-b")
    tell("memory uneven in the group, to ticket", at - fault)
    at, _, failing = field.told("HighErrorRatio", "/tickets", "oom", replica="chat-b", severity="warning")
    tell("requests that fail, to ticket", at - fault)
    field.over("GpuMemoryFull", "/tickets", "oom", gpu="5")
    field.over("GroupMemoryUneven", "/tickets", "oom", replica="chat-b")
    assert {one["labels"]["gpu"] for one in _told_of(field, "GpuMemoryFull", job="oom")} == {"5"}


def test_cards_that_talk_over_pcie_are_told_with_their_replica(field, tell):
    at, message, slow = field.told("ReplicaUsesPcie", "/tickets", "pcie", replica="chat")
    tell("start of eight cards over PCIe to ticket", at - field.started["pcie"])
    assert slow["labels"]["severity"] == "warning"
    assert not _told_of(field, "GroupUtilizationUneven", job="pcie"), "the cause silences its effect"
    field.restart("pcie", "--scenario", "mixed")  # the known cure: four cards with NVLink
    field.over("ReplicaUsesPcie", "/tickets", "pcie", replica="chat")


def test_a_scheduler_that_prefers_its_first_ranks_is_told(field, tell):
    at, _, uneven = field.told("RanksUneven", "/tickets", "skew", replica="chat")
    tell("start of a skewed scheduler to ticket", at - field.started["skew"])
    assert uneven["labels"]["component"] == "engine"
    field.restart("skew", "--scenario", "mixed")
    field.over("RanksUneven", "/tickets", "skew", replica="chat")


def test_nodes_whose_versions_differ_are_told_once_for_the_service(field, tell):
    at, message, drivers = field.told("DriverVersionsDiffer", "/tickets", SERVICE)
    tell(f"start of nodes that differ to ticket (must last {1800 // PACE} s here)", at - field.started["drifted"])
    assert len(message["alerts"]) == 1
    assert message["groupLabels"] == {
        "alertname": "DriverVersionsDiffer",
        "job": SERVICE,
        "model": drivers["labels"]["model"],
    }
    field.told("EngineVersionsDiffer", "/tickets", SERVICE, engine="vllm")
    field.restart("drifted", "--scenario", "drift", "--node", "2")  # other cards, the first node's software
    field.over("DriverVersionsDiffer", "/tickets", SERVICE)
    field.over("EngineVersionsDiffer", "/tickets", SERVICE, engine="vllm")


def test_the_watchdog_comes_from_the_start_and_only_outside(field):
    def beats(posts):
        return [
            where
            for _, where, message in posts
            for one in message["alerts"]
            if one["labels"]["alertname"] == "Watchdog"
        ]

    # Newer ones may look at the group before the alert is in it; then the next look tells, 50 s later.
    assert field.inbox.wait(beats, 70)
    assert set(beats(field.inbox.posts)) == {"/outside"}
    assert {where for _, where, _ in field.inbox.posts} <= {"/outside", "/pager", "/tickets"}
    assert all(
        one["labels"]["severity"] == "critical"
        for _, where, m in list(field.inbox.posts)
        if where == "/pager"
        for one in m["alerts"]
    )
