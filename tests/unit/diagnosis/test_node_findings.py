"""Findings about the daemon itself."""

from __future__ import annotations

import pytest

from exporter.config.settings import parse
from exporter.diagnosis.diagnose import arrange, find
from exporter.model import CardFacts, DisputedPlace, Snapshot, SourceStatus
from exporter.model.node import DaemonState
from exporter.runtime.app import App
from exporter.runtime.diagnosis import Diagnosis
from tests.support.builders import card, replica, snapshot
from tests.support.records import replace


def test_limits_that_discovery_reached_are_one_finding_that_names_them():
    daemon = DaemonState(discovery_limits=frozenset({"targets", "processes"}))
    found = find(Snapshot(at=0.0, unix_time=0.0, daemon=daemon))
    assert [(finding.id, finding.evidence[0].value) for finding in found] == [
        ("DiscoveryLimitReached", "processes, targets")
    ]
    assert find(Snapshot(at=0.0, unix_time=0.0)) == ()


def test_gpus_that_were_removed_on_purpose_are_named():
    gone = tuple(
        CardFacts(index=index, uuid=f"GPU-{index}", pci_bus_id=f"00000000:{index:02X}:00.0") for index in (4, 5)
    )
    (finding,) = find(Snapshot(at=0.0, unix_time=0.0, removed=gone))
    assert (finding.id, finding.severity.value) == ("GpusRemoved", "info")
    assert finding.evidence[0].value == "GPU 4 GPU-4 at 00000000:04:00.0; GPU 5 GPU-5 at 00000000:05:00.0"


def test_a_place_that_two_owners_claim_is_a_finding_that_names_them():
    place = DisputedPlace(key="vllm://h:1", node_rank=1, claims=((10, "user root"), (20, "uid 1234")))
    (finding,) = find(Snapshot(at=0.0, unix_time=0.0, disputed=(place,)))
    assert (finding.id, finding.severity.value) == ("ReplicaPlaceDisputed", "warning")
    assert finding.evidence[0].value == "vllm://h:1 node 1: pid 10 (user root), pid 20 (uid 1234)"


@pytest.mark.parametrize("kind", ["discovery", "gpu_page", "kernel_log", "nics", "nvml_events", "processes"])
def test_a_source_that_cannot_be_read_comes_with_a_step_on_the_node(kind):
    source = SourceStatus(source=f"{kind}:x", up=False, reason="closed")
    (finding,) = find(Snapshot(at=0.0, unix_time=0.0, sources=(source,)))
    assert finding.actions and not any("docs/" in step.en + step.zh for step in finding.actions)


def driver(reason):
    return SourceStatus(source="driver", up=not reason, reason=reason, hung=reason == "hung")


@pytest.mark.parametrize("reason", ["library", "driver", "hung", "mismatch", "permission", "crashed"])
def test_a_node_is_told_to_do_without_gpus_only_where_it_may_have_none(reason):
    (alone,) = find(snapshot(sources=(driver(reason),)))
    (seen,) = [found for found in find(snapshot(sources=(driver(reason),), cards=(card(0),))) if not found.replica]
    assert any("enabled: false" in step.en for step in alone.steps) == (reason in {"library", "driver"})
    assert seen.steps and not any("enabled: false" in step.en for step in seen.steps)


def test_a_driver_that_hangs_for_all_gpus_is_one_finding_and_for_one_gpu_that_gpu():
    hung = tuple(unanswered(index) for index in range(3))
    (finding,) = arrange(find(snapshot(sources=(driver("hung"),), cards=hung)))
    assert finding.id == "GpuDriverUnreadable"
    assert {item.name: item.value for item in finding.evidence} == {"reason": "hung", "gpus_unanswered": "0 1 2"}
    assert "hangs" in finding.steps[0].en and "reboot" in finding.steps[-1].en
    some = arrange(find(snapshot(sources=(driver("hung"),), cards=(*hung[:1], card(1)))))
    assert {found.id for found in some} == {"GpuDriverUnreadable", "SourceHung"}


def unanswered(index):
    whole = card(index)
    status = SourceStatus(source=f"gpu:{whole.facts.uuid}", up=False, reason="hung", hung=True)
    return replace(whole, reading=None, status=status, last_read_at=None)


def test_what_a_hung_driver_was_ends_with_the_snapshot_that_has_readings_again():
    diagnosis = Diagnosis()
    well, hung = snapshot(cards=(card(0), card(1))), snapshot(cards=(unanswered(0), unanswered(1)))
    seen = []
    for seconds, status, made in ((0, "", well), (1, "hung", hung), (2, "", hung), (3, "", well)):
        judged = diagnosis.judge(replace(made, sources=(driver(status),), at=1000.0 + seconds))
        seen.append((judged.verdicts.node.state.value, [found.id for found in judged.findings]))
    assert seen == [("serve", []), *[("unknown", ["GpuDriverUnreadable"])] * 2, ("serve", [])]


@pytest.mark.parametrize(
    "reason", ["no_driver", "no_processes", "pid_namespace", "no_permission", "ambiguous", "hung"]
)
def test_a_replica_without_gpus_comes_with_a_step_on_the_node(reason):
    made = snapshot(replicas=(replica("a"),), daemon=DaemonState(unassigned={"a": reason}))
    (finding,) = find(made)
    assert finding.id == "ReplicaUnassigned"
    assert finding.actions and not any("docs/" in step.en + step.zh for step in finding.actions)


@pytest.mark.parametrize(("gpu", "asked"), [("{enabled: false}", []), ("{}", ["a"])])
def test_where_no_gpu_is_read_on_purpose_no_replica_lacks_one(gpu, asked):
    text = f"engines: [{{name: a, url: 'http://127.0.0.1:9/metrics'}}]\ngpu: {gpu}\ndiscovery: {{processes: false}}\n"
    settings = parse(text, "test", {})
    app = App(settings)
    app.pollers.poll(settings.engines, after=1e6)
    try:
        assert [endpoint.replica for endpoint in app.assignments._endpoints()] == asked
    finally:
        app.pollers.poll(())
