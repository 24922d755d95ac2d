"""Findings about KV-cache stores, on recorded pages of a store."""

from __future__ import annotations

from exporter.diagnosis import thresholds as limit
from exporter.diagnosis.diagnose import find
from exporter.diagnosis.history import DiagnosisHistory
from exporter.model import SourceStatus
from exporter.model.finding import SubjectKind
from exporter.model.store import StoreQuantity
from tests.support.builders import snapshot
from tests.support.records import replace
from tests.support.store_probe import RECORDINGS, capture, played


def store(**errors):
    """Return a Mooncake master whose counters of errors are these."""
    state = played(*map(capture, RECORDINGS["mooncake-0.3.13"])).state
    quantities = {**state.reading.quantities, StoreQuantity.ERRORS: errors}
    return replace(state, reading=replace(state.reading, quantities=quantities))


def lived(first, then):
    """Return the findings about a store that was in these states five minutes apart."""
    history = DiagnosisHistory()
    for at, state in ((1000.0, first), (1300.0, then)):
        now = replace(snapshot(stores=(state,)), at=at)
        found = find(now, history.update(now))
    return {finding.id: finding for finding in found}


def test_operations_that_fail_often_are_a_finding_and_name_themselves():
    found = lived(store(put=7.0, ping=0.0), store(put=8.0 + limit.STORE_ERRORS, ping=float(limit.STORE_ERRORS)))
    assert set(found) == {"KvStoreErrors"}
    finding = found["KvStoreErrors"]
    assert (finding.subject.kind, finding.subject.name) == (SubjectKind.STORE, "pool")
    assert [(item.name, item.value) for item in finding.evidence] == [("errors_put", 1.0 + limit.STORE_ERRORS)]
    assert finding.summary.en == "Operations of KV-cache store pool fail: put"


def test_errors_of_the_past_and_a_restart_of_the_store_are_no_finding():
    assert lived(store(put=900.0), store(put=900.0)) == {}
    assert lived(store(put=900.0), store(put=3.0)) == {}


def test_a_store_that_can_no_longer_be_read_is_a_finding():
    down = replace(store(), reading=None, status=SourceStatus(source="store:pool", up=False, reason="refused"))
    assert lived(store(), down)["KvStoreUnreadable"].evidence[0].value == "refused"
    starting = replace(down, status=SourceStatus(source="store:pool", up=False, reason="starting"))
    never = replace(down, last_read_at=None)
    assert lived(starting, starting) == lived(never, never) == {}
    stranger = replace(
        never, status=SourceStatus(source="store:pool", up=False, reason="unknown_store", error="seen: x")
    )
    assert lived(stranger, stranger)["KvStoreUnreadable"].evidence[1].value == "seen: x"
