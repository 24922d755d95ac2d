"""/api/v1: documents that fit their schema, verdicts as status codes, ETags, and what is refused."""

from __future__ import annotations

import json
import pathlib
import re
from urllib.parse import quote

import jsonschema
import pytest

from exporter.http.server.api import REASON_HEADER, STATE_HEADER, TOO_OLD, Api
from exporter.http.server.request import Request
from exporter.model import (
    Backend,
    BackendLoad,
    GatewayFigures,
    GatewayLabels,
    GatewayReading,
    GatewayState,
    SourceStatus,
)
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind, Verdict, Verdicts, VerdictState
from exporter.model.nic import NearGpu, NicPort, NicPortKey, NicState
from exporter.model.text import Text
from exporter.render import api_schema
from exporter.render.api import schema
from tests.support.builders import Clock, card, replica, snapshot
from tests.support.records import replace
from tests.support.store_probe import RECORDINGS, capture, played
from tests.support.web_node import malicious_snapshot

MALICIOUS = '<script>"\u202e\\'
FINDING = Finding(
    id="EngineFrozen",
    severity=Severity.CRITICAL,
    subject=Subject(SubjectKind.REPLICA, MALICIOUS, MALICIOUS),
    summary=Text("makes no progress", "没有进展"),
    actions=(Text("Restart it.", "重启。"),),
    evidence=(Evidence("requests_running", 3.0), Evidence("xid", "79", "")),
)
SNAPSHOT = replace(
    snapshot(cards=(card(0, utilization=0.5), card(1, up=False)), replicas=(replica(MALICIOUS), replica("b"))),
    findings=(replace(FINDING, causes=(FINDING,)),),
    verdicts=Verdicts(
        replicas={
            MALICIOUS: Verdict(VerdictState.EJECT, "no_progress", Text("makes no progress", "没有进展")),
            "b": Verdict(VerdictState.SERVE),
        },
        gpus={
            card(0).facts.uuid: Verdict(VerdictState.DRAIN, "xid_95"),
            card(1).facts.uuid: Verdict(VerdictState.UNKNOWN, "lost"),
        },
        node=Verdict(VerdictState.DRAIN, "xid_95"),
    ),
)


@pytest.fixture
def ask():
    clock, newest = Clock(SNAPSHOT.at), [SNAPSHOT]
    api = Api(lambda: newest[-1], clock, lambda: "gpu-node-7")

    def answer(path, query="", **headers):
        request = Request(method="GET", path=f"/api/v1/{path}", query=query, headers=headers)
        response = api.answer(request)
        return response.status, json.loads(response.body) if response.body else None, dict(response.headers)

    answer.clock, answer.set = clock, newest.append
    return answer


@pytest.mark.parametrize("path", ["node", "findings", "verdicts"])
def test_every_document_fits_the_served_schema(ask, path):
    schema = ask("schema")[1]
    status, document, _ = ask(path)
    assert status == 200
    title = {"node": "NodeDocument", "findings": "FindingsDocument", "verdicts": "VerdictsDocument"}[path]
    jsonschema.validate(document, {"$ref": f"#/$defs/{title}", "$defs": schema["$defs"]})


def test_the_committed_schema_is_the_one_that_is_served(ask):
    committed = pathlib.Path(api_schema.__file__).with_name("api.schema.json").read_text()
    assert committed == api_schema.text(), "run make generate"
    assert json.loads(committed) == ask("schema")[1]


def test_no_published_field_of_v1_is_missing_or_has_become_another():
    """Compare with the fields as they were published; a new one is added to the file, none is changed or removed."""
    fields = {
        f"{name}.{field} {json.dumps(kind, sort_keys=True)}"
        for name, document in schema()["$defs"].items()
        for field, kind in document.get("properties", {}).items()
    }
    published = (pathlib.Path(__file__).parents[2] / "golden" / "published_api_v1.txt").read_text().splitlines()
    assert sorted(fields) == published


def test_errors_of_a_backend_are_those_of_the_window_that_findings_judge_by(ask):
    backend = Backend("pool", "a")
    gateway = GatewayState(
        name="edge",
        labels=GatewayLabels("edge", "haproxy"),
        status=SourceStatus(source="gateway:edge", up=True),
        reading=GatewayReading(at=1.0, gateway="haproxy", backends={backend: BackendLoad(requests=1.0)}),
        last_read_at=1.0,
        windows={
            "1m": GatewayFigures(seconds=60.0, shares={backend: 0.4}, error_ratios={backend: 0.5}),
            "5m": GatewayFigures(seconds=300.0, shares={backend: 0.3}, error_ratios={backend: 0.02}),
        },
    )
    ask.set(replace(SNAPSHOT, gateways=(gateway,)))
    (shown,) = ask("node")[1]["gateways"]
    assert shown["backends"] == [{"pool": "pool", "backend": "a", "share": 0.4, "error_ratio": 0.02}]


def test_the_node_has_its_name_and_its_adapters(ask):
    port = NicPort(
        key=NicPortKey("mlx5_0", "1"), state="active", physical_state="link_up", rate=5e10, errors={"symbol": 2.0}
    )
    near = NearGpu(card(0).facts.uuid, "PIX")
    ask.set(replace(SNAPSHOT, nics=(NicState(port=port, max_rate=5e10, is_down=False, nearest=(near,)),)))
    document = ask("node")[1]
    assert document["node"] == "gpu-node-7"
    assert document["adapters"] == [
        {"device": "mlx5_0", "port": "1", "up": True, "down": False, "state": "active", "physical_state": "link_up",
         "rate": 5e10, "max_rate": 5e10, "errors": {"symbol": 2.0}, "gpus": [card(0).facts.uuid]},
    ]  # fmt: skip


def test_findings_come_in_both_languages_with_their_causes(ask):
    (english,) = ask("findings")[1]["findings"]
    (chinese,) = ask("findings", "lang=zh")[1]["findings"]
    assert (english["summary"], chinese["summary"]) == ("makes no progress", "没有进展")
    assert english["causes"][0]["evidence"][0] == {"name": "requests_running", "value": 3.0, "label": "running"}
    assert english["subject"] == MALICIOUS
    assert ask("findings", "lang=fr")[0] == 400


@pytest.mark.parametrize(
    ("path", "status", "state"),
    [
        ("verdicts/replica/b", 200, "serve"),
        (f"verdicts/replica/{quote(MALICIOUS)}", 503, "eject"),
        (f"verdicts/gpu/{card(0).facts.uuid}", 503, "drain"),
        (f"verdicts/gpu/{card(1).facts.uuid}", 200, "unknown"),
        ("verdicts/node", 503, "drain"),
    ],
)
def test_a_verdict_is_a_status_code_and_two_headers(ask, path, status, state):
    answered, document, headers = ask(path)
    assert (answered, document["state"], headers[STATE_HEADER]) == (status, state, state)
    assert headers.get(REASON_HEADER) == document.get("reason")


def test_a_reason_in_a_header_is_one_word_whatever_it_holds(ask):
    ask.set(
        replace(
            SNAPSHOT, verdicts=Verdicts(node=Verdict(VerdictState.UNKNOWN, "a b\r\nX-Evil: \x1b\u202e" + "x" * 9))
        )
    )
    headers = ask("verdicts/node")[2]
    assert headers.keys() == {STATE_HEADER, REASON_HEADER}
    assert re.fullmatch(r"[a-z0-9_]+", headers[REASON_HEADER])


def test_a_verdict_has_its_detail_in_the_language_that_is_asked_for(ask):
    path = f"verdicts/replica/{quote(MALICIOUS)}"
    assert ask(path)[1]["detail"] == "makes no progress"
    chinese = ask(path, "lang=zh")
    assert (chinese[0], chinese[1]["detail"]) == (503, "没有进展")
    assert ask("verdicts", "lang=zh")[1]["replicas"][MALICIOUS]["detail"] == "没有进展"
    assert ask(path, "lang=fr")[0] == 400


def test_an_unknown_replica_is_404_and_those_that_exist_are_named(ask):
    status, document, _ = ask("verdicts/replica/nobody")
    assert status == 404
    assert document["known"] == sorted([MALICIOUS, "b"])
    assert ask("verdicts/rank/0")[0] == ask("elsewhere")[0] == 404


@pytest.mark.parametrize("query", ["lang=zh-CN", "lang=zh-Hans-CN", "lang=ZH"])
def test_a_region_of_a_language_is_that_language(ask, query):
    assert ask("findings", query)[1]["findings"][0]["summary"] == "没有进展"


@pytest.mark.parametrize("path", ["node", "findings", "verdicts", "verdicts/replica/nobody"])
def test_half_of_a_surrogate_pair_in_a_name_is_replaced(ask, path):
    name = "a\ud800b"
    ask.set(replace(malicious_snapshot(name), verdicts=Verdicts(replicas={name: Verdict(VerdictState.EJECT, name)})))
    assert "a?b" in json.dumps(ask(path)[1])


def test_an_unchanged_snapshot_is_not_sent_again(ask):
    etag = ask("node")[2]["ETag"]
    assert ask("node", **{"if-none-match": etag}) == (304, None, {"ETag": etag})
    assert ask("node", "lang=zh", **{"if-none-match": etag})[0] == 200


@pytest.mark.parametrize("path", ["node", "schema"])
@pytest.mark.parametrize(
    ("form", "status"),
    [
        ("*", 304),
        ("W/{}", 304),
        ('"other", {}', 304),
        ('W/"a,b",W/{} , "c"', 304),
        ('"other"', 200),
        ("{}x".replace("{}", '"'), 200),
        ("", 200),
    ],
)
def test_if_none_match_may_be_a_list_weak_or_any(ask, path, form, status):
    etag = ask(path)[2]["ETag"]
    answered, _, headers = ask(path, **{"if-none-match": form.format(etag)})
    assert (answered, headers["ETag"]) == (status, etag)


def test_when_the_monitor_fails_documents_fail_and_no_replica_is_ejected(ask):
    ask.clock.tick(TOO_OLD + 0.1)
    assert [ask(path)[0] for path in ("node", "findings", "verdicts")] == [503] * 3
    status, document, _ = ask(f"verdicts/replica/{quote(MALICIOUS)}")
    assert (status, document["state"]) == (200, "unknown")


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("node", "", 200),
        ("node", "lang=zh", 200),
        ("findings", "", 200),
        ("verdicts", "", 200),
        ("verdicts/node", "", 503),
        ("verdicts/replica/b", "", 200),
        ("verdicts/replica/nobody", "", 404),
        ("verdicts/rank/0", "", 404),
        ("elsewhere", "", 404),
        ("node", "lang=fr", 400),
        ("node", "&".join(f"a{number}=1" for number in range(50)), 400),
    ],
)
def test_every_answer_fits_the_whole_served_schema_as_one_of_its_documents(ask, path, query, status):
    answered, document, _ = ask(path, query)
    assert answered == status
    jsonschema.validate(document, ask("schema")[1])


def test_states_severities_and_subject_kinds_are_closed_in_the_schema(ask):
    node = {"$ref": "#/$defs/NodeDocument", "$defs": ask("schema")[1]["$defs"]}
    for change in (
        {"api": "v2"},
        {"verdict": {"state": "maybe"}},
        {"findings": [{**ask("node")[1]["findings"][0], "severity": "fatal"}]},
        {"findings": [{**ask("node")[1]["findings"][0], "subject_kind": "rack"}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**ask("node")[1], **change}, node)


def test_a_store_has_its_ratios_by_window_and_tier(ask):
    ask.set(snapshot(stores=(played(*map(capture, RECORDINGS["mooncake-0.3.13"])).state,)))
    (store,) = ask("node")[1]["stores"]
    assert (store["store"], store["kind"], store["up"]) == ("pool", "mooncake", True)
    assert 0 < store["hit_ratio"]["5m"] <= 1 and store["usage"]["memory"] == pytest.approx(
        store["used"]["memory"] / store["capacity"]["memory"]
    )
    assert "put" in store["errors"]
