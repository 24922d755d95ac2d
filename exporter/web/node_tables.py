"""What the tables of one page have in common: a snapshot, its indexes, and the language."""

from __future__ import annotations

from collections import defaultdict

from exporter.diagnosis.view import View
from exporter.model import GpuAssignment, Snapshot
from exporter.model.text import Language
from exporter.web.history import flatten
from exporter.web.marks import severity_level
from exporter.web.model import Level, PageColumn
from exporter.web.texts import words

_ORDER = tuple(Level)


class NodeTables:
    """One snapshot in one language, indexed for the tables that show it."""

    def __init__(self, snapshot: Snapshot, language: Language) -> None:
        self.snapshot, self.language = snapshot, language
        self.say = words(language)
        self.view = View(snapshot)
        self.labels = {card.facts.uuid: card.labels.gpu for card in snapshot.cards}
        self.assigned: dict[str, list[GpuAssignment]] = defaultdict(list)  # uuid →
        for assignment in snapshot.assignments:
            self.assigned[assignment.uuid].append(assignment)
        self.owners = {pid: found.owner.name for found in snapshot.owners for pid in found.pids}
        # replica without progress → what the first finding of it names as the cause, else ""
        self.standstills = {
            replica.name: self._cause(replica.name) for replica in snapshot.replicas if replica.frozen
        }
        self.marks: dict[str, Level] = {}  # subject → the gravest finding about it
        self.marked_by: dict[str, str] = {}  # subject → the name of that finding
        for finding in flatten(snapshot.findings).values():
            level = severity_level(finding.severity)
            for name in filter(None, (finding.subject.name, finding.replica)):  # whose users it hurts, too
                if _ORDER.index(level) > _ORDER.index(self.marks.get(name, Level.NONE)):
                    self.marks[name], self.marked_by[name] = level, finding.id

    def _cause(self, replica: str) -> str:
        concerning = (found for found in self.snapshot.findings if found.subject.name == replica and found.causes)
        cause = next((found.causes[0].subject.text for found in concerning), None)
        return "" if cause is None else cause.in_(self.language)

    def columns(self, *names: str, numeric: frozenset[str] = frozenset()) -> tuple[PageColumn, ...]:
        """Return columns by the keys of their headings; a key with ``_title`` behind it explains the heading."""
        return tuple(
            PageColumn(heading=self.say(name), title=self._title(name), numeric=name in numeric) for name in names
        )

    def _title(self, name: str) -> str:
        try:
            return self.say(f"{name}_title")
        except KeyError:
            return ""
