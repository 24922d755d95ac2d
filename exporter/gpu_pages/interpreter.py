"""Interpret pages of any GPU exporter by its table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ReferenceType, ref

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.engines.engine import clean
from exporter.engines.parse.layout import Layout
from exporter.engines.parse.line import Series
from exporter.engines.parse.text import PageReader
from exporter.errors import PageError
from exporter.gpu_pages.gpu_exporter import PART_SIGNALS, GpuExporter, GpuField, Merge, Part, limits
from exporter.model import CardFacts, CardProcess, CardReading, DriverFacts, MigInstance, Missing, Signal
from exporter.model.clock_events import CLOCK_EVENT_BITS
from exporter.model.gpu_page import GpuPageReading, PageGpu

MAX_PROCESSES = 256  # of one GPU
MAX_DIGITS = 9  # of an index or a pid
MAX_GPUS = 128  # of one page, instances and partitions included; 16 GPUs with 7 instances each fit

_NOTHING = frozenset(("", "NA", "N/A", "na", "n/a", "none"))  # how exporters write that a label has no value

# What no page tells in a form of its own: parts, and what is only ever missing.
_NEVER_SINGLE = frozenset({*PART_SIGNALS.values(), Signal.C2C_ERRORS, Signal.INSTANCES})
_SINGLE = tuple(signal for signal in Signal if signal not in _NEVER_SINGLE)


class _NumberSource(Struct):
    """Where one number of a GPU stands on the page."""

    row: GpuField
    factor: float
    positions: list[int]


class _CompiledGpu(Struct):
    facts: CardFacts
    sources: list[_NumberSource] = field(default_factory=list)
    processes: list[tuple[int, int]] = field(default_factory=list)  # pid, position of its memory


class GpuPageInterpreter:
    """Turns pages of one GPU exporter into readings; keeps what was compiled for the last layout."""

    def __init__(self, exporter: GpuExporter) -> None:
        self.exporter = exporter
        self._reader = PageReader(exporter.wanted_names().__contains__)
        self._told = exporter.signals()
        self._layout: ReferenceType[Layout] = ref(Layout(()))
        self._gpus: list[_CompiledGpu] = []
        self._driver: DriverFacts | None = None
        self._dropped: Counter[str] = Counter()

    def read(self, body: bytes, at: float) -> GpuPageReading:
        """Interpret one page read at ``at``; raise PageError when no GPU is on it."""
        page = self._reader.read(body)
        if page.layout is not self._layout():
            self._compile(page.layout)
        if not self._gpus:
            raise PageError(
                "no_gpu_metrics", f"the page has no GPU with {self.exporter.marks[0]}* series. {self.exporter.hint}"
            )
        warnings = Counter(page.parse_warnings) + self._dropped
        gpus = tuple(
            PageGpu(facts=gpu.facts, reading=self._reading(gpu, page.numbers, at, warnings)) for gpu in self._gpus
        )
        return GpuPageReading(
            at=at, kind=self.exporter.kind, gpus=gpus, driver=self._driver, parse_warnings=dict(warnings)
        )

    def _reading(self, gpu: _CompiledGpu, numbers: Sequence[float], at: float, warnings: Counter[str]) -> CardReading:
        signals: dict[Signal, float] = {}
        parts: dict[Part, dict[Any, float]] = {}
        invalid: set[Signal] = set()
        for source in gpu.sources:
            target = source.row.target
            value = _value(source, numbers)
            if value is None and source.row.values:
                continue  # a value that says nothing about this signal
            if value is None:
                warnings["bad_number"] += 1
                invalid |= {target} if isinstance(target, Signal) else set()
            elif isinstance(target, Part):
                parts.setdefault(target, {})[source.row.word] = value
            else:
                signals[target] = value
        _complete_memory(signals)
        active = parts.pop(Part.CLOCK_EVENTS, {})
        mask = active.pop("", None)
        bits = {} if mask is None else {reason: bool(int(mask) & bit) for reason, bit in CLOCK_EVENT_BITS.items()}
        events = bits | {reason: share > 0 for reason, share in active.items()}
        more: dict[str, Any] = {part.value: found for part, found in parts.items()}
        known = {*signals, *(PART_SIGNALS[part] for part in parts if part in PART_SIGNALS)}
        known |= {Signal.CLOCK_EVENTS} if events else set()
        return CardReading(
            at=at,
            signals=signals,
            missing=self._missing(known, invalid),
            clock_events=events,
            processes=_processes(gpu, numbers) if Signal.PROCESSES in signals else None,
            **more,
        )

    def _missing(self, known: set[Signal], invalid: set[Signal]) -> dict[Signal, Missing]:
        """Return why signals are absent: the exporter never tells them, or this page does not have them."""
        absent = [signal for signal in (*_SINGLE, *PART_SIGNALS.values()) if signal not in known]
        return {
            signal: Missing.INVALID
            if signal in invalid
            else Missing.NOT_EXPORTED
            if signal in self._told
            else Missing.UNSUPPORTED
            for signal in absent
        }

    # ------------------------------------------------------------------ a new layout

    def _compile(self, layout: Layout) -> None:
        self._layout, self._driver, self._dropped = ref(layout), None, Counter()
        by_gpu: dict[str, list[tuple[int, Series]]] = {}
        facts: dict[str, CardFacts] = {}
        for position, one in enumerate(layout.series()):
            identity = self._facts(one.labels)
            if identity is None:
                continue  # about the node, or about something that is no GPU
            known = facts.get(identity.uuid)
            if known is not None and known.index != identity.index:
                identity = replace(
                    identity, uuid=f"{identity.uuid}/{identity.index}"
                )  # a name that several GPUs have
            if identity.uuid not in facts and len(facts) >= MAX_GPUS:
                self._dropped["too_many_gpus"] += 1
            else:
                facts[identity.uuid] = _richer(facts.get(identity.uuid), identity)
                by_gpu.setdefault(identity.uuid, []).append((position, one))
                version = _label(one.labels, self.exporter.driver)
                if version and self._driver is None:
                    self._driver = DriverFacts(driver_version=version)
        if not self.exporter.index:
            facts = _indexed(facts)
        found = [_compiled(self.exporter, facts[uuid], series) for uuid, series in by_gpu.items()]
        self._gpus = _numbered([*self._parents(facts), *found])

    def _facts(self, labels: Mapping[str, str]) -> CardFacts | None:
        """Return what the labels tell of the GPU, None when they name none."""
        exporter = self.exporter
        index = _number(_label(labels, exporter.index))
        identity = _label(labels, exporter.uuid)
        if not identity and index is None:
            return None
        uuid = identity or f"{exporter.kind}-{index}"
        partition = _number(_label(labels, exporter.partition))
        if partition:
            uuid = f"{uuid}/{partition}"
        facts = CardFacts(
            index=index or 0,
            uuid=uuid,
            name=_label(labels, exporter.name),
            pci_bus_id=_label(labels, exporter.pci),
            serial=_label(labels, exporter.serial),
        )
        instance = _number(_label(labels, exporter.instance))
        return facts if instance is None else _instance(facts, instance, _label(labels, exporter.profile))

    @staticmethod
    def _parents(facts: Mapping[str, CardFacts]) -> list[_CompiledGpu]:
        """Return the GPUs that the page shows by their instances only."""
        found: dict[str, CardFacts] = {}
        for one in facts.values():
            if one.instance is not None and one.instance.parent not in facts:
                found[one.instance.parent] = CardFacts(
                    index=one.index, uuid=one.instance.parent, name=one.name, pci_bus_id=one.pci_bus_id, mig=True
                )
        return [_CompiledGpu(facts=parent) for parent in found.values()]


def _instance(parent: CardFacts, number: int, profile: str) -> CardFacts:
    # The page has no UUID of its own for an instance.
    instance = MigInstance(
        number=number, parent=parent.uuid, profile=profile, gpu_instance=number, compute_instance=0
    )
    return CardFacts(
        index=parent.index, uuid=f"{parent.uuid}/{number}", name=parent.name, pci_bus_id=parent.pci_bus_id,
        instance=instance,
    )  # fmt: skip


def _numbered(gpus: list[_CompiledGpu]) -> list[_CompiledGpu]:
    """Return the GPUs with parents marked as MIG-enabled and instances numbered by their place."""
    ids: dict[str, list[int]] = {}
    for gpu in gpus:
        if gpu.facts.instance is not None:
            ids.setdefault(gpu.facts.instance.parent, []).append(gpu.facts.instance.gpu_instance)
    for gpu in gpus:
        instance = gpu.facts.instance
        if instance is not None:
            place = sorted(ids[instance.parent]).index(instance.gpu_instance)
            gpu.facts = replace(gpu.facts, instance=replace(instance, number=place))
        elif gpu.facts.uuid in ids:
            gpu.facts = replace(gpu.facts, mig=True)
    return gpus


def _richer(before: CardFacts | None, now: CardFacts) -> CardFacts:
    """Return the facts of one GPU, each from the first series that has it."""
    if before is None or before == now:
        return before or now
    names = ("name", "pci_bus_id", "serial")
    return replace(before, **{name: getattr(before, name) or getattr(now, name) for name in names})


def _indexed(facts: Mapping[str, CardFacts]) -> dict[str, CardFacts]:
    """Return the GPUs numbered by PCI address: their exporter does not number them."""
    order = sorted(facts, key=lambda uuid: (facts[uuid].pci_bus_id, uuid))
    return {uuid: replace(facts[uuid], index=index) for index, uuid in enumerate(order)}


def _compiled(exporter: GpuExporter, facts: CardFacts, series: Sequence[tuple[int, Series]]) -> _CompiledGpu:
    name, label = exporter.processes
    rows = [(_number(one.labels.get(label, "")), position) for position, one in series if one.name == name]
    known = {pid: position for pid, position in rows if pid}
    processes = sorted(known.items())[:MAX_PROCESSES]
    return _CompiledGpu(facts=facts, sources=_sources(exporter, series), processes=processes)


def _processes(gpu: _CompiledGpu, numbers: Sequence[float]) -> tuple[CardProcess, ...]:
    """Return the processes on the GPU; one whose memory cannot be true has none."""
    found = [(pid, numbers[position] * 2.0**20) for pid, position in gpu.processes]
    return tuple(CardProcess(pid=pid, memory=held if 0.0 <= held < math.inf else None) for pid, held in found)


def _sources(exporter: GpuExporter, series: Sequence[tuple[int, Series]]) -> list[_NumberSource]:
    by_name: dict[str, list[tuple[int, Series]]] = {}
    for position, one in series:
        by_name.setdefault(one.name, []).append((position, one))
    found = []
    read: set[tuple[str, object]] = set()
    for row in exporter.fields:
        if (row.target.value, row.word) in read:
            continue  # an earlier row has it
        for name, factor in row.names.items():
            positions = [position for position, one in by_name.get(name, ()) if _has(one.labels, row.labels)]
            if positions:
                found.append(_NumberSource(row, factor, positions))
                read.add((row.target.value, row.word))
                break
    return found


def _has(labels: Mapping[str, str], wanted: Mapping[str, tuple[str, ...]]) -> bool:
    return all(labels.get(name, "") in values for name, values in wanted.items())


def _value(source: _NumberSource, numbers: Sequence[float]) -> float | None:
    """Return a number in base units, None if it cannot be true."""
    found = [numbers[position] for position in source.positions]
    if not all(map(math.isfinite, found)):
        return None
    merge = source.row.merge
    value = max(found) if merge is Merge.MAX else math.fsum(found) / (len(found) if merge is Merge.MEAN else 1)
    if source.row.values:
        return source.row.values.get(value)
    low, high = limits(source.row.target)
    value *= source.factor
    return value if low <= value <= high else None


def _complete_memory(signals: dict[Signal, float]) -> None:
    """Add the one of total and free memory that the page lacks, from the others."""
    total, used = signals.get(Signal.MEMORY_TOTAL), signals.get(Signal.MEMORY_USED)
    free, reserved = signals.get(Signal.MEMORY_FREE), signals.get(Signal.MEMORY_RESERVED, 0.0)
    if used is None:
        return
    if total is None and free is not None:
        signals[Signal.MEMORY_TOTAL] = used + free + reserved
    elif free is None and total is not None and total >= used + reserved:
        signals[Signal.MEMORY_FREE] = total - used - reserved


def _label(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the first of these labels that is set, as it may be exposed."""
    texts = (clean(labels.get(name, "")) for name in names)
    return next((text for text in texts if text not in _NOTHING), "")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None
