"""Files that users edit for the alerts: everything wrong is told at once, by path and line, and quotes no value."""

from __future__ import annotations

import pytest

from alerts.yaml_reader import Reading, read_whole
from exporter.errors import SettingsError


def refused(text, make):
    with pytest.raises(SettingsError) as caught:
        read_whole(text, "mine.yaml", make)
    return [(problem.path, problem.message, problem.line) for problem in caught.value.problems]


def test_what_is_made_of_a_good_file_is_given_and_nothing_is_made_of_a_bad_one():
    def make(reading, root):
        return reading.text(reading.keys(root, "", ("job",))["job"], "job")

    assert read_whole("job: gpu-nodes", "mine.yaml", make) == "gpu-nodes"
    with pytest.raises(SettingsError, match="mine.yaml"):
        read_whole("job: gpu-nodes\nx: 1", "mine.yaml", make)


def test_problems_of_the_text_and_of_its_meaning_are_told_together():
    def make(reading, root):
        reading.items(root.value["teams"], "teams", "teams")
        reading.text(root.value["job"], "job")

    assert refused("job: []\njob: a\nteams: 7", make) == [
        ("job", "repeats the key of line 1; keep one of the two", 2),
        ("teams", "must be a list of teams", 3),
        ("job", "must be text", 1),
    ]


def test_an_unknown_key_is_told_with_its_line_the_known_ones_and_the_nearest():
    def make(reading, root):
        assert set(reading.keys(root, "", ("receivers", "routes"))) == {"routes"}

    assert refused("routes: {}\n\nreciever:\n  a: 1", make) == [
        ("reciever", "unknown; known: receivers, routes; did you mean receivers?", 3)
    ]
    assert refused("routes: {}\ncolour: red", make) == [("colour", "unknown; known: receivers, routes", 2)]


def test_a_key_that_may_be_a_secret_is_not_quoted():
    def make(reading, root):
        reading.keys(root, "links", ("runbook",))

    assert refused("xoxb-17653285439-AbCdEf: 1", make) == [("links.?", "unknown; known: runbook", 1)]


def test_a_word_stands_for_what_it_names_and_any_other_is_refused_with_the_known_ones():
    def make(reading, root):
        return [reading.word(node, "when", {"day": 1, "night": 2}) for node in root.value.values()]

    assert read_whole("a: day\nb: night", "mine.yaml", make) == [1, 2]
    assert refused("a: day\nb: nights", make) == [("when", "unknown; known: day, night; did you mean night?", 2)]
    assert refused("a: [day]", make) == [("when", "unknown; known: day, night", 1)]


def test_what_is_not_there_is_empty_and_no_problem():
    reading = Reading([])
    assert (reading.keys(None, "links", ("runbook",)), reading.items(None, "teams", "teams")) == ({}, ())
    assert reading.problems == []
