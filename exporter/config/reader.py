"""Readers: how one node of a YAML file, or one environment variable, becomes a value.

A reader returns the value, or ``INVALID`` after it has reported why; it never raises.  Reading goes on after a
problem, so that one run finds every problem; the caller must check ``Report.problems`` before it uses the result.
Each reader also describes what it accepts: as JSON Schema, and in words for the reference.

Why not a library: pydantic validates and describes as well, but knows no lines, and costs 20 MiB and 125 ms at start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct, field

from exporter.config.document import Node, key_path, plain
from exporter.config.parsers import Invalid
from exporter.config.suggest import did_you_mean
from exporter.errors import Problem
from exporter.model import EMPTY

INVALID: Final = object()
_TEXT: Final[Mapping[str, Any]] = MappingProxyType({"type": "string"})
Json: TypeAlias = "dict[str, Any]"


class Item(Struct, frozen=True, kw_only=True):
    """A node and its path.  ``base`` is the directory that relative file names start from.

    ``loose`` marks text from the environment, where quotes do not distinguish ``8`` from ``"8"``.
    """

    path: str
    node: Node
    base: str = ""
    loose: bool = False

    def child(self, path: str, node: Node) -> Item:
        """Return a node below this one with its path."""
        return Item(path=path, node=node, base=self.base, loose=self.loose)


class Report(Struct, kw_only=True):
    """The problems found so far, and what the environment sets, by the path that it overrides."""

    problems: list[Problem] = field(default_factory=list)
    environment: Mapping[str, Item] = EMPTY

    def add(self, item: Item, message: str) -> None:
        """Record a problem with a value."""
        self.problems.append(Problem(item.path, message, item.node.line))


class Reader(Protocol):
    """How one value is read and described."""

    @property
    def type(self) -> str:
        """What is accepted, in words: ``duration, 100ms to 1m``."""

    def read(self, item: Item, report: Report) -> Any:
        """Return the value, or ``INVALID`` after reporting why; never raises."""

    def schema(self) -> Json:
        """Return the JSON Schema of what is accepted, as far as one can express it."""


def kind_of(node: Node) -> str:
    """Return what kind of value a node is, for messages; never the value itself."""
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a mapping" if isinstance(value, Mapping) else "a list"


def expected(what: str, node: Node) -> Invalid:
    """Return the error for a value of the wrong type."""
    if node.value is None:
        return Invalid(f"has no value; expected {what}, or remove the key")
    return Invalid(f"expected {what}, found {kind_of(node)}")


def join(path: str, name: str) -> str:
    """Append a known key to a dotted path."""
    return f"{path}.{name}" if path and name else path or name


class Scalar(Struct, frozen=True):
    """One value; ``convert`` returns it or raises Invalid."""

    convert: Callable[[Item], Any]
    type: str = "text"
    json: Mapping[str, Any] = _TEXT
    written: Callable[[Any], str] = str

    def read(self, item: Item, report: Report) -> Any:
        """Convert the value, and report why it is invalid."""
        try:
            return self.convert(item)
        except Invalid as invalid:
            report.add(item, str(invalid))
            return INVALID

    def schema(self) -> Json:
        """Return the scalar's own JSON Schema."""
        return dict(self.json)


class ListOf(Struct, frozen=True, kw_only=True):
    """A list, read as a tuple; in the environment, values separated by commas.

    ``max_items`` 0 means no bound of its own.  ``distinct`` maps a key of the elements ("" for the element itself) to
    what no two of them may share.  ``order`` sorts the elements; None keeps the order of the file.  ``single``: one
    value may be written without brackets.
    """

    item: Reader
    what: str
    min_items: int = 0
    max_items: int = 0
    distinct: Mapping[str, Callable[[Any], Hashable]] = EMPTY
    order: Callable[[Any], Any] | None = None
    single: bool = False

    @property
    def type(self) -> str:
        """What is listed, and how many."""
        few, many = self.min_items, self.max_items
        count = (f"{few} to {many} " if few else f"at most {many} ") if many else ""
        return f"list of {count}{self.what}"

    def read(self, item: Item, report: Report) -> Any:
        """Read every element; the valid ones are returned even if others are not."""
        value = item.node.value
        if item.loose:
            value = tuple(Node(value=plain(part), text=part) for part in map(str.strip, item.node.text.split(",")))
        alone = self.single and not isinstance(value, (tuple, Mapping)) and value is not None
        if alone:
            value = (item.node,)
        if not isinstance(value, tuple):
            report.add(item, str(expected(f"a list of {self.what}", item.node)))
            return INVALID
        if len(value) < self.min_items:
            report.add(item, f"is empty; write at least {self.min_items}, or remove the key")
        if self.max_items and len(value) > self.max_items:
            report.add(item, f"has {len(value)} entries; the maximum is {self.max_items}")
            return INVALID
        good = []
        seen: dict[tuple[str, Hashable], int] = {}
        for position, node in enumerate(value):
            child = item.child(item.path if item.loose or alone else f"{item.path}[{position}]", node)
            element = self.item.read(child, report)
            if element is not INVALID:
                self._refuse_repeats(element, position, child, seen, report)
                good.append(element)
        return tuple(sorted(good, key=self.order) if self.order else good)

    def _refuse_repeats(
        self, element: Any, position: int, child: Item, seen: dict[tuple[str, Hashable], int], report: Report
    ) -> None:
        repeated = False
        for name, identity in self.distinct.items():
            if name and getattr(element, name) is INVALID:
                continue
            first = seen.setdefault((name, identity(element)), position)
            node = find(child.node, name)
            if first == position or (repeated and node is None):
                continue  # a name that is derived from a repeated URL is one mistake, not two
            repeated = True
            earlier = "an earlier entry" if child.loose else f"{child.path.rpartition('[')[0]}[{first}]"
            place = child.child(join(child.path, name), node or child.node)
            report.add(place, f"repeats {f'the {name} of ' if name else ''}{earlier}")

    def schema(self) -> Json:
        """Return the schema of a list with the bounds on its length."""
        bounds = {"minItems": self.min_items, "maxItems": self.max_items}
        listed = {"type": "array", "items": self.item.schema(), **{name: n for name, n in bounds.items() if n}}
        return {"anyOf": [listed, self.item.schema()]} if self.single else listed


class Table(Struct, frozen=True, kw_only=True):
    """A mapping whose keys are chosen by the user, read-only; ``name`` raises Invalid for keys that cannot be.

    ``harmless``: pattern of keys that may be shown in a path; any other could be a misplaced secret.
    """

    name: Callable[[str], None]
    value: Reader
    what: str
    harmless: str
    min_items: int = 0
    max_items: int = 0

    @property
    def type(self) -> str:
        """What is mapped to what."""
        return self.what.removeprefix("a ")

    def read(self, item: Item, report: Report) -> Any:
        """Read every entry; the valid ones are returned even if others are not."""
        entries = item.node.value
        if not isinstance(entries, Mapping):
            report.add(item, str(expected(self.what, item.node)))
            return INVALID
        if len(entries) < self.min_items:
            report.add(item, f"is empty; expected {self.what}")
        if self.max_items and len(entries) > self.max_items:
            report.add(item, f"has {len(entries)} entries; the maximum is {self.max_items}")
            return INVALID
        good = {}
        for name, node in entries.items():
            path = join(item.path, name) if re.fullmatch(self.harmless, name) else key_path(item.path, "")
            child = item.child(path, node)
            try:
                self.name(name)
            except Invalid as invalid:
                report.add(item.child(path, Node(line=item.node.keys.get(name))), str(invalid))
                continue
            value = self.value.read(child, report)
            if value is not INVALID:
                good[name] = value
        return MappingProxyType(good)

    def schema(self) -> Json:
        """Return the schema of a mapping with free keys."""
        bounds = {"minProperties": self.min_items, "maxProperties": self.max_items}
        return {
            "type": "object",
            "additionalProperties": self.value.schema(),
            **{name: n for name, n in bounds.items() if n},
        }


class OneOf(Struct, frozen=True, kw_only=True):
    """A mapping of exactly one key, which selects how its value is read: ``slack: {…}``."""

    variants: Mapping[str, Reader]
    what: str

    @property
    def type(self) -> str:
        """The keys, of which one is written."""
        return f"one of {', '.join(self.variants)}"

    def read(self, item: Item, report: Report) -> Any:
        """Read the value under the one key."""
        entries = item.node.value
        if not isinstance(entries, Mapping) or len(entries) != 1:
            report.add(item, f"expected exactly one {self.what}: {', '.join(self.variants)}")
            return INVALID
        ((name, node),) = entries.items()
        if name not in self.variants:
            message = did_you_mean(name, self.variants, f"unknown {self.what}")
            report.add(item.child(key_path(item.path, ""), node), message)
            return INVALID
        return self.variants[name].read(item.child(join(item.path, name), node), report)

    def schema(self) -> Json:
        """Return the schema of a mapping with one key."""
        return {
            "type": "object",
            "properties": {name: reader.schema() for name, reader in self.variants.items()},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        }


def written(reader: Reader, value: Any) -> str:
    """Return a value as it is written in YAML."""
    if isinstance(reader, ListOf):
        return f"[{', '.join(written(reader.item, element) for element in value)}]"
    return reader.written(value) if isinstance(reader, Scalar) else str(value)


def find(node: Node | None, path: str) -> Node | None:
    """Return the node at a path such as ``engines[2].url``, None if it is not there or has no value.

    ``engines:`` with all its lines commented out is as if it were not there.
    """
    for step in re.findall(r"[^.\[\]]+", path):
        if node is None:
            return None
        if isinstance(node.value, Mapping):
            node = node.value.get(step)
        else:
            rows = node.value if isinstance(node.value, tuple) else ()
            node = rows[int(step)] if step.isdigit() and int(step) < len(rows) else None
    return None if node is None or node.value is None else node
