"""What a metric is: one frozen row with its name, type, help, and the function that reads it from a snapshot.

The exposed name is computed, so that units and suffixes cannot be forgotten: prefix of the subject, noun, unit, and
``_total`` for counters or ``_info`` for facts.  Names are a contract: no row is renamed without a CHANGELOG entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partialmethod

from msgspec import Struct

from exporter.errors import CatalogError
from exporter.model import Histogram, Snapshot

Labels = tuple[str, ...]
Sample = tuple[Labels, float]
HistogramSample = tuple[Labels, Histogram]
ReadSamples = Callable[[Snapshot], Iterable[Sample]]
ReadHistograms = Callable[[Snapshot], Iterable[HistogramSample]]


class MetricKind(Enum):
    """The type in ``# TYPE``."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"  # quantiles only
    INFO = "info"  # a gauge that is always 1; the labels are the fact


class Unit(Enum):
    """Base units; the value is the suffix."""

    NONE = ""
    RATIO = "ratio"
    BYTES = "bytes"
    CELSIUS = "celsius"
    WATTS = "watts"
    JOULES = "joules"
    HERTZ = "hertz"
    SECONDS = "seconds"
    TOKENS = "tokens"


class SeriesSet(Enum):
    """The sets of series; see ``series`` in the configuration."""

    COMMON = "common"
    FULL = "full"


class MetricSubject(Struct, frozen=True):
    """What a metric is about: the prefix of its name and the identifying labels."""

    prefix: str
    labels: Labels
    heading: str

    def metric(
        self,
        kind: MetricKind,
        noun: str,
        read: ReadSamples,
        help_: str,
        *labels: str,
        unit: Unit = Unit.NONE,
        series: SeriesSet = SeriesSet.COMMON,
        read_full: ReadSamples | None = None,
    ) -> Metric:
        """Declare a metric of this subject; see ``Metric``."""
        return Metric(
            subject=self, noun=noun, kind=kind, help=help_, unit=unit, labels=labels, series=series,
            read=read, read_full=read_full,
        )  # fmt: skip

    gauge = partialmethod(metric, MetricKind.GAUGE)
    counter = partialmethod(metric, MetricKind.COUNTER)
    info = partialmethod(metric, MetricKind.INFO)


GPU = MetricSubject("gpu", ("gpu", "uuid"), "GPUs")
NODE = MetricSubject("gpu", (), "Node")
GROUP = MetricSubject("gpu", ("scope", "group"), "Groups of GPUs")
REPLICA = MetricSubject("llm", ("replica", "engine", "model"), "Replicas")
MODEL = MetricSubject("llm", ("model",), "Models on this node")
GATEWAY = MetricSubject("gateway", ("gateway", "kind"), "Gateways")
POOL = MetricSubject("gateway", ("gateway", "kind", "pool"), "Pools of gateways")
BACKEND = MetricSubject("gateway", ("gateway", "kind", "pool", "backend"), "Backends of gateways")
STORE = MetricSubject("kv_store", ("store", "kind"), "KV-cache stores")
NIC = MetricSubject("nic", ("device", "port"), "Ports of network adapters")
NODE_NIC = MetricSubject("nic", (), "Network adapters")
SOURCE = MetricSubject("shardwatch", ("source",), "Sources of the daemon")
PUSH = MetricSubject("shardwatch", ("target",), "Pushing")
DAEMON = MetricSubject("shardwatch", (), "The daemon itself")

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


class Metric(Struct, frozen=True, kw_only=True, eq=False):
    """One metric family.  ``labels`` come after the subject's; ``read`` yields their values in that order.

    ``read_full`` replaces ``read`` where the full set of series has more of the same family.
    """

    subject: MetricSubject
    noun: str
    kind: MetricKind
    help: str
    unit: Unit = Unit.NONE
    labels: Labels = ()
    series: SeriesSet = SeriesSet.COMMON
    read: ReadSamples | None = None
    read_full: ReadSamples | None = None
    read_histogram: ReadHistograms | None = None

    def __post_init__(self) -> None:
        """Raise CatalogError for a malformed row, at import."""
        if not _NAME.match(self.name):
            raise CatalogError(f"{self.name!r} is no metric name")
        if (self.read_histogram is not None) != (self.kind is MetricKind.HISTOGRAM) or (
            (self.read is None) == (self.read_histogram is None)
        ):
            raise CatalogError(f"{self.name}: exactly one reading function, and it must fit the kind")
        if not self.help.endswith("."):
            raise CatalogError(f"{self.name}: the help text is a sentence")
        if len(set(self.all_labels)) != len(self.all_labels) or "le" in self.all_labels:
            raise CatalogError(f"{self.name}: labels {self.all_labels} are not distinct")
        if ("quantile" in self.all_labels) != (self.kind is MetricKind.SUMMARY):
            raise CatalogError(f"{self.name}: the label quantile belongs to summaries, and they to it")

    @property
    def all_labels(self) -> Labels:
        """Every label of the family, subject's first."""
        return self.subject.labels + self.labels

    @property
    def family(self) -> str:
        """The family's name in OpenMetrics: without ``_total``."""
        end = "info" if self.kind is MetricKind.INFO else ""
        return "_".join(part for part in (self.subject.prefix, self.noun, self.unit.value, end) if part)

    @property
    def name(self) -> str:
        """The name of its samples, used in queries (for histograms: without ``_bucket``)."""
        return self.family + ("_total" if self.kind is MetricKind.COUNTER else "")
