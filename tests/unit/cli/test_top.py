"""The tables of ``shardwatch top``, their details, and ``--once``, without a daemon."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from exporter.cli import check_nodes, check_text, top
from exporter.cli.check_nodes import Answer
from exporter.cli.main import main
from exporter.cli.terminal import shortened, wrapped
from exporter.cli.top_app import TopApp
from exporter.cli.top_details import details
from exporter.cli.top_model import NodeState, fit, select, updated
from exporter.cli.top_rows import freshness, tables
from exporter.http.client.client import SessionClient
from exporter.model.finding import VerdictState
from exporter.model.text import Language
from exporter.render import api, api_documents
from exporter.web import values
from exporter.web.values import width
from tests.support.waiting import until
from tests.support.web_node import big_node, malicious_snapshot, served

MALICIOUS = "[red]x[/red]\x1b[2J\r\n\u202eevil\u2066\x00[@click=app.quit]中文\U0001f600" + "y" * 10_000
FORBIDDEN = set("\x1b\r\n\u202e\u2066\x00")
EN = Language.ENGLISH


def state(node, name="http://node1:9853", problem=""):
    return updated(NodeState(name=name), Answer(url=name, document=node, problem=problem))


def table(id_, *nodes, language=EN):
    """Return one table of these nodes at the time of the first."""
    states = [state(node, f"http://node{number}:9853") for number, node in enumerate(nodes)]
    return next(found for found in tables(states, language, nodes[0].time) if found.id == id_)


def texts(row):
    return [cell.signed() for cell in row.cells]


def column(found, heading):
    return [column.heading for column in found.columns].index(heading)


# ---------------------------------------------------------------------- rows


def test_the_gpu_that_others_wait_for_is_named_with_its_cause():
    rows = [texts(row) for row in table("gpus", served("heat")).rows]
    states = [row[2] for row in rows]
    assert states[2].startswith("▲ straggler 1.") and states[2].endswith("× thermal throttling")
    assert states[:2] + states[3:] == ["waits for GPU 2"] * 3 + ["ok"] * 4
    assert rows[2][-1] == "thermal"


@pytest.mark.parametrize("is_cause", [False, True])
def test_a_gpu_with_a_finding_is_not_ok(is_cause):
    node = served("oom")
    uuid = node.gpus[5].uuid
    finding = api.FindingDocument(
        id="GpuMemoryFull", severity="warning", subject_kind="gpu", subject=uuid, label="GPU 5", summary="s",
        action="", runbook="GpuMemoryFull",
    )  # fmt: skip
    if is_cause:
        finding = msgspec.structs.replace(finding, id="HighErrorRatio", subject="chat-b", causes=(finding,))
    rows = table("gpus", msgspec.structs.replace(node, findings=(finding,))).rows
    assert [texts(row)[2] for row in rows] == ["ok"] * 5 + ["▲ memory full"] + ["ok"] * 2


def test_a_replica_without_progress_has_stalled_requests_and_its_gpus_are_not_ok():
    node = served("hang")
    label = node.gpus[6].gpu
    cause = api.FindingDocument(
        id="NicPortDown", severity="warning", subject_kind="adapter", subject="m/1", label="m port 1", summary="s",
        action="", runbook="NicPortDown",
    )  # fmt: skip
    frozen = msgspec.structs.replace(node.findings[0], subject="chat-b", causes=(cause,))
    gpus = tuple(
        msgspec.structs.replace(gpu, up=True, verdict=node.gpus[0].verdict) if gpu.gpu == label else gpu
        for gpu in node.gpus
    )
    node = msgspec.structs.replace(node, findings=(frozen,), gpus=gpus)
    assert [texts(row)[2] for row in table("gpus", node).rows] == ["ok"] * 4 + ["▲ no progress m port 1"] * 4
    replicas = table("replicas", node)
    stopped = next(row for row in replicas.rows if row.cells[0].text == "chat-b")
    shown = [
        texts(stopped)[column(replicas, heading)] for heading in ("TTFT p99", "ITL p50", "Hits", "Err 5m", "Tok/s")
    ]
    assert shown[:3] + shown[4:] == [values.ABSENT] * 4
    assert shown[3].startswith("■ ") and shown[3].endswith(" stalled")


def test_the_xid_of_a_lost_gpu_is_shown_at_80_columns():
    found = table("gpus", served("hang"))
    assert "XID" in {found.columns[number].heading for number, _ in fit(found, found.rows, 77)}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("    do: one two three", ["    do: one two", "      three"]),
        ("x" * 20, ["x" * 16, "  " + "x" * 4]),
        ("中" * 10, ["中" * 8, "  中中"]),
    ],
)
def test_a_line_that_is_too_long_goes_on_below_indented(text, lines):
    assert list(wrapped(text, 16)) == lines
    assert all(width(line) <= 16 for line in lines)


def test_a_lost_gpu_has_no_values_and_its_replica_is_ejected():
    node = served("hang")
    gpus = table("gpus", node)
    assert texts(gpus.rows[6])[2:7] == ["■ lost", values.ABSENT, values.ABSENT, values.ABSENT, values.ABSENT]
    replica = next(texts(row) for row in table("replicas", node).rows if row.cells[0].text == "chat-b")
    assert replica[1] == "■ eject gpu lost"
    finding = table("findings", node).rows[0]
    shown = "\n".join(details(finding, state(node), EN, node.time))
    assert "cause: GPU 6 is lost" in shown and "1. Take chat-b out of gateway edge." in shown


def test_of_several_nodes_each_row_names_its_node_and_the_worst_finding_is_first():
    found = table("findings", served("heat"), served("hang"))
    assert [texts(row)[:2] for row in found.rows][0] == ["node1", "■ CRITICAL"]
    assert {row.cells[0].text for row in found.rows} == {"node0", "node1"}
    assert len(table("gpus", served("heat"), served("hang")).rows) == 16


def test_the_worst_node_stands_first():
    nodes = table("nodes", served("healthy"), served("hang"), served("healthy"))
    assert [texts(row)[0] for row in nodes.rows] == ["node1", "node0", "node2"]
    assert [row.node for row in nodes.rows] == [1, 0, 2]


def test_a_node_that_stopped_answering_keeps_its_last_data_marked_with_their_time():
    node = served("healthy")
    known = updated(state(node), Answer(url="", problem="refused"))
    assert known.document is node
    assert (
        freshness(known, EN, node.time + 300)
        == f"last data of {values.clock(node.time, node.time)} UTC, 5 min old: refused"
    )
    other = state(served("heat"), "node2:9853")
    gpus = next(found for found in tables([known, other], EN, node.time) if found.id == "gpus")
    assert {row.cells[0].signed() for row in gpus.rows if row.is_old} == {"? node1"}
    assert {row.cells[0].signed() for row in gpus.rows if not row.is_old} == {"node2"}
    again = updated(known, Answer(url="", document=node))
    assert again.problem == "" and freshness(again, EN, node.time + 1) == "data 1 s old"


def test_a_node_that_never_answered_says_why():
    never = updated(NodeState(name="node1:1"), Answer(url="", problem="connection refused"))
    *_, nodes = tables([never], EN, 0.0)
    assert texts(nodes.rows[0])[1] == "? UNKNOWN" and texts(nodes.rows[0])[-1] == "connection refused"
    assert freshness(NodeState(name="node1"), EN, 0.0) == "connecting"


# ---------------------------------------------------------------------- sort, filter, fit


def test_a_column_sorts_by_its_number_and_absent_values_stay_last():
    found = table("gpus", served("hang"))
    power = column(found, "Power")
    for reverse in (False, True):
        rows = select(found, sort=power, reverse=reverse, needle="")
        numbers = [row.cells[power].number for row in rows]
        assert numbers[-1] is None and rows[-1].cells[0].text == "6"
        assert numbers[:-1] == sorted(numbers[:-1], reverse=reverse)


def test_gpu_10_sorts_behind_gpu_2():
    found = table("gpus", api_documents.node(big_node(gpus=16, replicas=2, points=1)[0]))
    assert [row.cells[0].text for row in select(found, sort=0, reverse=False, needle="")] == [
        str(n) for n in range(16)
    ]


def test_a_filter_finds_any_cell_whatever_the_case():
    found = table("gpus", served("heat"))
    assert [row.cells[0].text for row in select(found, sort=None, reverse=False, needle="STRAGGLER")] == ["2"]
    assert select(found, sort=None, reverse=False, needle="[") == []


@pytest.mark.parametrize("columns", [20, 40, 77, 120, 300])
@pytest.mark.parametrize("language", list(Language))
def test_every_table_of_64_gpus_fits_the_terminal(columns, language):
    big = api_documents.node(big_node(points=1)[0], language)
    for found in tables([state(big), state(served("hang", language), "node2")], language, big.time):
        shown = fit(found, found.rows, columns)
        assert shown[0][0] == 0
        if columns >= 77:
            assert sum(wide + 2 for _, wide in shown) <= columns


def test_what_names_the_problem_is_never_dropped_at_80_columns():
    found = table("gpus", api_documents.node(big_node(points=1)[0]))
    shown = {found.columns[number].heading for number, _ in fit(found, found.rows, 77)}
    assert {"GPU", "Replica", "State", "Util", "SM", "Mem", "Temp", "Throttle"} <= shown


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("中文字", 5, "中文…"), ("中文字", 4, "中…")],
)
def test_a_cut_counts_the_columns_of_wide_characters(text, columns, shown):
    assert shortened(text, columns) == shown
    assert width(shown) <= columns


# ---------------------------------------------------------------------- hostile documents


@pytest.mark.parametrize("language", list(Language))
def test_no_name_reaches_the_terminal_as_a_control_character_or_without_bound(language):
    node = api_documents.node(malicious_snapshot(MALICIOUS), language)
    known = state(node, problem=MALICIOUS)
    shown = tables([known], language, node.time)
    lines = [line for found in shown for row in found.rows for line in details(row, known, language, node.time)]
    lines += list(top.plain(shown))
    assert any("[red]x[/red]" in line for line in lines)
    assert not FORBIDDEN & set("".join(lines))
    assert max(map(len, lines)) < 10_000


@pytest.mark.parametrize("value", [1e308, -1e308, 0.0, 5e-324])
def test_no_value_is_too_large_or_too_small_to_show(value):
    node = served("heat")
    gpu = node.gpus[0]
    xid = api.XidDocument(xid="9" * 9999, count=3, last=value)
    gpu = msgspec.structs.replace(
        gpu, gpu="9" * 9999, signals=dict.fromkeys(gpu.signals, value), slowdown=value, straggler="²", xids=(xid,)
    )
    node = msgspec.structs.replace(node, gpus=(gpu,), time=value)
    lines = list(top.plain(tables([state(node)], EN, 1e9)))
    assert max(map(width, lines)) < 600


def test_the_numbers_of_gpus_that_are_no_numbers_are_listed_one_by_one():
    assert values.ranges(["0", "1", "2", "3", "²", "9" * 5000]).startswith("0–3 ²")


def test_rows_of_equal_names_have_different_keys():
    node = served("heat")
    node = msgspec.structs.replace(node, findings=node.findings * 300)
    keys = [row.key for row in table("findings", node).rows]
    assert len(set(keys)) == len(keys) == 300


# ---------------------------------------------------------------------- --once and the command line


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("scenario", ["healthy", "heat", "hang"])
def test_once_prints_the_tables_as_agreed(scenario, language, monkeypatch, capsys, golden):
    node = served(scenario, Language(language))
    monkeypatch.setattr(check_nodes.time, "time", lambda: node.time + 1)
    monkeypatch.setattr(SessionClient, "fetch", lambda _: SimpleNamespace(body=msgspec.json.encode(node)))
    assert main(["top", "--once", "--lang", language, "node1:9853"]) == 0
    golden(f"top/{scenario}.{language}.txt", capsys.readouterr().out)
    monkeypatch.setattr(check_text.time, "localtime", time.gmtime)
    main(["check", "--lang", language, "node1:9853"])
    golden(f"check/{scenario}.{language}.txt", capsys.readouterr().out)


def test_once_fails_if_a_node_does_not_answer_and_still_prints_the_rest(monkeypatch, capsys):
    node = served("healthy")
    answers = [Answer(url="node1", document=node), Answer(url="node2", problem="refused")]
    monkeypatch.setattr(top, "ask_all", lambda *_: answers)
    assert main(["top", "--once", "node1", "node2"]) == 1
    printed = capsys.readouterr().out
    assert "refused" in printed and "GPUs (8)" in printed


def test_without_the_extra_one_line_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(top.importlib.util, "find_spec", lambda name: None)
    assert main(["top"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("shardwatch top needs the extra: pipx install ")
    assert "shardwatch[top]" in line and "shardwatch top --once works without it" in line


@pytest.mark.parametrize("urls", [[], ["node1:9853", "node2:9853"]])
def test_in_a_terminal_it_shows_the_nodes_until_the_user_quits(urls, monkeypatch):
    shown = []
    terminal = SimpleNamespace(isatty=lambda: True)
    for name in ("stdin", "stdout", "__stderr__"):
        monkeypatch.setattr(top.sys, name, terminal)
    monkeypatch.setattr(top.PolledNodes, "start", lambda nodes: shown.extend(state.name for state in nodes.states))
    monkeypatch.setattr(TopApp, "run", lambda app: None)
    assert main(["top", *urls]) == 0
    assert shown == (urls or ["http://127.0.0.1:9853"])


def test_without_a_terminal_it_names_once(capsys):
    assert main(["top"]) == 2
    assert "--once" in capsys.readouterr().err


def test_too_many_addresses_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["top", *[f"h:{port}" for port in range(1, 258)]])
    assert ended.value.code == 2
    assert "256 at most" in capsys.readouterr().err


def test_a_node_whose_question_fails_in_an_unexpected_way_is_a_problem_of_that_node():
    node = served("healthy")

    def ask(url):
        if url == "bad":
            raise ValueError("surprise")
        return Answer(url=url, document=node)

    nodes = top.PolledNodes(["bad", "http://user:s3cret@good:1"], ask, 1.0)
    nodes.ask_one(0)
    nodes.ask_one(1)
    bad, good = nodes.states
    assert bad.problem == "ValueError: surprise" and bad.document is None
    assert good.document is node and "s3cret" not in good.name


def test_a_node_that_does_not_answer_delays_no_other():
    node, release = served("healthy"), threading.Event()

    def ask(url):
        assert url == "fast" or release.wait(60)
        return Answer(url=url, document=node)

    nodes = top.PolledNodes(["slow", "fast"], ask, 0.0)
    nodes.start()
    try:
        until(lambda: nodes.states[1].is_asked)
        assert not nodes.states[0].is_asked
        release.set()
        until(lambda: nodes.states[0].is_asked)
    finally:
        release.set()
        nodes.stop()


def test_a_drained_node_shows_its_verdict():
    node = served("hang")
    assert node.verdict.state is VerdictState.DRAIN
    *_, nodes = tables([state(node)], EN, node.time)
    assert "verdict drain: GPU 6 is lost" in details(nodes.rows[0], state(node), EN, node.time)


def test_the_details_of_a_lost_gpu_and_of_ranks_are_in_the_users_language():
    for language, lost, rank in (
        (EN, "verdict eject: GPU 6 is lost", "rank 0  running "),
        (Language.CHINESE, "判定 摘除: 6 号卡掉卡", "rank 0  运行中 "),
    ):
        node = served("hang", language)
        gpus = tables([state(node)], language, node.time)[1]
        row = next(row for row in gpus.rows if row.cells[0].text == "6")
        assert lost in details(row, state(node), language, node.time)
        skew = served("skew", language)
        replica = tables([state(skew)], language, skew.time)[2].rows[0]
        lines = details(replica, state(skew), language, skew.time)
        found = next(line for line in lines if line.startswith("rank 0  "))
        assert found.startswith(rank)
        assert found.endswith("%")
        assert any("token 间延迟" in line for line in lines) is (language is not EN)


def test_the_details_of_a_node_name_its_adapters_and_its_lost_gpu_in_words():
    adapter = api.AdapterDocument(
        device="mlx5_0", port="1", up=True, rate=5e10, errors={"symbol": 2.0}, gpus=(served("hang").gpus[0].uuid,)
    )
    for language, lines in (
        (EN, ["gpu-node-7", "sources down:  GPU 6 (lost)", "adapter mlx5_0/1  up  400 Gb/s  Errors 2  GPU 0"]),
        (Language.CHINESE, ["异常数据源：  GPU 6（掉卡）", "网络适配器 mlx5_0/1  正常  400 Gb/s  错误数 2  GPU 0"]),
    ):
        node = msgspec.structs.replace(served("hang", language), adapters=(adapter,))
        *_, nodes = tables([state(node)], language, node.time)
        shown = details(nodes.rows[0], state(node), language, node.time)
        assert [line for line in lines if line not in shown] == [], shown
        assert any("驱动 " in line for line in shown) is (language is not EN)
