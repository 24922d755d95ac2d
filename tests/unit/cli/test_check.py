"""The text of ``shardwatch check`` and its exit codes, without a daemon."""

from __future__ import annotations

import ast
import json
import pathlib
import re
import time
from types import SimpleNamespace

import msgspec
import pytest

from exporter.cli import check, check_impact, check_nodes, check_text, check_well
from exporter.cli.check_nodes import MAX_AGE, Answer
from exporter.cli.main import main
from exporter.errors import EndpointError
from exporter.http.client.client import SessionClient
from exporter.model.finding import Severity, SubjectKind, VerdictState
from exporter.model.text import Language
from exporter.render import api

CAUSE = api.FindingDocument(
    id="GpuLost", severity=Severity.CRITICAL, subject_kind=SubjectKind.GPU, subject="GPU-6", label="GPU 6", summary="GPU 6 掉卡",
    action="", runbook="GpuLost",
    evidence=(api.EvidenceDocument(name="xid", value="79（GPU 已从总线掉落）", label="XID"),),
)  # fmt: skip
FINDING = api.FindingDocument(
    id="EngineFrozen", severity=Severity.CRITICAL, subject_kind=SubjectKind.REPLICA, subject="chat-b", label="chat-b",
    summary="chat-b 没有进展", action="", runbook="EngineFrozen", steps=("摘除 chat-b。", "重启节点。"), causes=(CAUSE,),
    evidence=(api.EvidenceDocument(name="requests_running", value=24.0, label="运行中"),),
)  # fmt: skip


def document(**fields):
    """Return a node of now that serves."""
    node = api.NodeDocument(
        api="v1",
        version="1",
        time=time.time(),
        verdict=api.VerdictDocument(state=VerdictState.SERVE),
        findings=(),
    )
    return msgspec.structs.replace(node, **fields)


def report(*answers, language=Language.ENGLISH, fail_on="warning"):
    """Return the lines for people of what these nodes answered."""
    judged = [(answer, check.code(answer, fail_on)) for answer in answers]
    return list(check_text.report(judged, language, colour=False))


def lines(finding, language):
    """Return the lines of one finding of one node."""
    answer = Answer(url="h:1", document=document(findings=(finding,)))
    return [line.strip() for line in report(answer, language=language)[1:]]


def test_chinese_lines_have_no_english_word_of_ours():
    assert lines(FINDING, Language.CHINESE) == [
        "严重 chat-b 没有进展",
        "原因: GPU 6 掉卡",
        "XID 79（GPU 已从总线掉落）",
        "依据: 运行中 24",
        "处理:",
        "1. 摘除 chat-b。",
        "2. 重启节点。",
        "运行手册: EngineFrozen",
    ]


def test_a_single_step_stands_on_its_line():
    finding = api.FindingDocument(
        id="GpuHot", severity=Severity.INFO, subject_kind=SubjectKind.GPU, subject="", label="", summary="hot", action="",
        runbook="GpuHot", steps=("Check the fan.",),
    )  # fmt: skip
    assert lines(finding, Language.ENGLISH) == ["INFO hot", "do: Check the fan.", "runbook: GpuHot"]


@pytest.mark.parametrize(
    "arguments", [["--fail-on", "never"], ["--no-such-option"], ["--timeout", "soon"], ["--language", "fr"]]
)
def test_invalid_usage_is_unknown_and_never_critical(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    assert ended.value.code == 3
    assert "usage" in capsys.readouterr().err


def test_help_succeeds(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", "--help"])
    assert ended.value.code in (0, None)
    assert "exit codes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("codes", "fail_on", "worst"),
    [
        ([0, 0], "warning", 0),
        ([0, 1], "warning", 1),
        ([0, 1], "critical", 0),
        ([3, 1], "warning", 3),
        ([3, 2, 1], "critical", 2),
        ([3, 0], "critical", 3),
    ],
)
def test_the_worst_node_decides_and_unknown_counts_less_than_critical(codes, fail_on, worst):
    assert check.worst(codes, fail_on) == worst


@pytest.fixture
def node(monkeypatch):
    """Answer for every node with the body that is set."""
    body = {}
    monkeypatch.setattr(SessionClient, "fetch", lambda _: SimpleNamespace(body=body[""]))
    return lambda text: body.update({"": text})


HEAD = b'{"api":"v1","version":"1","time":1,"verdict":{"state":"serve"},"findings":['
FIELDS = b'{"id":"a","severity":"info","subject_kind":"gpu","subject":"","label":"","summary":"","action":"","runbook":"","causes":['


@pytest.mark.parametrize(
    "text",
    [
        HEAD + FIELDS * 900 + b"]}" * 900 + b"]}",
        HEAD.replace(b'"v1"', b'"v2"') + b"]}",
        HEAD + FIELDS.replace(b'"info"', b'"fatal"') + b"]}]}",
        HEAD.replace(b',"findings":[', b"}"),
    ],
    ids=["deep", "other version", "unknown severity", "no findings"],
)
def test_a_document_that_is_not_understood_is_one_unknown_line(node, text, capsys):
    node(text)
    assert main(["check", "http://h:1"]) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("UNKNOWN  http://h:1  is no Shardwatch of this version")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_password_in_an_address_is_not_printed(options, node, capsys):
    node(b"{}")
    main(["check", *options, "http://user:s3c@ret@h:1", "user:s3c@h:1"])
    printed = "".join(capsys.readouterr())
    assert "h:1" in printed
    assert "s3c" not in printed


def test_no_word_of_a_node_or_an_address_reaches_the_terminal_as_a_control_character(node, capsys):
    node(HEAD + FIELDS.replace(b'"runbook":""', b'"runbook":"\\u001b[2J"') + b"]}]}")
    main(["check", "http://h:1/\x1b[2J"])
    assert "\x1b" not in "".join(capsys.readouterr())


# ---------------------------------------------------------------------- the age of data


@pytest.mark.parametrize(
    ("age", "says"),
    [
        (MAX_AGE + 5, "the data are 20 s old"),
        (400, "the data are 7 min old"),
        (1e300, "the data are 9999 d old"),
        (-MAX_AGE - 5, "the data are from 20 s in the future: the clocks differ"),
        (-1e300, "the data are from 9999 d in the future: the clocks differ"),
    ],
)
@pytest.mark.parametrize("finding", [b"", FIELDS.replace(b'"info"', b'"critical"') + b"]}"], ids=["well", "critical"])
def test_data_that_are_not_of_now_are_unknown_and_say_so(node, monkeypatch, capsys, finding, age, says):
    monkeypatch.setattr(check_nodes.time, "time", lambda: 1e9)
    node(HEAD.replace(b'"time":1,', f'"time":{1e9 - age},'.encode()) + finding + b"]}")
    assert main(["check", "h:1"]) == 3
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("UNKNOWN")
    assert says in first


def test_the_age_of_fresh_data_is_no_problem(node, capsys):
    node(HEAD.replace(b'"time":1,', f'"time":{time.time()},'.encode()) + b"]}")
    assert main(["check", "h:1"]) == 0
    assert capsys.readouterr().out.startswith("OK")


def test_the_line_of_a_node_says_that_its_gpus_are_released(node, capsys):
    head = HEAD.replace(b'"time":1,', f'"time":{time.time()},'.encode())
    node(head.replace(b'"state":"serve"', b'"state":"unknown","reason":"released"') + b"]}")
    assert main(["check", "h:1"]) == 3
    assert "0/0 GPUs released" in capsys.readouterr().out.splitlines()[0]


# ---------------------------------------------------------------------- verdicts for schedulers


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [
        ("serve", "", 0),
        ("drain", "gpu_lost", 2),
        ("eject", "no_replica_serves", 0),
        ("unknown", "no_data", 3),
    ],
)
def test_a_scheduler_drains_for_gpus_and_not_for_engines(state, reason, code):
    verdict = api.VerdictDocument(state=VerdictState(state), reason=reason)
    answer = Answer(url="h:1", document=document(findings=(FINDING,), verdict=verdict))
    assert check.code(answer, "verdict") == code
    assert check.code(answer) == 2  # the engine's finding is critical all the same


@pytest.mark.parametrize(("state", "code"), [(VerdictState.DRAIN, 1), (VerdictState.EJECT, 2)])
def test_a_node_that_should_get_no_jobs_is_never_ok(state, code):
    node = document(verdict=api.VerdictDocument(state=state, reason="gpu_lost", detail="GPU 6 is lost"))
    assert check.code(Answer(url="h:1", document=node)) == code


def test_the_verdict_stands_on_a_line_of_its_own_for_scripts():
    verdict = api.VerdictDocument(state=VerdictState.DRAIN, reason="gpu_lost", detail="GPU 6 is lost")
    answer = Answer(url="h:1", document=document(verdict=verdict))
    assert report(answer)[1] == "  verdict drain: GPU 6 is lost (gpu_lost)"


def test_a_verdict_is_never_that_of_a_short_look(monkeypatch):
    monkeypatch.setattr(check, "ask_all", lambda *_: [Answer(url="h:1", problem="refused", is_refused=True)])
    monkeypatch.setattr(check, "own_look", lambda *_: pytest.fail("it was looked"))
    assert main(["check", "--fail-on", "verdict"]) == 3


# ---------------------------------------------------------------------- without a daemon


@pytest.mark.parametrize(
    ("options", "seconds", "unseen"),
    [([], 8.0, True), (["--timeout", "3"], 3.0, True), (["--timeout", "60"], 60.0, False)],
)
def test_the_own_look_lasts_as_long_as_asked_and_says_what_it_cannot_see(
    monkeypatch, capsys, options, seconds, unseen
):
    slept = []
    app = SimpleNamespace(start=lambda: None, stop=lambda: None, publisher=SimpleNamespace(snapshot=None))
    monkeypatch.setattr("exporter.runtime.app.App", lambda _: app)
    monkeypatch.setattr(check_nodes.time, "sleep", slept.append)
    monkeypatch.setattr(check, "ask_all", lambda *_: [Answer(url="h:1", problem="refused", is_refused=True)])
    assert main(["check", *options]) == 3
    assert slept == [seconds]
    shown = capsys.readouterr().out
    assert f"was read for {seconds:g} s" in shown
    assert ("without progress" in shown) is unseen


def test_a_daemon_that_answers_badly_is_not_looked_past(monkeypatch):
    monkeypatch.setattr(check, "ask_all", lambda *_: [Answer(url="h:1", problem="answered with status 503")])
    monkeypatch.setattr(check, "own_look", lambda *_: pytest.fail("it was looked"))
    assert main(["check"]) == 3


@pytest.mark.parametrize(
    ("status", "hint"), [(404, "upgrade it"), (503, "/-/ready"), (401, "--password-file"), (400, "https://")]
)
def test_an_answer_without_a_document_has_a_hint(monkeypatch, capsys, status, hint):
    def fail(_):
        raise EndpointError(f"http_{status}", f"answered with status {status}")

    monkeypatch.setattr(SessionClient, "fetch", fail)
    assert main(["check", "h:1"]) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert f"status {status}" in line
    assert hint in line


def test_refused_credentials_and_keys_of_the_configuration_are_named_as_options(monkeypatch, capsys, tmp_path):
    (tmp_path / "password").write_text("wrong")
    credentials = ["--user", "a", "--password-file", str(tmp_path / "password")]
    errors = [
        EndpointError("http_401", "answered with status 401"),
        EndpointError("tls_unknown_ca", "an unknown authority; see ca_file"),
    ]

    def fail(_):
        raise errors.pop(0)

    monkeypatch.setattr(SessionClient, "fetch", fail)
    assert main(["check", *credentials, "https://h:1"]) == 3
    assert "the user or the password was refused" in capsys.readouterr().out
    assert main(["check", *credentials, "https://h:1"]) == 3
    assert "see --ca-file" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--user", "a"], "--user needs --password-file"),
        (["--password-file", "p"], "--password-file needs --user"),
        (["--cert-file", "c"], "--cert-file needs --key-file"),
        (["--key-file", "k"], "--key-file needs --cert-file"),
        (["--user", "a:b", "--password-file", "p"], "no colon"),
    ],
)
def test_options_that_do_not_go_together_are_an_error_of_usage(words, problem, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", *words, "h:1"])
    assert ended.value.code == 3 and problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "hinted"), [("10.0.0.7:1", True), ("http://a:1", True), ("https://a:1", False), ("127.0.0.1:1", False)]
)
def test_a_password_over_http_to_another_host_is_hinted_at(url, hinted, monkeypatch, capsys):
    monkeypatch.setattr(check, "ask_all", lambda *_: [Answer(url=url, problem="x")])
    assert main(["check", "--user", "a", "--password-file", "p", url]) == 3
    assert ("clear text" in capsys.readouterr().err) is hinted


# ---------------------------------------------------------------------- the report


def test_the_worst_node_stands_first_with_its_findings_below_all_lines():
    shown = report(
        Answer(url="a:1", document=document()),
        Answer(url="b:1", problem="connection refused"),
        Answer(url="c:123", document=document(findings=(FINDING,))),
    )
    assert [line.split()[:2] for line in shown[:3]] == [["CRITICAL", "c:123"], ["UNKNOWN", "b:1"], ["OK", "a:1"]]
    assert len({line.index(url) for line, url in zip(shown, ("c:123", "b:1", "a:1"), strict=False)}) == 1
    assert shown[3:5] == ["", "c:123:"]
    assert shown[5].startswith("  CRITICAL chat-b")


def test_columns_stand_under_each_other_in_chinese():
    shown = report(
        Answer(url="b:1", problem="x"),
        Answer(url="c:1", document=document(findings=(FINDING,))),
        Answer(url="d:1", document=document()),
        language=Language.CHINESE,
    )
    assert [line.partition(":1")[0] for line in shown[:3]] == ["严重  c", "未知  b", "正常  d"]


@pytest.mark.parametrize(("ago", "says"), [(50, "(50 s)"), (600, "(10 min)"), (7300, "(2 h)"), (9 * 86_400, "(9 d)")])
def test_a_finding_says_since_when(ago, says):
    since = time.time() - ago
    (shown,) = [
        line
        for line in lines(msgspec.structs.replace(FINDING, since=since), Language.ENGLISH)
        if line.startswith("CRITICAL")
    ]
    assert "since " in shown
    assert shown.endswith(says)


@pytest.mark.parametrize("since", [None, -1.0, 1e300, -1e300])
def test_a_time_that_cannot_be_is_not_shown(since):
    assert lines(msgspec.structs.replace(FINDING, since=since), Language.ENGLISH)[0] == "CRITICAL chat-b 没有进展"


def replica(name, itl, **fields):
    window = api.WindowDocument(
        seconds=60, latency={"inter_token": {"0.5": itl}, "time_to_first_token": {"0.99": 1.42}}
    )
    verdict = api.VerdictDocument(state=VerdictState.SERVE)
    ranks = {
        "0": {"requests_running": 20.0, "requests_waiting": 0.0},
        "1": {"requests_running": 5.0, "requests_waiting": 1.0},
    }
    return api.ReplicaDocument(
        replica=name,
        engine="vllm",
        model="m",
        up=True,
        verdict=verdict,
        windows={"1m": window},
        ranks=ranks,
        **fields,
    )


def test_a_finding_of_a_replica_says_what_its_users_feel_beside_its_siblings():
    slow = msgspec.structs.replace(CAUSE, id="GpuStraggler", replica="chat-a", evidence=())
    backend = api.BackendDocument(pool="p", backend="a", replica="chat-a", share=0.49, active=31.0)
    node = document(
        findings=(slow,),
        replicas=(replica("chat-a", 0.0247), replica("chat-b", 0.018)),
        gateways=(api.GatewayDocument(gateway="edge", kind="haproxy", up=True, backends=(backend,)),),
    )
    (impact,) = [line.strip() for line in report(Answer(url="h:1", document=node)) if "impact" in line]
    assert impact == (
        "impact: ITL p50 24.7 ms (chat-b 18.0 ms)  TTFT p99 1.42 s (chat-b 1.42 s)  25 running, 1 waiting"
        "  gateway edge sends chat-a 49%; 31 requests open"
    )


def test_what_is_evidence_already_is_no_impact_again():
    node = document(
        findings=(msgspec.structs.replace(FINDING, replica="chat-b"),), replicas=(replica("chat-b", 0.018),)
    )
    (impact,) = [line for line in report(Answer(url="h:1", document=node)) if "impact" in line]
    assert "running" not in impact


@pytest.mark.parametrize("fields", [{"progress": False}, {"up": False}], ids=["frozen", "down"])
def test_a_replica_that_stopped_has_stalled_requests_and_no_latency_of_before(fields):
    stopped = msgspec.structs.replace(replica("chat-b", 0.018), **fields)
    node = document(
        findings=(msgspec.structs.replace(FINDING, replica="chat-b"),), replicas=(replica("chat-a", 0.018), stopped)
    )
    (impact,) = [line.strip() for line in report(Answer(url="h:1", document=node)) if "impact" in line]
    assert impact == "impact: 26 requests stalled"


@pytest.mark.parametrize("nested", [False, True])
def test_a_replica_that_lost_a_gpu_shows_no_latency_of_before_while_its_progress_is_not_judged_yet(nested):
    lost = msgspec.structs.replace(CAUSE, id="GpuLost", replica="chat-b", evidence=())
    found = msgspec.structs.replace(FINDING, replica="chat-b", evidence=(), causes=(lost,)) if nested else lost
    node = document(findings=(found,), replicas=(replica("chat-a", 0.018), replica("chat-b", 0.018)))
    (impact,) = [line.strip() for line in report(Answer(url="h:1", document=node)) if "impact" in line]
    assert impact == "impact: 25 running, 1 waiting"


@pytest.mark.parametrize(("name", "absent"), [("itl_mean", "ITL"), ("ttft_mean", "TTFT")])
def test_a_latency_of_the_evidence_stands_there_alone(name, absent):
    mean = (api.EvidenceDocument(name=name, value=0.02, unit="seconds"),)
    slow = msgspec.structs.replace(FINDING, replica="chat-b", evidence=mean)
    node = document(findings=(slow,), replicas=(replica("chat-b", 0.018),))
    (impact,) = [line for line in report(Answer(url="h:1", document=node)) if "impact" in line]
    assert absent not in impact.split()


def test_a_cause_says_since_when():
    began = msgspec.structs.replace(CAUSE, since=time.time() - 5.5)
    printed = lines(msgspec.structs.replace(FINDING, causes=(began,)), Language.ENGLISH)
    assert any(line.startswith("cause: GPU 6 掉卡  since ") for line in printed)


def test_what_is_too_much_to_print_is_counted():
    many = tuple(api.EvidenceDocument(name=f"value_{number}", value=float(number)) for number in range(15))
    causes, steps = (CAUSE,) * 13, tuple(f"Step {number}." for number in range(14))
    finding = msgspec.structs.replace(FINDING, evidence=many, causes=causes, steps=steps)
    printed = lines(finding, Language.ENGLISH)
    assert [line for line in printed if "more" in line] == [
        "cause: and 1 more (--json)",
        next(line for line in printed if line.startswith("evidence: value_0 0  value_1 1")),
        "and 2 more (--json)",
    ]
    assert any(line.endswith("value_11 11  and 3 more (--json)") for line in printed)
    assert not any("more" in line for line in lines(FINDING, Language.ENGLISH))
    assert "另有 1 项（--json）" in "".join(lines(finding, Language.CHINESE))


# ---------------------------------------------------------------------- hostile words

HOSTILE = ("\x1b[2J", "\u202e", "\u2066", "\r", "\n", "\x00", "\x9b", "\u200f")


def hostile_node(causes=200, findings=500):
    word = "".join(HOSTILE) + "x" * 10_000
    evidence = api.EvidenceDocument(name=word, value=word, unit=word, label=word)
    finding = msgspec.structs.replace(
        FINDING, summary=word, runbook=word, steps=(word, word), label=word, evidence=(evidence,), replica=word
    )
    nested = finding
    for _ in range(causes):
        nested = msgspec.structs.replace(finding, causes=(nested,))
    verdict = api.VerdictDocument(state=VerdictState.EJECT, reason=word, detail=word)
    gpu = api.GpuDocument(gpu=word, uuid=word, up=True, verdict=verdict, name=word)
    return document(
        findings=(nested, *[finding] * findings),
        verdict=verdict,
        driver={"driver_version": word},
        gpus=(gpu,),
        replicas=(msgspec.structs.replace(replica(word, 1e308), engine=word, version=word),),
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_hostile_words_neither_move_the_cursor_nor_flood_the_terminal(node, capsys, language):
    node(msgspec.json.encode(hostile_node()))
    assert main(["check", "--language", language, "h:1"]) == 2
    shown = capsys.readouterr().out
    assert not [letter for letter in HOSTILE if letter in shown.replace("\n", "")]
    assert max(map(len, shown.splitlines())) < 15_000
    assert len(shown.splitlines()) < 2500


def test_hostile_words_are_escaped_in_json_and_remain_what_they_are(node, capsys):
    node(msgspec.json.encode(hostile_node(causes=2, findings=2)))
    assert main(["check", "--json", "h:1"]) == 2
    shown = capsys.readouterr().out
    assert not [letter for letter in HOSTILE if letter in shown.replace("\n", "")]
    (printed,) = json.loads(shown)
    assert printed["node"]["verdict"]["reason"] == "".join(HOSTILE) + "x" * 10_000


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_address_that_is_no_text_is_unknown(node, capsys, options):
    node(b"{}")
    assert main(["check", *options, "h\udcff\u202e:1", "http://[::1", "h:1/" + "x" * 100_000, ""]) == 3
    shown = capsys.readouterr().out
    assert "Traceback" not in shown
    assert "\u202e" not in shown


def test_a_timeout_beyond_what_the_system_can_wait_is_no_traceback(node):
    node(HEAD.replace(b'"time":1,', f'"time":{time.time()},'.encode()) + b"]}")
    assert main(["check", "--timeout", "1e300", "h:1"]) == 0


def test_an_invalid_setting_is_unknown_and_never_critical(monkeypatch, capsys):
    monkeypatch.setenv("SHARDWATCH_GPU_INTERVAL", "soon")
    monkeypatch.setattr(check, "ask_all", lambda *_: [Answer(url="h:1", problem="refused", is_refused=True)])
    assert main(["check"]) == 3
    assert "SHARDWATCH_GPU_INTERVAL" in capsys.readouterr().err


# ---------------------------------------------------------------------- what is well


def gpu(index, **fields):
    verdict = api.VerdictDocument(state=VerdictState.SERVE)
    known = {"up": True, "signals": {"ecc_uncorrected_volatile": 0.0}, "nvlinks": 18, "nvlinks_up": 18, **fields}
    return api.GpuDocument(gpu=str(index), uuid=f"GPU-{index}", verdict=verdict, **known)


EVENTS = api.HealthDocument(source="nvml_events", up=True)


@pytest.mark.parametrize(
    ("fields", "sources", "missing"),
    [
        ({}, (EVENTS,), ""),
        ({"up": False}, (EVENTS,), "GPUs 2/2 up"),
        ({"xids": (api.XidDocument(xid="43", count=1, last=999.0),)}, (EVENTS,), "XID none"),
        ({}, (), "XID none"),  # nobody listens for them
        ({"signals": {"ecc_uncorrected_volatile": 1.0}}, (EVENTS,), "uncorrectable ECC errors 0"),
        ({"nvlinks_up": 17}, (EVENTS,), "NVLink 18/18"),
    ],
)
def test_only_what_was_read_and_is_well_is_called_well(fields, sources, missing):
    node = document(time=1000.0, gpus=(gpu(0), gpu(1, **fields)), sources=sources)
    parts = ["GPUs 2/2 up", "XID none", "uncorrectable ECC errors 0", "NVLink 18/18"]
    (line,) = check_well.well(node, Language.ENGLISH)
    assert line.split("  ") == [part for part in parts if part != missing]


GATEWAY_FINDING = api.FindingDocument(
    id="GatewayErrors", severity=Severity.WARNING, subject_kind=SubjectKind.GATEWAY, subject="edge/p/", label="edge, p",
    summary="", action="", runbook="GatewayErrors",
)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "state", "is_well"),
    [
        ({}, VerdictState.SERVE, True),
        ({}, VerdictState.EJECT, False),  # and still gets requests
        ({"findings": (GATEWAY_FINDING,)}, VerdictState.SERVE, False),
        ({"findings": (msgspec.structs.replace(FINDING, causes=(GATEWAY_FINDING,)),)}, VerdictState.SERVE, False),
    ],
)
def test_a_gateway_is_well_unless_a_finding_names_it_or_it_sends_requests_to_an_ejected_replica(
    fields, state, is_well
):
    found = msgspec.structs.replace(replica("chat-a", 0.02), verdict=api.VerdictDocument(state=state))
    backend = api.BackendDocument(pool="p", backend="a", replica="chat-a", share=0.49, queued=0.0)
    gateway = api.GatewayDocument(gateway="edge", kind="haproxy", up=True, backends=(backend,))
    printed = list(check_well.well(document(replicas=(found,), gateways=(gateway,), **fields), Language.ENGLISH))
    assert ("gateway edge  chat-a 49%  queued 0" in printed) == is_well
    assert ("verdict serve: chat-a" in printed) == (state is VerdictState.SERVE)


@pytest.mark.parametrize(
    ("ratios", "shown"), [((0.0, 0.0), "  errors 0%"), ((0.0, 0.004), "  errors up to 0.4%"), ((None, None), "")]
)
def test_a_gateway_that_is_well_has_the_errors_of_its_worst_backend(ratios, shown):
    backends = tuple(
        api.BackendDocument(pool="p", backend=name, share=0.5, error_ratio=ratio)
        for name, ratio in zip("ab", ratios, strict=True)
    )
    gateway = api.GatewayDocument(gateway="edge", kind="haproxy", up=True, backends=backends)
    assert list(check_well.well(document(gateways=(gateway,)), Language.ENGLISH)) == [
        f"gateway edge  a 50%  b 50%{shown}"
    ]


def test_what_is_well_stands_below_one_node_and_not_below_each_of_many():
    node = document(gpus=(gpu(0),))
    assert [line for line in report(Answer(url="a", document=node)) if line.startswith("  OK")]
    both = (Answer(url="a", document=node), Answer(url="b", document=node))
    assert not [line for line in report(*both) if line.startswith("  OK")]


def test_a_replica_that_should_get_nothing_is_named_with_the_reason():
    verdict = api.VerdictDocument(state=VerdictState.EJECT, reason="no_progress", detail="chat-a 没有进展")
    node = document(replicas=(msgspec.structs.replace(replica("chat-a", 0.02), verdict=verdict),))
    answer = Answer(url="h:1", document=node)
    assert "  verdict on chat-a eject: chat-a 没有进展 (no_progress)" in report(answer)
    assert "  chat-a 的判定为摘除：chat-a 没有进展 (no_progress)" in report(answer, language=Language.CHINESE)


# ---------------------------------------------------------------------- both languages


def english_outside_of_texts(path):
    """Yield the strings with an English phrase that stand in no Text, in a module of messages."""
    tree = ast.parse(path.read_text())
    excused = {id(part) for node in ast.walk(tree) if _has_both_languages(node) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in excused:
            if re.search(r"[a-z]{2,} [a-z]{2,}|[A-Za-z]{3,}: ", node.value):
                yield node.value


def _has_both_languages(node):
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in {"Text", "ThreadPoolExecutor"}
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)  # a docstring


@pytest.mark.parametrize(
    "module", [check_text, check_nodes, check_impact, check_well], ids=lambda module: module.__name__
)
def test_every_message_of_check_is_in_both_languages(module):
    assert list(english_outside_of_texts(pathlib.Path(module.__file__))) == []
