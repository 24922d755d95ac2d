"""A page of every engine truncated, doubled, or followed by another engine's under the same URL."""

from __future__ import annotations

import pytest

from exporter.engines.detect import recognise
from exporter.engines.parse.text import PageReader
from exporter.errors import PageError
from tests.support.builders import Clock
from tests.support.engine_pages import CAPTURES, interpret, make_poller, page, poll, polled


def one_of_each():
    """Return the smallest capture of each kind of engine."""
    by_kind = {}
    for path in sorted(CAPTURES.glob("*.prom"), key=lambda path: path.stat().st_size):
        engine = recognise(path.read_bytes())
        if engine is not None:
            by_kind.setdefault(engine.kind, path.stem)
    return by_kind


NAMES = one_of_each()


@pytest.mark.parametrize("kind", NAMES)
def test_a_truncated_page_shows_nothing_that_the_whole_page_does_not(kind):
    body = page(NAMES[kind])
    whole = interpret(body)
    for end in range(0, len(body), len(body) // 40):
        try:
            part = interpret(body[:end], recognise(body))
        except PageError:
            continue
        assert part.ranks.keys() <= whole.ranks.keys()
        for rank, quantities in part.ranks.items():
            assert quantities.keys() <= whole.ranks[rank].keys()


@pytest.mark.parametrize("kind", NAMES)
def test_a_doubled_page_counts_once(kind):
    body = page(NAMES[kind])
    assert interpret(body + body).ranks == interpret(body).ranks


@pytest.mark.parametrize("kind", [kind for kind in NAMES if kind != "vllm"])
def test_a_server_that_changes_kind_under_its_url_is_read_as_what_it_is(kind):
    clock = Clock(1000.0)
    poller = make_poller([page(NAMES[kind]), page(NAMES["vllm"])], clock)
    for expected in (kind, "vllm"):
        poll(poller)
        clock.tick(5.0)
        assert poller.state.labels.engine == expected


def test_a_counter_cut_within_its_number_is_neither_a_restart_nor_a_rate():
    def body(tokens):
        return f"vllm:num_requests_running 3\nvllm:generation_tokens_total {tokens}\n".encode()

    pages = [body(100_000), body(100_500), body(101_000)[:-3], body(101_500), body(102_000)]
    clock = Clock()
    state = polled(make_poller(pages, clock), clock, len(pages))
    assert state.restarts == 0
    assert state.windows["1m"].generation_token_rate == pytest.approx(50.0)  # each page 10 s later


def test_a_page_cut_behind_a_sample_is_incomplete():
    body = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n"
    reader = PageReader(lambda _: True)
    assert reader.read(body).complete
    assert not reader.read(body[:-1]).complete
