"""Ready pages: forms, freshness, and what is rendered when."""

from __future__ import annotations

import gzip

from exporter.catalog.spec import Series
from exporter.render.pages import TOO_OLD, WANTED_FOR, PageStore
from tests.support.builders import Clock, card, snapshot

FORMS = [(openmetrics, packed) for openmetrics in (False, True) for packed in (False, True)]


def test_there_is_no_page_before_the_first_edition():
    assert PageStore(clock=Clock()).page(openmetrics=False, gzip=False) is None


def test_every_form_shows_the_same_edition():
    store = PageStore(clock=Clock())
    store.publish(snapshot(cards=(card(0),)), lambda openmetrics: "# extra\n")
    bodies = {form: store.page(openmetrics=form[0], gzip=form[1]) for form in FORMS}
    for openmetrics in (False, True):
        assert gzip.decompress(bodies[openmetrics, True]) == bodies[openmetrics, False]
        assert b"# extra\n" in bodies[openmetrics, False]
    assert bodies[True, False].endswith(b"# EOF\n")
    assert b"# EOF" not in bodies[False, False]


def test_a_form_in_demand_is_rendered_when_published_and_served_as_the_same_bytes():
    store = PageStore(clock=Clock())
    store.publish(snapshot())
    store.page(openmetrics=True, gzip=True)
    store.publish(snapshot())
    ready = store._edition.bodies[True, True]
    assert store.page(openmetrics=True, gzip=True) is ready
    assert (False, False) not in store._edition.bodies


def test_a_form_that_nobody_asks_for_any_more_is_no_longer_rendered():
    clock = Clock()
    store = PageStore(clock=clock)
    store.publish(snapshot())
    store.page(openmetrics=False, gzip=False)
    clock.tick(WANTED_FOR + 1)
    store.publish(snapshot())
    assert store._edition.bodies == {}


def test_a_page_that_is_too_old_is_not_shown():
    clock = Clock()
    store = PageStore(clock=clock)
    store.publish(snapshot())
    clock.tick(TOO_OLD + 0.1)
    assert store.page(openmetrics=False, gzip=False) is None
    store.publish(snapshot())
    assert store.page(openmetrics=False, gzip=False) is not None


def test_the_set_of_series_can_change_between_editions():
    store = PageStore(series=Series.COMMON, clock=Clock())
    one = snapshot(cards=(card(0, encoder_utilization=0.5),))
    store.publish(one)
    assert b"gpu_encoder_utilization_ratio" not in store.page(openmetrics=False, gzip=False)
    store.use(Series.FULL)
    store.publish(one)
    assert b"gpu_encoder_utilization_ratio" in store.page(openmetrics=False, gzip=False)
