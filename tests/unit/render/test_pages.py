"""Rendered pages: formats, freshness, and what is rendered when."""

from __future__ import annotations

import gzip

import pytest

from exporter.catalog.spec import SeriesSet
from exporter.render.pages import MAX_AGE, PageStore
from tests.support.builders import Clock, card, snapshot

FORMS = [(openmetrics, packed) for openmetrics in (False, True) for packed in (False, True)]


def test_there_is_no_page_before_the_first_edition():
    assert PageStore(clock=Clock()).page(openmetrics=False, gzip=False) is None


def test_every_format_shows_the_same_snapshot():
    store = PageStore(process_metrics=lambda openmetrics: f"# openmetrics={openmetrics}\n", clock=Clock())
    store.publish(snapshot(cards=(card(0),)))
    bodies = {form: store.page(openmetrics=form[0], gzip=form[1]) for form in FORMS}
    for openmetrics in (False, True):
        assert gzip.decompress(bodies[openmetrics, True]) == bodies[openmetrics, False]
        assert f"# openmetrics={openmetrics}\n".encode() in bodies[openmetrics, False]
    assert bodies[True, False].endswith(b"# EOF\n")
    assert b"# EOF" not in bodies[False, False]


def test_a_format_is_rendered_when_it_is_first_asked_for_and_once_per_snapshot():
    rendered = []
    store = PageStore(process_metrics=lambda openmetrics: rendered.append(openmetrics) or "", clock=Clock())
    for _ in range(3):
        store.publish(snapshot())
    assert rendered == []  # whoever is never scraped pays for no rendering
    first = store.page(openmetrics=True, gzip=True)
    assert store.page(openmetrics=True, gzip=True) is first
    store.page(openmetrics=True, gzip=False)
    assert rendered == [True]
    store.publish(snapshot())
    assert store.page(openmetrics=True, gzip=False) is not None
    assert rendered == [True, True]


@pytest.mark.parametrize(
    ("period", "offsets"),
    [(1.0, (0.3,)), (15.0, (0.3,)), (15.0, (0.3, 4.6)), (1.0, (0.3, 0.7))],
    ids=["every second", "every 15 s", "two every 15 s", "two every second"],
)
def test_regular_scrapers_find_their_format_rendered_and_it_is_rendered_once_a_scrape(period, offsets):
    clock, rendered, waited = Clock(), [], []
    store = PageStore(process_metrics=lambda openmetrics: rendered.append(clock.now) or "", clock=clock)
    scrapes = sorted(1000.0 + offset + period * number for offset in offsets for number in range(12))
    published = 1000.0
    for at in scrapes:
        while published <= at:
            clock.now = published
            store.publish(snapshot())
            published += 1.0
        clock.now = at
        before = len(rendered)
        store.page(openmetrics=False, gzip=True)
        waited.append(len(rendered) > before)
    assert not any(waited[6:])
    assert len(rendered) <= len(scrapes)


def test_a_scraper_that_stays_away_costs_nothing():
    clock, rendered = Clock(), []
    store = PageStore(process_metrics=lambda openmetrics: rendered.append(clock.now) or "", clock=clock)
    for second in range(600):
        clock.tick(1.0)
        store.publish(snapshot())
        if second < 10:
            store.page(openmetrics=False, gzip=False)
    assert len(rendered) <= 12


def test_a_page_that_is_too_old_is_not_shown():
    clock = Clock()
    store = PageStore(clock=clock)
    store.publish(snapshot())
    clock.tick(MAX_AGE + 0.1)
    assert store.page(openmetrics=False, gzip=False) is None
    store.publish(snapshot())
    assert store.page(openmetrics=False, gzip=False) is not None


def test_the_set_of_series_can_change_between_editions():
    store = PageStore(series=SeriesSet.COMMON, clock=Clock())
    first = snapshot(cards=(card(0, encoder_utilization=0.5),))
    store.publish(first)
    assert b"gpu_encoder_utilization_ratio" not in store.page(openmetrics=False, gzip=False)
    store.use(SeriesSet.FULL)
    store.publish(first)
    assert b"gpu_encoder_utilization_ratio" in store.page(openmetrics=False, gzip=False)
