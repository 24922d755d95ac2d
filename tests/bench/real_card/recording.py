"""The binding with every call timed and written down: what was asked, of which card, the code, the answer.

Everything is handed over untouched, so the daemon's own reading code runs over it and exactly its calls are measured.
A card is named by its index, an instance by its parent's and its place ("0:1"); what belongs to no card is "node".
"""

from __future__ import annotations

import ctypes
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from exporter.driver.nvml.arrays import VALUE_ATTRIBUTES
from exporter.driver.nvml.errors import code_of

PATIENCE = 60.0  # seconds that one call may take; after that nobody would wait for the rest either
OBJECTED = -1  # the binding itself refused, so there is no code of the driver
NODE = "node"

_HANDLES = {"nvmlDeviceGetHandleByIndex": "{1}", "nvmlDeviceGetMigDeviceHandleByIndex": "{0}:{1}"}


@dataclass(slots=True)
class Call:
    """One question to one card: how often, how long (µs), with which codes, and the last good answer."""

    card: str
    name: str
    arguments: list[Any]
    microseconds: list[float] = field(default_factory=list)
    codes: Counter[int] = field(default_factory=Counter)
    answer: Any = None


class Recorder:
    """Stands for the driver's module.  For one thread; ``stuck`` may be asked from another."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._made: dict[str, Callable[..., Any]] = {}
        self._handles: dict[int, str] = {}  # address → whose it is
        self._buffers: dict[int, str] = {}  # address → whose the sample in it is
        self._asking: tuple[str, float] | None = None
        self.calls: dict[tuple[str, str, str], Call] = {}
        self.lacking: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._driver, name, None)
        if attribute is None:
            self.lacking.add(name)
            raise AttributeError(name)
        if not name.startswith("nvml") or not callable(attribute):
            return attribute
        if name not in self._made:
            self._made[name] = self._timed(name, attribute)
        return self._made[name]

    def stuck(self) -> tuple[str, float] | None:
        """Return the call that now runs and its seconds so far."""
        asking = self._asking
        return None if asking is None else (asking[0], time.monotonic() - asking[1])

    def about(self, card: str) -> Iterator[Call]:
        """Return what was asked of one card."""
        return (call for call in self.calls.values() if call.card == card)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            card, shown = self._shown(name, arguments)
            known = self.calls.setdefault((card, name, json.dumps(shown)), Call(card, name, shown))
            self._asking = (name if card == NODE else f"{name} of card {card}", time.monotonic())
            started = time.perf_counter_ns()
            try:
                answer = function(*arguments)
            except Exception as error:
                self._note(known, started, OBJECTED if code_of(error) is None else int(error.value))
                raise
            finally:
                self._asking = None
            self._note(known, started, 0)
            known.answer = self._said(name, arguments, answer)
            self._follow(name, card, shown, arguments, answer)
            return answer

        return call

    @staticmethod
    def _note(known: Call, started: int, code: int) -> None:
        known.microseconds.append((time.perf_counter_ns() - started) / 1e3)
        known.codes[code] += 1

    def _shown(self, name: str, arguments: tuple[Any, ...]) -> tuple[str, list[Any]]:
        """Return whom a call is about, and its other arguments for JSON."""
        if name == "nvmlGpmMetricsGet":
            return self._buffers.get(_address(arguments[0].sample1), NODE), []
        whose = self._handles.get(_address(arguments[0])) if arguments else None
        rest = arguments if whose is None else arguments[1:]
        if name == "nvmlDeviceGetSamples":
            rest = rest[:1]  # without the time of the last one seen: one question, not one each cycle
        return whose or NODE, [self._plain(argument) for argument in rest]

    def _follow(self, name: str, card: str, shown: list[Any], arguments: tuple[Any, ...], answer: Any) -> None:
        """Remember whose a new handle, or the sample in a buffer, is."""
        if name in _HANDLES:
            self._handles[_address(answer)] = _HANDLES[name].format(card, shown[0], *shown)
        elif name == "nvmlGpmSampleGet":
            self._buffers[_address(arguments[1])] = card
        elif name == "nvmlGpmMigSampleGet":
            self._buffers[_address(arguments[2])] = f"{card}:gi{shown[0]}"

    def _said(self, name: str, arguments: tuple[Any, ...], answer: Any) -> Any:
        if name == "nvmlDeviceGetFieldValues":
            return [
                [item.fieldId, item.scopeId, item.nvmlReturn, item.valueType, _number(item.valueType, item.value)]
                for item in answer
            ]
        if name == "nvmlDeviceGetSamples":
            kind, samples = answer
            return [kind, [[sample.timeStamp, _number(kind, sample.sampleValue)] for sample in samples]]
        if name == "nvmlGpmMetricsGet":
            asked = arguments[0]
            parts = [asked.metrics[place] for place in range(asked.numMetrics)]
            return [[part.metricId, part.nvmlReturn, _finite(part.value)] for part in parts]
        if name == "nvmlDeviceGetGpuFabricInfoV":
            return self._plain(arguments[1]._obj)
        return self._plain(answer)

    def _plain(self, value: Any) -> Any:
        """Return a value as JSON has it; structures by their fields."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return _finite(value)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, list | tuple | ctypes.Array):
            return [self._plain(item) for item in value]
        if isinstance(value, ctypes.Structure):
            return {part[0]: self._plain(getattr(value, part[0])) for part in value._fields_}
        if hasattr(value, "_obj"):  # a reference: what it is says how the driver is to fill it
            return type(value._obj).__name__
        if isinstance(value, ctypes._Pointer):
            whose = self._handles.get(_address(value))
            return "buffer" if whose is None else f"card {whose}"
        fields = getattr(value, "__dict__", None)
        return {key: self._plain(part) for key, part in fields.items()} if fields else type(value).__name__


def watch(recorder: Recorder, give_up: Callable[[str, float], None]) -> threading.Event:
    """Call ``give_up`` from a thread of its own when one call takes longer than anybody would wait.

    The thread ends when the event that this gives is set.
    """
    over = threading.Event()

    def run() -> None:
        while not over.wait(1.0):
            stuck = recorder.stuck()
            if stuck is not None and stuck[1] > PATIENCE:
                give_up(*stuck)

    threading.Thread(target=run, daemon=True).start()
    return over


def _address(value: Any) -> int:
    """Return where a handle or buffer lies; 0 for what is neither."""
    if isinstance(value, ctypes._Pointer):
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    return 0


def _number(kind: int, union: Any) -> float | str | None:
    return _finite(getattr(union, VALUE_ATTRIBUTES[kind])) if kind < len(VALUE_ATTRIBUTES) else None


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
