"""The terminal of ``shardwatch top``.  The only module that imports Textual; it draws and computes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text as Styled
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Input, Static

from exporter.cli.check_text import SEVERITY_WORDS
from exporter.cli.terminal import shortened, wrapped
from exporter.cli.top_details import details
from exporter.cli.top_model import NodeState, TopRow, TopTable, cut, fit, select
from exporter.cli.top_rows import freshness, short_name, tables
from exporter.model.finding import Severity
from exporter.model.text import Language, Text
from exporter.web.html import SIGNS
from exporter.web.marks import severity_level
from exporter.web.model import Level
from exporter.web.values import clean

TABLE_SHARE = 0.55  # of the terminal, at most, beside the details
LOOK_SECONDS = 0.25  # between two looks at the states
_STYLES = {
    Level.GOOD: "green",
    Level.INFO: "cyan",
    Level.UNKNOWN: "magenta",
    Level.WARNING: "yellow",
    Level.CRITICAL: "bold red",
}
_KEYS = Text(
    """Keys

  Up Down PgUp PgDn Home End   select a row
  Tab Shift+Tab, 1 to 4        next, previous, or this table
  Enter                        show or hide the details
  J K                          scroll the details
  s S                          sort by the next or previous column
  r                            reverse the order
  / f F                        rows that contain a text; Esc: all
  Space                        pause or continue
  ? h                          this help
  q Ctrl+C                     quit

A sign stands beside each colour: ■ critical, ▲ warning, ? unknown.""",
    """按键

  ↑ ↓ PgUp PgDn Home End       选择行
  Tab Shift+Tab，1 至 4        下一个、上一个或指定的表
  Enter                        显示或隐藏详情
  J K                          滚动详情
  s S                          按下一列或上一列排序
  r                            反转顺序
  / f F                        筛选包含该文本的行；Esc 取消
  空格                         暂停或继续
  ? h                          本帮助
  q Ctrl+C                     退出

每种颜色旁都有符号：■ 严重，▲ 警告，? 未知。""",
)
_FOOTER = Text(
    "Tab table  Enter details  s sort  / filter  Space pause  ? help  q quit",
    "Tab 切换表  Enter 详情  s 排序  / 筛选  空格 暂停  ? 帮助  q 退出",
)


class _Table(DataTable[Styled]):
    """A table whose Home and End are the first and the last row."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("home", "scroll_top"), Binding("end", "scroll_bottom")]


class TopApp(App[int]):
    """Shows what ``states`` returns, which others keep current."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #head, #tabs, #foot { height: 1; width: 100%; }
    #tabs { text-style: bold; }
    #foot { color: $text-muted; }
    #details { height: 1fr; border-top: solid $primary; }
    #help { display: none; height: 1fr; padding: 1 2; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
        Binding("tab", "table(1)", priority=True),
        Binding("shift+tab", "table(-1)", priority=True),
        *(Binding(str(number + 1), f"show({number})") for number in range(4)),
        Binding("s", "sort(1)"),
        Binding("S", "sort(-1)"),
        Binding("r", "reverse"),
        Binding("slash,f,F", "filter"),
        Binding("escape", "unfilter"),
        Binding("space", "pause"),
        Binding("question_mark,h", "help"),
        Binding("J", "scroll_details(1)"),
        Binding("K", "scroll_details(-1)"),
    ]

    def __init__(
        self,
        states: Callable[[], Sequence[NodeState]],
        language: Language,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._read_states, self._language, self._unix_clock = states, language, unix_clock
        self._states: tuple[NodeState, ...] = ()
        self._tables: tuple[TopTable, ...] = ()
        self._rows: list[TopRow] = []  # as they are drawn
        self._drawn_table = -1
        self._columns: tuple[object, ...] = ()
        self._current = -1  # until the first data: findings if there are any
        self._sorts: dict[int, int | None] = {}
        self._reversed: set[int] = set()
        self._selected: dict[int, str] = {}
        self._needle = ""
        self._is_paused = False
        self._drawn: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Create the widgets, without markup: names are not ours."""
        yield Static(id="head", markup=False)
        yield Static(id="tabs", markup=False)
        yield _Table(id="table", cursor_type="row")
        details_pane = VerticalScroll(Static(id="lines", markup=False), id="details")
        details_pane.can_focus = False
        yield details_pane
        yield Static(_KEYS.in_(self._language), id="help", markup=False)
        yield Input(id="filter", placeholder="filter", compact=True)
        yield Static(_FOOTER.in_(self._language), id="foot", markup=False)

    def on_mount(self) -> None:
        """Begin to look at the states."""
        self.query_one(DataTable).focus()
        self.look()
        self.set_interval(LOOK_SECONDS, self.look)

    def look(self) -> None:
        """Draw what is new; nothing, if nothing is and no second has passed."""
        if not self._is_paused:
            self._states = tuple(self._read_states())
        drawn = (self._is_paused, *map(id, self._states), int(self._unix_clock()))
        if drawn != self._drawn:
            self._drawn = drawn
            self._draw()

    # ------------------------------------------------------------------ drawing

    def _draw(self) -> None:
        if not self._states:
            return
        unix_now = self._unix_clock()
        if not self._is_paused or not self._tables:
            self._tables = tables(self._states, self._language, unix_now)
        self.query_one("#head", Static).update(self._head(unix_now))
        self.query_one("#tabs", Static).update(self._tabs())
        self._draw_table()
        self._draw_details(unix_now)

    @property
    def _shown(self) -> int:
        """The table that is shown: until one is chosen, findings if there are any, else GPUs or nodes."""
        if self._current >= 0:
            return self._current
        if self._tables and self._tables[0].rows:
            return 0
        return 3 if len(self._states) > 1 or not self._tables[1].rows else 1

    def _head(self, unix_now: float) -> Styled:
        head = Styled(no_wrap=True, overflow="ellipsis")
        if self._is_paused:
            head.append(Text(" PAUSED ", " 已暂停 ").in_(self._language), "reverse")
            head.append(" ")
        counts = {
            severity: sum(
                finding.severity is severity
                for state in self._states
                if state.document is not None and not state.problem
                for finding in state.document.findings
            )
            for severity in (Severity.CRITICAL, Severity.WARNING)
        }
        for severity, count in counts.items():
            if count:
                level = severity_level(severity)
                word = SEVERITY_WORDS[severity].in_(self._language)
                head.append(f"{SIGNS[level]} {word} {count}  ", _STYLES[level])
        problems = [state for state in self._states if state.problem]
        unknown = _STYLES[Level.UNKNOWN]
        if len(self._states) == 1:
            (state,) = self._states
            style = unknown if state.problem else ""
            sign = "? " if state.problem else ""
            name = state.document.node if state.document is not None else ""
            beside = f"{clean(name)}  " if name and name != short_name(state) else ""
            head.append(f"{sign}{beside}{short_name(state)}  {freshness(state, self._language, unix_now)}", style)
        else:
            answering = len(self._states) - len(problems)
            word = Text("{} of {} nodes answer", "{}/{} 个节点有应答").in_(self._language)
            head.append(word.format(answering, len(self._states)), unknown if problems else "")
            if problems:
                first = problems[0]
                head.append(f"  ? {short_name(first)}: {freshness(first, self._language, unix_now)}", unknown)
        return head

    def _tabs(self) -> Styled:
        tabs = Styled(no_wrap=True, overflow="ellipsis")
        for number, table in enumerate(self._tables):
            label = f"{number + 1} {table.heading} ({len(table.rows)})"
            tabs.append(
                f"[{label}]" if number == self._shown else f" {label} ", "reverse" if number == self._shown else ""
            )
        if self._needle:
            tabs.append(f"  {Text('filter', '筛选').in_(self._language)}: {shortened(self._needle, 20)}", "yellow")
        return tabs

    def _keep_selection(self) -> None:
        """Remember which row the cursor is on: the events that say so come later, perhaps after the next drawing."""
        row = self.query_one(DataTable).cursor_row
        if self._drawn_table == self._shown and 0 <= row < len(self._rows):
            self._selected[self._shown] = self._rows[row].key

    def _draw_table(self) -> None:
        self._keep_selection()
        shown = self._drawn_table = self._shown
        table, widget = self._tables[shown], self.query_one(DataTable)
        sort = self._sorts.get(shown)
        self._rows = select(table, sort=sort, reverse=shown in self._reversed, needle=self._needle)
        space = max(20, self.size.width - 3)  # the scroll bar
        columns = fit(table, self._rows, space)
        top = widget.scroll_y
        headings = tuple((shown, number, width, number == sort, shown in self._reversed) for number, width in columns)
        with self.batch_update():
            if headings != self._columns:
                widget.clear(columns=True)
                self._columns = headings
                for number, width in columns:
                    arrow = "" if number != sort else "▼" if shown in self._reversed else "▲"
                    label = Styled(f"{shortened(table.columns[number].heading, width)}{arrow}", "bold")
                    widget.add_column(label, width=max(width, label.cell_len), key=str(number))
            else:
                widget.clear()
            for row in self._rows:
                widget.add_row(*(self._cell(table, row, number, width) for number, width in columns), key=row.key)
            keys = [row.key for row in self._rows]
            selected = self._selected.get(shown, "")
            if keys:
                widget.cursor_coordinate = Coordinate(keys.index(selected) if selected in keys else 0, 0)
            widget.scroll_to(y=top, animate=False)
        # Few rows leave their space to the details.
        lines = len(self._rows) + 1
        has_details = self.query_one("#details").display
        widget.styles.height = min(lines, int(TABLE_SHARE * self.size.height)) if has_details else "1fr"

    def _cell(self, table: TopTable, row: TopRow, number: int, width: int) -> Styled:
        cell = row.cells[number]
        style = "dim" if row.is_old and table.id != "nodes" else _STYLES.get(cell.level, "")
        justify = "right" if table.columns[number].numeric else "left"
        return Styled(cut(cell, width), style, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]

    def _draw_details(self, unix_now: float) -> None:
        row = self._row()
        lines = [] if row is None else details(row, self._states[row.node], self._language, unix_now)
        if row is None and not self._needle:
            lines = [Text("Nothing to show.", "无内容。").in_(self._language)]
            if self._shown == 0 and any(state.document is not None for state in self._states):
                lines = [Text("No findings.", "未发现问题。").in_(self._language)]
        space = max(20, self.size.width - 3)  # the scroll bar
        self.query_one("#lines", Static).update(
            Styled("\n".join(part for line in lines for part in wrapped(line, space)))
        )

    def _row(self) -> TopRow | None:
        selected = self._selected.get(self._shown, "")
        found = next((row for row in self._rows if row.key == selected), None)
        return found if found is not None else next(iter(self._rows), None)

    # ------------------------------------------------------------------ events and keys

    def on_data_table_row_highlighted(self) -> None:
        """Show the details of the row under the cursor."""
        before = self._selected.get(self._shown)
        self._keep_selection()
        if self._selected.get(self._shown) != before:
            self.query_one("#details").scroll_home(animate=False)
            self._draw_details(self._unix_clock())

    def on_data_table_row_selected(self) -> None:
        """Show or hide the details."""
        pane = self.query_one("#details")
        pane.display = not pane.display
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter by what is typed so far."""
        self._needle = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """Apply the filter and return to the table."""
        self.query_one("#filter").display = False
        self.query_one(DataTable).focus()

    def on_resize(self, _: events.Resize) -> None:
        """Fit the columns to the terminal."""
        self._draw()

    def action_table(self, step: int) -> None:
        """Show the next or previous table."""
        self.action_show((self._shown + step) % len(self._tables) if self._tables else 0)

    def action_show(self, number: int) -> None:
        """Show one table."""
        self._current = number
        self._draw()

    def action_sort(self, step: int) -> None:
        """Sort by the next or previous column; behind the last stands the table's own order."""
        shown = self._shown
        choices: list[int | None] = [None, *range(len(self._tables[shown].columns))]
        self._sorts[shown] = choices[(choices.index(self._sorts.get(shown)) + step) % len(choices)]
        self._draw()

    def action_reverse(self) -> None:
        """Reverse the order of the table."""
        self._reversed ^= {self._shown}
        self._draw()

    def action_filter(self) -> None:
        """Open the input of the filter."""
        line = self.query_one("#filter", Input)
        line.display = True
        line.focus()

    def action_unfilter(self) -> None:
        """Close the help, or end the filter."""
        if self.query_one("#help").display:
            self.action_help()
            return
        line = self.query_one("#filter", Input)
        line.value, line.display = "", False
        self.query_one(DataTable).focus()

    def action_pause(self) -> None:
        """Pause or resume the updates."""
        self._is_paused = not self._is_paused
        self.look()

    def action_help(self) -> None:
        """Show or hide the keys."""
        shown = self.query_one("#help")
        shown.display = not shown.display
        self.query_one(DataTable).display = not shown.display
        self.query_one("#details").display = not shown.display
        if not shown.display:
            self.query_one(DataTable).focus()

    def action_scroll_details(self, lines: int) -> None:
        """Scroll the details."""
        self.query_one("#details").scroll_relative(y=3 * lines, animate=False)
