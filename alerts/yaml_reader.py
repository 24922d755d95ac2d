"""A YAML file that a user edits is walked, and everything wrong with it is told at once, by path and line.

``read_whole`` hands the document to a function that makes something of it.  That function asks the ``Reading`` for what it
needs; a wrong value is noted there and replaced by an empty one, so that the walk goes on.  What was made counts only
when nothing was noted: else ``read_whole`` refuses the file whole.  Messages never quote a value: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from exporter.config.document import Node, key_path, read_document
from exporter.errors import Problem, SettingsError

_Made = TypeVar("_Made")
_Word = TypeVar("_Word")


def read_whole(text: str, origin: str, make: Callable[[Reading, Node], _Made]) -> _Made:
    """Make something of a YAML text; raises SettingsError with every problem at once.

    ``origin`` is what messages call the text: a file's name.  ``make`` is given the top level, which is a mapping.
    """
    root, problems = read_document(text)
    reading = Reading(problems)
    made = make(reading, root)
    if reading.problems:
        raise SettingsError(reading.problems, origin)
    return made


class Reading:
    """What was wrong so far, and the kinds of nodes that every file has; each kind notes what is no such thing."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = list(problems)

    def wrong(self, path: str, message: str, node: Node | None = None) -> None:
        """Note a problem; with a node, by its line."""
        self.problems.append(Problem(path, message, node.line if node is not None else None))

    def keys(self, node: Node | None, path: str, known: tuple[str, ...] = ()) -> Mapping[str, Node]:
        """Give a mapping's children by key, none of a key that is not there; without ``known`` any key will do."""
        if node is None:
            return {}
        if not isinstance(node.value, Mapping):
            self.wrong(path, f"must be a mapping{' with ' + ', '.join(known) if known else ''}", node)
            return {}
        if not known:
            return node.value
        for key, child in node.value.items():
            if key not in known:
                self.wrong(key_path(path, key), _unknown(key, known), child)
        return {key: child for key, child in node.value.items() if key in known}

    def items(self, node: Node | None, path: str, what: str) -> tuple[Node, ...]:
        """Give a list's children, none of a list that is not there; ``what`` says in words what it lists."""
        if node is None:
            return ()
        if not isinstance(node.value, tuple):
            self.wrong(path, f"must be a list of {what}", node)
            return ()
        return node.value

    def text(self, node: Node, path: str) -> str:
        """Give a scalar as it is written, empty for anything else: who asks for text takes 7 for "7"."""
        if isinstance(node.value, (tuple, Mapping)) or node.value is None:
            self.wrong(path, "must be text", node)
            return ""
        return node.text

    def word(self, node: Node, path: str, words: Mapping[str, _Word]) -> _Word | None:
        """Give what one of a few words stands for, None for any other."""
        if node.text not in words:
            self.wrong(path, _unknown(node.text, tuple(words)), node)
        return words.get(node.text)


def _unknown(word: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(word[:40], known, n=1)  # difflib is quadratic, and no word of ours is longer
    return f"unknown; known: {', '.join(known)}{f'; did you mean {near[0]}?' if near else ''}"
