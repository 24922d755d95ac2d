"""What somebody sees who opens a dashboard at 1080p: few panels, the answer without scrolling, headers that are read whole."""

from __future__ import annotations

import pytest

from dashboards.panels.panel import Colour
from tests.support.dashboard_queries import LANGUAGES, UIDS, dashboard, panels

MAX_OPEN = 12
SCREEN = 24  # lines of 38 pixels below Grafana's bars
WIDE = 24
PIXELS_PER_COLUMN = 1860 / 24


def opened(uid):
    return [panel for panel in dashboard(uid)["panels"] if panel["type"] != "row"]


def rows(uid):
    return [panel for panel in dashboard(uid)["panels"] if panel["type"] == "row"]


@pytest.mark.parametrize("uid", UIDS)
def test_a_dashboard_opens_with_at_most_twelve_panels(uid):
    assert len(opened(uid)) <= MAX_OPEN


@pytest.mark.parametrize("uid", UIDS)
def test_the_status_strip_is_thin_and_the_answer_below_it_ends_on_the_first_screen(uid):
    first, second, third = [row["gridPos"]["y"] for row in rows(uid)][:3]
    assert first == 0 and second <= 4
    assert third <= SCREEN


def test_the_first_dashboard_is_one_screen():
    assert max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in opened("shardwatch-now")) <= SCREEN


@pytest.mark.parametrize("uid", UIDS)
def test_whole_rows_are_collapsed_and_stand_below_the_open_ones(uid):
    closed = [bool(row.get("collapsed")) for row in rows(uid)]
    assert closed == sorted(closed)


@pytest.mark.parametrize("uid", UIDS)
def test_every_line_of_open_panels_fills_the_width(uid):
    by_line = {}
    for panel in opened(uid):
        by_line.setdefault(panel["gridPos"]["y"], []).append(panel)
    for line in by_line.values():
        assert sum(panel["gridPos"]["w"] for panel in line) == WIDE, [panel["title"] for panel in line]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("uid", UIDS)
def test_no_panels_title_is_cut(uid, language):
    """A Chinese character is twice as wide as a Latin one; a title has 14 pixels a Chinese character."""
    for panel in panels(dashboard(uid, language)):
        width = sum(14 if ord(character) > 0x2E80 else 7.5 for character in panel["title"])
        assert width + 60 <= panel["gridPos"]["w"] * PIXELS_PER_COLUMN, panel["title"]


@pytest.mark.parametrize("uid", UIDS)
def test_token_rates_are_tokens_per_second(uid):
    for panel in panels(dashboard(uid)):
        if panel["title"].startswith(("Tokens per second", "Tokens generated", "Tokens by replica")):
            assert panel["fieldConfig"]["defaults"]["unit"].endswith(":tok/s"), panel["title"]


def test_what_is_down_or_frozen_is_red_on_every_dashboard():
    mappings = [
        mapping
        for uid in UIDS
        for panel in panels(dashboard(uid))
        for mapping in panel.get("fieldConfig", {}).get("defaults", {}).get("mappings", ())
        if mapping["type"] == "value"
    ]
    options = [option for mapping in mappings for option in mapping["options"].values()]
    colours = {option["color"] for option in options if option.get("text") in {"down", "frozen"}}
    assert colours == {Colour.CRITICAL.value}


def table_headers(shown):
    """Return (width in pixels, title) of each column of a table; a column without a width gets its share of the rest."""
    given = {}
    for override in shown["fieldConfig"]["overrides"]:
        for item in override["properties"]:
            if item["id"] == "custom.width":
                given[override["matcher"]["options"]] = item["value"]
    organise = shown["transformations"][-1]["options"]
    names = [name for key, name in organise["renameByName"].items() if not organise["excludeByName"].get(key)]
    rest = shown["gridPos"]["w"] * 1560 / 24 - sum(given.get(name, 0) for name in names)
    share = rest / max(1, sum(name not in given for name in names))
    return [(given.get(name, max(share, 80)), name) for name in names]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("uid", UIDS)
def test_no_header_of_an_open_table_is_cut(uid, language):
    for shown in (panel for panel in dashboard(uid, language)["panels"] if panel["type"] == "table"):
        for width, name in table_headers(shown):
            letters = sum(13 if ord(character) > 0x2E80 else 6.6 for character in name)
            assert letters + 14 <= width, (shown["title"], name, width)
