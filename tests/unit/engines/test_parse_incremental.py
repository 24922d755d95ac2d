"""Reading a page by where its lines stood must give what reading it afresh gives, whatever became of the page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exporter.engines.parse.incremental import DeltaReader
from exporter.engines.parse.layout import Values
from exporter.engines.parse.text import PageReader
from exporter.errors import PageError
from tests.support.examples import examples


def wanted(name: str) -> bool:
    return name.startswith("w")


def page(lines: list[tuple[str, int, float]]) -> bytes:
    return "".join(f'{kind}_total{{id="{number}"}} {value}\n' for kind, number, value in lines).encode()


def meaning(values: Values) -> dict[str, float]:
    return {str(series): number for series, number in zip(values.layout.series(), values.numbers, strict=True)}


def outcome(reader: PageReader, body: bytes) -> object:
    try:
        values = reader.read(body)
    except PageError as error:
        return error.reason
    return meaning(values), values.complete  # a known series with a bad value is odd in another word than a new one


def test_an_unwanted_last_line_that_is_cut_although_the_page_is_no_shorter_marks_the_page():
    reader = PageReader(wanted)
    whole, cut = b'w 1\nu{id="0"} 1\nu{id="1"} 1\n', b'w 2\nu{id="0"} 1\nu{id="123456'
    assert len(whole) == len(cut)
    assert reader.read(whole).complete is True
    assert reader.read(cut).complete is False


KINDS = st.sampled_from(["w", "u", "w", "w"])
NUMBERS = st.integers(0, 10**6).map(float)
STEPS = st.lists(
    st.tuples(st.sampled_from(["change", "add", "drop", "cut", "same"]), st.integers(0, 10**6), KINDS, NUMBERS),
    max_size=8,
)


@examples(300)
@given(st.lists(st.tuples(KINDS, NUMBERS), min_size=1, max_size=90), STEPS)
def test_a_page_read_by_its_places_means_what_a_fresh_reader_finds(start, steps):
    lines = [(kind, number, value) for number, (kind, value) in enumerate(start)]
    reader = PageReader(wanted)
    reader.read(page([("w", -1, 1.0), *lines]))
    for number, (what, anywhere, kind, value) in enumerate(steps):
        place = anywhere % max(1, len(lines))
        if what == "change":
            for each in range(place, len(lines), 7):
                lines[each] = (*lines[each][:2], value)
        elif what == "add":
            lines.insert(place, (kind, 1_000 + number, value))
        elif what == "drop" and lines:
            del lines[place]
        body = page([("w", -1, 1.0), *lines])
        if what == "cut":
            body = body[: len(body) - place % len(body)]
        fresh = PageReader(wanted)
        fresh.read(page([("w", -1, 1.0)]))  # of a server that ends its pages with a line end
        assert outcome(reader, body) == outcome(fresh, body)


def test_a_page_with_other_values_is_read_by_its_places():
    lines = [(kind, number, 1.0) for number, kind in enumerate("wwuuwuwww" * 8)]
    body = page(lines)
    places = [(index, line.rpartition(b" ")[0]) for index, line in enumerate(body.split(b"\n")) if line[:1] == b"w"]
    reader = DeltaReader(body.split(b"\n"), places, [1.0] * len(places))
    for value in (2.0, 123456.0, 3.5):
        assert reader.read(page([(kind, number, value) for kind, number, _ in lines])) == [value] * len(places)
    assert reader.read(page([*lines[:3], ("u", 999, 1.0), *lines[3:]])) is None
    assert reader.read(page(lines)[:-1]) is None
    assert reader.read(page(lines).replace(b" 1.0\n", b" x\n", 1)) is None
