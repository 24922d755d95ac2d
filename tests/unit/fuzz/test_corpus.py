"""What fuzzing kept, and the seeds that it starts from, read once more: a find stays fixed."""

from __future__ import annotations

import pytest

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS

MAX_FILES, MAX_BYTES = 60, 8_192  # of a target; of a file


@pytest.mark.parametrize("target", TARGETS)
def test_what_fuzzing_kept_is_read_as_promised(target):
    paths = corpus.kept(target)
    assert 0 < len(paths) <= MAX_FILES
    for path in paths:
        data = path.read_bytes()
        assert len(data) <= MAX_BYTES, path
        TARGETS[target].check(data)


@pytest.mark.parametrize("target", TARGETS)
def test_the_seeds_are_read_as_promised(target):
    number = 0
    for number, seed in enumerate(TARGETS[target].seeds(), 1):
        TARGETS[target].check(seed)
    assert number >= 3


def test_there_is_no_corpus_without_a_target():
    assert {path.name for path in corpus.FOLDER.iterdir()} == set(TARGETS)


def test_a_check_fails_where_a_reader_raises_what_it_should_not(monkeypatch):
    def broken(_):
        raise KeyError("le")

    monkeypatch.setattr("tests.fuzz.targets.parse_request", lambda *_, **__: broken(None))
    with pytest.raises(KeyError):
        TARGETS["request"].check(b"GET / HTTP/1.1\r\n\r\n")


def test_the_makefile_names_every_target():
    makefile = (corpus.FOLDER.parents[2] / "Makefile").read_text()
    assert f"# TARGET: {', '.join(TARGETS)}.\n" in makefile
