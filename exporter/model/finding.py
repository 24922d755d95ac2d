"""What is wrong, with evidence and advice, and whether a replica or GPU should get work."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from exporter.model.source import EMPTY
from exporter.model.text import Text


class Severity(str, Enum):
    """What a finding or an alert asks for: a page, a ticket, a note, nothing (the alerts' watchdog)."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    NONE = "none"


class SubjectKind(str, Enum):
    """What a finding is about."""

    NODE = "node"
    GPU = "gpu"
    REPLICA = "replica"
    GATEWAY = "gateway"
    ADAPTER = "adapter"
    SOURCE = "source"
    STORE = "store"


def gpu_name(gpu: str) -> Text:
    """Return what people call the GPU of this number."""
    return Text(f"GPU {gpu}", f"{gpu} 号卡")


class Subject(Struct, frozen=True):
    """``name`` identifies the subject (a GPU's UUID, a replica's name); ``label`` is what people call it (GPU 6)."""

    kind: SubjectKind
    name: str
    label: str

    @property
    def text(self) -> Text:
        """What people call it, in both languages."""
        return gpu_name(self.label.removeprefix("GPU ")) if self.kind is SubjectKind.GPU else Text(*(self.label,) * 2)


class Evidence(Struct, frozen=True):
    """One named value.  ``unit`` is a base unit (seconds, bytes, ratio, celsius, hertz, watts), or ""."""

    name: str
    value: float | str | Text
    unit: str = ""


class Finding(Struct, frozen=True, kw_only=True):
    """One diagnosed problem.

    ``id``: the name of the alert that judges the same, which is also the heading in the runbook.  ``relief``: what
    protects users until the problem is solved, ``actions``: what solves it.  ``causes``: the findings that explain
    this one, the most likely first; not listed again on their own.  ``solves_causes``: the actions solve the causes,
    too, whose own would not do.  ``since``: Unix time, None until tracked.
    """

    id: str
    severity: Severity
    subject: Subject
    summary: Text
    actions: tuple[Text, ...]
    relief: Text | None = None
    evidence: tuple[Evidence, ...] = ()
    cause: Text | None = None
    causes: tuple[Finding, ...] = ()
    solves_causes: bool = False
    replica: str = ""  # whose users are hurt
    since: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What makes two findings of successive snapshots the same."""
        return self.id, self.subject.name

    @property
    def steps(self) -> tuple[Text, ...]:
        """What to do, in order and each once: protect the users, then solve the first cause, else this problem."""
        relief = [step for finding in (self, *self.causes) if (step := finding.relief) is not None][:1]
        return tuple(dict.fromkeys((*relief, *self.solution)))

    @property
    def solution(self) -> tuple[Text, ...]:
        """The actions of the innermost first cause; further causes are mostly its consequences."""
        return self.causes[0].solution if self.causes and not self.solves_causes else self.actions


class VerdictState(str, Enum):
    """Whether something should get work."""

    SERVE = "serve"
    DRAIN = "drain"  # finish what it has, take nothing new
    EJECT = "eject"
    UNKNOWN = "unknown"  # never ejects


NO_REPLICA_SERVES = "no_replica_serves"  # the only reason of a node that lies in its engines, not in its GPUs


class Verdict(Struct, frozen=True):
    """``reason`` is a closed word, "" for serve; ``detail`` a sentence for people."""

    state: VerdictState
    reason: str = ""
    detail: Text = Text("", "")


STARTING = Verdict(VerdictState.UNKNOWN, "starting", Text("not observed for long enough yet", "观察时间还不够长"))


class Verdicts(Struct, frozen=True, kw_only=True):
    """The verdict on every replica by name, on every GPU by UUID, and on the node."""

    replicas: Mapping[str, Verdict] = EMPTY
    gpus: Mapping[str, Verdict] = EMPTY
    node: Verdict = STARTING
