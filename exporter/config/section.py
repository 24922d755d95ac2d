"""Sections: a mapping with known keys becomes a record, or whatever ``build`` returns.

A record is an immutable struct whose fields declare, through ``key(reader, doc)``, how they are read and what they
mean; that is the only list of keys.  Unknown and missing keys, the names of environment variables, the JSON Schema,
the example and the reference are derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import NODEFAULT, Struct, StructMeta

from exporter.config import suggest
from exporter.config.document import Node, key_path, plain
from exporter.config.reader import (
    INVALID,
    Item,
    Json,
    ListOf,
    Reader,
    Report,
    Scalar,
    Table,
    expected,
    find,
    join,
    written,
)
from exporter.model import EMPTY

UNSET: Final = object()


class Key(Struct, frozen=True, kw_only=True):
    """How one key is read, and what it means.

    ``default``: the value of a key that is not written, UNSET if there is none; ``default_text`` describes a
    default that depends on something else.  ``example``: a value as it is written in YAML, where the default is none.
    ``aliases``: other words for it, for suggestions only.  ``hidden``: known, refused, and not documented.
    ``shown``: the record's ``repr`` has the value.
    """

    reader: Reader
    doc: str = ""
    default: Any = UNSET
    default_text: str = ""
    example: str = ""
    aliases: tuple[str, ...] = ()
    required: bool = False
    hidden: bool = False
    shown: bool = True

    @property
    def default_words(self) -> str:
        """The default in words, "" if there is none."""
        if self.default_text or self.default is UNSET or isinstance(self.reader, Section):
            return self.default_text
        is_none = self.default is None or (not self.default and isinstance(self.reader, (ListOf, Table)))
        return "none" if is_none else written(self.reader, self.default)


def key(
    reader: Reader,
    doc: str = "",
    *,
    default: Any = UNSET,
    default_text: str = "",
    example: str = "",
    aliases: tuple[str, ...] = (),
    hidden: bool = False,
    shown: bool = True,
) -> Any:
    """Return the field of a ``Record`` that is read by ``reader``; the other arguments are those of ``Key``."""
    return Key(
        reader=reader,
        doc=doc,
        default=default,
        default_text=default_text,
        example=example,
        aliases=aliases,
        required=default is UNSET,
        hidden=hidden,
        shown=shown,
    )


class _RecordMeta(StructMeta):
    """Builds a struct from a class whose fields are keys: the default of a key becomes the field's."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        keys = {field: value for field, value in namespace.items() if isinstance(value, Key)}
        defaults = {field: NODEFAULT if key.required else key.default for field, key in keys.items()}
        body = {**namespace, **defaults, "_keys": keys}
        return super().__new__(cls, name, bases, body, frozen=True, kw_only=True)


class Record(Struct, metaclass=_RecordMeta):
    """A part of the configuration: immutable, and its fields are passed by name.

    A struct: as a dataclass each of the records would add 1.2 ms to the start of the daemon.
    """

    def __repr__(self) -> str:
        """Return the record without the values that are not to be shown."""
        hidden = {name for name, key in keys_of(type(self)).items() if not key.shown}
        fields = [f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in hidden]
        return f"{type(self).__name__}({', '.join(fields)})"


def keys_of(cls: type[Record]) -> dict[str, Key]:
    """Return the keys of a record in the order of its fields."""
    keys: dict[str, Key] = {}
    for base in reversed(cls.__mro__):
        keys.update(vars(base).get("_keys", {}))
    return {name: keys[name] for name in cls.__struct_fields__ if name in keys}


class SectionResult:
    """The values of a section's keys, for rules that join several keys and for defaults that depend on others."""

    def __init__(self, item: Item, report: Report) -> None:
        self.values: dict[str, Any] = {}  # valid values of keys that were given
        self._invalid: set[str] = set()
        self._item = item
        self._report = report

    def given(self, dotted: str) -> bool:
        """Return whether the file or the environment sets the key, validly or not; a bare ``key:`` sets nothing."""
        return find(self._item.node, dotted) is not None or join(self._item.path, dotted) in self._report.environment

    def known(self, name: str, otherwise: Any = None) -> Any:
        """Return the value, ``otherwise`` if the key is not set, or None if its value is invalid."""
        return None if name in self._invalid else self.values.get(name, otherwise)

    def is_invalid(self, name: str) -> bool:
        """Return whether the key is set to an invalid value."""
        return name in self._invalid

    def put(self, name: str, value: Any) -> None:
        """Store what a key's reader returned."""
        if value is INVALID:
            self._invalid.add(name)
        else:
            self.values[name] = value

    def refuse(self, dotted: str, message: str) -> None:
        """Report a problem with a value below this section; "" is the section itself."""
        path = join(self._item.path, dotted)
        nearest = dotted
        while (node := find(self._item.node, nearest)) is None:  # what is wrong may be a default, which has no line
            nearest = nearest.rpartition(".")[0]
        self._report.add(self._report.environment.get(path) or self._item.child(path, node), message)


class Section(Struct, frozen=True, kw_only=True):
    """A mapping with known keys.

    ``build`` makes the result from the values of the keys that were given; a required key whose value is missing or
    invalid has the value INVALID there.  ``finish`` joins keys and sets defaults that depend on others.  ``files``
    maps words under which secrets are written to the key that takes the name of a file instead.
    """

    keys: Mapping[str, Key]
    build: Callable[[dict[str, Any]], Any]
    finish: Callable[[SectionResult], None] | None = None
    files: Mapping[str, str] = EMPTY
    what: str = "a mapping of keys"

    @property
    def type(self) -> str:
        """A section has keys of its own."""
        return "mapping"

    def read(self, item: Item, report: Report) -> Any:
        """Read every key and build the result."""
        if not isinstance(item.node.value, Mapping):
            report.add(item, str(expected(self.what, item.node)))
            return INVALID
        self._refuse_unknown(item, report)
        found = SectionResult(item, report)
        for name, declared in self.keys.items():
            for source in _sources(item, name, declared.reader, report):
                found.put(name, declared.reader.read(source, report))
        if self.finish:
            self.finish(found)
        for name, declared in self.keys.items():
            if declared.required and name not in found.values:
                if not found.is_invalid(name):
                    report.add(item.child(join(item.path, name), item.node), "is missing; it is required")
                found.values[name] = INVALID  # keeps a record comparable with its neighbours; it is never returned
        return self.build(found.values)

    def _refuse_unknown(self, item: Item, report: Report) -> None:
        aliases = {alias: name for name, declared in self.keys.items() for alias in declared.aliases}
        for name in item.node.value if isinstance(item.node.value, Mapping) else ():
            if name not in self.keys:
                shown = suggest.may_be_shown(name, self.keys, aliases, self.files)
                path = join(item.path, name) if shown else key_path(item.path, "")
                known = [name for name, declared in self.keys.items() if not declared.hidden]
                message = suggest.unknown_key(name, known, aliases, self.files)
                report.add(item.child(path, Node(line=item.node.keys.get(name))), message)

    def schema(self) -> Json:
        """Return the schema of a mapping without other keys."""
        shown = {name: declared for name, declared in self.keys.items() if not declared.hidden}
        required = [name for name, declared in shown.items() if declared.required and not declared.default_text]
        return {
            "type": "object",
            "properties": {name: _schema_of(declared) for name, declared in shown.items()},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }


def section(cls: type[Record], finish: Callable[[SectionResult], None] | None = None, **more: Any) -> Section:
    """Return the section that becomes the record ``cls``."""
    return Section(keys=keys_of(cls), build=lambda values: cls(**values), finish=finish, **more)


def _schema_of(declared: Key) -> Json:
    schema = declared.reader.schema()
    if not isinstance(declared.reader, Scalar) and "type" in schema:
        schema["type"] = [schema["type"], "null"]  # with all its lines commented out
    about = declared.doc
    if declared.default_text:
        about = f"{about} Default: {declared.default_text}."
    elif isinstance(declared.reader, Scalar) and declared.default not in (UNSET, None):
        schema["default"] = plain(declared.default_words)
    return {**({"description": about} if about else {}), **schema}


def _sources(item: Item, name: str, reader: Reader, report: Report) -> list[Item]:
    """Return where a key is set, the last one winning; each is read, so that a hidden mistake is still reported."""
    dotted = join(item.path, name)
    node = find(item.node, name)
    if node is None and any(path.startswith(f"{dotted}.") for path in report.environment):
        node = Node(line=item.node.line, value={})
    bare = isinstance(item.node.value, Mapping) and name in item.node.value
    sources = []
    if node is not None:
        sources.append(item.child(dotted, node))
    elif bare and isinstance(reader, Scalar):
        sources.append(item.child(dotted, Node(line=item.node.keys.get(name))))
    if dotted in report.environment:
        sources.append(report.environment[dotted])
    return sources
