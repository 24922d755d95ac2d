"""What the page says of cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exporter.catalog.spec import CARD, GROUP, NODE, Kind, Labels, Metric, Read, Row, Series, Unit
from exporter.model import CardReading, Missing, Signal, Snapshot, Spread

Which = Mapping[tuple[str, ...], Signal]  # the label values that tell the signals of one family apart


def _signal(signal: Signal) -> Read:
    def read(snapshot: Snapshot) -> Iterator[Row]:
        for card in snapshot.cards:
            if card.reading is not None and signal in card.reading.signals:
                yield card.labels, card.reading.signals[signal]

    return read


def _signals(by_label: Which) -> Read:
    """Read several signals as one family."""

    def read(snapshot: Snapshot) -> Iterator[Row]:
        for card in snapshot.cards:
            if card.reading is not None:
                found = card.reading.signals
                for values, signal in by_label.items():
                    if signal in found:
                        yield (*card.labels, *values), found[signal]

    return read


def _readings(snapshot: Snapshot) -> Iterator[tuple[Labels, CardReading]]:
    for card in snapshot.cards:
        if card.reading is not None:
            yield card.labels, card.reading


def _info(snapshot: Snapshot) -> Iterator[Row]:
    for card in snapshot.cards:
        facts = card.facts
        numa = "" if facts.numa_node is None else str(facts.numa_node)
        yield (*card.labels, facts.name, facts.pci_bus_id, facts.serial, facts.vbios_version, numa), 1.0


def _driver(snapshot: Snapshot) -> Iterator[Row]:
    if snapshot.driver is not None:
        yield (snapshot.driver.driver_version, snapshot.driver.nvml_version, snapshot.driver.cuda_version), 1.0


def _up(snapshot: Snapshot) -> Iterator[Row]:
    for card in snapshot.cards:
        yield card.labels, 1.0 if card.reading is not None else 0.0


def _age(snapshot: Snapshot) -> Iterator[Row]:
    for card in snapshot.cards:
        if card.last_read_at is not None:
            yield card.labels, max(0.0, snapshot.at - card.last_read_at)


def _missing(*, unsupported: bool) -> Read:
    def read(snapshot: Snapshot) -> Iterator[Row]:
        for labels, reading in _readings(snapshot):
            for signal, reason in reading.missing.items():
                if unsupported or reason is not Missing.UNSUPPORTED:
                    yield (*labels, signal.value, reason.value), 1.0

    return read


def _replica(snapshot: Snapshot) -> Iterator[Row]:
    known = {replica.name: replica.labels for replica in snapshot.replicas}
    cards = {card.facts.uuid: card.labels for card in snapshot.cards}
    for owner in snapshot.owners:
        if owner.uuid in cards and owner.replica in known:
            yield (*cards[owner.uuid], *known[owner.replica], owner.rank), 1.0


# Reasons that cost speed against somebody's will; being idle, or clocks that an administrator set, do not.
_HARMFUL = frozenset(
    {"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)


def _events(snapshot: Snapshot) -> Iterator[Row]:
    for labels, reading in _readings(snapshot):
        for reason, active in reading.clock_events.items():
            if reason in _HARMFUL:
                yield (*labels, reason), float(active)


def _event_seconds(*, harmful_only: bool) -> Read:
    def read(snapshot: Snapshot) -> Iterator[Row]:
        for labels, reading in _readings(snapshot):
            for reason, seconds in reading.clock_event_seconds.items():
                if not harmful_only or reason in _HARMFUL:
                    yield (*labels, reason), seconds

    return read


def _nvlink_up(snapshot: Snapshot) -> Iterator[Row]:
    for labels, reading in _readings(snapshot):
        for link, state in reading.nvlink_up.items():
            yield (*labels, str(link)), float(state)


def _nvlinks(*, active: bool) -> Read:
    def read(snapshot: Snapshot) -> Iterator[Row]:
        for labels, reading in _readings(snapshot):
            if reading.nvlink_up:
                states = reading.nvlink_up.values()
                yield labels, float(sum(states) if active else len(states))

    return read


def _nvlink_errors(snapshot: Snapshot) -> Iterator[Row]:
    for labels, reading in _readings(snapshot):
        for kind, count in reading.nvlink_errors.items():
            yield (*labels, kind), count


_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)


def _recovery(snapshot: Snapshot) -> Iterator[Row]:
    for labels, reading in _readings(snapshot):
        number = reading.signals.get(Signal.RECOVERY_ACTION)
        if number is not None:
            known = number.is_integer() and 0 <= number < len(_ACTIONS)
            yield (*labels, _ACTIONS[int(number)] if known else f"{number:g}"), 1.0


def _spread(attribute: str, signal: Signal | None = None) -> Read:
    """Read one figure of unevenness: of one signal, or of every signal with the signal as last label."""

    def read(snapshot: Snapshot) -> Iterator[Row]:
        for group in snapshot.imbalance:
            chosen = group.spreads if signal is None else {s: v for s, v in group.spreads.items() if s is signal}
            for which, spread in chosen.items():
                value: float | None = getattr(spread, attribute)
                if value is not None:
                    name = (which.value,) if signal is None else ()
                    yield (group.scope, group.group, *name), value

    assert attribute in Spread.__slots__  # a misspelt one would silently read nothing
    return read


def _deviation(snapshot: Snapshot) -> Iterator[Row]:
    labels = {card.facts.uuid: card.labels for card in snapshot.cards}
    for group in snapshot.imbalance:
        if group.scope == "replica":
            for signal, by_card in group.deviations.items():
                for uuid, value in by_card.items():
                    yield (*labels[uuid], group.group, signal.value), value


def _gauge(noun: str, unit: Unit, read: Read, help_: str, *labels: str, series: Series = Series.COMMON) -> Metric:
    return Metric(
        subject=CARD, noun=noun, kind=Kind.GAUGE, unit=unit, labels=labels, help=help_, series=series, read=read
    )


def _counter(noun: str, unit: Unit, read: Read, help_: str, *labels: str, series: Series = Series.COMMON) -> Metric:
    return Metric(
        subject=CARD, noun=noun, kind=Kind.COUNTER, unit=unit, labels=labels, help=help_, series=series, read=read
    )


_CLOCKS: Which = {
    ("sm",): Signal.CLOCK_SM,
    ("memory",): Signal.CLOCK_MEMORY,
    ("graphics",): Signal.CLOCK_GRAPHICS,
    ("video",): Signal.CLOCK_VIDEO,
}
_CLOCK_LIMITS: Which = {
    ("sm",): Signal.CLOCK_MAX_SM,
    ("memory",): Signal.CLOCK_MAX_MEMORY,
    ("graphics",): Signal.CLOCK_MAX_GRAPHICS,
    ("video",): Signal.CLOCK_MAX_VIDEO,
}
_TEMPERATURES: Which = {("gpu",): Signal.TEMPERATURE_GPU, ("memory",): Signal.TEMPERATURE_MEMORY}
_TEMPERATURE_LIMITS: Which = {
    ("slowdown",): Signal.TEMPERATURE_LIMIT_SLOWDOWN,
    ("shutdown",): Signal.TEMPERATURE_LIMIT_SHUTDOWN,
    ("gpu_max",): Signal.TEMPERATURE_LIMIT_GPU_MAX,
    ("memory_max",): Signal.TEMPERATURE_LIMIT_MEMORY_MAX,
}
_ECC_VOLATILE: Which = {
    ("corrected", "volatile"): Signal.ECC_CORRECTED_VOLATILE,
    ("uncorrected", "volatile"): Signal.ECC_UNCORRECTED_VOLATILE,
}
_ECC_AGGREGATE: Which = {
    ("corrected", "aggregate"): Signal.ECC_CORRECTED_AGGREGATE,
    ("uncorrected", "aggregate"): Signal.ECC_UNCORRECTED_AGGREGATE,
}
_REMAPPED: Which = {
    ("correctable",): Signal.REMAPPED_ROWS_CORRECTABLE,
    ("uncorrectable",): Signal.REMAPPED_ROWS_UNCORRECTABLE,
}
_RETIRED: Which = {("single_bit",): Signal.RETIRED_PAGES_SINGLE_BIT, ("double_bit",): Signal.RETIRED_PAGES_DOUBLE_BIT}

IDENTITY = (
    Metric(
        subject=CARD,
        noun="",
        kind=Kind.INFO,
        labels=("name", "pci_bus_id", "serial", "vbios_version", "numa_node"),
        help="Facts of a card; join on uuid, since the index may change between boots.",
        read=_info,
    ),
    Metric(
        subject=NODE,
        noun="driver",
        kind=Kind.INFO,
        labels=("driver_version", "nvml_version", "cuda_version"),
        help="Versions of this node's GPU driver stack.",
        read=_driver,
    ),
    _gauge("up", Unit.NONE, _up, "1 while the card answers, 0 when it is lost, hung or in error."),
    _gauge("data_age", Unit.SECONDS, _age, "Age of the card's newest reading when this page was made."),
    Metric(
        subject=CARD,
        noun="signal_missing",
        kind=Kind.INFO,
        labels=("signal", "reason"),
        help="Why a signal of a card that answers is absent: no_permission, mig, error, invalid, and in the full set "
        "also unsupported.",
        read=_missing(unsupported=False),
        read_full=_missing(unsupported=True),
    ),
    Metric(
        subject=CARD,
        noun="replica",
        kind=Kind.INFO,
        labels=("replica", "engine", "model", "rank"),
        help="Which replica uses the card; rank is empty when it is not known.",
        read=_replica,
    ),
)

WORK = (
    _gauge(
        "utilization",
        Unit.RATIO,
        _signal(Signal.UTILIZATION),
        "Share of time in which at least one kernel was resident, mean over the driver's samples since the previous "
        "cycle. It says nothing about work: a rank that waits for the others shows 1.",
    ),
    _gauge(
        "memory_activity",
        Unit.RATIO,
        _signal(Signal.MEMORY_ACTIVITY),
        "Share of time in which device memory was read or written; not bandwidth.",
    ),
    _gauge(
        "encoder_utilization",
        Unit.RATIO,
        _signal(Signal.ENCODER_UTILIZATION),
        "Share of time in which the video encoder was busy.",
        series=Series.FULL,
    ),
    _gauge(
        "decoder_utilization",
        Unit.RATIO,
        _signal(Signal.DECODER_UTILIZATION),
        "Share of time in which the video decoder was busy.",
        series=Series.FULL,
    ),
    _gauge(
        "processes",
        Unit.NONE,
        _signal(Signal.PROCESSES),
        "Processes that hold a compute context on the card.",
        series=Series.FULL,
    ),
)

MEMORY = (
    _gauge("memory_total", Unit.BYTES, _signal(Signal.MEMORY_TOTAL), "Device memory of the card."),
    _gauge("memory_used", Unit.BYTES, _signal(Signal.MEMORY_USED), "Device memory allocated, without the reserved."),
    _gauge(
        "memory_free",
        Unit.BYTES,
        _signal(Signal.MEMORY_FREE),
        "Device memory that can still be allocated.",
        series=Series.FULL,
    ),
    _gauge(
        "memory_reserved",
        Unit.BYTES,
        _signal(Signal.MEMORY_RESERVED),
        "Device memory that the driver and firmware keep for themselves.",
        series=Series.FULL,
    ),
)

HEAT_AND_POWER = (
    _gauge("temperature", Unit.CELSIUS, _signals(_TEMPERATURES), "Temperature by sensor.", "sensor"),
    _gauge(
        "temperature_limit",
        Unit.CELSIUS,
        _signals(_TEMPERATURE_LIMITS),
        "Temperature at which the card slows down, shuts down, or leaves its rated range.",
        "limit",
        series=Series.FULL,
    ),
    _gauge(
        "temperature_margin",
        Unit.CELSIUS,
        _signal(Signal.TEMPERATURE_MARGIN),
        "Degrees left until the card slows down; alert on this rather than on a fixed temperature.",
    ),
    _gauge("power", Unit.WATTS, _signal(Signal.POWER), "Power drawn now, as the driver averages it."),
    _gauge("power_limit", Unit.WATTS, _signal(Signal.POWER_LIMIT), "Power limit that is enforced."),
    _counter(
        "energy", Unit.JOULES, _signal(Signal.ENERGY), "Energy drawn since the driver was loaded or the card reset."
    ),
    _gauge(
        "fan_speed",
        Unit.RATIO,
        _signal(Signal.FAN_SPEED),
        "Intended fan speed over its maximum, mean over the fans; absent on passive cards.",
        series=Series.FULL,
    ),
)

CLOCKS = (
    Metric(
        subject=CARD,
        noun="clock",
        kind=Kind.GAUGE,
        unit=Unit.HERTZ,
        labels=("domain",),
        help="Clock now, by domain; domains other than sm are in the full set of series.",
        read=_signals({("sm",): Signal.CLOCK_SM}),
        read_full=_signals(_CLOCKS),
    ),
    _gauge(
        "clock_max",
        Unit.HERTZ,
        _signals(_CLOCK_LIMITS),
        "Highest clock that the card may reach, by domain.",
        "domain",
        series=Series.FULL,
    ),
    Metric(
        subject=CARD,
        noun="clock_event_active",
        kind=Kind.GAUGE,
        labels=("reason",),
        help="1 while the driver holds the clocks down for this reason; being idle and clocks set on purpose are "
        "left out.",
        read=_events,
    ),
    Metric(
        subject=CARD,
        noun="clock_event",
        kind=Kind.COUNTER,
        unit=Unit.SECONDS,
        labels=("reason",),
        help="Time for which the driver held the clocks down for this reason; harmless reasons are in the full set.",
        read=_event_seconds(harmful_only=True),
        read_full=_event_seconds(harmful_only=False),
    ),
    _gauge(
        "performance_state",
        Unit.NONE,
        _signal(Signal.PERFORMANCE_STATE),
        "P-state: 0 is full performance, 15 the least.",
        series=Series.FULL,
    ),
)

LINKS = (
    _gauge(
        "pcie_link_generation",
        Unit.NONE,
        _signal(Signal.PCIE_LINK_GENERATION),
        "PCIe generation of the link now; an idle card lowers it, so judge it under load.",
    ),
    _gauge(
        "pcie_link_generation_max",
        Unit.NONE,
        _signal(Signal.PCIE_LINK_GENERATION_MAX),
        "PCIe generation that card and slot can reach together.",
        series=Series.FULL,
    ),
    _gauge("pcie_link_width", Unit.NONE, _signal(Signal.PCIE_LINK_WIDTH), "PCIe lanes of the link now."),
    _gauge(
        "pcie_link_width_max",
        Unit.NONE,
        _signal(Signal.PCIE_LINK_WIDTH_MAX),
        "PCIe lanes that card and slot can reach together.",
        series=Series.FULL,
    ),
    _counter("pcie_transmit", Unit.BYTES, _signal(Signal.PCIE_TRANSMIT), "Bytes the card sent over PCIe."),
    _counter("pcie_receive", Unit.BYTES, _signal(Signal.PCIE_RECEIVE), "Bytes the card received over PCIe."),
    _counter(
        "pcie_replays",
        Unit.NONE,
        _signal(Signal.PCIE_REPLAYS),
        "PCIe packets that had to be sent again.",
        series=Series.FULL,
    ),
    _gauge("nvlink_up", Unit.NONE, _nvlink_up, "1 while this NVLink is active.", "link", series=Series.FULL),
    _gauge("nvlink_active_links", Unit.NONE, _nvlinks(active=True), "NVLinks of the card that are active."),
    _gauge(
        "nvlink_links",
        Unit.NONE,
        _nvlinks(active=False),
        "NVLinks of the card, active or not.",
        series=Series.FULL,
    ),
    _counter("nvlink_transmit", Unit.BYTES, _signal(Signal.NVLINK_TRANSMIT), "Bytes sent over all NVLinks."),
    _counter("nvlink_receive", Unit.BYTES, _signal(Signal.NVLINK_RECEIVE), "Bytes received over all NVLinks."),
    _counter(
        "nvlink_errors",
        Unit.NONE,
        _nvlink_errors,
        "NVLink errors over all links, by type.",
        "type",
        series=Series.FULL,
    ),
    _gauge(
        "fabric_state",
        Unit.NONE,
        _signal(Signal.FABRIC_STATE),
        "NVSwitch fabric: 1 not started, 2 in progress, 3 completed.",
        series=Series.FULL,
    ),
)

HEALTH = (
    Metric(
        subject=CARD,
        noun="ecc_errors",
        kind=Kind.COUNTER,
        labels=("error", "scope"),
        help="ECC memory errors; volatile since the driver was loaded, aggregate for the card's life (full set).",
        read=_signals(_ECC_VOLATILE),
        read_full=_signals({**_ECC_VOLATILE, **_ECC_AGGREGATE}),
    ),
    _counter(
        "remapped_rows",
        Unit.NONE,
        _signals(_REMAPPED),
        "Memory rows replaced by spare ones, by what caused it.",
        "cause",
        series=Series.FULL,
    ),
    _gauge(
        "row_remap_pending",
        Unit.NONE,
        _signal(Signal.ROW_REMAP_PENDING),
        "1 when a row waits for the next reset of the card to be replaced.",
    ),
    _gauge(
        "row_remap_failed",
        Unit.NONE,
        _signal(Signal.ROW_REMAP_FAILED),
        "1 when a row could not be replaced: the card needs service.",
    ),
    _counter(
        "retired_pages",
        Unit.NONE,
        _signals(_RETIRED),
        "Memory pages taken out of use (cards before Ampere), by cause.",
        "cause",
        series=Series.FULL,
    ),
    _gauge(
        "recovery_action",
        Unit.NONE,
        _recovery,
        "1 for the action that the driver asks for now: none, gpu_reset, node_reboot, drain_p2p, drain_and_reset, "
        "recover_imex_domain, bus_reset, system_reboot.",
        "action",
    ),
)

UNEVENNESS = (
    Metric(
        subject=GROUP,
        noun="utilization_stddev",
        kind=Kind.GAUGE,
        unit=Unit.RATIO,
        help="Population standard deviation of utilisation inside the group; scope node pools the groups, each "
        "around its own mean. It cannot exceed 0.5.",
        read=_spread("stddev", Signal.UTILIZATION),
    ),
    Metric(
        subject=GROUP,
        noun="utilization_spread",
        kind=Kind.GAUGE,
        unit=Unit.RATIO,
        help="Highest minus lowest utilisation inside the group; scope node shows the widest group.",
        read=_spread("spread", Signal.UTILIZATION),
    ),
    Metric(
        subject=GROUP,
        noun="imbalance_coefficient_of_variation",
        kind=Kind.GAUGE,
        labels=("signal",),
        help="Standard deviation over mean of a signal inside the group.",
        series=Series.FULL,
        read=_spread("coefficient_of_variation"),
    ),
    Metric(
        subject=GROUP,
        noun="imbalance_max_to_mean",
        kind=Kind.GAUGE,
        unit=Unit.RATIO,
        labels=("signal",),
        help="Highest over mean of a signal inside the group: 1 is balanced.",
        read=_spread("max_to_mean"),
    ),
    _gauge(
        "group_deviation",
        Unit.RATIO,
        _deviation,
        "The card's signal against its group's median: 0 is the median, -0.2 a fifth below.",
        "group",
        "signal",
        series=Series.FULL,
    ),
)

CARDS = (*IDENTITY, *WORK, *MEMORY, *HEAT_AND_POWER, *CLOCKS, *LINKS, *HEALTH, *UNEVENNESS)
