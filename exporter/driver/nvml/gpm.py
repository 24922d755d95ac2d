"""How much of a GPU really worked since the previous cycle: units, memory, links, from its own counters (GPM).

Utilisation says that a kernel was resident; a rank that waits for its peers in a collective shows 100 %.  These
counters say how many processors were busy, and with what.  Hopper and newer have them; elsewhere they are absent.

Two buffers for each GPU (or MIG instance) are filled in turn, so that a cycle costs one sample and one evaluation.
The driver wants more than 100 ms between the two.  Whatever fails here costs these figures only: its
ordinary calls find out that a GPU is lost.  Calls about different GPUs must not overlap (drivers have crashed): see
GpmLock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from exporter.driver.nvml.arrays import metric_answers
from exporter.driver.nvml.errors import INVALID_ARGUMENT, DeviceCalls, DeviceUnavailable, DriverUnavailable
from exporter.driver.nvml.fields import checked
from exporter.model import Missing, Signal

MIN_WINDOW, MAX_WINDOW = 0.11, 600.0  # seconds between the two samples
LOCK_TIMEOUT = 0.25  # seconds that a GPU waits for the lock

# The driver's metric ids.  Shares come in percent, rates in MiB/s; over NVLink receiving has the lower number.
SHARES: Mapping[int, Signal] = {
    1: Signal.GRAPHICS_ACTIVE,
    2: Signal.SM_ACTIVE,
    3: Signal.SM_OCCUPANCY,
    5: Signal.TENSOR_ACTIVE,
    10: Signal.DRAM_ACTIVE,
}
PIPES: Mapping[int, str] = {
    4: "integer",
    6: "tensor_dfma",
    7: "tensor_hmma",
    8: "tensor_dmma",
    9: "tensor_imma",
    11: "fp64",
    12: "fp32",
    13: "fp16",
}
TRAFFIC: Mapping[int, tuple[str, str]] = {
    20: ("pcie", "transmit"),
    21: ("pcie", "receive"),
    61: ("nvlink", "transmit"),
    60: ("nvlink", "receive"),
}
SIGNALS = (*SHARES.values(), Signal.PIPE_ACTIVE, Signal.TRAFFIC)

_ROUNDING = 1.02  # a share of two counters that are not read in the same instant may come out above one
_RATE_LIMIT = 2.0**44  # bytes per second
_MEBIBYTE = 1024.0 * 1024.0

Sample = Callable[[Any], Any]


class _Holder(Struct, frozen=True):
    uuid: str
    since: float


class GpmLock:
    """Serialises calls of the driver's GPM functions, and keeps the buffers that are not in use.

    A call that never returns holds the lock for ever: the others then have none of these figures, and after the first
    time without waiting.  Hence ``backed_off``: GPUs (uuid → monotonic seconds) that have hung here in an earlier
    worker and do not call these functions until then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stuck = False
        self._holder: _Holder | None = None
        self.backed_off: dict[str, float] = {}
        self.buffers: list[Any] = []

    def acquire(self, uuid: str = "") -> bool:
        """Return whether a GPU got the lock; waits for it, not for long."""
        if not self._lock.acquire(timeout=0.0 if self._stuck else LOCK_TIMEOUT):
            self._stuck = True
            return False
        self._stuck = False
        self._holder = _Holder(uuid, time.monotonic())
        return True

    def release(self) -> None:
        """Release the lock."""
        self._holder = None
        self._lock.release()

    def holder(self, now: float) -> dict[str, float]:
        """Return who holds the lock, and for how many seconds; empty while it is free."""
        holder = self._holder
        return {} if holder is None or not holder.uuid else {holder.uuid: max(0.0, now - holder.since)}

    def free_buffers(self, driver: Any) -> None:
        """Free the driver's buffers; they are of no use after a shutdown."""
        if self.acquire():
            try:
                while self.buffers:
                    driver.nvmlGpmSampleFree(self.buffers.pop())
            except Exception:
                self.buffers.clear()
            finally:
                self.release()


class GpmRead(Struct, frozen=True, kw_only=True):
    """What was read: shares by signal, or why not; pipes and traffic as CardReading has them."""

    values: Mapping[Signal, float | Missing]
    pipes: Mapping[str, float] = {}
    traffic: Mapping[tuple[str, str], float] = {}

    @staticmethod
    def none(why: Missing) -> GpmRead:
        """Return the answer of a GPU that has no figures."""
        return GpmRead(values=dict.fromkeys(SIGNALS, why))


class GpmCounters:
    """The work of one GPU or MIG instance between two reads.  ``sample`` fills a buffer, or returns a Missing.

    ``uuid``: of the GPU, of an instance the parent's.
    """

    def __init__(
        self, driver: Any, calls: DeviceCalls, lock: GpmLock, sample: Sample | None = None, *, uuid: str = ""
    ) -> None:
        self._driver, self._calls, self._lock, self._uuid = driver, calls, lock, uuid
        self._sample = sample or (lambda buffer: calls.call("nvmlGpmSampleGet", buffer, key="nvmlGpmSampleGet"))
        self._supported: bool | None = None
        self._query: Any = None
        self._wanted = [*SHARES, *PIPES, *TRAFFIC]
        self._metrics: Any = None  # the part of the query that holds them, once it names what is wanted
        self._first: Any = None
        self._second: Any = None
        self._first_at: float | None = None
        self._last = GpmRead.none(Missing.STARTING)

    def read(self, clock: Callable[[], float]) -> GpmRead:
        """Return the means since the previous read.  Raises nothing that a driver can cause; may block for ever."""
        if self._supported is False:
            return GpmRead.none(Missing.UNSUPPORTED)
        if self._first_at is not None and clock() - self._first_at < MIN_WINDOW:
            return self._last
        if clock() < self._lock.backed_off.get(self._uuid, 0.0) or not self._lock.acquire(self._uuid):
            return GpmRead.none(Missing.BUSY)
        try:
            self._last = self._read(clock)
        except (DeviceUnavailable, DriverUnavailable):
            self._last = GpmRead.none(Missing.ERROR)
        except (AttributeError, IndexError, TypeError):
            self._last = GpmRead.none(Missing.INVALID)
        finally:
            self._lock.release()
        return self._last

    def close(self) -> None:
        """Return the buffers to the pool."""
        self._lock.buffers += [buffer for buffer in (self._first, self._second) if buffer is not None]
        self._first = self._second = self._first_at = None

    def _read(self, clock: Callable[[], float]) -> GpmRead:
        why = self._prepare()
        if why is None:
            at = clock()
            answer = self._sample(self._second)
            why = answer if isinstance(answer, Missing) else None
        if why is not None:
            self._supported = False if why is Missing.UNSUPPORTED else self._supported
            return GpmRead.none(why)
        window = None if self._first_at is None else at - self._first_at
        found = GpmRead.none(Missing.STARTING)
        try:
            if window is not None and window <= MAX_WINDOW:
                found = self._between()
        finally:
            self._first, self._second, self._first_at = self._second, self._first, at
        return found

    def _prepare(self) -> Missing | None:
        """Check that the GPU has counters and allocate buffers; return why not, None where all is well."""
        if self._supported is None:
            support = self._calls.call("nvmlGpmQueryDeviceSupport")
            structure = getattr(self._driver, "c_nvmlGpmMetricsGet_t", None)
            if isinstance(support, Missing):
                return support
            if not support.isSupportedDevice or structure is None:
                return Missing.UNSUPPORTED
            self._query = structure()
            self._query.version = 1
            self._supported = True
        for name in ("_first", "_second"):
            if getattr(self, name) is None:
                buffers = self._lock.buffers
                buffer = buffers.pop() if buffers else self._calls.call_without_handle("nvmlGpmSampleAlloc")
                if isinstance(buffer, Missing):
                    return buffer
                setattr(self, name, buffer)
        return None

    def _between(self) -> GpmRead:
        query = self._query
        query.sample1, query.sample2 = self._first, self._second
        if self._metrics is None:
            query.numMetrics = len(self._wanted)
            self._metrics = query.metrics
            for index, metric in enumerate(self._wanted):
                self._metrics[index].metricId = metric
        answer = self._calls.call_without_handle("nvmlGpmMetricsGet", query, key="nvmlGpmMetricsGet")
        if isinstance(answer, Missing):
            return GpmRead.none(answer)
        answers = metric_answers(self._metrics, len(self._wanted))
        if all(code == INVALID_ARGUMENT for code, _ in answers):
            return GpmRead.none(Missing.ERROR)  # it objects to the samples, not to the metrics
        found = {metric: self._value(metric, *answer) for metric, answer in zip(self._wanted, answers, strict=True)}
        if Missing.UNSUPPORTED in found.values():
            self._wanted = [metric for metric in self._wanted if found[metric] is not Missing.UNSUPPORTED]
            self._metrics = None
            self._supported = bool(self._wanted)
        return _by_destination(found)

    def _value(self, metric: int, code: int, raw: float) -> float | Missing:
        if code:
            return self._calls.on_refused(("gpm", metric), code)
        self._calls.on_accepted(("gpm", metric))
        if metric in TRAFFIC:
            return checked(raw, _MEBIBYTE, high=_RATE_LIMIT)
        share = checked(raw, 0.01, high=_ROUNDING)
        return share if isinstance(share, Missing) else min(share, 1.0)


def _by_destination(found: Mapping[int, float | Missing]) -> GpmRead:
    """Return values by where they belong; a metric that is not in ``found`` was refused before."""
    values: dict[Signal, float | Missing] = {
        signal: found.get(metric, Missing.UNSUPPORTED) for metric, signal in SHARES.items()
    }
    pipes, traffic = _group(found, PIPES), _group(found, TRAFFIC)
    if pipes.why is not None:
        values[Signal.PIPE_ACTIVE] = pipes.why
    if traffic.why is not None:
        values[Signal.TRAFFIC] = traffic.why
    return GpmRead(values=values, pipes=pipes.values, traffic=traffic.values)


class _Group(Struct, frozen=True):
    """What is known, and why something is not: a failure, or that there is nothing at all."""

    values: Mapping[Any, float]
    why: Missing | None


def _group(found: Mapping[int, float | Missing], names: Mapping[int, Any]) -> _Group:
    known: dict[Any, float] = {}
    why: Missing | None = None
    for metric, name in names.items():
        value = found.get(metric, Missing.UNSUPPORTED)
        if not isinstance(value, Missing):
            known[name] = value
        elif value is not Missing.UNSUPPORTED:
            why = value
    return _Group(known, why if known or why else Missing.UNSUPPORTED)
