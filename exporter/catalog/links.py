"""Metrics of links between GPUs, and to the host: PCIe, NVLink, NVSwitch fabric."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.gpu_reads import counter, gauge, readings, signal
from exporter.catalog.spec import GPU, Metric, MetricKind, ReadSamples, Sample, SeriesSet, Unit
from exporter.model import LinkHealth, Signal, Snapshot


def _nvlink_up(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, reading in readings(snapshot):
        for link, state in reading.nvlink_up.items():
            yield (*labels, str(link)), float(state)


def _nvlinks(*, active: bool) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for labels, reading in readings(snapshot):
            # With a link that was not read the count would look like one that is gone.
            if reading.nvlink_up and Signal.NVLINK_STATE not in reading.missing:
                states = reading.nvlink_up.values()
                yield labels, float(sum(states) if active else len(states))

    return read


def _health(attribute: str) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for card in snapshot.cards:
            health = snapshot.topology.links.get(card.facts.uuid)
            value = getattr(health, attribute) if health is not None and card.reading is not None else None
            if value is not None:
                yield card.labels, float(value)

    assert attribute in LinkHealth.__struct_fields__  # a misspelt one would fail on the first page only
    return read


def _remotes(snapshot: Snapshot) -> Iterator[Sample]:
    for card in snapshot.cards:
        if card.reading is not None and card.topology is not None:
            kinds = [end.kind for end in card.topology.links.values()]
            for kind in dict.fromkeys(kinds):
                yield (*card.labels, kind), float(kinds.count(kind))


def _bit_errors(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, reading in readings(snapshot):
        for kind, ratio in reading.nvlink_bit_errors.items():
            yield (*labels, kind), ratio


def _fabric_problems(snapshot: Snapshot) -> Iterator[Sample]:
    for card in snapshot.cards:
        health = snapshot.topology.links.get(card.facts.uuid)
        if health is not None and card.reading is not None:
            for problem in health.fabric_problems:
                yield (*card.labels, problem), 1.0


def _nvlink_errors(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, reading in readings(snapshot):
        for kind, count in reading.nvlink_errors.items():
            yield (*labels, kind), count


def _c2c_errors(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, reading in readings(snapshot):
        for kind, count in reading.c2c_errors.items():
            yield (*labels, kind), count


LINKS = (
    gauge(
        "pcie_link_generation",
        Unit.NONE,
        signal(Signal.PCIE_LINK_GENERATION),
        "Current PCIe generation of the link; an idle GPU lowers it, see gpu_pcie_link_degraded.",
        series=SeriesSet.FULL,
    ),
    gauge(
        "pcie_link_generation_max",
        Unit.NONE,
        signal(Signal.PCIE_LINK_GENERATION_MAX),
        "Maximum PCIe generation of GPU and slot.",
        series=SeriesSet.FULL,
    ),
    gauge(
        "pcie_link_width",
        Unit.NONE,
        signal(Signal.PCIE_LINK_WIDTH),
        "Current PCIe lanes of the link.",
        series=SeriesSet.FULL,
    ),
    gauge(
        "pcie_link_width_max",
        Unit.NONE,
        signal(Signal.PCIE_LINK_WIDTH_MAX),
        "Maximum PCIe lanes of GPU and slot.",
        series=SeriesSet.FULL,
    ),
    counter("pcie_transmit", Unit.BYTES, signal(Signal.PCIE_TRANSMIT), "Bytes sent by the GPU over PCIe."),
    counter("pcie_receive", Unit.BYTES, signal(Signal.PCIE_RECEIVE), "Bytes received by the GPU over PCIe."),
    gauge(
        "pcie_link_degraded",
        Unit.NONE,
        _health("pcie_degraded"),
        "1 when generation or width of the PCIe link has been below its maximum for 30 s while the GPU was busy; "
        "absent unless the GPU was busy all the time, because an idle GPU lowers its link on purpose.",
    ),
    counter(
        "pcie_replays",
        Unit.NONE,
        signal(Signal.PCIE_REPLAYS),
        "PCIe packets that were replayed.",
        series=SeriesSet.FULL,
    ),
    gauge("nvlink_up", Unit.NONE, _nvlink_up, "1 while this NVLink is active.", "link", series=SeriesSet.FULL),
    gauge("nvlink_active_links", Unit.NONE, _nvlinks(active=True), "Active NVLinks of the GPU."),
    gauge(
        "nvlink_links_down",
        Unit.NONE,
        _health("nvlinks_down"),
        "Inactive NVLinks that were active before, or that most GPUs of the same name on this node have; "
        "absent on GPUs without NVLink and with MIG enabled.",
    ),
    gauge(
        "nvlink_remote_links",
        Unit.NONE,
        _remotes,
        "NVLinks by their remote end: gpu, switch, npu, unknown.",
        "remote",
        series=SeriesSet.FULL,
    ),
    gauge(
        "nvlink_links",
        Unit.NONE,
        _nvlinks(active=False),
        "NVLinks of the GPU, active or not.",
        series=SeriesSet.FULL,
    ),
    counter("nvlink_transmit", Unit.BYTES, signal(Signal.NVLINK_TRANSMIT), "Bytes sent over all NVLinks."),
    counter("nvlink_receive", Unit.BYTES, signal(Signal.NVLINK_RECEIVE), "Bytes received over all NVLinks."),
    counter(
        "nvlink_errors",
        Unit.NONE,
        _nvlink_errors,
        "NVLink errors over all links, by type.",
        "type",
        series=SeriesSet.FULL,
    ),
    gauge(
        "nvlink_bit_error",
        Unit.RATIO,
        _bit_errors,
        "Bit error ratio of the GPU's worst NVLink (NVLink 5): raw, effective (after correction), and symbol "
        "(symbols after correction).",
        "type",
        series=SeriesSet.FULL,
    ),
    gauge(
        "fabric_state",
        Unit.NONE,
        signal(Signal.FABRIC_STATE),
        "NVSwitch fabric: 1 not started, 2 in progress, 3 completed.",
        series=SeriesSet.FULL,
    ),
    Metric(
        subject=GPU,
        noun="fabric_problem",
        kind=MetricKind.INFO,
        labels=("problem",),
        help="Problem that limits the GPU's use of the NVSwitch fabric: not_started, in_progress, failed, "
        "degraded_bandwidth, route_recovery, route_unhealthy, access_timeout_recovery, no_partition_assigned, "
        "manager_disconnected, a problem of its configuration, or unhealthy or limited_capacity where the driver "
        "reports no details. Absent without problems.",
        read=_fabric_problems,
    ),
    gauge(
        "c2c_links",
        Unit.NONE,
        signal(Signal.C2C_LINKS),
        "C2C links to a processor on the same module; absent on GPUs without.",
        series=SeriesSet.FULL,
    ),
    gauge(
        "c2c_active_links",
        Unit.NONE,
        signal(Signal.C2C_LINKS_ACTIVE),
        "Active C2C links to a processor on the same module.",
        series=SeriesSet.FULL,
    ),
    counter(
        "c2c_errors",
        Unit.NONE,
        _c2c_errors,
        "Errors of the worst C2C link to a processor on the same module, by type: crc, replay, "
        "replay_back_to_back; absent on GPUs without such links.",
        "type",
        series=SeriesSet.FULL,
    ),
)
