"""What people read in findings: both languages, labels of evidence, and steps in order."""

from __future__ import annotations

from exporter.diagnosis.evidence import label
from exporter.diagnosis.xid_meanings import CHINESE, meaning
from exporter.model.finding import Finding, Severity, Subject, SubjectKind
from exporter.model.text import Text
from exporter.model.xid_catalog import CATALOGUE
from tests.support.records import replace

GPU = Finding(
    id="GpuLost",
    severity=Severity.CRITICAL,
    subject=Subject(SubjectKind.GPU, "GPU-6", "GPU 6"),
    summary=Text("GPU 6 is lost", "GPU 6 掉卡"),
    actions=(Text("Drain it.", "排空。"), Text("Reboot.", "重启。")),
    relief=Text("Take chat-b out.", "摘除 chat-b。"),
)
REPLICA = replace(GPU, id="EngineFrozen", actions=(Text("Restart chat-b.", "重启 chat-b。"),))


def steps(finding):
    return [step.en for step in finding.steps]


def test_every_xid_of_the_catalogue_has_a_meaning_in_both_languages_that_says_gpu():
    assert CHINESE.keys() == CATALOGUE.keys()
    assert meaning(79).en == "the GPU has fallen off the bus: the driver cannot reach it any more"
    assert not any("card" in meaning(code).en for code in CATALOGUE)
    assert "没有" in meaning(9999).zh


def test_evidence_has_names_for_people_also_with_a_gateway_or_rank_in_it():
    assert label("gateway_edge_share") == Text("share of gateway edge", "网关 edge 的份额")
    assert label("sm_clock_of_peers") == Text("SM clock of its peers", "SM 时钟（同组）")
    assert label("running_rank_7").zh == "rank 7 运行"
    assert label("xid_79") == Text("meaning", "含义")
    assert label("something_new").en == "something new"


def test_users_are_protected_first_and_then_the_cause_is_solved_instead_of_the_symptom():
    assert steps(REPLICA) == ["Take chat-b out.", "Restart chat-b."]
    assert steps(replace(REPLICA, causes=(GPU,))) == ["Take chat-b out.", "Drain it.", "Reboot."]


def test_further_causes_add_no_steps_and_none_stands_twice():
    other = replace(
        GPU, id="GpuNvlinkDown", actions=(Text("Reset the GPU.", "复位。"),), relief=Text("Stop.", "停。")
    )
    assert steps(replace(REPLICA, causes=(GPU, other))) == ["Take chat-b out.", "Drain it.", "Reboot."]
    assert steps(replace(GPU, actions=(GPU.relief, *GPU.actions))) == ["Take chat-b out.", "Drain it.", "Reboot."]
