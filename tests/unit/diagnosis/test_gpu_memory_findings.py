"""Findings about a GPU's memories."""

from __future__ import annotations

from exporter.diagnosis.diagnose import find
from exporter.model import Snapshot
from tests.support.builders import card


def of(**signals):
    return find(Snapshot(at=0.0, unix_time=0.0, cards=(card(3, **signals),)))


def test_a_gpu_past_its_threshold_of_sram_errors_is_a_finding_with_their_number():
    (finding,) = of(sram_threshold_exceeded=1.0, sram_uncorrected_aggregate=12.0)
    assert finding.id == "GpuSramEccThreshold"
    assert finding.evidence[0].name == "uncorrectable_sram_errors" and finding.evidence[0].value == 12.0


def test_a_gpu_within_it_is_none_and_one_that_does_not_count_says_no_number():
    assert of(sram_threshold_exceeded=0.0, sram_uncorrected_aggregate=12.0) == ()
    (finding,) = of(sram_threshold_exceeded=1.0)
    assert "uncorrectable_sram_errors" not in {evidence.name for evidence in finding.evidence}
