"""What an engine is: a table of fields that says where our quantities stand on its pages.

A field says which of our quantities it fills and under which upstream names, newest first; the first name that the
page carries wins, so that a page with old and new names is not counted twice.  An upstream rename is one string.
``plan`` reads the tables, ``interpreter`` the pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from exporter.model import EMPTY, Quantity, Stage

MAX_LABEL_CHARACTERS = 256

# Paths that answer inference; the model list, tokenisation of curious clients and 404 scans say nothing of service.
INFERENCE_PATHS = ("/v1/chat", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/audio",
                   "/v1/score", "/v1/rerank", "/v2/rerank", "/rerank", "/score", "/pooling", "/classify", "/generate",
                   "/invocations", "/inference", "/encode")  # fmt: skip


class Reduce(Enum):
    """How several series of one rank become one number."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"


class Family(Enum):
    """Counters that are kept by a label's value instead of by rank alone."""

    FINISHED = "finished"  # outcome
    RESPONSES = "responses"  # HTTP status class


# What people look for; what no field of a table fills is said to be missing, so that nobody hunts for it.
SIGNALS: tuple[Quantity | Stage, ...] = (
    Quantity.REQUESTS_RUNNING,
    Quantity.REQUESTS_WAITING,
    Quantity.KV_CACHE_USAGE,
    Quantity.KV_CACHE_CAPACITY,
    Quantity.PROMPT_TOKENS,
    Quantity.GENERATION_TOKENS,
    Quantity.PREEMPTIONS,
    Stage.TIME_TO_FIRST_TOKEN,
    Stage.INTER_TOKEN,
    Stage.TIME_PER_OUTPUT_TOKEN,
    Stage.REQUEST,
    Stage.QUEUE,
    Stage.PREFILL,
    Stage.DECODE,
)
KV_CACHE_HIT = "kv_cache_hit"
NOT_EXPOSED = "not_exposed_by_engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineField:
    """One row of an engine's table.

    ``names`` are canonical (see ``Engine.canonical``): of the sample for numbers, without ``_bucket`` for
    histograms.  ``scale`` turns the upstream unit into ours.  ``plus`` names, for one of ``names``, a second sample
    whose value is added.  ``label``: the label whose value is the outcome or the status, put into our words by
    ``word``, with ``constant`` instead where there is none.  ``where`` keeps only some series.  ``from_labels``
    takes the number from an info series' labels instead of its value; it is told how many ranks the server has.
    ``equal``: the values are states, and the number is how many series are in this one.  ``times``: each value is
    multiplied by that of the series that differs from it in the label ``times[0]`` alone, which is ``times[1]``; a
    series without such a neighbour does not count.
    """

    target: Quantity | Stage | Family
    names: tuple[str, ...]
    scale: float = 1.0
    reduce: Reduce = Reduce.SUM
    ratio: bool = False
    plus: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    label: str = ""
    word: Callable[[str], str] | None = None
    constant: str = ""
    where: Callable[[Mapping[str, str]], bool] | None = None
    from_labels: Callable[[Mapping[str, str], int], float | None] | None = None
    equal: float | None = None
    times: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A kind of server: how to recognise its page and what its names mean.

    ``rank_labels`` together name the rank; those that are empty are left out, the others joined by "/".  Of series
    that differ only in ``leader_labels`` (ranks that work in lockstep and each report the same work) the lowest
    counts.  Series with a label of ``router_labels`` and no model are a router's figures about its backends.
    """

    kind: str
    prefixes: tuple[str, ...]  # "vllm:"; a page with a known sample of such a name is of this kind
    fields: tuple[EngineField, ...]
    rank_labels: tuple[str, ...] = ()
    leader_labels: tuple[str, ...] = ()
    router_labels: tuple[str, ...] = ()
    model_label: str = "model_name"
    several_models: bool = False  # one page tells of several applications, summed; a name only where there is one
    wrapper: bool = False  # its pages also carry other engines' series, and those say more
    process_start: str = "process_start_time_seconds"
    created: str = ""  # canonical name of the _created series of a counter that exists from the start
    # Sample names, canonical: where any of them stands, this version counts hits in the prefix cache, and a page
    # without that counter says that nothing has been found yet.  On a page that Ray relays that is always so.
    hits_from_first: tuple[str, ...] = ()
    version_label: str = ""
    version_path: str = ""  # answers JSON with a "version"
    model_key: str = ""  # in the same JSON, where the page does not name the model
    # Seconds at work in which no counter moves before that is a fault: a long prefill step stays far below 20, a
    # wedged collective does not end.  Only on pages with ``live``, a counter that moves while requests run; None:
    # this engine counts at the end of requests alone, which may be long.
    frozen_after: float | None = 20.0
    live: str = ""
    reasons: Mapping[str, str] = field(default_factory=lambda: EMPTY)  # signal → why it is missing, where we know
    hint: str = ""  # what to do when the page has no series of this engine

    def canonical(self, name: str) -> str:
        """Undo what relays do to names: ``ray_vllm_x``, ``ray_vllm:x`` and ``vllm_x`` are all ``vllm:x``."""
        bare = name.removeprefix("ray_")
        for prefix in self.prefixes:
            if bare.startswith(prefix):
                return bare
            if bare.startswith(prefix[:-1] + "_"):
                return prefix + bare[len(prefix) :]
        return name

    def name_style(self, name: str) -> tuple[str, str]:
        """Split a name as written into (prefix of ours, the spelling used for it); empty for other names."""
        canonical = self.canonical(name)
        for prefix in self.prefixes:
            if canonical.startswith(prefix):
                return prefix, name[: len(name) - len(canonical) + len(prefix)]
        return "", ""

    def rank(self, labels: Mapping[str, str]) -> str:
        """Name the rank that a series belongs to."""
        found = [labels[name] for name in self.rank_labels if labels.get(name)]
        return clean("/".join(found))

    def wanted_names(self) -> frozenset[str]:
        """Every canonical sample name whose value is needed."""
        names = {self.process_start, self.created, *self.hits_from_first}
        for row in self.fields:
            names.update(row.plus.values())
            for name in row.names:
                names.update([name + end for end in _ENDS] if isinstance(row.target, Stage) else [name])
        return frozenset(names - {""})

    def matches(self, name: str) -> bool:
        """Say whether a sample of this name marks a page as this engine's."""
        return self.canonical(name).startswith(self.prefixes)

    def routers(self, labels: Mapping[str, str]) -> bool:
        """Say whether a series tells what a router knows of its backends instead of what an engine says."""
        return not labels.get(self.model_label) and any(name in labels for name in self.router_labels)

    def missing(self) -> Mapping[str, str]:
        """Give the signals that this kind of engine never gives, each with the reason."""
        given = {row.target for row in self.fields}
        absent = [signal.value for signal in SIGNALS if signal not in given]
        if not given & {Quantity.PREFIX_CACHE_HITS, Quantity.LIFETIME_HIT_RATIO}:
            absent.append(KV_CACHE_HIT)
        return {signal: self.reasons.get(signal, NOT_EXPOSED) for signal in absent}


_ENDS = ("_bucket", "_sum", "_count")


def clean(text: str) -> str:
    """Bound a label value that will stand on our page, and take out control characters (some readers stop at NUL)."""
    text = text[:MAX_LABEL_CHARACTERS]
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def status_class(code: str) -> str:
    """Give 2xx for 200, and so on; what is no status stays as it is."""
    return f"{code[0]}xx" if len(code) == 3 and code.isdecimal() else code
