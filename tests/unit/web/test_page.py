"""The page of a snapshot: every section, in HTML and as text, whatever the names are and whatever is not known."""

from __future__ import annotations

import string
from html.parser import HTMLParser
from math import nan

import pytest

from exporter.cli.check_impact import impact as check_impact
from exporter.diagnosis.conditions import CONDITIONS
from exporter.model import (
    Backend,
    BackendLoad,
    CardProcess,
    EngineReading,
    GatewayFigures,
    GatewayLabels,
    GatewayReading,
    GatewayState,
    GpuAssignment,
    MultiNodeGpu,
    Quantity,
    SourceStatus,
    WindowFigures,
    XidCount,
    XidLabels,
)
from exporter.model.finding import Evidence, Finding, Severity, Subject, SubjectKind, Verdict, Verdicts, VerdictState
from exporter.model.nic import NearGpu, NicPort, NicPortKey, NicState
from exporter.model.owner import GpuOwner, Owner
from exporter.model.text import Language, Text
from exporter.render.api_documents import node as node_document
from exporter.web import plain, values
from exporter.web.gpu_problems import GPU_PROBLEMS, gpu_problem
from exporter.web.history import POINTS, Event, NodeHistory
from exporter.web.html import HEIGHT, HtmlWriter, area, path, stretches
from exporter.web.model import Level
from exporter.web.page import build
from exporter.web.texts import TEXTS, words
from tests.support.builders import card, replica, snapshot
from tests.support.records import replace
from tests.support.store_probe import RECORDINGS, capture, played
from tests.support.web_node import lived, malicious_snapshot

MALICIOUS = "<script>alert(1)</script>\"'&\u202e\u2066\x1b[2J\x00"
SECTIONS = ("findings", "replicas", "gpus", "topology", "gateways", "sources", "events")
VOID = {"meta", "link", "img", "input", "rect", "path"}


class Document(HTMLParser):
    """Elements with their attributes, the text of each section, and whether every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.sections, self.open, self._section = [], {}, [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs)["id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.sections[self._section] = self.sections.get(self._section, "") + data + " "

    def text(self, section):
        return " ".join(self.sections[section].split())


def page_of(shown, history=None, language=Language.ENGLISH, age=1.0):
    return build(shown, (history or NodeHistory()).events, language, node="gpu-node-7", age=age)


def html_of(shown, history=None, language=Language.ENGLISH, age=1.0, **options):
    history = history or NodeHistory()
    return HtmlWriter(history, links=("/metrics",)).write(page_of(shown, history, language, age), **options)


@pytest.fixture(scope="module")
def heat():
    return lived("heat", 120, fault_at=5.0)


@pytest.fixture(scope="module")
def hang():
    return lived("hang", 75, fault_at=5.0)


def test_the_finding_stands_first_with_cause_evidence_and_what_to_do(heat):
    document = Document(html_of(*heat))
    assert not document.open
    text = document.text("findings")
    finding = heat[0].findings[0]
    for part in (finding.summary.en, "WARNING", "Cause", "thermally throttled", "temperature", "°C",
                 "What to do", "Check fan, filter and airflow of GPU 2."):  # fmt: skip
        assert part in text, part
    assert list(document.sections)[1] == "findings"


def test_evidence_that_stands_with_the_cause_is_not_repeated(heat):
    finding = page_of(*heat).problems[0]
    cause = dict(finding.causes[0].evidence)
    assert {"temperature", "SM clock", "PCI"} <= set(cause)
    assert not set(cause) & set(dict(finding.evidence))
    assert "temperature of its peers" in dict(finding.evidence)
    other = replace(heat[0].findings[0].evidence[0], name="temperature", value=1.0)
    shown = replace(heat[0], findings=(replace(heat[0].findings[0], evidence=(other,)),))
    shown_evidence = page_of(shown).problems[0].evidence
    assert [name for name, _ in shown_evidence] == ["temperature"], "another value is no repetition"


@pytest.mark.parametrize("language", list(Language))
def test_a_finding_says_what_the_users_of_its_replica_feel_as_check_does(heat, language):
    shown, history = heat
    node = node_document(shown, language)
    first = next(found for found in node.findings if found.replica)
    felt = check_impact(first, node, language)
    assert "ITL p50" in felt or "TTFT p99" in felt
    page = page_of(shown, history, language)
    assert felt in [problem.impact for problem in page.problems]
    heading = words(language)("impact")
    assert f'<dt>{heading}</dt><dd class="impact"><bdi>{felt}</bdi></dd>' in html_of(shown, history, language)
    assert any(line.strip().endswith(felt) and heading in line for line in plain.write(page).splitlines())


def test_the_replica_that_waits_for_a_straggler_is_marked(heat):
    replicas = next(table for table in page_of(*heat).tables if table.id == "replicas")
    assert [row.level for row in replicas.rows] == [Level.WARNING, Level.NONE]


def test_the_head_counts_the_findings_of_the_gravest_severity_beside_the_verdict(heat):
    shown, history = heat
    finding = shown.findings[0]
    info = replace(finding, severity=Severity.INFO)
    for findings, count in (
        ((finding,), "▲ 1 warning "),
        ((finding, finding, info), "▲ 2 warnings "),
        ((info,), "◆ 1 note "),
    ):
        page = page_of(replace(shown, findings=findings), history)
        verdict = f"Verdict: {page.verdict.text}"
        text = Document(HtmlWriter(history).write(page)).text("")
        assert verdict in text
        assert count in text
        head = plain.write(page).splitlines()[0]
        assert f"{verdict}  {count}" in head
    healthy = plain.write(page_of(replace(shown, findings=()), history)).splitlines()[0]
    assert "warning" not in healthy
    assert "▲" not in healthy


def test_every_section_is_there_with_its_values(heat):
    shown, history = heat
    document = Document(html_of(shown, history))
    for section in SECTIONS:
        assert document.text(section), section
    gpus = document.text("gpus")
    for part in ("straggler", "thermal", "waits", "for GPU 2", "NVLink 18/18", "PCIe 5 ×16", "of 700 W", "SM"):
        assert part in gpus, part
    replicas = document.text("replicas")
    for part in ("chat-a", "vllm", "serve", "USD", "NV18", "0–3", "p50", "p99"):
        assert part in replicas, part
    assert "NV18" in document.text("topology")
    assert "edge haproxy chat-a llama-3.3-70b-instruct ● up" in document.text("gateways")
    assert "8 of 8 GPUs" in document.text("sources")
    assert "thermally throttled" in document.text("events")


def test_a_lost_gpu_is_named_with_its_xid_and_has_no_values(hang):
    shown, history = hang
    (lost,) = [row for table in page_of(shown, history).tables if table.id == "gpus"
               for row in table.rows if row.key == f"gpu-{shown.cards[6].facts.uuid}"]  # fmt: skip
    assert [cell.text for cell in lost.cells] == ["6", "lost", *["–"] * 6, "79"]
    text = Document(html_of(shown, history)).text("gateways")
    assert "still sends to an ejected replica" in text


@pytest.mark.parametrize("is_cause", [False, True])
def test_a_gpu_with_a_finding_is_not_ok(is_cause):
    uuid = card().facts.uuid
    finding = Finding(id="GpuHot", severity=Severity.WARNING, subject=Subject(SubjectKind.GPU, uuid, "GPU 0"),
                      summary=Text("GPU 0 is hot", ""), actions=())  # fmt: skip
    if is_cause:
        replica_subject = Subject(SubjectKind.REPLICA, "a", "a")
        finding = replace(finding, id="EngineSlow", subject=replica_subject, causes=(finding,))
    page = page_of(snapshot(cards=(card(0, utilization=0.5), card(1, utilization=0.5)), findings=(finding,)))
    marked, healthy = (row.cells[1] for table in page.tables if table.id == "gpus" for row in table.rows)
    assert (marked.text, marked.detail, marked.level) == ("WARNING", "hot", Level.WARNING)
    assert healthy.text == "ok"


def test_ranks_are_shown_where_there_are_several():
    shown, history = lived("skew", 12)
    document = Document(html_of(shown, history))
    assert "ranks" in document.sections
    assert "ranks" not in Document(html_of(*lived("healthy", 6))).sections


def test_a_healthy_node_says_that_nothing_was_found():
    shown, history = lived("healthy", 15)
    assert "No findings: 8 GPUs, 2 replicas" in Document(html_of(shown, history)).text("findings")
    silent = replace(shown, sources=(replace(shown.sources[0], up=False), *shown.sources[1:]))
    assert "not everything answers" in Document(html_of(silent)).text("findings"), "silence is not health"


def test_of_one_there_is_no_plural():
    alone = snapshot(cards=(card(0),), replicas=(replica("a"),), sources=(SourceStatus(source="driver", up=True),))
    alone = replace(alone, verdicts=Verdicts(node=Verdict(VerdictState.SERVE)))
    assert page_of(alone).summary.text == "No findings: 1 GPU, 1 replica and 1 source answer."
    chinese = page_of(alone, language=Language.CHINESE).summary.text
    assert chinese == "未发现问题：1 张 GPU、1 个副本、1 个数据源均有应答。"


def test_without_a_snapshot_the_page_says_that_the_daemon_starts():
    document = Document(html_of(None))
    assert "the daemon is starting" in document.text("findings")
    assert "No snapshot yet" in plain.write(page_of(None))


@pytest.mark.parametrize("language", list(Language))
def test_old_data_is_said_to_be_old(heat, language):
    shown, history = heat
    document = Document(html_of(shown, history, language, age=61.0))
    (alert,) = [attributes for _, attributes in document.elements if attributes.get("id") == "old"]
    assert "hidden" not in alert
    said = values.age(61.0, words(language))
    assert said in plain.write(page_of(shown, history, language, age=61.0)).splitlines()[1]
    assert "hidden" in [a for _, a in Document(html_of(shown, history)).elements if a.get("id") == "old"][0]


def test_without_script_the_page_says_of_when_its_data_is_and_never_how_old(heat):
    shown, history = heat
    html = html_of(shown, history)
    head = Document(html).text("")
    assert "data of 2026-01-05 00:02:00 UTC" in head
    assert "s old" not in head
    assert "<noscript>This page reloads every 5 s.</noscript>" in html
    assert "data of 2026-01-05 00:02:00 UTC, 1 s old" in plain.write(page_of(shown, history))


def test_the_filter_says_so_where_nothing_has_a_problem(heat):
    nothing = "No GPU has a problem."
    assert nothing in html_of(snapshot(cards=(card(0, utilization=0.5), card(1, utilization=0.5))))
    assert nothing not in html_of(*heat)


def test_errors_are_those_of_the_window_that_findings_judge_by():
    short, long = (
        WindowFigures(seconds=seconds, error_ratio=ratio) for seconds, ratio in ((60.0, 0.09), (300.0, 0.06))
    )
    backend = Backend("pool", "a")
    gateway = GatewayState(
        name="edge", labels=GatewayLabels("edge", "haproxy"), status=SourceStatus(source="gateway:edge", up=True), last_read_at=1.0,
        reading=GatewayReading(at=1.0, gateway="haproxy", backends={backend: BackendLoad(requests=1.0)}),
        windows={
            "1m": GatewayFigures(seconds=60.0, shares={backend: 0.4}, error_ratios={backend: 0.5}),
            "5m": GatewayFigures(seconds=300.0, shares={backend: 0.3}, error_ratios={backend: 0.02}),
        },
    )  # fmt: skip
    engine = replace(replica("a", reading=EngineReading(at=1.0, engine="vllm", model="m", ranks={})),
                     windows={"1m": short, "5m": long})  # fmt: skip
    tables = {table.id: table for table in page_of(snapshot(replicas=(engine,), gateways=(gateway,))).tables}
    assert tables["replicas"].rows[0].cells[8].text == "6.0%"
    assert tables["replicas"].note == "rates and latencies over the last 1 min, errors over 5 min"
    assert [cell.text for cell in tables["gateways"].rows[0].cells[3:5]] == ["40%", "2.0%"]
    assert tables["gateways"].note == "shares over the last 1 min, errors over 5 min"


def test_stores_have_a_table_where_there_are_any():
    pool = played(*map(capture, RECORDINGS["mooncake-0.3.13"])).state
    down = replace(pool, name=MALICIOUS, reading=None, hit_ratio={}, usage={},
                   status=SourceStatus(source="store:b", up=False, reason="refused"))  # fmt: skip
    shown = snapshot(stores=(pool, down))
    (table,) = [table for table in page_of(shown).tables if table.id == "stores"]
    hits, used = f"{pool.hit_ratio['1m']:.0%}", values.percent(pool.usage["memory"])
    assert [[cell.text for cell in row.cells[1:]] for row in table.rows] == [
        ["up", hits, f"memory {used}"], ["down", "–", "–"],
    ]  # fmt: skip
    assert table.note == "hits over the last 1 min"
    assert f"memory {used}" in plain.write(page_of(shown))
    assert f"内存 {used}" in plain.write(page_of(shown, language=Language.CHINESE))
    assert MALICIOUS not in html_of(shown) and "KV 缓存存储" in plain.write(page_of(shown, language=Language.CHINESE))
    assert "stores" not in {table.id for table in page_of(snapshot()).tables}


def test_what_is_left_out_is_said():
    evidence = tuple(Evidence(f"name_{number}", float(number)) for number in range(15))
    cause = Finding(id="X", severity=Severity.WARNING, subject=Subject(SubjectKind.NODE, "n", "n"),
                    summary=Text("cause", "cause"), actions=(), evidence=evidence)  # fmt: skip
    findings = (replace(cause, causes=(cause,) * 14), *[cause] * 104)
    page = page_of(snapshot(findings=findings))
    for text in (plain.write(page), HtmlWriter(NodeHistory()).write(page)):
        for part in ("+3 more", "+2 more", "+5 more"):
            assert part in text, part


def test_a_gpu_shows_its_newest_xids_how_often_and_when_and_how_many_others():
    gpu = card(0, utilization=0.5)

    def count(xid, count, at):
        return XidCount(labels=XidLabels(*gpu.labels[:2], str(xid), "nvml"), xid=xid, count=count, last_unix_time=at)

    at = snapshot().unix_time
    xids = (count(13, 1, at - 400), count(79, 2, at - 10), count(74, 1, at - 20), count(31, 1, at - 90))
    (table,) = [table for table in page_of(replace(snapshot(cards=(gpu,)), xids=xids)).tables if table.id == "gpus"]
    cell = table.rows[0].cells[-1]
    times = [values.clock(at - ago, at) for ago in (10, 20, 90, 400)]
    assert cell.text == "79 ×2"
    assert cell.detail == f"{times[0]} · 74 {times[1]} · 31 {times[2]} · +1 more"
    assert cell.title.endswith(f"13 {times[3]}")


def test_the_processes_of_a_gpu_stand_in_its_row_where_there_are_several():
    gpu = card(0, utilization=0.5)
    sizes = {11: 2**30, 12: 8 * 2**30, 13: 2**20}
    processes = tuple(CardProcess(pid=pid, memory=float(size)) for pid, size in sizes.items())
    for known, detail in (
        (processes, "pid 12 8.0 GiB · pid 11 1.0 GiB · +1 more"),
        (processes[:1], "pid 11 1.0 GiB"),
    ):
        shown = replace(gpu, reading=replace(gpu.reading, processes=known))
        (table,) = [table for table in page_of(snapshot(cards=(shown,))).tables if table.id == "gpus"]
        assert table.rows[0].cells[3].detail == detail


def test_the_owner_of_a_process_stands_beside_its_memory():
    gpu = card(0, utilization=0.5)
    shown = replace(gpu, reading=replace(gpu.reading, processes=(CardProcess(pid=7, memory=2.0**30),)))
    owner = GpuOwner(uuid=gpu.facts.uuid, owner=Owner(name="job 42\u202e"), pids=(7,))
    mine = GpuAssignment(uuid=gpu.facts.uuid, replica="a")
    for assignments, detail in (((), "pid 7 1.0 GiB job 42\ufffd"), ((mine,), "")):
        page = page_of(snapshot(cards=(shown,), owners=(owner,), assignments=assignments))
        (table,) = [table for table in page.tables if table.id == "gpus"]
        assert table.rows[0].cells[3].detail == detail
        assert "job 42" in table.rows[0].cells[3].title


def test_without_curves_their_places_are_empty_and_all_else_is_the_same(heat):
    shown, history = heat
    full, live = html_of(shown, history), html_of(shown, history, curves=False)
    assert full.count("data-keep>") == live.count("data-keep></span>") > 50
    assert Document(full).text("gpus").count("%") >= Document(live).text("gpus").count("%") > 0
    assert len(live) < len(full) / 1.3


def test_the_text_names_the_same_as_the_html(hang):
    shown, history = hang
    text = plain.write(page_of(shown, history))
    for part in (
        "CRITICAL",
        shown.findings[0].summary.en,
        "lost eject",
        "XID 79",
        "Take chat-b out of gateway edge.",
    ):
        assert part in text, part
    assert "<" not in text
    widths = {line.index("chat-b") for line in text.splitlines() if line.startswith("  edge haproxy  chat-")
              if "chat-b" in line}  # fmt: skip
    assert len(widths) == 1


def test_the_columns_of_the_chinese_text_are_aligned(heat):
    lines = plain.write(page_of(*heat, Language.CHINESE)).splitlines()
    start = next(number for number, line in enumerate(lines) if line.split() and line.split()[0] == "GPU")
    heading, row = lines[start + 1], lines[start + 2]
    assert values.width(heading[: heading.index("状态")]) == values.width(row[: row.index("等待")])


# ---------------------------------------------------------------------- names that mean harm


def test_a_name_that_is_a_script_is_text():
    shown = malicious_snapshot(MALICIOUS)
    history = NodeHistory()
    history.update(replace(shown, findings=()))
    history.update(replace(shown, at=1010.0))
    document = Document(html_of(shown, history))
    assert not document.open, "no name has opened or closed an element"
    assert [a for tag, a in document.elements if tag == "script"] == [{"type": "module", "src": "/web/page.js"}]
    assert not [a for _, a in document.elements if any(name.startswith("on") or name == "style" for name in a)]
    assert "<script>alert(1)</script>" in document.text("replicas"), "it is shown as it is"
    text = plain.write(page_of(shown, history))
    for character in "\u202e\u2066\x1b\x00":
        assert character not in text
        assert character not in "".join(document.sections.values())


def test_a_name_of_ten_kilobytes_is_cut_visibly():
    shown = malicious_snapshot("x" * 10_000)
    document = Document(html_of(shown))
    for section in ("findings", "replicas", "gpus", "sources"):
        assert len(max(document.sections[section].split(), key=len)) <= values.MAX_SENTENCE
        assert "x…" in document.sections[section]
    assert max(map(len, plain.write(page_of(shown)).splitlines())) < 2000


def keys_of(document, tag):
    return [
        attributes["data-key"] for name, attributes in document.elements if name == tag and "data-key" in attributes
    ]


def test_no_two_rows_have_the_same_key_because_the_browser_keeps_one_of_each():
    prefix = "XID " + 100 * "x"
    events = tuple(Event(unix_time=1.7e9, severity=Severity.NONE, text=Text(text, text))
                   for text in (f"{prefix}1", f"{prefix}2", prefix, prefix))  # fmt: skip
    shown = snapshot(replicas=(replica("a"), replica("a")))
    document = Document(HtmlWriter(NodeHistory()).write(build(shown, events, Language.ENGLISH, node="n", age=1.0)))
    keys = keys_of(document, "li")
    assert len(document.text("events").split("XID")) == 5
    assert len(set(keys)) == len(keys)
    rows = keys_of(document, "tr")
    assert len(rows) == len(set(rows)) == 2


def test_a_key_has_no_character_of_a_name_and_stays_the_same():
    document = Document(html_of(malicious_snapshot(MALICIOUS)))
    for tag in ("tr", "article"):
        keys = keys_of(document, tag)
        assert keys
        assert set("".join(keys)) <= set(string.hexdigits + "-")
        assert keys == keys_of(Document(html_of(malicious_snapshot(MALICIOUS))), tag)


# ---------------------------------------------------------------------- values and curves


def test_what_is_not_known_is_absent_and_not_zero():
    shown = snapshot(cards=(card(0, utilization=0.0),), replicas=(replica("a"), replica("b", up=False)))
    tables = {table.id: table for table in page_of(shown).tables}
    assert [cell.text for cell in tables["gpus"].rows[0].cells[2:7]] == ["0%", "–", "–", "–", "–"]
    for row in tables["replicas"].rows:
        assert {cell.text for cell in row.cells[2:]} == {"–"}
    assert tables["replicas"].rows[1].cells[1].detail == "refused"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (values.percent(0.994), "99%"), (values.percent(0.042), "4.2%"), (values.percent(None), "–"),
        (values.seconds(0.0247), "24.7 ms"), (values.seconds(0.42), "420 ms"), (values.seconds(1.424), "1.42 s"),
        (values.gibibytes(2**33), "8.0 GiB"), (values.unit(1.98e9, "MHz", 1e-6), "1980 MHz"),
        (values.age(61.0, words(Language.ENGLISH)), "61 s"), (values.age(7300, words(Language.CHINESE)), "2 小时"),
        (values.clock(1.7e9, 1.7e9 + 60), "22:13:20"), (values.clock(1.7e9, 1.8e9), "2023-11-14 22:13"),
        (values.clean("a\u202eb\n"), "a\ufffdb\ufffd"), (values.clean("x" * 65), "x" * 63 + "…"),
        (values.clean("e\u0301" + "\u0300" * 9), "e\u0301\u0300\u0300" + "\ufffd" * 7),
        (values.clean("\u0301a\u200f"), "\ufffda\ufffd"), (values.window("90s", words(Language.ENGLISH)), "90 s"),
    ],
)  # fmt: skip
def test_values_are_written_as_people_read_them(written, text):
    assert written == text


def test_a_line_has_a_gap_where_no_point_is_and_two_points_for_a_flat_stretch():
    assert path(stretches([1.0, 1.0, 1.0, nan, 0.0, 0.5], 1.0)) == "M0 2 2 2M4 38 5 20"
    assert path(stretches([nan, 1.0, nan, nan, 0.5], 1.0)) == "M1 2M4 20"
    assert area(stretches([1.0, 1.0, nan], 1.0)) == f"M0 {HEIGHT} 0 2 1 2 1 {HEIGHT}Z"
    assert stretches([nan] * POINTS, 1.0) == stretches([], 1.0) == []


# ---------------------------------------------------------------------- languages


def test_both_languages_have_the_same_templates():
    for key, text in TEXTS.items():
        fields = [{name for _, name, _, _ in string.Formatter().parse(one) if name} for one in (text.en, text.zh)]
        assert text.en, key
        assert text.zh, key
        assert fields[0] == fields[1], key


def test_the_chinese_page_is_chinese(hang):
    shown, history = hang
    document = Document(html_of(shown, history, Language.CHINESE))
    assert shown.findings[0].summary.zh in document.text("findings")
    for section, word in (("gpus", "显存"), ("replicas", "命中率"), ("gateways", "份额"), ("events", "掉卡")):
        assert word in document.text(section)
    assert 'lang="zh"' in html_of(shown, history, Language.CHINESE)


# ---------------------------------------------------------------------- old data, standstills, words


@pytest.mark.parametrize("findings", [True, False])
def test_old_data_has_no_verdict_and_says_nothing_of_now(heat, findings):
    shown, history = heat
    shown = shown if findings else replace(shown, findings=())
    page = page_of(shown, history, age=61.0)
    assert (page.verdict.text, page.verdict.level) == ("unknown", Level.UNKNOWN)
    html = HtmlWriter(history).write(page)
    assert "<title>? gpu-node-7" in html
    assert "Verdict: unknown" in plain.write(page).splitlines()[0]
    assert "No findings" not in html + plain.write(page)
    assert ("There were no findings at 2026-01-05 00:02:00 UTC" in plain.write(page)) is not findings


def test_the_title_counts_the_findings_of_each_severity(heat):
    shown, history = heat
    (finding,) = shown.findings
    critical = replace(finding, severity=Severity.CRITICAL)
    html = html_of(replace(shown, findings=(critical, finding, finding)), history)
    assert "<title>■ 1 ▲ 2 gpu-node-7" in html


def standstill(*causes):
    """Return a node whose replica has 3 requests, figures of before, and no progress."""
    gpu = card(0, utilization=1.0)
    reading = EngineReading(
        at=1.0,
        engine="vllm",
        model="m",
        ranks={"0": {Quantity.REQUESTS_RUNNING: 2.0, Quantity.REQUESTS_WAITING: 1.0}},
    )
    figures = WindowFigures(seconds=60.0, error_ratio=0.0, hit_ratio=0.5, generation_token_rate=100.0)
    stopped = replace(replica("a", reading=reading), frozen=True, windows={"1m": figures})
    finding = Finding(id="EngineFrozen", severity=Severity.CRITICAL, subject=Subject(SubjectKind.REPLICA, "a", "a"),
                      summary=Text("a stands", "a"), actions=(), causes=causes)  # fmt: skip
    shown = snapshot(cards=(gpu, card(1, utilization=0.5)), replicas=(stopped,), findings=(finding,))
    return replace(shown, assignments=(GpuAssignment(uuid=gpu.facts.uuid, replica="a"),))


def test_the_gpus_of_a_replica_without_progress_are_not_ok_and_name_what_stops_it():
    port = Finding(id="NicPortDown", severity=Severity.WARNING, subject=Subject(SubjectKind.ADAPTER, "m/1", "m port 1"),
                   summary=Text("m port 1 is down", ""), actions=())  # fmt: skip
    for causes, detail in (((port,), "m port 1"), ((), "")):
        tables = {table.id: table for table in page_of(standstill(*causes)).tables}
        stopped, other = tables["gpus"].rows
        assert (stopped.cells[1].text, stopped.cells[1].detail) == ("no progress", detail)
        assert stopped.level is Level.WARNING, "the filter for problems shows it"
        assert (other.cells[1].text, other.level) == ("ok", Level.NONE)


def test_a_replica_without_progress_shows_stalled_requests_and_no_figures_of_before():
    (table,) = [table for table in page_of(standstill()).tables if table.id == "replicas"]
    texts = [cell.text for cell in table.rows[0].cells]
    assert texts[2:10] == ["2", "1", "–", "–", "–", "–", "3 stalled", "–"]


@pytest.mark.parametrize("language", list(Language))
def test_every_finding_about_a_gpu_has_words_for_its_state(language):
    about_gpus = {name for name, condition in CONDITIONS.items() if condition.subject is SubjectKind.GPU}
    assert about_gpus <= GPU_PROBLEMS.keys()
    assert gpu_problem("GpuMemoryFull", language) in {"memory full", "显存将满"}
    assert gpu_problem("GpuNewFault", language) == "gpu new fault"


@pytest.mark.parametrize("language", list(Language))
def test_replicas_that_span_nodes_have_a_table_where_there_are_some(language):
    key = "vllm://10.0.0.1:29501"
    place = {"key": key, "engine": "vllm", "uuid": card(0).facts.uuid, "nodes": 2}
    spanning = (
        MultiNodeGpu(**place, replica=key, head=False, node_rank=1),
        MultiNodeGpu(**place | {"key": "ray://1", "nodes": None}, replica="a", head=True),
    )
    say = words(language)
    shown = {
        table.id: table
        for table in page_of(snapshot(cards=(card(0, up=False),), multi_node=spanning), language=language).tables
    }
    head, worker = ([(cell.text, cell.detail) for cell in row.cells] for row in shown["parts"].rows)
    assert head == [("ray://1", "vllm"), ("a", ""), (say("head"), ""), ("0", "")]
    assert worker[1:3] == [("–", say("elsewhere")), (say("worker"), say("node_of").format(rank="1", nodes="2"))]
    assert shown["parts"].rows[1].cells[3].level is Level.CRITICAL
    assert "parts" not in {table.id for table in page_of(snapshot(cards=(card(0),))).tables}


@pytest.mark.parametrize("language", list(Language))
def test_the_ports_of_adapters_have_a_table_where_there_are_some(language):
    def nic(device, **parts):
        port = {"key": NicPortKey(device, "1"), "state": "active", "physical_state": "link_up", "rate": 5e10} | parts
        near = (NearGpu(card(0).facts.uuid, "PIX"),)
        return NicState(port=NicPort(**port), max_rate=5e10, is_down=port["state"] == "down", nearest=near)

    nics = (
        nic("mlx5_0", errors={"symbol": 3.0, "link": 0.0}),
        nic("mlx5_1", rate=2.5e10),
        nic("mlx5_2", state="down", physical_state="polling"),
    )
    say = words(language)
    shown = {table.id: table for table in page_of(snapshot(cards=(card(0),), nics=nics), language=language).tables}
    good, slow, down = ([(cell.text, cell.detail) for cell in row.cells] for row in shown["adapters"].rows)
    assert good[1:] == [(say("up"), ""), ("400 Gb/s", ""), ("3", "symbol 3"), ("0", "PIX")]
    assert slow[2] == ("200 Gb/s", say("instead_of").format(rate="400 Gb/s"))
    assert down[1:3] == [(say("down"), "polling"), ("–", "")]
    assert "adapters" not in {table.id for table in page_of(snapshot(cards=(card(0),))).tables}
