"""The driver's arrays read in one go give what the binding gives item by item, and garbage gives no number."""

from __future__ import annotations

import ctypes
import math

import pynvml
import pytest

from exporter.driver.nvml.arrays import decoded, field_answers, metric_answers, samples_by_time
from exporter.model import Missing
from tests.support.fake_nvml import item, sample

MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
NUMBERS = (12.5, 7, 2**40 + 1, 2**63 + 5, -9, -3, 65_535)


def fields(*described):
    """Return the binding's array of field values from (return code, value type, number)."""
    array = (pynvml.c_nvmlFieldValue_t * len(described))()
    for field, (code, kind, number) in zip(array, described, strict=True):
        field.fieldId, field.scopeId, field.timestamp, field.latencyUsec = 2**32 - 1, 2**32 - 1, -1, -1
        field.value.ullVal = 2**64 - 1  # what a narrow number must not pick up
        field.nvmlReturn, field.valueType = code, kind
        setattr(field.value, MEMBERS[kind] if kind < len(MEMBERS) else "ullVal", number)
    return array


def samples(kind, *described, room=0):
    """Return what the binding gives for (time, number): a list of views into one array."""
    array = (pynvml.c_nvmlSample_t * (len(described) + room))()
    for nvml_sample, (stamp, number) in zip(array, described, strict=False):
        nvml_sample.timeStamp = stamp
        setattr(nvml_sample.sampleValue, MEMBERS[kind], number)
    return array[0 : len(described) + room]


@pytest.mark.parametrize("kind", range(len(MEMBERS)))
def test_a_field_of_each_type_reads_as_its_member_of_the_union(kind):
    array = fields((0, kind, NUMBERS[kind]))
    assert field_answers(array) == [(0, kind, NUMBERS[kind])] == [(0, kind, decoded(array[0]))]


def test_each_field_has_its_own_return_code_and_a_type_that_does_not_exist_is_no_number():
    answers = field_answers(fields((3, 3, 0), (0, 7, 1), (0, 2**32 - 1, 1), (0, 0, math.nan), (0, 0, -math.inf)))
    assert [code for code, _, _ in answers] == [3, 0, 0, 0, 0]
    assert [number for _, _, number in answers[1:]] == [Missing.INVALID] * 4


def test_fields_of_a_stand_in_are_read_item_by_item():
    assert field_answers([item(5), item(code=3), object()]) == [
        (0, 3, 5),
        (3, 3, 0),
        (None, None, Missing.INVALID),
    ]


@pytest.mark.parametrize("kind", range(len(MEMBERS)))
def test_samples_of_each_type_come_by_time(kind):
    taken = samples(kind, (10, NUMBERS[kind]), (20, 0))
    assert samples_by_time(kind, taken) == {10: NUMBERS[kind], 20: 0}


def test_room_that_no_sample_filled_has_the_time_zero_which_is_older_than_all():
    assert samples_by_time(1, samples(1, (10, 50), room=2)) == {10: 50, 0: 0}


def test_a_part_of_the_samples_and_those_of_a_stand_in_are_read_too():
    assert samples_by_time(1, []) == {}
    assert samples_by_time(1, [sample(10, 50), sample(20, 60)]) == {10: 50, 20: 60}
    assert samples_by_time(1, samples(1, (10, 50), (20, 60))[-1:])[20] == 60


@pytest.mark.parametrize("kind", [7, 2**32 - 1])
def test_samples_of_a_type_that_does_not_exist_are_refused(kind):
    with pytest.raises(IndexError):
        samples_by_time(kind, samples(1, (10, 50)))


def test_an_array_of_another_layout_is_read_item_by_item():
    class Wider(ctypes.Structure):
        _fields_ = (("timeStamp", ctypes.c_ulonglong), ("sampleValue", pynvml.c_nvmlValue_t), ("more", ctypes.c_long))

    array = (Wider * 2)()
    array[1].timeStamp, array[1].sampleValue.uiVal = 5, 40
    assert samples_by_time(1, array[0:2]) == {0: 0, 5: 40}


def test_metrics_are_the_first_of_a_question_with_their_codes():
    question = pynvml.c_nvmlGpmMetricsGet_t()
    for place, (code, value) in enumerate([(0, 12.5), (3, 0.0), (0, 99.0)]):
        question.metrics[place].metricId = place + 1
        question.metrics[place].nvmlReturn, question.metrics[place].value = code, value
    assert metric_answers(question.metrics, 2) == [(0, 12.5), (3, 0.0)]
