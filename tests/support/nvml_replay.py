"""A driver with pynvml's names that answers as a recorded one did: calls.json of ``python -m tests.bench.real_card``.

``page`` reads all recorded cards through the daemon's own code and gives the page.  A capture of a new card belongs
into tests/captures/nvml/NAME/calls.json; its page is then a golden file.  What was never asked is not supported.
"""

from __future__ import annotations

import ctypes
import json
from types import SimpleNamespace

from exporter.catalog.spec import SeriesSet
from exporter.derive.links import TopologyTracker
from exporter.driver.nvml.arrays import VALUE_ATTRIBUTES
from exporter.driver.nvml.errors import NOT_SUPPORTED
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.library import initialise, open_card
from exporter.driver.nvml.topology import TopologyReader
from exporter.model import CardState, GpuLabels, Snapshot, SourceStatus
from exporter.render.exposition import ExpositionRenderer
from exporter.runtime.diagnosis import Diagnosis
from exporter.simulate.nvml_gpm import c_nvmlGpmMetricsGet_t
from tests.support.builders import Clock

READS, PAUSE = 3, 1.0  # seconds between reads


class NVMLError(Exception):
    def __init__(self, value):
        self.value = value
        super().__init__(f"recorded: code {value}")


class Handle:
    """A card, or an instance of one, or a buffer with a sample of it."""

    def __init__(self, card=""):
        self.card = card


class Recorded:
    """Return it in place of a driver's module."""

    NVMLError = NVMLError
    c_nvmlGpmMetricsGet_t = c_nvmlGpmMetricsGet_t  # noqa: N815
    nvmlGpmSampleAlloc = Handle  # noqa: N815

    def __init__(self, document):
        self._lacking = set(document["lacking"])
        self._calls = {(c["card"], c["call"], json.dumps(c["arguments"])): c for c in document["calls"]}
        self._fields = {}
        self._structures = {}
        for call in document["calls"]:
            if call["call"] == "nvmlDeviceGetFieldValues":
                answers = {(row[0], row[1]): row[2:] for row in call["answer"] or ()}
                self._fields.setdefault(call["card"], {}).update(answers)
            elif call["call"] == "nvmlDeviceGetGpuFabricInfoV":
                self._structures[call["arguments"][0]] = call["answer"] or {}

    def __getattr__(self, name):
        if name in self._structures:
            fields = [(field, ctypes.c_uint64) for field, n in self._structures[name].items() if isinstance(n, int)]
            return type(name, (ctypes.Structure,), {"_fields_": fields})
        if name in self._lacking or not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda *arguments: self._answer(name, *arguments)

    def _answer(self, name, *arguments):
        whose, *rest = arguments if arguments and isinstance(arguments[0], Handle) else (Handle("node"), *arguments)
        call = self._calls.get((whose.card, name, json.dumps([_shown(part) for part in rest])))
        if call is None:
            raise NVMLError(NOT_SUPPORTED)
        if "0" not in call["codes"]:
            raise NVMLError(int(next(iter(call["codes"]))))
        return call["answer"] if isinstance(call["answer"], int | float | str) else _shaped(call["answer"])

    def nvmlDeviceGetHandleByIndex(self, index):
        self._answer("nvmlDeviceGetHandleByIndex", index)
        return Handle(str(index))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, place):
        self._answer("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        return Handle(f"{handle.card}:{place}")

    def nvmlDeviceGetFieldValues(self, handle, wanted):
        known = self._fields.get(handle.card, {})
        asked = [field if isinstance(field, tuple) else (field, 0) for field in wanted]
        return [_field(*known.get(field, (NOT_SUPPORTED, 0, None))) for field in asked]

    def nvmlDeviceGetSamples(self, handle, kind, last):
        call = self._calls.get((handle.card, "nvmlDeviceGetSamples", json.dumps([kind])))
        if call is None or not call["answer"]:
            raise NVMLError(int(next(iter(call["codes"]))) if call else NOT_SUPPORTED)
        type_, samples = call["answer"]
        newer = max(0, last + 1 - min((at for at, _ in samples), default=0))  # each look finds the same ones again
        return type_, [
            SimpleNamespace(timeStamp=at + newer, sampleValue=SimpleNamespace(**{VALUE_ATTRIBUTES[type_]: number}))
            for at, number in samples
        ]

    def nvmlDeviceGetGpuFabricInfoV(self, handle, reference):
        structure = reference._obj
        answer = self._answer("nvmlDeviceGetGpuFabricInfoV", handle, type(structure).__name__)
        for name, _ in structure._fields_:
            setattr(structure, name, getattr(answer, name))

    def nvmlGpmSampleFree(self, buffer):
        del buffer

    def nvmlGpmSampleGet(self, handle, buffer):
        self._answer("nvmlGpmSampleGet", handle, "buffer")
        buffer.card = handle.card

    def nvmlGpmMigSampleGet(self, handle, instance, buffer):
        self._answer("nvmlGpmMigSampleGet", handle, instance, "buffer")
        buffer.card = f"{handle.card}:gi{instance}"

    def nvmlGpmMetricsGet(self, question):
        call = self._calls[question.sample1.card, "nvmlGpmMetricsGet", "[]"]
        answers = {number: (code, value) for number, code, value in call["answer"] or ()}
        for place in range(question.numMetrics):
            metric = question.metrics[place]
            metric.nvmlReturn, metric.value = answers.get(metric.metricId, (NOT_SUPPORTED, 0.0))


def _shown(argument):
    return f"card {argument.card}" if isinstance(argument, Handle) else argument


def _shaped(answer):
    """Return JSON's objects as the binding's: attributes instead of keys."""
    if isinstance(answer, dict):
        return SimpleNamespace(**{key: _shaped(value) for key, value in answer.items()})
    return [_shaped(item) for item in answer] if isinstance(answer, list) else answer


def _field(code, kind, value):
    number = float(value) if isinstance(value, str) else value  # "nan" and the like
    name = VALUE_ATTRIBUTES[kind] if 0 <= kind < len(VALUE_ATTRIBUTES) else "none"
    return SimpleNamespace(nvmlReturn=code, valueType=kind, value=SimpleNamespace(**{name: number}))


def page(document):
    """Return the full page of a recording's cards, read three times at a pace of one second."""
    driver, clock = Recorded(document), Clock(1000.0)
    facts, count = initialise(driver)
    opened = [open_card(driver, index) for index in range(count)]
    readers = [GpuReader(driver, calls, card, facts.driver_version) for calls, card in opened]
    for _ in range(READS):
        clock.tick(PAUSE)
        parts = [reader.instances.read(refresh=True, clock=clock) if reader.instances else () for reader in readers]
        readings = [reader.read(slow=True, clock=clock) for reader in readers]
    joined = TopologyReader(driver).read({card.uuid: calls.handle for calls, card in opened})
    cards = []
    for (_, card), reading, instances in zip(opened, readings, parts, strict=True):
        cards.append(_state(card, reading, str(card.index), joined.get(card.uuid)))
        cards += [
            _state(part.facts, part.reading, f"{card.index}:{part.facts.instance.number}") for part in instances
        ]
    snapshot = Snapshot(
        at=clock.now + 0.5,
        unix_time=1.7e9,
        driver=facts,
        cards=tuple(cards),
        topology=TopologyTracker().update(tuple(cards), ()),
    )
    return (
        ExpositionRenderer(openmetrics=False, series=SeriesSet.FULL).render(Diagnosis().judge(snapshot)).body.decode()
    )


def _state(facts, reading, index, joined=None):
    return CardState(
        facts=facts,
        status=SourceStatus(source=f"gpu:{facts.uuid}", up=True, last_success=reading.at),
        reading=reading,
        last_read_at=reading.at,
        labels=GpuLabels(index, facts.uuid),
        topology=joined,
    )
