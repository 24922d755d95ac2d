"""Metrics of the daemon itself; ``process_*`` and ``python_*`` are in sources/process_metrics."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from exporter import __version__
from exporter.catalog.spec import DAEMON, PUSH, SOURCE, Metric, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import Snapshot, SourceStatus
from exporter.model.push import DROP_REASONS, PushState


def _source(value: Callable[[SourceStatus], float | None], *, cards: bool = True) -> ReadSamples:
    """Return a reader of a number of every source; without ``cards``, of those without a ``gpu_*`` health metric."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for status in snapshot.sources:
            number = value(status)
            if number is not None and (cards or not status.source.startswith("gpu:")):
                yield (status.source,), number

    return read


def _health(noun: str, value: Callable[[SourceStatus], float | None], help_: str, unit: Unit = Unit.NONE) -> Metric:
    return SOURCE.gauge(
        noun,
        _source(value, cards=False),
        f"{help_} Without GPUs (gpu:…): see gpu_up and gpu_data_age_seconds.",
        unit=unit,
    )


def _failures(snapshot: Snapshot) -> Iterator[Sample]:
    for status in snapshot.sources:
        for reason, count in status.failures.items():
            yield (status.source, reason), float(count)


def _down(snapshot: Snapshot) -> Iterator[Sample]:
    for status in snapshot.sources:
        if not status.up and status.reason:
            yield (status.source, status.reason), 1.0


def _skipped_lines(snapshot: Snapshot) -> Iterator[Sample]:
    for (source, reason), count in snapshot.daemon.parse_warnings.items():
        yield (source, reason), float(count)


def _unassigned(snapshot: Snapshot) -> Iterator[Sample]:
    for replica, reason in snapshot.daemon.unassigned.items():
        yield (replica, reason), 1.0


def _discovery_limits(snapshot: Snapshot) -> Iterator[Sample]:
    for limit in sorted(snapshot.daemon.discovery_limits):
        yield (limit,), 1.0


def _build(_: Snapshot) -> Iterator[Sample]:
    yield (__version__, platform.python_version()), 1.0


def _reload(snapshot: Snapshot) -> Iterator[Sample]:
    yield (), float(snapshot.daemon.config_reload_successful)


def _reload_time(snapshot: Snapshot) -> Iterator[Sample]:
    if snapshot.daemon.config_reload_unix_time is not None:
        yield (), snapshot.daemon.config_reload_unix_time


def _loops(snapshot: Snapshot) -> Iterator[Sample]:
    for loop, count in snapshot.daemon.loop_restarts.items():
        yield (loop,), float(count)


def _dropped(snapshot: Snapshot) -> Iterator[Sample]:
    yield (), float(snapshot.daemon.dropped_series)


def _dropped_log_lines(snapshot: Snapshot) -> Iterator[Sample]:
    yield (), float(snapshot.daemon.dropped_log_lines)


def _accept_failures(snapshot: Snapshot) -> Iterator[Sample]:
    yield (), float(snapshot.daemon.access.accept_failures)


def _certificate(snapshot: Snapshot) -> Iterator[Sample]:
    if snapshot.daemon.access.certificate_expires is not None:
        yield (), snapshot.daemon.access.certificate_expires


def _handshakes(snapshot: Snapshot) -> Iterator[Sample]:
    if snapshot.daemon.access.handshake_failures is not None:
        yield (), float(snapshot.daemon.access.handshake_failures)


def _authentications(snapshot: Snapshot) -> Iterator[Sample]:
    for reason, count in snapshot.daemon.access.authentication_failures.items():
        yield (reason,), float(count)


SOURCES = (
    _health("source_up", lambda s: float(s.up), "1 while the source is read successfully."),
    SOURCE.info(
        "source_down", _down, "Why a source is down: refused, timeout, lost, hung, library and so on.", "reason"
    ),
    SOURCE.gauge(
        "source_poll_duration",
        _source(lambda s: s.duration),
        "Duration of the last attempt to read the source.",
        unit=Unit.SECONDS,
        series=SeriesSet.FULL,
    ),
    _health(
        "source_last_success_timestamp",
        lambda s: s.last_success_unix_time,
        "Unix time of the last successful reading.",
        Unit.SECONDS,
    ),
    SOURCE.counter("source_failures", _failures, "Failed attempts to read the source.", "reason"),
    SOURCE.counter(
        "source_polls_skipped",
        _source(lambda s: float(s.skipped)),
        "Polls skipped because the previous one was still running.",
        series=SeriesSet.FULL,
    ),
    SOURCE.gauge(
        "source_hung",
        _source(lambda s: float(s.hung), cards=False),
        "1 while a call to the source does not return. GPUs (gpu:…) are in the full set only.",
        read_full=_source(lambda s: float(s.hung)),
    ),
    SOURCE.counter(
        "source_oddities",
        _skipped_lines,
        "Lines and numbers of the source's pages that were skipped, by reason: unreadable, duplicate, bad_number.",
        "reason",
    ),
)

SELF = (
    DAEMON.info("build", _build, "The daemon's version.", "version", "python_version"),
    DAEMON.gauge(
        "config_last_reload_successful",
        _reload,
        "1 unless the last reload of the configuration failed; the previous configuration stays in use.",
    ),
    DAEMON.gauge(
        "config_last_reload_success_timestamp",
        _reload_time,
        "Unix time at which the configuration in use was loaded.",
        unit=Unit.SECONDS,
    ),
    DAEMON.info(
        "replica_unassigned", _unassigned, "A replica without an assigned GPU, and why.", "replica", "reason"
    ),
    DAEMON.info(
        "discovery_limit_reached",
        _discovery_limits,
        "A limit that discovery reached, so engines may be missing: targets (32 engines are polled), processes "
        "(4,096 are read), descriptors (65,536 are read) or sockets (16,384 listening ones).",
        "limit",
    ),
    DAEMON.counter(
        "loop_restarts",
        _loops,
        "Unexpected errors that a loop of the daemon survived; please report them as bugs.",
        "loop",
    ),
    DAEMON.gauge(
        "dropped_series",
        _dropped,
        "Series that were not exposed because of the hard cap, or because their values were not finite.",
    ),
    DAEMON.counter(
        "log_lines_dropped",
        _dropped_log_lines,
        "Log lines that were dropped because nobody read standard error in time.",
    ),
    DAEMON.counter(
        "accept_failures",
        _accept_failures,
        "Connections that could not be accepted at once for want of descriptors or memory; they wait meanwhile.",
        series=SeriesSet.FULL,
    ),
    DAEMON.gauge(
        "certificate_expiry_timestamp",
        _certificate,
        "Unix time at which the endpoint's TLS certificate expires; absent over plain HTTP.",
        unit=Unit.SECONDS,
    ),
    DAEMON.counter(
        "tls_handshake_failures",
        _handshakes,
        "TLS handshakes with the endpoint that failed; absent over plain HTTP.",
    ),
    DAEMON.counter(
        "authentication_failures",
        _authentications,
        "Requests refused for want of a user: no credentials (missing), wrong ones (wrong), or too many at once to "
        "verify (limited). Absent without users.",
        "reason",
    ),
)


def _push(value: Callable[[PushState], float]) -> ReadSamples:
    return lambda snapshot: (((push.target,), float(value(push))) for push in snapshot.pushes)


def _push_dropped(snapshot: Snapshot) -> Iterator[Sample]:
    for push in snapshot.pushes:
        for reason in DROP_REASONS:  # from 0 on, or increase() would not see the first loss
            yield (push.target, reason), float(push.dropped.get(reason, 0))


PUSHES = (
    PUSH.counter(
        "push_samples",
        _push(lambda push: push.samples),
        "Samples that the receiver accepted. Whether it accepts them now: shardwatch_source_up, source push:TARGET.",
    ),
    PUSH.counter(
        "push_samples_dropped",
        _push_dropped,
        "Samples that were never accepted: waited until the queue was full (queue_full) or they were too old "
        "(too_old), refused by the receiver (refused), or lost by an error of the daemon's own (internal).",
        "reason",
    ),
    PUSH.counter("push_sent", _push(lambda push: push.sent_bytes), "Bytes of requests sent.", unit=Unit.BYTES),
    PUSH.gauge("push_queue", _push(lambda push: push.queue_bytes), "Size of what waits to be sent.", unit=Unit.BYTES),
    PUSH.gauge(
        "push_queue_age",
        _push(lambda push: push.queue_age),
        "Age of the oldest edition that waits to be sent; 0 if none waits.",
        unit=Unit.SECONDS,
    ),
    DAEMON.info(
        "pushed",
        lambda snapshot: [((), 1.0)] if snapshot.is_pushed else (),
        "Present in what is pushed, and never on the endpoint: tells nodes that push from nodes that are scraped.",
    ),
)

OWN_HEALTH = (*SOURCES, *SELF, *PUSHES)
