"""``shardwatch top``: one or many nodes live in a terminal, or once as plain tables."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from exporter.cli import streams
from exporter.cli.check_nodes import (
    DEFAULT,
    MAX_SECONDS,
    Answer,
    ask,
    ask_all,
    credentials_of,
    distinct,
    shown_address,
)
from exporter.cli.exit_codes import BAD_USAGE, FAILED, OK
from exporter.cli.terminal import padded
from exporter.cli.top_model import NodeState, TopTable, cut, fit, updated
from exporter.cli.top_rows import tables
from exporter.model.text import Language

MAX_NODES = 256  # each has a thread
MIN_INTERVAL = 0.2  # seconds

Ask = Callable[[str], Answer]


def run(arguments: argparse.Namespace) -> int:
    """Show the nodes until the user quits, or print them once; return the exit code."""
    language, urls = Language(arguments.lang), distinct(arguments.urls or [DEFAULT])
    timeout, credentials = min(arguments.timeout, MAX_SECONDS), credentials_of(arguments)
    if len(urls) > MAX_NODES:
        arguments.command.error(f"{len(urls)} addresses; {MAX_NODES} at most")
    if arguments.once:
        answers = ask_all(urls, language, timeout, credentials)
        states = [updated(NodeState(name=answer.url), answer) for answer in answers]
        streams.print_lines(*plain(tables(states, language, time.time())))
        return FAILED if any(state.problem for state in states) else OK
    if importlib.util.find_spec("textual") is None:
        print(
            "shardwatch top needs the extra: pipx install 'shardwatch[top]' (shardwatch top --once works without it)",
            file=sys.stderr,
        )
        return BAD_USAGE
    if not all(
        stream and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.__stderr__)
    ):  # it draws on stderr
        print("shardwatch top: needs a terminal; --once prints the tables", file=sys.stderr)
        return BAD_USAGE
    from exporter.cli.top_app import TopApp  # noqa: PLC0415 - 0.3 s that --once does not pay

    nodes = PolledNodes(
        urls, lambda url: ask(url, language, timeout, credentials), max(MIN_INTERVAL, arguments.interval)
    )
    nodes.start()
    try:
        return TopApp(lambda: nodes.states, language).run() or OK
    finally:
        nodes.stop()


def plain(shown: Sequence[TopTable]) -> Iterator[str]:
    """Return the tables as lines, nodes first; those without a row are left out."""
    *others, nodes = shown
    for table in (nodes, *others):
        if not table.rows:
            continue
        if table is not nodes:
            yield ""
        widths = fit(table, table.rows, None)
        yield f"{table.heading} ({len(table.rows)})"
        yield "  ".join(padded(table.columns[number].heading, columns) for number, columns in widths).rstrip()
        for row in table.rows:
            yield "  ".join(padded(cut(row.cells[number], columns), columns) for number, columns in widths).rstrip()


class PolledNodes:
    """Asks each node in a thread of its own, so that one that does not answer delays no other."""

    def __init__(self, urls: Sequence[str], ask_node: Ask, interval: float) -> None:
        self._urls, self._ask, self._interval = urls, ask_node, interval
        self._stopped = threading.Event()
        self._states = [NodeState(name=shown_address(url)) for url in urls]

    @property
    def states(self) -> tuple[NodeState, ...]:
        """The newest state of each node, in the order of the addresses."""
        return tuple(self._states)

    def start(self) -> None:
        """Poll until stopped; a thread that waits for an answer does not keep the process from ending."""
        for number in range(len(self._urls)):
            threading.Thread(target=self._poll, args=(number,), name=f"top-{number}", daemon=True).start()

    def stop(self) -> None:
        """Stop polling; waits for nothing."""
        self._stopped.set()

    def _poll(self, number: int) -> None:
        rest = 0.0
        while not self._stopped.wait(rest):
            started = time.monotonic()
            self.ask_one(number)
            rest = max(MIN_INTERVAL, self._interval - (time.monotonic() - started))

    def ask_one(self, number: int) -> None:
        """Poll one node and store its response; what cannot be expected is a problem of that node."""
        try:
            answer = self._ask(self._urls[number])
        except Exception as error:
            answer = Answer(url=self._urls[number], problem=f"{type(error).__name__}: {error}")
        self._states[number] = updated(self._states[number], answer)
