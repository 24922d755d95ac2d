"""One file in Prometheus' ``file_sd`` format, read again when it changes; a bad content keeps the last good list.

A file may be half written, or written by an enemy: it must be regular, at most 1 MiB and shallow, and nothing in it
is constructed or run.  A file that is gone lists nothing.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from exporter.config.document import Node, read_root
from exporter.config.trusted_paths import unprotected_directory
from exporter.errors import SourceError
from exporter.sources.discovery.provider import MAX_TARGETS, DiscoveredEngine, engine_at

MAX_BYTES = 1 << 20
MAX_VALUES = 50_000  # commas and brackets: a list of empty lists takes sixty times its size in memory

_ROOT = 0  # uid

_Stamp = tuple[int, int, int, int, int]


class TargetFile:
    """The engines of one file; ``refresh`` brings ``engines``, ``problem`` and ``ignored`` up to date."""

    def __init__(self, path: str, owners: Callable[[], Iterable[int]] | None = None) -> None:
        """``owners``: uids that may own the file, beside root and the daemon's user; None: anybody may."""
        self.path = path
        self._owners = owners
        self.engines: tuple[DiscoveredEngine, ...] = ()
        self.ignored = 0  # targets that are no HOST:PORT, or beyond the first thousand
        self.problem: SourceError | None = None
        self._stamp: _Stamp | None = None

    def refresh(self) -> None:
        """Read the file if it is another than last time."""
        try:
            status = os.stat(self.path)
            if _stamp(status) == self._stamp:
                return
            self._stamp, text = _read(self.path, status, self._check_owner)
            engines, self.ignored = targets_of(parse_list(text, self.path))
            self.engines, self.problem = tuple(engines), None
        except FileNotFoundError:
            self.engines, self.ignored, self._stamp = (), 0, None
            self._note("missing", "there is no such file; it is looked for again and again")
        except (OSError, ValueError) as error:
            self._stamp = None
            self._note("unreadable", f"cannot be read: {getattr(error, 'strerror', None) or 'the name is malformed'}")
        except Unusable as bad:
            self._stamp = bad.stamp or self._stamp
            self._note(bad.reason, str(bad))

    def _check_owner(self, descriptor: int, status: os.stat_result) -> None:
        """Raise Unusable unless only trusted users can have written the open file and placed it there."""
        if self._owners is None:
            return
        trusted = {_ROOT, os.geteuid(), *self._owners()}
        if status.st_uid not in trusted:
            raise Unusable("untrusted", f"belongs to user {status.st_uid}, who is not trusted with it")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unusable("untrusted", "may be written by other users (chmod go-w)")
        # Where others may write to a directory above it, as to those that Ray makes, they may link any file there.
        is_linked = status.st_nlink > 1 or os.readlink(f"/proc/self/fd/{descriptor}") != os.path.abspath(self.path)
        if is_linked and unprotected_directory(self.path, trusted):
            raise Unusable("untrusted", "is a link, below a directory that others may write to")

    def _note(self, reason: str, message: str) -> None:
        text = f"{self.path}: {message}"
        if self.problem is None or str(self.problem) != text:
            self.problem = SourceError(reason, text)


class Unusable(Exception):  # noqa: N818 - a verdict on a content
    """A content that cannot be used; ``stamp``: until the file changes there is no use in reading it again."""

    def __init__(self, reason: str, message: str, stamp: _Stamp | None = None) -> None:
        self.reason = reason
        self.stamp = stamp
        super().__init__(message)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev


def _read(path: str, status: os.stat_result, check: Callable[[int, os.stat_result], None]) -> tuple[_Stamp, str]:
    """Read a whole regular file; a pipe without a writer, or a device, would hold us up for ever."""
    if not stat.S_ISREG(status.st_mode):
        raise Unusable("not_regular", "is not a regular file", _stamp(status))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):  # before a file object exists: that of a folder would not close it
        os.close(descriptor)
        raise Unusable("not_regular", "is not a regular file")
    with open(descriptor, "rb") as opened:
        check(descriptor, status)
        # The stamp is of before the reading: what is written meanwhile makes the next refresh read again.
        content = opened.read(MAX_BYTES + 1) if status.st_size <= MAX_BYTES else b""
    if max(status.st_size, len(content)) > MAX_BYTES:
        raise Unusable(
            "too_large", f"is larger than {MAX_BYTES >> 10} KiB; the last good list goes on", _stamp(status)
        )
    try:
        return _stamp(status), content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unusable("malformed", "is not UTF-8 text; the last good list goes on", _stamp(status)) from None


def parse_list(text: str, path: str) -> object:
    """Parse a list whose form its path's ending names, bounded in values.  Raises Unusable."""
    if not text.strip():
        raise Unusable("empty", "is empty, which a list without targets ([]) is not; the last good list goes on")
    if sum(text.count(mark) for mark in ",[{") > MAX_VALUES:
        raise Unusable("too_large", f"holds more than {MAX_VALUES} values; the last good list goes on")
    parse = parse_json if path.lower().endswith(".json") else _parse_yaml
    return parse(text)


def parse_json(text: str, *, keep: Any = None) -> object:
    """Parse JSON, numbers as ``_number`` has them; ``keep`` may thin out each object (``object_pairs_hook``)."""
    try:
        return json.loads(
            text, object_pairs_hook=keep, parse_int=_number, parse_float=_number, parse_constant=_number
        )
    except (ValueError, RecursionError):
        raise Unusable("malformed", "is not JSON, or half of it; the last good list goes on") from None


def _number(text: str) -> str | None:
    """Return a port's number as text and no other: they have no meaning here, and long ones take long to convert."""
    return text if len(text) <= 5 else None


def _parse_yaml(text: str) -> object:
    root, problems = read_root(text, MAX_VALUES)
    if root is None or problems:
        what = problems[0] if problems else "holds no document"
        raise Unusable("malformed", f"{what}; the last good list goes on")
    return _text_of(root)


def _text_of(node: Node) -> object:
    """Return lists, mappings and text: numbers and words such as ``null`` have no meaning here."""
    if isinstance(node.value, tuple):
        return [_text_of(child) for child in node.value]
    if isinstance(node.value, Mapping):
        return {key: _text_of(child) for key, child in node.value.items()}
    return node.text


def targets_of(document: object) -> tuple[list[DiscoveredEngine], int]:
    """Return the engines of a list of groups, each page once, and how many targets were left out."""
    if not isinstance(document, list):
        raise Unusable("malformed", "must hold a list of groups with targets and labels; the last good list goes on")
    by_url: dict[str, DiscoveredEngine] = {}
    named = ignored = 0
    for group in document:
        targets = group.get("targets") if isinstance(group, Mapping) else None
        labels = (group.get("labels") or {}) if isinstance(group, Mapping) else None
        if not isinstance(targets, list) or not isinstance(labels, Mapping):
            raise Unusable("malformed", "must hold groups of targets and labels only; the last good list goes on")
        for target in targets:
            named += 1
            engine = engine_at(target, labels) if named <= MAX_TARGETS else None
            if engine is None:
                ignored += 1
            else:
                by_url.setdefault(engine.url, engine)
    return list(by_url.values()), ignored
