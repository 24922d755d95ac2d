"""Engines declared in ``file_sd`` files: the files behind a few patterns, each with a last good list of its own."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from itertools import islice

from exporter.errors import SourceError
from exporter.sources.discovery.provider import MAX_TARGETS, DiscoveredEngine, DiscoveryResult
from exporter.sources.discovery.target_file import TargetFile

MAX_FILES = 64
MAX_ENTRIES = 4096  # of one folder
_WILD = frozenset("*?[")


class FileSd:
    """Reads every file that a pattern names; wildcards stand in the last part of a pattern only."""

    name = "file_sd"

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._files: dict[str, TargetFile] = {}
        self._folders: dict[str, SourceError] = {}  # what was wrong with a pattern's folder

    def refresh(self) -> DiscoveryResult:
        """Read the files; a bad one keeps its own last good list and costs the others nothing."""
        paths = dict.fromkeys(path for pattern in self._patterns for path in self._matching(pattern))
        self._files = {path: self._files.get(path) or TargetFile(path) for path in islice(paths, MAX_FILES)}
        by_url: dict[str, DiscoveredEngine] = {}
        for file in self._files.values():
            file.refresh()
            for engine in file.engines:
                by_url.setdefault(engine.url, engine)
        problems = [*self._folders.values(), *[file.problem for file in self._files.values() if file.problem]]
        return DiscoveryResult(
            engines=tuple(islice(by_url.values(), MAX_TARGETS)),
            problem=problems[0] if problems else None,
            warning=self._warning(len(paths)),
        )

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    def _matching(self, pattern: str) -> list[str]:
        folder, name = os.path.split(pattern)
        if not _WILD & set(name):
            return [pattern]
        try:
            with os.scandir(folder or ".") as entries:
                names = [entry.name for entry in islice(entries, MAX_ENTRIES)]
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "its name is malformed"
            if pattern not in self._folders or why not in str(self._folders[pattern]):
                self._folders[pattern] = SourceError("missing", f"{pattern}: the folder cannot be listed: {why}")
            return [path for path in self._files if fnmatch.fnmatchcase(path, pattern)]
        self._folders.pop(pattern, None)
        # Files that begin with a dot are an editor's, or those behind a mounted ConfigMap's links.
        matching = [entry for entry in names if fnmatch.fnmatchcase(entry, name) and not entry.startswith(".")]
        return [os.path.join(folder, entry) for entry in sorted(matching)]

    def _warning(self, files: int) -> str:
        ignored = sum(file.ignored for file in self._files.values())
        parts = [f"ignored={ignored}: targets that are no HOST:PORT, or too many"] if ignored else []
        if files > MAX_FILES:
            parts.append(f"files_ignored={files - MAX_FILES}: at most {MAX_FILES} files are read")
        return "; ".join(parts)
