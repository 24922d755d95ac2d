"""The report: what was found, worst first, as Markdown that can be put into a bug report as it is."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from exporter.driver.nvml.gpm import SIGNALS as WORK
from exporter.driver.nvml.signals import FAST, SAMPLED, SLOW, SignalReader
from exporter.model import CardReading, Signal
from tests.bench.machine import percentile
from tests.bench.nvml_cycle import group_of
from tests.bench.real_card.recording import OBJECTED, Call, Recorder

_TABLES = {**FAST, **SLOW, **{signal: ways for signal, (_, ways) in SAMPLED.items()}}

# Asked about one link, place or peer after the other, which cost alike.
_EACH = frozenset(
    {
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetNvLinkRemotePciInfo",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetP2PStatus",
    }
)
# Signals that no table of the daemon's names: the calls that they come from.
_GPM = ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet")
_PROBES = {
    Signal.FAN_SPEED: ("nvmlDeviceGetNumFans", "nvmlDeviceGetFanSpeed_v2", "nvmlDeviceGetFanSpeed"),
    Signal.PROCESSES: ("nvmlDeviceGetComputeRunningProcesses",),
    Signal.FABRIC_STATE: ("nvmlDeviceGetGpuFabricInfoV",),
    Signal.NVLINK_STATE: ("nvmlDeviceGetNvLinkState",),
    Signal.CLOCK_EVENTS: ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    **dict.fromkeys(WORK, _GPM),
}
_ONCE = 2  # times; what is asked more often belongs to the cycles


@dataclass(slots=True)
class Report:
    """Collects what goes into the file.  ``differences`` decide the exit code."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)

    def section(self, title: str, *paragraphs: str) -> None:
        """Add a heading and what stands under it."""
        self._parts += [f"## {title}", *(text for text in paragraphs if text)]

    def text(self) -> str:
        """Return the whole."""
        count = len(self.differences)
        verdict = f"**{count} {'difference' if count == 1 else 'differences'}.**"
        verdict = verdict if count else "**Everything that was compared agrees.**"
        lists = [
            "\n".join(f"- {line}" for line in lines)
            for lines in (self.differences, self.notes)
            if lines
        ]  # fmt: skip
        top = ["# Shardwatch on a real card", verdict]
        if self.differences:
            top.append(lists.pop(0))
        if lists:
            top += ["Also:", lists[0]]
        return "\n\n".join([*top, *self._parts]) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; empty without rows."""
    lines = [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *lines]) if lines else ""


def spread(values: Sequence[float]) -> tuple[str, str, str]:
    """Return median, 99th percentile and maximum, for a table."""
    if not values:
        return "", "", ""
    ordered = list(values)
    return f"{statistics.median(ordered):.1f}", f"{percentile(ordered, 0.99):.1f}", f"{max(ordered):.1f}"


def codes(call: Call) -> str:
    """Return which return codes came, and how often where it was not always the same."""
    words = {code: "refused by the binding" if code == OBJECTED else str(code) for code in call.codes}
    if len(words) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{words[code]} ×{times}" for code, times in sorted(call.codes.items()))


def arguments(call: Call) -> str:
    """Write a call's arguments; a batch of fields as how many there are."""
    if call.name == "nvmlDeviceGetFieldValues" and call.arguments:
        asked = call.arguments[0]
        return f"{len(asked)} fields" if len(asked) > 1 else f"field {asked[0]}"
    if call.name in _EACH:
        return "each"
    if call.name == "nvmlDeviceGetSamples":
        return f"type {call.arguments[0]}"
    return ", ".join(map(str, call.arguments))


def calls_by_group(recorder: Recorder) -> str:
    """Return the cost of each group of calls, all cards together; apart from it what is asked only at the start."""
    groups: dict[str, list[float]] = defaultdict(list)
    for call in recorder.calls.values():
        once = len(call.microseconds) <= _ONCE
        groups["once: facts, topology, which fields there are" if once else group_of(call.name)] += call.microseconds
    total = sum(sum(values) for values in groups.values()) or 1.0
    ordered = sorted(groups.items(), key=lambda item: -sum(item[1]))
    rows = [(name, str(len(values)), *spread(values), f"{sum(values) / total:.0%}") for name, values in ordered]
    return table(("group", "calls", "median µs", "p99 µs", "max µs", "of all time"), rows)


def calls_by_name(recorder: Recorder) -> str:
    """Return the cost of each call: cards of a node together, with the one that was slowest named."""
    merged: dict[tuple[str, str, str], list[Call]] = defaultdict(list)
    for call in recorder.calls.values():
        kind = call.card if call.card == "node" else "instance" if ":" in call.card else "card"
        merged[kind, call.name, arguments(call)].append(call)
    rows = []
    for (kind, name, shown), same in sorted(merged.items()):
        values = [value for call in same for value in call.microseconds]
        slowest = max(same, key=lambda call: max(call.microseconds))
        codes_seen = sorted({codes(call) for call in same})
        where = "" if len({call.card for call in same}) == 1 else slowest.card
        rows.append((kind, name, shown, str(len(values)), *spread(values), "; ".join(codes_seen), where))
    return table(("of", "call", "arguments", "calls", "median µs", "p99 µs", "max µs", "code", "slowest card"), rows)


def refused_fields(recorder: Recorder, card: str) -> str:
    """Return the fields that a card does not answer, by code: ranges of ids, whatever the link."""
    ids: dict[int, set[int]] = defaultdict(set)
    for call in recorder.about(card):
        if call.name == "nvmlDeviceGetFieldValues":
            for number, _, code, *_ in call.answer or ():
                if code:
                    ids[code].add(number)
    return "; ".join(f"code {code}: {', '.join(map(str, sorted(numbers)))}" for code, numbers in sorted(ids.items()))


def why_missing(recorder: Recorder, card: str, reading: CardReading) -> list[tuple[str, str, str, str]]:
    """Return each signal that a card does not show: card, signal, reason, and what the driver answered."""
    batch: dict[tuple[int, int], int] = {}
    plain: dict[tuple[str, tuple[object, ...]], str] = {}
    for call in recorder.about(card):
        if call.name == "nvmlDeviceGetFieldValues":
            batch |= {(item[0], item[1]): item[2] for item in call.answer or ()}
        else:
            plain[call.name, tuple(map(str, call.arguments))] = codes(call)

    def last_code(reader: SignalReader) -> str:
        if reader.field is not None:
            number, scope = reader.field
            codes_seen = {
                code
                for (field_number, place), code in batch.items()
                if field_number == number and (reader.per_link or place == scope)
            }
            return f"field {number}: {', '.join(map(str, sorted(codes_seen))) or 'not asked'}"
        why = "the binding lacks it" if reader.call in recorder.lacking else "not asked"
        return f"{reader.call}({', '.join(map(str, reader.args))}): {plain.get((reader.call, tuple(map(str, reader.args))), why)}"

    def probed(call: Call) -> str:
        no = call.name == _GPM[0] and call.answer and not call.answer.get("isSupportedDevice")
        return f"{call.name}: {codes(call)}{', not supported' if no else ''}"

    def answers(signal: Signal) -> str:
        asked = [probed(call) for call in recorder.about(card) if call.name in _PROBES.get(signal, ())]
        return "; ".join([*(last_code(reader) for reader in _TABLES.get(signal, ())), *dict.fromkeys(asked)])

    return [(card, signal.value, why.value, answers(signal)) for signal, why in reading.missing.items()]
