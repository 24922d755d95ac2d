"""The page reader against hand-made pages and against prometheus_client's parser."""

from __future__ import annotations

import contextlib
import math
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from exporter.engines.parse.churn import SeriesChurn
from exporter.engines.parse.text import (
    FULL_READING_EVERY,
    MAX_CACHE_BYTES,
    MAX_LINES,
    MAX_UNREADABLE,
    REMEMBERED_AT_ONCE,
    PageReader,
)
from exporter.errors import PageError
from tests.support.examples import examples

CAPTURES = sorted((pathlib.Path(__file__).parents[2] / "captures").glob("*.prom"))


def read(*pages: bytes, wanted=lambda name: True):
    reader = PageReader(wanted)
    for page in pages:
        values = reader.read(page)
    return values


def as_dict(values):
    return {
        (series.name, tuple(sorted(series.labels.items()))): number
        for series, number in zip(values.layout.series(), values.numbers, strict=True)
    }


def as_written(name: str, page: bytes) -> str:
    """Undo the reference parser's habit of adding _total to counters that have none (TGI, Triton)."""
    bare = name.removesuffix("_total")
    return bare if f"# TYPE {bare} counter\n".encode() in page else name


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_every_capture_reads_as_the_reference_parser_reads_it(path):
    page = path.read_bytes()
    expected = {
        (as_written(sample.name, page), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }
    once, twice = as_dict(read(page)), as_dict(read(page, page))
    assert once.keys() == expected.keys()
    assert all(once[key] == value or (math.isnan(value) and math.isnan(once[key])) for key, value in expected.items())
    assert twice.keys() == once.keys()


def test_the_layout_is_the_same_object_while_the_series_stay():
    reader = PageReader(lambda name: True)
    first = reader.read(b'a{x="1"} 1\nb 2\n')
    second = reader.read(b'a{x="1"} 5\nb 6\n')
    third = reader.read(b'a{x="1"} 5\n')
    assert second.layout is first.layout
    assert second.numbers == [5.0, 6.0]
    assert third.layout is not first.layout
    assert [series.name for series in third.layout.series()] == ["a"]


def test_a_wanted_series_that_takes_an_unwanted_ones_line_is_found_within_sixteen_pages():
    reader = PageReader(lambda name: name != "other")
    for _ in range(3):
        reader.read(b"a 1\nother 5\nb 2\n")
    series_counts = [len(reader.read(b"a 1\nnew 5\nb 2\n").numbers) for _ in range(FULL_READING_EVERY + 1)]
    assert series_counts[-1] == 3


@pytest.mark.parametrize(
    "page", [b"b 2\na 1\nc 3\n", b"a 1\nb 2\n", b"a 1\nb x\nc 3\n", b"a 1\nb 2 99\nc 3\n", b"a 1\nbb 2\nc 3\n"]
)
def test_a_page_that_changed_its_shape_reads_like_a_first_page(page):
    reader = PageReader(lambda name: True)
    for _ in range(2):
        reader.read(b"a 1\nb 2\nc 3\n")
    again, first = reader.read(page), read(page)
    assert as_dict(again) == as_dict(first)
    assert again.parse_warnings == first.parse_warnings


def test_unwanted_series_are_neither_kept_nor_converted():
    values = read(b"a nonsense\nb 2\n", b"a nonsense\nb 3\n", wanted=lambda name: name == "b")
    assert as_dict(values) == {("b", ()): 3.0}
    assert values.parse_warnings == {}


def test_escapes_in_label_values_come_out_exactly():
    values = read(b'e{m="a\\"b\\\\c\\nd",n="}{,=\\""} 1\n')
    assert values.layout.series()[0].labels == {"m": 'a"b\\c\nd', "n": '}{,="'}


def test_blanks_where_the_format_allows_them_change_nothing():
    expected = {("name", (("a", "b"), ("c", "d"))): 3.0}
    for line in (b'name { a = "b" , c = "d" , } 3', b'name{a="b",c="d"}3', b'name\t{a="b",c="d",}\t3 '):
        values = read(line + b"\n", line + b"\n")
        assert (as_dict(values), values.parse_warnings) == (expected, {}), line


def test_an_underscore_in_a_number_is_none_on_the_first_page_and_on_a_later_one():
    assert read(b"a 1_0\nb 2\n").parse_warnings == {"bad_value": 1}
    values = read(b"a 1\nb 2\n", b"a 10\nb 2\n", b"a 1_0\nb 2\n")
    assert (as_dict(values), values.parse_warnings) == ({("b", ()): 2.0}, {"bad_value": 1})


def test_timestamps_and_exemplars_are_ignored_page_after_page():
    reader = PageReader(lambda name: True)
    for stamp in (1000, 2000):
        values = reader.read(b'a{x="1"} 7 %d\nb_total 3 # {trace_id="x y"} 0.5 1.0\n# EOF\n' % stamp)
        assert as_dict(values) == {("a", (("x", "1"),)): 7.0, ("b_total", ()): 3.0}


def test_crlf_and_pages_that_never_end_with_a_line_end_are_accepted():
    assert as_dict(read(b"a 1\r\nb 2\r\n")) == as_dict(read(b"a 1\nb 2")) == {("a", ()): 1.0, ("b", ()): 2.0}
    assert read(b"a 1\nb 2").complete


def test_a_number_without_a_line_end_is_not_read_and_marks_the_page():
    reader = PageReader(lambda _: True)
    reader.read(b"a 1\nb 23\n")
    values = reader.read(b"a 1\nb 2")
    assert (as_dict(values), values.complete, values.parse_warnings) == ({("a", ()): 1.0}, False, {"unreadable": 1})


def test_a_page_that_ends_in_a_comment_without_a_line_end_is_whole():
    assert read(b"a 1\n# EOF").complete
    assert not read(b"a 1\nb{").complete


def test_a_line_cut_in_the_middle_is_skipped_and_marks_the_page():
    values = read(b'a 1\nvllm:generation_tokens_total{engine="0",mod')
    assert as_dict(values) == {("a", ()): 1.0}
    assert values.complete is False
    assert values.parse_warnings == {"unreadable": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"%%% what is this", "unreadable"),
        (b"b twelve", "bad_value"),
        (b'd{x="1",x="2"} 1', "unreadable"),
        (b'd{x="\xff\xfe"} 1', "unreadable"),
        (b'd{x="1"', "unreadable"),
        (b'd{x="1" y="2"} 1', "unreadable"),
        (b"z" * 20_000 + b" 1", "long_line"),
        (b"l{" + b",".join(b'k%d="v"' % i for i in range(20_000)) + b"} 1", "long_line"),
    ],
)
def test_one_bad_line_costs_only_itself(line, reason):
    values = read(b"a 1\n" + line + b"\nc 3\n")
    assert as_dict(values) == {("a", ()): 1.0, ("c", ()): 3.0}
    assert values.parse_warnings == {reason: 1}


def test_a_repeated_series_keeps_its_first_value_and_is_counted():
    for pages in ([b'd{x="1"} 1\nd{x="1"} 2\nok 1\n'], [b'd{x="1"} 1\nd{x="1"} 2\nok 1\n'] * 2):
        values = read(*pages)
        assert as_dict(values) == {("d", (("x", "1"),)): 1.0, ("ok", ()): 1.0}
        assert values.parse_warnings == {"duplicate": 1}


@pytest.mark.parametrize("page", [b"<html><body>login</body></html>\n", bytes(range(256)) * 100, b"\x00\x01\x02"])
def test_what_is_no_metrics_page_is_refused_by_content(page):
    with pytest.raises(PageError) as caught:
        read(page)
    assert caught.value.reason == "not_metrics"


def test_a_page_of_which_more_than_a_thousand_lines_cannot_be_read_is_none_though_one_can():
    bad = b"%%%\n" * MAX_UNREADABLE
    assert read(b"a 1\n" + bad).parse_warnings == {"unreadable": MAX_UNREADABLE}
    with pytest.raises(PageError) as caught:
        read(b"a 1\n" + bad + b"%%%\n")
    assert caught.value.reason == "not_metrics"


def test_more_lines_than_the_cap_refuse_the_page_and_the_next_page_is_read():
    reader = PageReader(lambda name: True)
    with pytest.raises(PageError) as caught:
        reader.read(b"".join(b'a{i="%d"} 1\n' % i for i in range(MAX_LINES + 1)))
    assert caught.value.reason == "too_many_lines"
    assert as_dict(reader.read(b"a 1\n")) == {("a", ()): 1.0}


@pytest.mark.parametrize("junk", [b"#\n" * (MAX_LINES + 1), b"<html>\n" * (MAX_UNREADABLE + 1)])
def test_what_stood_on_a_refused_page_is_never_shown_as_the_next_pages(junk):
    def page(value, rest=b""):
        return b"".join(b'a{i="%d"} %d\n' % (i, value) for i in range(5)) + b"# end\n" + rest

    reader = PageReader(lambda name: True)
    reader.read(page(1))
    with pytest.raises(PageError):
        reader.read(page(2, junk))
    assert reader.read(page(2)).numbers == [2.0] * 5


@pytest.mark.parametrize("series", [b'wanted{page="%d",i="%d"}', b'other{page="%d",i="%d"}', b"other_%d_%d"])
def test_new_series_on_every_page_do_not_fill_memory(series):
    """Kept is what the cache may hold and one page more; a line here costs at most its 30 bytes and 100."""
    reader = PageReader(lambda name: name == "wanted")
    refused = 0
    for page in range(40):
        try:
            values = reader.read(b"".join(series % (page, i) + b" 1\n" for i in range(5_000)) + b"wanted 1\n")
        except PageError:
            refused += 1
        else:
            assert len(values.numbers) == (5_001 if series.startswith(b"wanted") else 1)
        assert len(reader._slots) + len(reader._unwanted) < MAX_CACHE_BYTES / 100 + 5_000
        assert reader._cached_bytes < MAX_CACHE_BYTES + 5_001 * 130
    assert refused >= 36 or series.startswith(b"other"), "series that are not read cost next to nothing"


def test_series_text_beyond_the_cache_rejects_the_page_and_drops_it():
    reader = PageReader(lambda name: True)
    padding = b"a" * 2_200
    for _ in range(3):
        with pytest.raises(PageError) as caught:
            reader.read(b"".join(b'a{i="%d",x="%s"} 1\n' % (i, padding) for i in range(1_000)))
        assert caught.value.reason == "series_too_large"
        assert not reader._slots
        assert not reader._cached_bytes
    assert as_dict(reader.read(b"a 1\n")) == {("a", ()): 1.0}


def test_known_and_new_series_together_are_bounded():
    reader = PageReader(lambda name: True)
    first = b"".join(b'a{i="%d",x="%s"} 1\n' % (i, b"a" * 2_200) for i in range(600))
    reader.read(first)
    with pytest.raises(PageError) as caught:
        reader.read(first + first.replace(b"a{", b"b{"))
    assert caught.value.reason == "series_too_large"


@pytest.mark.parametrize("padding", [0, 500, 1_900])
def test_padded_series_do_not_switch_the_limit_of_new_series_off(padding):
    reader = PageReader(lambda name: True)
    refused = []
    for page in range(12):
        number = page * 1_000
        lines = [b'a{i="%d",x="%s"} 1\n' % (number + i, b"a" * padding) for i in range(1_000)]
        try:
            reader.read(b"".join(lines))
        except PageError as error:
            refused.append(error.reason)
    assert len(refused) >= 8
    assert set(refused) == {"series_churn"}


def test_after_the_churn_the_next_page_without_new_series_is_read():
    reader = PageReader(lambda name: True)
    for page in range(10):
        body = b"".join(b'a{page="%d",i="%d"} 1\n' % (page, i) for i in range(1_000))
        with contextlib.suppress(PageError):
            reader.read(body)
    assert len(reader._slots) == 0
    for needed in (1, 2, 4):
        for value in range(needed):
            with pytest.raises(PageError, match="label values must not change"):
                reader.read(b"".join(b'a{page="x%d",i="%d"} %d\n' % (needed, i, value) for i in range(1_000)))
        page = b"".join(b'a{page="x%d",i="%d"} 2\n' % (needed, i) for i in range(1_000))
        assert reader.read(page).numbers == reader.read(page).numbers == [2.0] * 1_000
    assert len(reader._slots) == 1_000, "what was on earlier pages is forgotten"


def large_page(name, numbers, value):
    return b"".join(b'a{page="%s",i="%d"} %d\n' % (name, i, value) for i in numbers)


def test_a_large_page_whose_series_are_mostly_new_is_remembered_when_they_come_again():
    reader = PageReader(lambda name: True)
    many = range(REMEMBERED_AT_ONCE // 100)
    for name in (b"x", b"y"):
        assert sum(reader.read(large_page(name, many, 3)).numbers) == 3 * len(many)
        assert not reader._slots
        assert reader.read_known(large_page(name, many, 4)) is None
    assert sum(reader.read(large_page(b"y", many, 4)).numbers) == 4 * len(many)
    assert len(reader._slots) == len(many)
    assert sum(reader.read_known(large_page(b"y", many, 5)).numbers) == 5 * len(many)


def test_a_large_page_that_grows_from_poll_to_poll_is_no_churn_and_is_remembered():
    reader = PageReader(lambda name: True)
    many = REMEMBERED_AT_ONCE // 100
    for page in range(20):
        values = reader.read(large_page(b"x", range(many + 5 * page), page))
        assert values.numbers == [page] * (many + 5 * page)
    assert len(reader._slots) == many + 5 * 19


def test_other_models_in_turn_and_a_word_now_and_then_are_no_churn():
    churn = SeriesChurn()
    for model in range(3):  # another reader each, as for another engine
        reader = PageReader(lambda name: True, churn)
        for page in range(20):
            lines = [b'a{model="%d",i="%d"} 1\n' % (model, i) for i in range(1_500)]
            lines += [b'word{w="%d"} 1\n' % number for number in range(min(page, 8))]
            assert len(reader.read(b"".join(lines)).numbers) == 1_500 + min(page, 8)


NAME = st.sampled_from(["a", "vllm:x", "b_total", "c_bucket"])
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
LABELS = st.dictionaries(st.sampled_from(["le", "engine", "model_name", "k"]), TEXT, max_size=3)
NUMBER = st.floats(allow_nan=False) | st.integers(-(10**15), 10**15).map(float)


def line(name, labels, value):
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
    inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    return f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n"


@given(st.dictionaries(st.tuples(NAME, LABELS.map(lambda d: tuple(sorted(d.items())))), NUMBER, max_size=8))
def test_any_labels_and_numbers_survive_a_round_trip(samples):
    page = "".join(line(name, dict(labels), value) for (name, labels), value in samples.items())
    reader = PageReader(lambda name: True)
    for _ in range(2):
        assert as_dict(reader.read(page.encode())) == samples


@examples(300)
@given(st.lists(st.binary(max_size=60) | st.just(b'a{x="1"} 1'), max_size=12))
def test_no_bytes_whatsoever_raise_anything_but_a_page_error(lines):
    reader = PageReader(lambda name: True)
    for _ in range(2):
        try:
            values = reader.read(b"\n".join(lines))
        except PageError:
            continue
        assert len(values.numbers) == len(values.layout.texts)
