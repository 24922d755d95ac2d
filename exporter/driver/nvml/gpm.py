"""How much of a card really worked since the previous cycle: units, memory, links, from its own counters (GPM).

Utilisation says that a kernel was resident; a rank that waits for its peers in a collective shows 100 %.  These
counters say how many processors were busy, and with what.  Hopper and newer have them; elsewhere they are absent.

Two buffers for each card (or MIG instance) are filled in turn, so that a cycle costs one sample and one evaluation.
The driver wants more than 100 ms between the two.  Whatever fails here costs these figures only: that a card is lost
is for its ordinary calls to say.  Calls about different cards must not overlap (drivers have crashed): see GpmLock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exporter.driver.nvml.arrays import metric_answers
from exporter.driver.nvml.errors import INVALID_ARGUMENT, DeviceCalls, DeviceUnavailable, DriverUnavailable
from exporter.driver.nvml.fields import checked
from exporter.model import Missing, Signal

WINDOW_LEAST, WINDOW_MOST = 0.11, 600.0  # seconds between the two samples
WAIT = 0.25  # seconds that a card waits for its turn

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

Take = Callable[[Any], Any]


class GpmLock:
    """Lets one card at a time into the driver's GPM functions, and keeps the buffers that nobody uses.

    A call that never returns keeps its turn for ever: the others then go without these figures, and after the first
    time without waiting.  Hence ``resting``: cards (uuid → monotonic seconds) that have hung here in an earlier
    worker and do not come in until then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stuck = False
        self._inside: tuple[str, float] | None = None
        self.resting: dict[str, float] = {}
        self.buffers: list[Any] = []

    def enter(self, who: str = "") -> bool:
        """Wait for the turn of card ``who`` (uuid), not for long; False when it did not come."""
        if not self._lock.acquire(timeout=0.0 if self._stuck else WAIT):
            self._stuck = True
            return False
        self._stuck = False
        self._inside = (who, time.monotonic())
        return True

    def leave(self) -> None:
        """Let the next one in."""
        self._inside = None
        self._lock.release()

    def inside(self, now: float) -> dict[str, float]:
        """Give who has the turn, and for how many seconds; empty while nobody has."""
        inside = self._inside
        return {} if inside is None or not inside[0] else {inside[0]: max(0.0, now - inside[1])}

    def clear(self, driver: Any) -> None:
        """Give the driver its buffers back; they are of no use after a shutdown."""
        if self.enter():
            try:
                while self.buffers:
                    driver.nvmlGpmSampleFree(self.buffers.pop())
            except Exception:
                self.buffers.clear()
            finally:
                self.leave()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpmRead:
    """What was read: shares by signal, or why not; pipes and traffic as CardReading has them."""

    values: Mapping[Signal, float | Missing]
    pipes: Mapping[str, float] = field(default_factory=dict)
    traffic: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @staticmethod
    def none(why: Missing) -> GpmRead:
        """Make the answer of a card that gives nothing."""
        return GpmRead(values=dict.fromkeys(SIGNALS, why))


class GpmCounters:
    """The work of one card or MIG instance between two reads.  ``take`` fills a buffer, or gives a Missing.

    ``card``: UUID of the card, of an instance the parent's.
    """

    def __init__(
        self, driver: Any, calls: DeviceCalls, room: GpmLock, take: Take | None = None, *, card: str = ""
    ) -> None:
        self._driver, self._calls, self._room, self._card = driver, calls, room, card
        self._take = take or (lambda buffer: calls.call("nvmlGpmSampleGet", buffer, key="nvmlGpmSampleGet"))
        self._supported: bool | None = None
        self._question: Any = None
        self._wanted = [*SHARES, *PIPES, *TRAFFIC]
        self._metrics: Any = None  # the part of the question that holds them, once it says what is wanted
        self._first: Any = None
        self._second: Any = None
        self._first_at: float | None = None
        self._last = GpmRead.none(Missing.STARTING)

    def read(self, clock: Callable[[], float]) -> GpmRead:
        """Give the means since the previous read.  Raises nothing that a driver can cause; may block for ever."""
        if self._supported is False:
            return GpmRead.none(Missing.UNSUPPORTED)
        if self._first_at is not None and clock() - self._first_at < WINDOW_LEAST:
            return self._last
        if clock() < self._room.resting.get(self._card, 0.0) or not self._room.enter(self._card):
            return GpmRead.none(Missing.BUSY)
        try:
            self._last = self._read(clock)
        except (DeviceUnavailable, DriverUnavailable):
            self._last = GpmRead.none(Missing.ERROR)
        except (AttributeError, IndexError, TypeError):
            self._last = GpmRead.none(Missing.INVALID)
        finally:
            self._room.leave()
        return self._last

    def close(self) -> None:
        """Hand the buffers to whoever needs some next."""
        self._room.buffers += [buffer for buffer in (self._first, self._second) if buffer is not None]
        self._first = self._second = self._first_at = None

    def _read(self, clock: Callable[[], float]) -> GpmRead:
        why = self._prepared()
        if why is None:
            at = clock()
            answer = self._take(self._second)
            why = answer if isinstance(answer, Missing) else None
        if why is not None:
            self._supported = False if why is Missing.UNSUPPORTED else self._supported
            return GpmRead.none(why)
        window = None if self._first_at is None else at - self._first_at
        found = GpmRead.none(Missing.STARTING)
        try:
            if window is not None and window <= WINDOW_MOST:
                found = self._between()
        finally:
            self._first, self._second, self._first_at = self._second, self._first, at
        return found

    def _prepared(self) -> Missing | None:
        """See to it that the card has counters and that there are buffers; else say why not."""
        if self._supported is None:
            support = self._calls.call("nvmlGpmQueryDeviceSupport")
            structure = getattr(self._driver, "c_nvmlGpmMetricsGet_t", None)
            if isinstance(support, Missing):
                return support
            if not support.isSupportedDevice or structure is None:
                return Missing.UNSUPPORTED
            self._question = structure()
            self._question.version = 1
            self._supported = True
        for name in ("_first", "_second"):
            if getattr(self, name) is None:
                buffers = self._room.buffers
                made = buffers.pop() if buffers else self._calls.ask("nvmlGpmSampleAlloc")
                if isinstance(made, Missing):
                    return made
                setattr(self, name, made)
        return None

    def _between(self) -> GpmRead:
        question = self._question
        question.sample1, question.sample2 = self._first, self._second
        if self._metrics is None:
            question.numMetrics = len(self._wanted)
            self._metrics = question.metrics
            for place, metric in enumerate(self._wanted):
                self._metrics[place].metricId = metric
        answer = self._calls.ask("nvmlGpmMetricsGet", question, key="nvmlGpmMetricsGet")
        if isinstance(answer, Missing):
            return GpmRead.none(answer)
        answers = metric_answers(self._metrics, len(self._wanted))
        if all(code == INVALID_ARGUMENT for code, _ in answers):
            return GpmRead.none(Missing.ERROR)  # it objects to the samples, not to the metrics
        found = {metric: self._value(metric, *said) for metric, said in zip(self._wanted, answers, strict=True)}
        if Missing.UNSUPPORTED in found.values():
            self._wanted = [metric for metric in self._wanted if found[metric] is not Missing.UNSUPPORTED]
            self._metrics = None
            self._supported = bool(self._wanted)
        return _sorted(found)

    def _value(self, metric: int, code: int, raw: float) -> float | Missing:
        if code:
            return self._calls.refused(("gpm", metric), code)
        self._calls.accepted(("gpm", metric))
        if metric in TRAFFIC:
            return checked(raw, _MEBIBYTE, high=_RATE_LIMIT)
        share = checked(raw, 0.01, high=_ROUNDING)
        return share if isinstance(share, Missing) else min(share, 1.0)


def _sorted(found: Mapping[int, float | Missing]) -> GpmRead:
    """Sort values by where they belong; a metric that is not in ``found`` was refused before."""
    values: dict[Signal, float | Missing] = {
        signal: found.get(metric, Missing.UNSUPPORTED) for metric, signal in SHARES.items()
    }
    pipes, why_pipes = _part(found, PIPES)
    traffic, why_traffic = _part(found, TRAFFIC)
    if why_pipes is not None:
        values[Signal.PIPE_ACTIVE] = why_pipes
    if why_traffic is not None:
        values[Signal.TRAFFIC] = why_traffic
    return GpmRead(values=values, pipes=pipes, traffic=traffic)


def _part(found: Mapping[int, float | Missing], names: Mapping[int, Any]) -> tuple[dict[Any, float], Missing | None]:
    """Give what is known, and why something is not: a failure, or that there is nothing at all."""
    known: dict[Any, float] = {}
    why: Missing | None = None
    for metric, name in names.items():
        value = found.get(metric, Missing.UNSUPPORTED)
        if not isinstance(value, Missing):
            known[name] = value
        elif value is not Missing.UNSUPPORTED:
            why = value
    return known, why if known or why else Missing.UNSUPPORTED
