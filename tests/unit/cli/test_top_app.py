"""The keys and the screen of ``shardwatch top``, with Textual's pilot and documents instead of daemons."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from textual.widgets import DataTable, Static

from exporter.cli.check_nodes import Answer
from exporter.cli.top_app import TopApp
from exporter.cli.top_model import NodeState, updated
from exporter.model.text import Language
from exporter.render import api_documents
from tests.support.web_node import big_node, malicious_snapshot, served

MALICIOUS = "[red]x[/red]\x1b[2J\n\u202eevil[@click=app.quit]a[/] 中文" + "y" * 10_000
SMALL, WIDE = (80, 24), (160, 50)


def state(scenario, language=Language.ENGLISH, name="http://node1:9853"):
    """Return a node at the end of a scenario."""
    return updated(NodeState(name=name), Answer(url=name, document=served(scenario, language)))


def of(snapshot, language=Language.ENGLISH, name="http://node1:9853"):
    return updated(NodeState(name=name), Answer(url=name, document=api_documents.node(snapshot, language)))


def drive(script, *states, size=SMALL, language=Language.ENGLISH):
    """Run the app on these nodes; the script moves it and looks."""

    async def session():
        known = list(states)
        app = TopApp(lambda: known, language, lambda: known[0].document.time + 1 if known[0].document else 0.0)
        app.known = known
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)
        return app

    return asyncio.run(session())


def screen(app):
    """Return the lines of the screen as a reader sees them."""
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in lines)


def first_cells(app):
    table = app.query_one(DataTable)
    return [table.get_row_at(number)[0].plain for number in range(table.row_count)]


@pytest.mark.parametrize("size", [SMALL, WIDE])
@pytest.mark.parametrize(
    ("scenario", "shown"),
    [
        ("heat", ["▲ WARNING", "GPU 2: thermal throttling", "1. "]),
        ("hang", ["■ CRITICAL", "cause: GPU 6 is lost", "1. Take chat-b out of gateway edge."]),
        ("healthy", []),
    ],
)
def test_the_first_screen_names_gpu_cause_and_next_step_without_a_key(scenario, shown, size):
    async def script(app, pilot):
        text = screen(app)
        if scenario == "healthy":
            assert "[2 GPUs (8)]" in text
            await pilot.press("1")
            assert "No findings" in screen(app)
        else:
            assert [word for word in shown if word not in text] == []

    drive(script, state(scenario), size=size)


def test_tab_goes_through_the_tables_and_numbers_choose_one():
    async def script(app, pilot):
        headings = []
        for key in ("1", "tab", "tab", "tab", "tab", "shift+tab", "2"):
            await pilot.press(key)
            headings.append(app._tables[app._shown].id)
        assert headings == ["findings", "gpus", "replicas", "nodes", "findings", "nodes", "gpus"]

    drive(script, state("heat"))


def test_sorting_goes_through_the_columns_and_is_marked_and_reversed():
    async def script(app, pilot):
        await pilot.press("2", "s", "s", "s", "s")
        assert app._sorts[1] == 3
        labels = [column.label.plain for column in app.query_one(DataTable).ordered_columns]
        assert [label for label in labels if "▲" in label] == ["Util▲"]
        ascending = [row.cells[3].number for row in app._rows]
        assert ascending == sorted(ascending)
        await pilot.press("r")
        assert [row.cells[3].number for row in app._rows] == ascending[::-1]
        await pilot.press("S", "S", "S", "S", "r")
        assert first_cells(app) == [str(number) for number in range(8)]

    drive(script, state("heat"))


def test_a_filter_narrows_as_it_is_typed_and_escape_ends_it():
    async def script(app, pilot):
        await pilot.press("2", "slash", *"straggler")
        assert first_cells(app) == ["2"]
        await pilot.press("enter")
        assert app.focused is app.query_one(DataTable) and "filter: straggler" in screen(app)
        await pilot.press("escape")
        assert len(first_cells(app)) == 8
        await pilot.press("F", "q")
        assert app.is_running and app._needle == "q"

    drive(script, state("heat"))


def test_the_details_follow_the_cursor_and_enter_hides_them():
    async def script(app, pilot):
        await pilot.press("2", "down", "down")
        assert "GPU 2  NVIDIA H100" in screen(app)
        await pilot.press("enter")
        assert not app.query_one("#details").display
        await pilot.press("enter")
        assert app.query_one("#details").display

    drive(script, state("heat"))


def test_the_cursor_stays_on_its_gpu_when_values_change():
    async def script(app, pilot):
        await pilot.press("2", "down", "down", "down")
        node = app.known[0].document
        gpus = tuple(msgspec.structs.replace(gpu, up=gpu.gpu != "3") for gpu in node.gpus[1:])
        app.known[0] = updated(app.known[0], Answer(url="", document=msgspec.structs.replace(node, gpus=gpus)))
        app.look()
        await pilot.pause()
        assert app._row().cells[0].text == "3"
        assert app.query_one(DataTable).cursor_row == 2

    drive(script, state("heat"))


def test_pause_keeps_what_is_shown_and_says_so():
    async def script(app, pilot):
        await pilot.press("1", "space")
        app.known[0] = state("healthy")
        app.look()
        await pilot.pause()
        assert "PAUSED" in screen(app) and "GPU 2" in screen(app)
        await pilot.press("space")
        assert "PAUSED" not in screen(app) and "No findings" in screen(app)

    drive(script, state("heat"))


def test_help_lists_the_keys_and_q_quits():
    async def script(app, pilot):
        await pilot.press("question_mark")
        assert "Tab Shift+Tab" in screen(app)
        await pilot.press("escape")
        assert "Tab Shift+Tab" not in screen(app)
        await pilot.press("q")

    assert not drive(script, state("heat")).is_running


def test_a_node_that_is_away_is_said_with_the_time_of_its_last_data_and_comes_back():
    async def script(app, pilot):
        known = app.known[0]
        app.known[0] = updated(known, Answer(url="", problem="connection refused"))
        app.look()
        await pilot.pause()
        head = screen(app).splitlines()[0]
        assert head.startswith("? gpu-node-7  node1  last data of ") and "connection refused" in head
        app.known[0] = updated(app.known[0], Answer(url="", document=known.document))
        app.look()
        await pilot.pause()
        assert "data 1 s old" in screen(app).splitlines()[0]

    drive(script, state("healthy"))


def test_a_node_that_never_answered_is_shown_before_any_data():
    async def script(app, pilot):
        assert "connecting" in screen(app)
        await pilot.press("tab", "tab", "tab", "s", "r", "enter", "down")

    drive(script, NodeState(name="http://node1:9853"))


@pytest.mark.parametrize("size", [(20, 5), SMALL, WIDE])
@pytest.mark.parametrize("language", list(Language))
def test_64_gpus_are_usable_in_any_terminal(size, language):
    big = big_node(points=1)[0]

    async def script(app, pilot):
        await pilot.press("2", "end")
        await pilot.pause()
        assert app._row().cells[0].text == "63"
        assert size[1] < 10 or "63" in screen(app)

    drive(script, of(big, language), size=size, language=language)


def test_markup_and_control_characters_in_names_are_shown_and_do_nothing():
    async def script(app, pilot):
        for key in "1234":
            await pilot.press(key)
            text = screen(app)
            assert not set("\x1b\u202e\x00") & set(text)
            assert key == "4" or "[red]x[/red]" in text
        await pilot.click("#details", offset=(12, 2))
        assert app.is_running
        for static in app.query(Static):
            assert static._render_markup is False

    drive(script, of(malicious_snapshot(MALICIOUS)), size=WIDE)


def test_many_nodes_say_how_many_answer():
    async def script(app, pilot):
        assert "1 of 2 nodes answer" in screen(app)

    away = updated(NodeState(name="node2"), Answer(url="", problem="refused"))
    drive(script, state("hang"), away, size=WIDE)
