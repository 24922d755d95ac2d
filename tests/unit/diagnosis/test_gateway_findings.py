"""Findings about gateways, on snapshots made by hand."""

from __future__ import annotations

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.diagnose import find
from exporter.diagnosis.history import DiagnosisHistory
from exporter.model import (
    Backend,
    BackendLoad,
    GatewayFigures,
    GatewayLabels,
    GatewayReading,
    GatewayState,
    SourceStatus,
)
from tests.support.builders import snapshot
from tests.support.records import replace


def gateway(at, backends=(), **load):
    """Return a gateway with one pool whose counters are these."""
    return GatewayState(
        name="epp",
        labels=GatewayLabels("epp", "inference_extension"),
        status=SourceStatus(source="gateway:epp", up=True),
        reading=GatewayReading(
            at=at,
            gateway="inference_extension",
            backends={Backend("chat", name): BackendLoad(up=True) for name in backends},
            pools={"chat": BackendLoad(**load)},
        ),
        last_read_at=at,
    )


def lived(first, then):
    """Return the findings about a pool with these counters, five minutes after the first."""
    history = DiagnosisHistory()
    for at, load in ((1000.0, first), (1300.0, then)):
        now = replace(snapshot(gateways=(gateway(at, **load),)), at=at)
        found = {finding.id: finding for finding in find(now, history.update(now))}
    return found


def test_a_picker_with_stale_endpoints_is_a_finding_while_requests_arrive_or_are_refused():
    served = lived({"requests": 0.0}, {"requests": 300.0, "stale_endpoints": 2.0})
    assert set(served) == {"EndpointPickerBlind"}
    finding = served["EndpointPickerBlind"]
    assert finding.subject.name == "epp/chat/"
    assert {item.name: item.value for item in finding.evidence} == {"stale_endpoints": 2.0, "poll_errors": 0.0}
    refused = lived({"requests": 9.0, "errors": 0.0}, {"requests": 9.0, "errors": 300.0, "stale_endpoints": 2.0})
    assert "EndpointPickerBlind" in refused
    assert lived({"requests": 9.0}, {"requests": 9.0, "stale_endpoints": 2.0}) == {}
    assert lived({"requests": 0.0}, {"requests": 300.0, "stale_endpoints": 0.0}) == {}


def test_a_picker_whose_polls_keep_failing_is_a_finding_and_some_failures_are_none():
    counts = {"requests": 300.0, "stale_endpoints": 0.0}
    many = lived({"requests": 0.0, "poll_errors": 5.0}, {**counts, "poll_errors": 36.0})
    assert many["EndpointPickerBlind"].evidence[1].value == 31.0
    assert lived({"requests": 0.0, "poll_errors": 5.0}, {**counts, "poll_errors": 34.0}) == {}


def test_errors_of_a_pool_whose_backends_the_gateway_does_not_tell_are_a_finding():
    found = lived({"requests": 0.0, "errors": 0.0}, {"requests": 300.0, "errors": 30.0})
    assert found["GatewayErrors"].severity.value == "critical"


def test_a_gateway_that_answers_with_something_else_is_a_finding_although_it_was_never_read():
    def unread(reason, error):
        status = SourceStatus(source="gateway:epp", up=False, reason=reason, error=error)
        never = replace(gateway(1000.0), status=status, reading=None, last_read_at=None)
        return {finding.id: finding for finding in find(snapshot(gateways=(never,)))}

    found = unread("unknown_gateway", "the page is of an engine; list it under engines")["GatewayUnreadable"]
    assert [(item.name, item.value) for item in found.evidence] == [
        ("reason", "unknown_gateway"),
        ("error", "the page is of an engine; list it under engines"),
    ]
    assert unread("refused", "connection refused") == {}, "it may not have been started yet"


def test_a_backend_that_is_reported_as_down_and_served_until_now_is_not_said_to_get_nothing():
    first, second = Backend("chat", "a"), Backend("chat", "b")
    state = gateway(1000.0, ("a", "b"))
    reading = replace(state.reading, backends={first: BackendLoad(up=False), second: BackendLoad(up=True)})
    windows = {limit.WINDOW: GatewayFigures(seconds=300.0, shares={first: 0.25, second: 0.75})}
    state = replace(state, reading=reading, windows=windows)
    (finding,) = find(snapshot(gateways=(state,)))
    assert finding.id == "GatewayBackendDown"
    assert finding.summary.en == "Gateway epp reports a as down"
    assert {item.name: item.value for item in finding.evidence} == {"backend": "a", "share": 0.25}
