"""YAML text becomes a tree of nodes with lines, within bounds; nothing in it is constructed or executed.

The tree is built from parser events, not composed: an explicit tag is seen as such, a bound is reached before memory
is spent, and a file cannot drive a recursion of the YAML library.  An alias stands for its anchor's subtree, which is
counted again at each use, so that an alias bomb reaches the bound on nodes.  Plain scalars follow YAML 1.2: ``yes``,
``on`` and ``1:30`` are text.  Messages never quote the file: what surrounds a syntax error may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.errors import Problem

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 50
TOO_LARGE = f"is larger than {MAX_BYTES // 1024} KiB, the maximum"

Plain: TypeAlias = "bool | int | float | str | None"

_WORDS: Mapping[str, Plain] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PLAIN_KEY = "[A-Za-z][a-z]{0,14}(?:[_-][a-z]{1,14}){0,3}[0-9]{0,2}"  # no random token is spelt like this
_QUOTED = re.compile(r"'([^']{2,})'")
_BRACKETED_ADDRESS = re.compile(r":\s+\[[0-9A-Fa-f:.]*\]:")


class Node(Struct, frozen=True, kw_only=True):
    """One value of the document.  ``line`` counts from 1; the line of a collection is its key's.

    ``text`` is a scalar as written, without quotes.  ``keys`` maps a mapping's keys to their lines.  ``size`` and
    ``height`` count the subtree with its aliases expanded.
    """

    line: int | None = None
    value: Plain | tuple[Node, ...] | Mapping[str, Node] = None
    text: str = ""
    keys: Mapping[str, int] = field(default_factory=dict)
    size: int = 1
    height: int = 0


def plain(text: str) -> Plain:
    """Return the value of an unquoted scalar: null, true or false, a number, else the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.lower().replace(".", "")) if _SPECIAL.fullmatch(text) else text


def read_document(text: str) -> tuple[Node, list[Problem]]:
    """Read one YAML document whose top level is a mapping; an empty text is an empty mapping.

    Problems are returned instead of raised, so that the caller can add its own.  After a syntax error, or beyond a
    bound, the tree is empty.
    """
    empty = Node(line=1, value={})
    root, problems = read_root(text)
    if root is not None and isinstance(root.value, Mapping):
        return root, problems
    if root is not None and root.value is not None:
        message = "the top level must be a mapping: keys, each with a colon and its value"
        problems.append(Problem("", message, root.line))
    return empty, problems


def read_root(text: str, max_nodes: int = MAX_NODES) -> tuple[Node | None, list[Problem]]:
    """Read one YAML document whatever its top level; None if there is none, or a problem ended the reading."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        return None, [Problem("", "is not UTF-8 text; save it as UTF-8", line)]
    if size > MAX_BYTES:
        return None, [Problem("", TOO_LARGE)]
    import yaml  # noqa: PLC0415 - 11 ms and 2 MiB that a daemon without a configuration file does not pay

    builder = _Builder(max_nodes)
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events: Any = yaml.parse(text, Loader=loader)
    try:
        with closing(events):
            return builder.document(events), builder.problems
    except _Abandoned as abandoned:
        return None, [*builder.problems, abandoned.problem]
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        return None, [*builder.problems, _syntax_problem(error, text)]


class _Abandoned(Exception):  # noqa: N818 - has the one problem that ends the reading
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.message)


class _Builder:
    """Builds nodes from a stream of parser events; has the anchors, the number of nodes and the problems."""

    def __init__(self, max_nodes: int) -> None:
        self.problems: list[Problem] = []
        self._max_nodes = max_nodes
        self._anchors: dict[str, Node] = {}
        self._count = 0

    def document(self, events: Iterator[Any]) -> Node | None:
        """Return the root of the stream's only document, None if there is none."""
        import yaml  # noqa: PLC0415 - as above

        root: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents == 2:
                    message = "a second document begins here; write one, without '---' between its parts"
                    raise _Abandoned(Problem("", message, _line(event)))
            elif isinstance(event, yaml.NodeEvent):
                root = self._node(event, events, "", 0)
        return root

    def _node(self, event: yaml.NodeEvent, events: Iterator[Any], path: str, depth: int) -> Node:
        import yaml  # noqa: PLC0415 - as above

        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path, depth)
        self._spend(event, path, 1, depth)
        if getattr(event, "tag", None) is not None:
            message = "has a YAML tag (!…); write the plain value, and quote it if it begins with '!'"
            self.problems.append(Problem(path, message, _line(event)))
        if isinstance(event, yaml.MappingStartEvent):
            node = self._mapping(event, events, path, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, events, path, depth)
        else:
            node = self._scalar(event, path)
        if event.anchor is not None:
            self._anchors[event.anchor] = node  # only now: an alias inside its own anchor has nothing to stand for
        return node

    def _scalar(self, event: Any, path: str) -> Node:
        text = event.value
        try:
            text.encode()
        except UnicodeEncodeError:
            message = "contains half of a surrogate pair, which is not a character"
            self.problems.append(Problem(path, message, _line(event)))
            text = ""
        return Node(line=_line(event), value=text if event.style else plain(text), text=text)

    def _sequence(self, start: yaml.NodeEvent, events: Iterator[Any], path: str, depth: int) -> Node:
        import yaml  # noqa: PLC0415 - as above

        children: list[Node] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            children.append(self._node(event, events, f"{path}[{len(children)}]", depth + 1))
        return _collection(_line(start), tuple(children), children)

    def _mapping(self, start: yaml.NodeEvent, events: Iterator[Any], path: str, depth: int) -> Node:
        import yaml  # noqa: PLC0415 - as above

        entries: dict[str, Node] = {}
        lines: dict[str, int] = {}
        children: list[Node] = []
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._node(event, events, path, depth + 1)
            where = key_path(path, key.text)
            value = self._node(next(events), events, where, depth + 1)
            children += (key, value)
            line = _line(event)
            if isinstance(key.value, (tuple, Mapping)):
                self.problems.append(Problem(path, "a key must be text, not a list or a mapping", line))
            elif key.text in entries:
                message = f"repeats the key of line {lines[key.text]}; remove one of the two"
                self.problems.append(Problem(where, message, line))
            else:
                collection = isinstance(value.value, (tuple, Mapping))
                entries[key.text] = replace(value, line=line) if collection else value
                lines[key.text] = line
        return replace(_collection(_line(start), entries, children), keys=lines)

    def _alias(self, event: yaml.NodeEvent, path: str, depth: int) -> Node:
        node = self._anchors.get(event.anchor or "")
        if node is None:
            message = "an alias (*…) without an anchor (&…) before it"
            raise _Abandoned(Problem(path, message, _line(event)))
        self._spend(event, path, node.size, depth + node.height)
        return node

    def _spend(self, event: yaml.NodeEvent, path: str, nodes: int, depth: int) -> None:
        self._count += nodes
        if self._count > self._max_nodes:
            message = f"has more than {self._max_nodes} values, aliases counted at each use"
            raise _Abandoned(Problem("", message, _line(event)))
        if depth > MAX_DEPTH:
            top = path.partition(".")[0].partition("[")[0]  # fifty steps would not help
            raise _Abandoned(Problem(top, f"is nested more than {MAX_DEPTH} deep", _line(event)))


def key_path(path: str, key: str) -> str:
    """Append a key to a dotted path; a key that could be a secret or a URL becomes ``?``."""
    shown = key if re.fullmatch(rf"{_PLAIN_KEY}|<<", key) else "?"
    return f"{path}.{shown}" if path else shown


def _collection(line: int, value: tuple[Node, ...] | Mapping[str, Node], children: list[Node]) -> Node:
    return Node(
        line=line,
        value=value,
        size=1 + sum(child.size for child in children),
        height=1 + max((child.height for child in children), default=0),
    )


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return mark.line + 1 if mark else 1


def _syntax_problem(error: Exception, text: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    message = getattr(error, "problem", None) or getattr(error, "reason", None) or "an invalid character or number"
    # A parser quotes characters and the names of its tokens ('<block end>'), which help; the rest is the file's.
    message = _QUOTED.sub(lambda quoted: quoted[0] if re.fullmatch("<[a-z ]+>", quoted[1]) else "'…'", str(message))
    if mark is None:
        position = getattr(error, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
        return Problem("", f"is not YAML: {message}", line)
    rows = text.splitlines()
    row = rows[mark.line] if mark.line < len(rows) else ""
    return Problem("", f"is not YAML: {message}{_syntax_hint(row)}", mark.line + 1)


def _syntax_hint(row: str) -> str:
    if "\t" in row:
        return "; this line contains a tab: indent with spaces"
    if _BRACKETED_ADDRESS.search(row):
        return '; quote an address in brackets: "[::]:9853"'
    return "; check quotes, brackets, colons and indentation on this line and the one before"
