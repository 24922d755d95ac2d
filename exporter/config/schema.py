"""Validation of YAML nodes and environment variables against records; every problem is collected, none is raised.

A record is a frozen dataclass whose fields declare, through ``key(reader)``, how they are read; that is the only list
of keys.  Unknown keys, missing keys and the names of the environment variables are derived from it.  A reader returns
the value, or ``INVALID`` after it has reported why; reading goes on with defaults in place of invalid values, so that
one run finds every problem, and the caller must check ``Report.problems`` before it uses the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, Protocol

from exporter.config.document import Node, key_path, plain
from exporter.config.parsers import Invalid
from exporter.errors import Problem

INVALID: Final = object()

_READER = "reader"
_MAX_SUGGESTED = 40  # characters; difflib is quadratic, and no key is longer
# What people write secrets under, and the key that takes a file instead.
_SECRET_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("token", "bearer_token", "bearer", "api_key", "apikey", "auth_token"), "bearer_token_file"),
    **dict.fromkeys(("authorization", "credentials", "secret", "headers"), "bearer_token_file"),
    **dict.fromkeys(("password", "passwd", "pass"), "password_file"),
    **dict.fromkeys(("key", "private_key", "client_key", "key_pem"), "key_file"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A node at its place.  ``base`` is the folder that its relative file names start from.

    ``loose`` marks text from the environment, where quotes do not tell ``8`` from ``"8"``.
    """

    path: str
    node: Node
    base: str = ""
    loose: bool = False

    def child(self, path: str, node: Node) -> Item:
        """Give a node below this one its place."""
        return Item(path=path, node=node, base=self.base, loose=self.loose)


@dataclass(slots=True, kw_only=True)
class Report:
    """What was wrong so far, and what the environment sets, by the path it overrides."""

    problems: list[Problem] = field(default_factory=list)
    environment: Mapping[str, Item] = field(default_factory=dict)

    def add(self, item: Item, message: str) -> None:
        """Note a problem with a value."""
        self.problems.append(Problem(item.path, message, item.node.line))


class Reader(Protocol):
    """How one key is read."""

    def read(self, item: Item, report: Report) -> Any:
        """Give the value, or ``INVALID`` after reporting why; never raises."""


def key(reader: Reader) -> Mapping[str, Reader]:
    """Give the metadata of a field that is read by ``reader``."""
    return {_READER: reader}


def kind_of(node: Node) -> str:
    """Name what was found, for messages; never the value itself."""
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
    """Make the refusal of a value of the wrong type."""
    if node.value is None:
        return Invalid(f"has no value; expected {what}, or take the key out")
    return Invalid(f"expected {what}, found {kind_of(node)}")


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value; ``convert`` makes it or raises Invalid."""

    convert: Callable[[Item], Any]

    def read(self, item: Item, report: Report) -> Any:
        """Convert, and report a refusal."""
        try:
            return self.convert(item)
        except Invalid as refused:
            report.add(item, str(refused))
            return INVALID


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A list of equals, as a tuple; in the environment, a comma list.

    ``most`` 0 means no bound of its own.  ``distinct`` maps a key of the elements ("" for the element itself) to what
    no two of them may share.
    """

    item: Reader
    what: str
    least: int = 0
    most: int = 0
    distinct: Mapping[str, Callable[[Any], Hashable]] = field(default_factory=dict)
    rank: Callable[[Any], Any] | None = None  # None: the order written is kept

    def read(self, item: Item, report: Report) -> Any:
        """Read every element; the good ones come back even when others were wrong."""
        value = item.node.value
        if item.loose:
            value = tuple(Node(value=plain(part), text=part) for part in map(str.strip, item.node.text.split(",")))
        if not isinstance(value, tuple):
            report.add(item, str(expected(f"a list of {self.what}", item.node)))
            return INVALID
        if len(value) < self.least:
            report.add(item, f"is empty; name at least {self.least}, or take the key out")
        if self.most and len(value) > self.most:
            report.add(item, f"has {len(value)} entries; at most {self.most} are possible")
            return INVALID
        good = []
        seen: dict[tuple[str, Hashable], int] = {}
        for position, node in enumerate(value):
            child = item.child(item.path if item.loose else f"{item.path}[{position}]", node)
            element = self.item.read(child, report)
            if element is not INVALID:
                self._refuse_repeats(element, position, child, seen, report)
                good.append(element)
        return tuple(sorted(good, key=self.rank) if self.rank else good)

    def _refuse_repeats(
        self, element: Any, position: int, child: Item, seen: dict[tuple[str, Hashable], int], report: Report
    ) -> None:
        repeated = False
        for name, identity in self.distinct.items():
            if name and getattr(element, name) is INVALID:
                continue
            first = seen.setdefault((name, identity(element)), position)
            node = _entry(child.node, name)
            if first == position or (repeated and node is None):
                continue  # a name that only follows from a repeated URL is one mistake, not two
            repeated = True
            earlier = "an earlier entry" if child.loose else f"{child.path.rpartition('[')[0]}[{first}]"
            place = child.child(join(child.path, name), node or child.node)
            report.add(place, f"repeats {f'the {name} of ' if name else ''}{earlier}; each stands once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A mapping with free keys, read-only; ``name`` refuses keys that cannot be.

    ``harmless``: keys that may be shown in a path; whatever else could be a secret in the wrong place.
    """

    name: Callable[[str], None]
    value: Reader
    what: str
    harmless: re.Pattern[str]

    def read(self, item: Item, report: Report) -> Any:
        """Read every entry; the good ones come back even when others were wrong."""
        if not isinstance(item.node.value, Mapping):
            report.add(item, str(expected(self.what, item.node)))
            return INVALID
        good = {}
        for name, node in item.node.value.items():
            harmless = self.harmless.fullmatch(name)
            child = item.child(join(item.path, name) if harmless else key_path(item.path, name), node)
            try:
                self.name(name)
            except Invalid as refused:
                report.add(item.child(child.path, Node(line=item.node.keys.get(name))), str(refused))
                continue
            value = self.value.read(child, report)
            if value is not INVALID:
                good[name] = value
        return MappingProxyType(good)


class SectionResult:
    """What a section's keys gave, for the rules that join several keys and for defaults that depend on others."""

    def __init__(self, item: Item, report: Report) -> None:
        self.values: dict[str, Any] = {}  # good values of keys that were given
        self._wrong: set[str] = set()
        self._item = item
        self._report = report

    def given(self, dotted: str) -> bool:
        """Say whether the file or the environment gives the key, rightly or wrongly; a bare ``key:`` gives none."""
        node: Node | None = self._item.node
        for part in dotted.split("."):
            node = _entry(node, part)
        return node is not None or join(self._item.path, dotted) in self._report.environment

    def known(self, name: str, otherwise: Any = None) -> Any:
        """Give the value, the default when the key is not there, or None when what is there was refused."""
        return None if name in self._wrong else self.values.get(name, otherwise)

    def refused(self, name: str) -> bool:
        """Say whether the key is there and was wrong."""
        return name in self._wrong

    def put(self, name: str, value: Any) -> None:
        """Note what a key gave."""
        if value is INVALID:
            self._wrong.add(name)
        else:
            self.values[name] = value

    def refuse(self, name: str, message: str) -> None:
        """Report a problem that concerns this key; "" is the section itself."""
        path = join(self._item.path, name)
        from_environment = self._report.environment.get(path)
        node = _entry(self._item.node, name) or self._item.node
        self._report.add(from_environment or self._item.child(path, node), message)


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping that becomes the record ``cls``; ``finish`` joins keys and fills in what depends on others."""

    cls: type[Any]
    finish: Callable[[SectionResult], None] | None = None

    def read(self, item: Item, report: Report) -> Any:
        """Read every key; a required value that is missing or refused stands in the record as INVALID."""
        if not isinstance(item.node.value, Mapping):
            report.add(item, str(expected("a mapping of keys", item.node)))
            return INVALID
        readers = fields_of(self.cls)
        for name in item.node.value:
            if name not in readers:
                place = item.child(key_path(item.path, name), Node(line=item.node.keys.get(name)))
                report.add(place, _unknown_key(name, list(readers)))
        found = SectionResult(item, report)
        for name, reader in readers.items():
            for source in _sources(item, name, reader, report):
                found.put(name, reader.read(source, report))
        if self.finish:
            self.finish(found)
        return self._build(found, item, report)

    def _build(self, found: SectionResult, item: Item, report: Report) -> Any:
        for spec in fields(self.cls):
            if spec.name in found.values or not _is_required(spec):
                continue
            if not found.refused(spec.name):
                report.add(item.child(join(item.path, spec.name), item.node), "is missing; it has no default")
            found.values[spec.name] = INVALID  # keeps the record comparable with its neighbours; it never leaves
        return self.cls(**found.values)


def join(path: str, name: str) -> str:
    """Append a known key to a dotted path."""
    return f"{path}.{name}" if path and name else path or name


def fields_of(cls: type[Any]) -> dict[str, Reader]:
    """Give the readers of a record by key, in the order of its fields."""
    return {spec.name: spec.metadata[_READER] for spec in fields(cls) if _READER in spec.metadata}


def _sources(item: Item, name: str, reader: Reader, report: Report) -> list[Item]:
    """Say where a key is given, the later one winning; both are read, so that a hidden mistake is still reported."""
    dotted = join(item.path, name)
    node = _entry(item.node, name)
    if node is None and any(path.startswith(f"{dotted}.") for path in report.environment):
        node = Node(line=item.node.line, value={})
    bare = name in (item.node.value if isinstance(item.node.value, Mapping) else ())
    sources = []
    if node is not None:
        sources.append(item.child(dotted, node))
    elif bare and isinstance(reader, Scalar):
        sources.append(item.child(dotted, Node(line=item.node.keys.get(name))))
    if dotted in report.environment:
        sources.append(report.environment[dotted])
    return sources


def _entry(node: Node | None, name: str) -> Node | None:
    """Find a key that has a value: ``engines:`` with all its lines commented out is as if it were not there."""
    if node is None or not isinstance(node.value, Mapping):
        return None
    entry = node.value.get(name)
    return None if entry is None or entry.value is None else entry


def _is_required(spec: Field[Any]) -> bool:
    return spec.default is MISSING and spec.default_factory is MISSING


def _unknown_key(name: str, known: list[str]) -> str:
    folded = name.lower().replace("-", "_")
    if folded == "<<":
        return "merge keys are not read; write the keys out, or use an alias for a whole value"
    if folded in known:
        return f"unknown key; did you mean {folded}?"
    target = _SECRET_KEYS.get(folded)
    if target in known:
        return f"secrets are not written into a configuration; put it into a file and name the file in {target}"
    if target and folded not in {"key", "headers"}:
        return (
            "secrets are not written into a configuration; engines take bearer_token_file, basic_auth.password_file"
        )
    return did_you_mean(name, known, "unknown key")


def did_you_mean(word: str, known: list[str], verdict: str) -> str:
    """Add to a verdict the nearest known word, or all of them; never the word itself."""
    import difflib  # noqa: PLC0415 - only a refused configuration needs it

    near = difflib.get_close_matches(word, known, n=1) if len(word) <= _MAX_SUGGESTED else []
    if near:
        return f"{verdict}; did you mean {near[0]}?"
    return f"{verdict}; there are: {', '.join(known)}"
