"""What an engine is: everything that the daemon, the alerts and the documentation know about a kind of server.

Its table of fields says where our quantities stand on its pages.  A field says which of our quantities it fills and
under which upstream names, newest first; the first name on the page wins, so that a page with old and new names is
not counted twice.  An upstream rename is one string.  ``compile`` reads the tables, ``interpreter`` the pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from exporter.model import EMPTY, LENGTHS, Detail, Quantity, Stage
from exporter.model.outcome import ALWAYS_SUCCESS, OutcomeWords
from exporter.model.server import ServerProcess

MAX_LABEL_CHARACTERS = 256
# Ray shows the series of the engines in its apps on its own metrics page, under names that begin like this.
RELAY_PREFIX = "ray_"
RELAYED_FROZEN_AFTER = 60.0  # seconds; Ray passes figures on every 10

ROLES = frozenset(("prefill", "decode"))

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


# What people look for; what no field of a table fills is exposed as missing, so that nobody searches for it.
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
ONLY_AS_SUM = "only_as_sum"  # a duration whose sum and count are exposed, but no buckets: means only, no quantiles

_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


class Factor(Struct, frozen=True, kw_only=True):
    """What a value is multiplied by.

    Either that of the series of the same name which differs only in ``label``, being ``value``, or that of the series
    ``name`` with the same labels.
    """

    label: str = ""
    value: str = ""
    name: str = ""


class _EngineRow(Struct, frozen=True):
    """The positional arguments of a row; the others are named."""

    target: Quantity | Stage | Family | Detail
    names: tuple[str, ...]


class EngineField(_EngineRow, frozen=True, kw_only=True):
    """One row of an engine's table.

    ``names`` are canonical (see ``Engine.canonical``): of the sample for numbers, without ``_bucket`` for
    histograms.  ``scale`` converts the upstream unit into ours.  ``plus`` names, for one of ``names``, a second
    sample whose value is added.  ``labels``: those whose value is the outcome, the status or the word of a detail,
    the first that is set; ``word`` where none is.  ``outcomes`` translates an engine's word for an end into an
    outcome.  ``reduce`` makes one number of several series of a rank; ``ratio`` drops values above 1.  ``where``
    keeps only some series.  ``from_labels`` takes the number from an info series' labels instead of its value; its
    second argument is how many ranks the server has.  ``equal``: the values are states, and the number is how many
    series are in this one.  ``factor``: a series without one does not count.  ``newest``: the values are times, and
    the labels of the newest series have every word of a detail.  ``is_share``: every rank in lockstep reports a part
    of its own, and the parts add up.  ``count``: of a latency without buckets, whose sums ``names`` are, the sample
    that counts its observations; it has a mean and no quantiles.
    """

    scale: float = 1.0
    reduce: Reduce = Reduce.SUM
    ratio: bool = False
    plus: Mapping[str, str] = EMPTY
    labels: tuple[str, ...] = ()
    word: str = ""
    outcomes: OutcomeWords = ALWAYS_SUCCESS
    where: Callable[[Mapping[str, str]], bool] | None = None
    from_labels: Callable[[Mapping[str, str], int], float | None] | None = None
    equal: float | None = None
    factor: Factor | None = None
    newest: Callable[[Mapping[str, str]], Mapping[str, float]] | None = None
    is_share: bool = False
    count: str = ""


class ServerInfo(Struct, frozen=True, kw_only=True):
    """A path beside the metrics that answers with a JSON object; the first key that holds text counts."""

    path: str
    version_keys: tuple[str, ...] = ("version",)
    model_keys: tuple[str, ...] = ()  # asked where the page does not name the model
    # Where the page does: an answer that names another model comes from another server.
    same_model_keys: tuple[str, ...] = ()
    parallel_keys: tuple[str, ...] = ()  # the sizes of tensor and pipeline parallelism


class LatencyTargets(Struct, frozen=True, kw_only=True):
    """Seconds that the default SLOs ask of an engine, by the class of the model; each is a bound of its buckets.

    ``standard``: of all models that nobody has put into a class.
    """

    interactive: Mapping[Stage, float] = EMPTY
    standard: Mapping[Stage, float] = EMPTY
    batch: Mapping[Stage, float] = EMPTY

    def of(self, model_class: str) -> Mapping[Stage, float]:
        """Return the targets of a class by its name."""
        return {"interactive": self.interactive, "standard": self.standard, "batch": self.batch}[model_class]


class Engine(Struct, frozen=True, kw_only=True):
    """A kind of server: how its processes and its pages are recognised, what its names mean, how it is judged.

    Where a page shows several servers, the first of ``server_labels`` that is set names the server, and begins the
    name of the rank.  ``rank_labels`` follow; those that are empty are left out, the others joined by "/".  Of series
    that differ only in ``leader_labels`` (ranks that work in lockstep and each report the same work) the lowest
    counts.  Series with a label of ``router_labels`` and without the first of ``model_labels`` are a router's figures
    about its backends.
    """

    kind: str
    title: str  # as its makers write it
    versions: str = ""  # that were read, "" where only the present names are known
    servers: tuple[ServerProcess, ...] = ()  # () where nothing is found by command line
    distribution: str = ""  # whose version is the engine's, as the folder of its metadata begins
    info: ServerInfo | None = None
    metrics_flag: str = ""  # without which the server shows no metrics

    prefixes: tuple[str, ...]  # "vllm:"; a page with a known sample of such a name is of this kind
    fields: tuple[EngineField, ...]
    # Names that are written without any prefix, canonical, where all of ``bare_marks``, as written, are on the page:
    # a name alone may be any program's.
    bare_names: frozenset[str] = frozenset()
    bare_marks: frozenset[str] = frozenset()
    server_labels: tuple[str, ...] = ()
    rank_labels: tuple[str, ...] = ()
    leader_labels: tuple[str, ...] = ()
    router_labels: tuple[str, ...] = ()
    role_label: str = ""  # whose value is the server's part in disaggregation, one of ``ROLES``
    model_labels: tuple[str, ...] = ("model_name",)  # the first that is set
    several_models: bool = False  # the page tells of several applications, summed; a name only where there is one
    wrapper: bool = False  # its pages also carry other engines' series, and those say more
    process_start: str = "process_start_time_seconds"
    created: str = ""  # canonical name of the _created series of a counter that exists from the start
    # Sample names, canonical: where any of them stands, this version counts hits in the prefix cache, and a page
    # without that counter says that nothing has been found yet.  On a page that Ray relays that is always so.
    hits_from_first: tuple[str, ...] = ()
    version_label: str = ""
    # Seconds at work in which no counter moves before that is a fault: a long prefill step stays far below 20, a
    # wedged collective does not end.  None: this engine counts at the end of requests alone, which may be long.
    frozen_after: float | None = 20.0
    # The same while requests wait and none runs.  None: the gauge of waiting requests may be out of date at rest.
    stalled_after: float | None = None
    # As ``frozen_after`` while none of its GPUs computes, which no step can be.  None: the gauge of running requests
    # may be older than that.
    idle_after: float | None = None
    # Sample names, canonical: counters and gauges that change while requests run.  Where they are named, a page with
    # none of them cannot tell work from standstill.
    live: tuple[str, ...] = ()
    reasons: Mapping[str, str] = EMPTY  # signal → why it is missing, where known
    cache_blocks: str = ""  # "all", or the versions that count blocks instead of tokens in the prefix cache
    hint: str = ""  # what to do when the page has no series of this engine

    buckets: Mapping[Stage, tuple[float, ...]] = EMPTY  # seconds: the bounds it uses
    targets: LatencyTargets = LatencyTargets()
    not_judged: str = ""  # why there are no ``targets``

    def canonical(self, name: str) -> str:
        """Return the name without what relays do to it: ``ray_vllm_x``, ``ray_vllm:x``, ``vllm_x`` are ``vllm:x``."""
        local = name.removeprefix(RELAY_PREFIX)
        for prefix in self.prefixes:
            if local.startswith(prefix):
                return local
            if local.startswith(prefix[:-1] + "_"):
                return prefix + local[len(prefix) :]
        prefixed = self.prefixes[0] + name
        return prefixed if prefixed in self.bare_names else name

    @property
    def lacking(self) -> str:
        """Return what a page of no such engine lacks, in words."""
        if self.bare_marks:
            return f"not all of {', '.join(sorted(self.bare_marks))}"
        return f"no {self.prefixes[0]}* series"

    def name_style(self, name: str) -> tuple[str, str]:
        """Split a name as written into (prefix of ours, the spelling used for it); empty for other names."""
        canonical = self.canonical(name)
        for prefix in self.prefixes:
            if canonical.startswith(prefix):
                return prefix, name[: len(name) - len(canonical) + len(prefix)]
        return "", ""

    def rank(self, labels: Mapping[str, str]) -> str:
        """Return the rank that a series belongs to."""
        names = (self.server(labels), *(labels.get(name, "") for name in self.rank_labels))
        return clean("/".join([name for name in names if name]))

    def model(self, labels: Mapping[str, str]) -> str:
        """Return the model that a series names."""
        return clean(next((labels[name] for name in self.model_labels if labels.get(name)), ""))

    def server(self, labels: Mapping[str, str]) -> str:
        """Return the server that a series belongs to, "" on the page of one."""
        return next((labels[name] for name in self.server_labels if labels.get(name)), "")

    def wanted_names(self, *, lengths: bool = True) -> frozenset[str]:
        """Return every canonical sample name whose value is needed, with or without the distributions of lengths."""
        return sample_names(row for row in self.fields if lengths or row.target not in LENGTHS) | (
            {self.process_start, self.created, *self.hits_from_first, *self.live} - {""}
        )

    def activity_names(self) -> frozenset[str]:
        """Return those of ``live`` that no field reads."""
        return frozenset(self.live) - sample_names(self.fields)

    def matches(self, name: str) -> bool:
        """Return whether a sample of this name alone marks a page as this engine's."""
        canonical = self.canonical(name)
        return canonical.startswith(self.prefixes) and self.prefixes[0] + name != canonical

    def is_router_series(self, labels: Mapping[str, str]) -> bool:
        """Return whether a series is what a router knows of its backends instead of what an engine says."""
        names_model = any(labels.get(name) for name in self.model_labels[:1])
        return not names_model and any(name in labels for name in self.router_labels)

    def missing(self) -> Mapping[str, str]:
        """Return the signals that this kind of engine never gives, each with the reason."""
        given = {row.target for row in self.fields if not row.count}
        absent = [signal.value for signal in SIGNALS if signal not in given]
        if not given & {Quantity.PREFIX_CACHE_HITS, Quantity.LIFETIME_HIT_RATIO}:
            absent.append(KV_CACHE_HIT)
        return {signal: self.reasons.get(signal, NOT_EXPOSED) for signal in absent}


def sample_names(fields: Iterable[EngineField]) -> frozenset[str]:
    """Return every canonical sample name that the fields read."""
    names: set[str] = set()
    for row in fields:
        names.update(row.plus.values())
        names.update([row.count] if row.count else [])
        names.update([row.factor.name] if row.factor is not None and row.factor.name else [])
        for name in row.names:
            is_histogram = isinstance(row.target, Stage) and not row.count
            names.update([name + end for end in _HISTOGRAM_SUFFIXES] if is_histogram else [name])
    return frozenset(names)


def with_prefix(fields: Iterable[EngineField], old: str, new: str) -> tuple[EngineField, ...]:
    """Return the fields of another engine's table with its names under a new prefix."""
    return tuple(
        replace(row, names=tuple(new + name.removeprefix(old) for name in row.names if name.startswith(old)))
        for row in fields
        if row.names[0].startswith(old)
    )


def clean(text: str) -> str:
    """Return a label value bounded in length, without control characters (some readers stop at NUL)."""
    text = text[:MAX_LABEL_CHARACTERS]
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def status_class(code: str) -> str:
    """Return 2xx for 200, and so on; what is no status stays as it is."""
    return f"{code[0]}xx" if len(code) == 3 and code.isdecimal() else code
