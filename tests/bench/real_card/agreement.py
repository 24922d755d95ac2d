"""Whether the page says what nvidia-smi says: one line a figure, with how far the two may be apart and why.

nvidia-smi is asked between two readings of the page, several times, and its value must lie between what the page
said before and after, with the tolerance on top, at least once: what moves is not read at the same instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from exporter.model.clock_events import CLOCK_EVENT_BITS
from tests.bench.real_card.daemon import Page
from tests.support.records import replace

_MIB, _MHZ = 2.0**20, 1e6
_COUNTERS = ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_FABRIC = {"Not Started": 1.0, "In Progress": 2.0, "Completed": 3.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure.  ``fields``: names of nvidia-smi, of which the first that has a value counts; ``read`` converts its text into our unit.

    ``tolerance`` is in our unit, ``share`` of the value comes on top.  ``all_run``: anything seen since the start
    will do, as asking wakes a card that sleeps.
    """

    fields: tuple[str, ...]
    metric: str
    labels: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[str], float] = float
    tolerance: float = 0.0
    share: float = 0.0
    all_run: bool = False

    @property
    def title(self) -> str:
        """Name it as the page does."""
        labels = ",".join(f'{key}="{value}"' for key, value in self.labels.items())
        return f"{self.metric}{{{labels}}}" if labels else self.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One figure of one card, or one text: ``agrees`` None where neither has it."""

    card: str
    title: str
    ours: str
    theirs: str
    tolerance: str
    agrees: bool | None


def _by(scale: float) -> Callable[[str], float]:
    return lambda text: float(text) * scale


def _clock(domain: str, name: str) -> Row:
    return Row(fields=(f"clocks.{name}",), metric="gpu_clock_hertz", labels={"domain": domain}, read=_by(_MHZ),
               tolerance=30 * _MHZ, share=0.05, all_run=True)  # fmt: skip


def _clock_max(domain: str, name: str) -> Row:
    return Row(
        fields=(f"clocks.max.{name}",), metric="gpu_clock_max_hertz", labels={"domain": domain}, read=_by(_MHZ)
    )


def _ecc(error: str, scope: str) -> Row:
    labels = {"error": error, "scope": scope}
    return Row(fields=(f"ecc.errors.{error}.{scope}.total",), metric="gpu_ecc_errors_total", labels=labels)


def _memory(part: str) -> Row:
    # nvidia-smi rounds to MiB; the driver's own bookkeeping moves by some pages.
    return Row(fields=(f"memory.{part}",), metric=f"gpu_memory_{part}_bytes", read=_by(_MIB), tolerance=2 * _MIB)


def _event(reason: str) -> Row:
    bit = CLOCK_EVENT_BITS[reason]
    fields = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
    return Row(fields=fields, metric="gpu_clock_event_active", labels={"reason": reason},
               read=lambda text: float(int(text, 16) & bit > 0), all_run=True)  # fmt: skip


def _event_time(reason: str) -> Row:
    return Row(fields=(f"clocks_event_reasons_counters.{reason}",), metric="gpu_clock_event_seconds_total",
               labels={"reason": reason}, read=_by(1e-6), tolerance=2.0, share=0.001)  # fmt: skip


ROWS = (
    *map(_memory, ("total", "used", "free", "reserved")),
    Row(fields=("temperature.gpu",), metric="gpu_temperature_celsius", labels={"sensor": "gpu"}, tolerance=2.0),
    Row(fields=("temperature.memory",), metric="gpu_temperature_celsius", labels={"sensor": "memory"}, tolerance=2.0),
    Row(fields=("power.draw.average", "power.draw"), metric="gpu_power_watts", tolerance=5.0, share=0.1),
    Row(fields=("enforced.power.limit",), metric="gpu_power_limit_watts", tolerance=0.5),
    Row(fields=("fan.speed",), metric="gpu_fan_speed_ratio", read=_by(0.01), tolerance=0.05),
    *(_clock(*names) for names in (("sm", "sm"), ("memory", "mem"), ("graphics", "gr"), ("video", "video"))),
    *(_clock_max(*names) for names in (("sm", "sm"), ("memory", "mem"), ("graphics", "gr"))),
    Row(fields=("pcie.link.gen.gpucurrent", "pcie.link.gen.current"), metric="gpu_pcie_link_generation", all_run=True),
    Row(fields=("pcie.link.gen.max",), metric="gpu_pcie_link_generation_max"),
    Row(fields=("pcie.link.width.current",), metric="gpu_pcie_link_width", all_run=True),
    Row(fields=("pcie.link.width.max",), metric="gpu_pcie_link_width_max"),
    Row(fields=("pstate",), metric="gpu_performance_state", read=lambda text: float(text.lstrip("P")), all_run=True),
    *(_ecc(error, scope) for scope in ("volatile", "aggregate") for error in ("corrected", "uncorrected")),
    *map(_event, ("sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown",
                  "hw_power_brake_slowdown")),
    *map(_event_time, _COUNTERS),
    Row(fields=("fabric.state",), metric="gpu_fabric_state", read=lambda text: _FABRIC[text]),
)  # fmt: skip
# nvidia-smi's field → the metric and label that hold the same text.
TEXTS = {
    "name": ("gpu_info", "name"),
    "pci.bus_id": ("gpu_info", "pci_bus_id"),
    "serial": ("gpu_info", "serial"),
    "vbios_version": ("gpu_info", "vbios_version"),
    "driver_version": ("gpu_driver_info", "driver_version"),
}
FIELDS = (*TEXTS, *dict.fromkeys(name for row in ROWS for name in row.fields))

Answers = Mapping[str, Mapping[str, str | None]]


def figures(
    card: str, uuid: str, pages: Iterable[Page], run: Iterable[Page], theirs: Mapping[str, str | None]
) -> list[Verdict]:
    """Compare one card.  ``pages``: before and after nvidia-smi was asked; ``run``: all that were seen."""
    verdicts = []
    for row in ROWS:
        known = [theirs[field] for field in row.fields if field in theirs]
        if not known:
            continue
        looked = list(run if row.all_run else pages)
        shown = [page.get(row.metric, uuid=uuid, **row.labels) for page in looked]
        verdict = _figure(
            card,
            row,
            [value for value in shown if value is not None],
            next((text for text in known if text is not None), None),
        )
        if verdict.agrees is False and _withheld(row, uuid, looked[-1]):
            verdict = replace(verdict, ours="not verified yet", agrees=None)
        verdicts.append(verdict)
    return verdicts


def _withheld(row: Row, uuid: str, page: Page) -> bool:
    """Return whether a counter is left out on purpose: no clock event has shown its unit so far."""
    words = {"uuid": uuid, "signal": "clock_event_time", "reason": "unverified"}
    return (
        "counters" in row.fields[0]
        and bool(page.all("gpu_signal_missing_info", **words))
        and (page.get(row.metric, uuid=uuid, **row.labels) is None)
    )


def _figure(card: str, row: Row, ours: list[float], text: str | None) -> Verdict:
    try:
        value = None if text is None else row.read(text)
    except (ValueError, KeyError):
        value = None
    agrees: bool | None = None
    if ours and value is not None:
        room = row.tolerance + row.share * abs(value)
        agrees = min(ours) - room <= value <= max(ours) + room
    elif ours or value is not None:
        agrees = False
    spread = (
        f"{min(ours):.10g}"
        if ours and min(ours) == max(ours)
        else " to ".join(f"{n:.10g}" for n in (min(ours), max(ours)))
        if ours
        else "absent"
    )
    words = [f"±{row.tolerance:.10g}"] * (row.tolerance > 0) + [f"±{row.share:.1%}"] * (row.share > 0)
    their_value = "nothing" if text is None else f"{text}" if value is None else f"{value:.10g}"
    return Verdict(
        card=card,
        title=row.title,
        ours=spread,
        theirs=their_value,
        tolerance=" and ".join(words) or "none",
        agrees=agrees,
    )


def texts(card: str, uuid: str, page: Page, theirs: Mapping[str, str | None]) -> list[Verdict]:
    """Compare what is told in words."""
    verdicts = []
    for name, (metric, label) in TEXTS.items():
        if name in theirs:
            labels = {"uuid": uuid} if metric == "gpu_info" else {}
            ours = next((sample_labels[label] for sample_labels, _ in page.all(metric, **labels)), "")
            their_value = theirs[name] or ""
            verdicts.append(
                Verdict(card=card, title=f"{metric} {label}", ours=ours or "absent", theirs=their_value or "nothing", tolerance="none",
                        agrees=ours.lower() == their_value.lower() if ours or their_value else None)
            )  # fmt: skip
    return verdicts
