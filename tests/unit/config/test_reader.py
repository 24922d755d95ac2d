"""The readers of every YAML file that a user edits: what they return, what they refuse, and how they describe it."""

from __future__ import annotations

import re

import jsonschema
import pytest
import yaml

from alerts import tuning
from alerts.alertmanager import reader as receivers
from exporter.config import fields, loader
from exporter.config.parsers import Invalid
from exporter.config.reader import INVALID, ListOf, OneOf, Table
from exporter.config.section import Key, Section
from exporter.errors import SettingsError
from tests.support.alertmanager_texts import FULL, MINIMAL, ROBOTS

THRESHOLDS = """
job: gpu-nodes
thresholds:
  error_ratio: {warning: 2%, for: 10m}
  replica_data_age: {warning: 120, metric: llm_data_age_seconds}
classes:
  interactive:
    models: ["chat-.*"]
    first_token: {objective: 0.99, metric: llm_time_to_first_token_seconds, target: {vllm: 500ms, sglang: 0.4}}
    duration: {objective: 99%, metric: llm_request_duration_seconds, target: 30s}
"""


def only_key(reader, **more):
    return Section(keys={"it": Key(reader=reader, **more)}, build=lambda values: values.get("it"))


def read(text, reader, **more):
    return loader.parse(only_key(reader, **more), text, "mine.yaml")


def problems(text, reader, **more):
    with pytest.raises(SettingsError, match="mine.yaml") as caught:
        read(text, reader, **more)
    return [(problem.path, problem.message, problem.line) for problem in caught.value.problems]


def test_problems_of_the_text_and_of_its_meaning_are_reported_together_in_the_order_of_the_file():
    found = problems("it: [a, b]\nit: [a]\nother: 1", ListOf(item=fields.gpu(), what="GPUs"))
    assert [(path, line) for path, _, line in found] == [("it[0]", 1), ("it[1]", 1), ("it", 2), ("?", 3)]


def test_a_key_close_to_a_known_one_is_shown_and_corrected_and_any_other_is_not_shown():
    section = Section(keys={"receivers": Key(reader=fields.boolean(), aliases=("people",))}, build=dict)
    for written, path, message in (
        ("reciever", "reciever", "unknown key; did you mean receivers?"),
        ("People", "People", "unknown key; did you mean receivers?"),
        ("colour", "?", "unknown key; expected one of: receivers"),
        ("xoxb-17653285439-AbCdEf", "?", "unknown key; expected one of: receivers"),
        ("receivers-hunter2", "?", "unknown key; did you mean receivers?"),
    ):
        with pytest.raises(SettingsError) as caught:
            loader.parse(section, f"\n{written}: {{a: 1}}", "mine.yaml")
        (problem,) = caught.value.problems
        assert (problem.path, problem.message, problem.line) == (path, message, 2)


def test_a_mapping_of_one_key_is_read_by_that_key():
    way = OneOf(variants={"on": fields.boolean(), "every": fields.duration(1, 60)}, what="way")
    assert read("it: {on: true}", way) is True
    assert read("it: {every: 5s}", way) == 5.0
    assert problems("it: {every: 5}", way) == [("it.every", "a duration needs a unit: write 5s, for example", 1)]
    assert problems("it: {evry: 5s}", way) == [("it.?", "unknown way; did you mean every?", 1)]
    for text in ("{}", "on", "{on: true, every: 5s}"):
        assert problems(f"it: {text}", way) == [("it", "expected exactly one way: on, every", 1)]


def test_one_value_may_stand_for_a_list_where_that_is_allowed():
    values = ListOf(item=fields.text("a value"), what="values", min_items=1, single=True)
    assert read("it: a", values) == ("a",) == read("it: [a]", values)
    assert [path for path, _, _ in problems("it: ' a'", values)] == ["it"]
    assert [path for path, _, _ in problems("it: {a: 1}", values)] == ["it"]
    assert [path for path, _, _ in problems("it: a", ListOf(item=fields.text(), what="values"))] == ["it"]


def test_a_table_bounds_its_entries_and_shows_only_harmless_names():
    def lower(name):
        if not name.islower():
            raise Invalid("expected small letters")

    table = Table(
        name=lower, value=fields.boolean(), what="a mapping", harmless=re.compile("[a-z]+"), min_items=1, max_items=2
    )
    assert dict(read("it: {a: true}", table)) == {"a": True}
    assert problems("it: {}", table) == [("it", "is empty; expected a mapping", 1)]
    assert problems("it: {a: true, b: true, c: true}", table) == [("it", "has 3 entries; the maximum is 2", 1)]
    assert problems("it:\n  A: true\n  b: 1", table) == [
        ("it.?", "expected small letters", 2),
        ("it.b", "expected true or false, found a number", 3),
    ]


def test_a_required_key_that_is_missing_is_named_and_not_passed_on():
    assert problems("", fields.boolean(), required=True) == [("it", "is missing; it is required", 1)]
    section = Section(keys={"it": Key(reader=fields.boolean(), required=True)}, build=dict)
    outer = Section(keys={"inner": Key(reader=section)}, build=lambda values: values["inner"]["it"] is INVALID)
    with pytest.raises(SettingsError):
        loader.parse(outer, "inner: {}", "mine.yaml")


@pytest.mark.parametrize(
    ("section", "text"),
    [
        (tuning.SECTION, THRESHOLDS),
        (receivers.SECTION, MINIMAL),
        (receivers.SECTION, FULL),
        (receivers.SECTION, ROBOTS),
    ],
    ids=("thresholds", "minimal", "full", "robots"),
)
def test_the_files_for_the_alerts_fit_the_schema_of_their_readers(section, text):
    schema = section.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    loader.parse(section, text, "mine.yaml")
    jsonschema.validate(yaml.safe_load(text), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(text), "colour": "red"}, schema)
