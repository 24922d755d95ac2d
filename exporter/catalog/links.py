"""Metrics of links between GPUs, and to the host: PCIe, NVLink, NVSwitch fabric."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.catalog.gpu_reads import readings, signal
from exporter.catalog.spec import GPU, ReadSamples, Sample, SeriesSet, Unit
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
    GPU.gauge(
        "pcie_link_generation",
        signal(Signal.PCIE_LINK_GENERATION),
        "Current PCIe generation of the link; an idle GPU lowers it, see gpu_pcie_link_degraded.",
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "pcie_link_generation_max",
        signal(Signal.PCIE_LINK_GENERATION_MAX),
        "Maximum PCIe generation of GPU and slot.",
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "pcie_link_width", signal(Signal.PCIE_LINK_WIDTH), "Current PCIe lanes of the link.", series=SeriesSet.FULL
    ),
    GPU.gauge(
        "pcie_link_width_max",
        signal(Signal.PCIE_LINK_WIDTH_MAX),
        "Maximum PCIe lanes of GPU and slot.",
        series=SeriesSet.FULL,
    ),
    GPU.counter("pcie_transmit", signal(Signal.PCIE_TRANSMIT), "Bytes sent by the GPU over PCIe.", unit=Unit.BYTES),
    GPU.counter("pcie_receive", signal(Signal.PCIE_RECEIVE), "Bytes received by the GPU over PCIe.", unit=Unit.BYTES),
    GPU.gauge(
        "pcie_link_degraded",
        _health("pcie_degraded"),
        "1 when generation or width of the PCIe link has been below its maximum for 30 s while the GPU was busy; "
        "absent unless the GPU was busy all the time, because an idle GPU lowers its link on purpose.",
    ),
    GPU.counter(
        "pcie_replays", signal(Signal.PCIE_REPLAYS), "PCIe packets that were replayed.", series=SeriesSet.FULL
    ),
    GPU.gauge("nvlink_up", _nvlink_up, "1 while this NVLink is active.", "link", series=SeriesSet.FULL),
    GPU.gauge("nvlink_active_links", _nvlinks(active=True), "Active NVLinks of the GPU."),
    GPU.gauge(
        "nvlink_links_down",
        _health("nvlinks_down"),
        "Inactive NVLinks that were active before, or that most GPUs of the same name on this node have; "
        "absent on GPUs without NVLink and with MIG enabled.",
    ),
    GPU.gauge(
        "nvlink_remote_links",
        _remotes,
        "NVLinks by their remote end: gpu, switch, npu, unknown.",
        "remote",
        series=SeriesSet.FULL,
    ),
    GPU.gauge("nvlink_links", _nvlinks(active=False), "NVLinks of the GPU, active or not.", series=SeriesSet.FULL),
    GPU.counter(
        "nvlink_transmit",
        signal(Signal.NVLINK_TRANSMIT),
        "Bytes sent over all NVLinks; absent without any.",
        unit=Unit.BYTES,
    ),
    GPU.counter(
        "nvlink_receive",
        signal(Signal.NVLINK_RECEIVE),
        "Bytes received over all NVLinks; absent without any.",
        unit=Unit.BYTES,
    ),
    GPU.counter(
        "nvlink_errors", _nvlink_errors, "NVLink errors over all links, by type.", "type", series=SeriesSet.FULL
    ),
    GPU.gauge(
        "nvlink_bit_error",
        _bit_errors,
        "Bit error ratio of the GPU's worst NVLink (NVLink 5): raw, effective (after correction), and symbol "
        "(symbols after correction).",
        "type",
        unit=Unit.RATIO,
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "fabric_state",
        signal(Signal.FABRIC_STATE),
        "NVSwitch fabric: 1 not started, 2 in progress, 3 completed.",
        series=SeriesSet.FULL,
    ),
    GPU.info(
        "fabric_problem",
        _fabric_problems,
        "Problem that limits the GPU's use of the NVSwitch fabric: not_started, in_progress, failed, "
        "degraded_bandwidth, route_recovery, route_unhealthy, access_timeout_recovery, no_partition_assigned, "
        "manager_disconnected, a problem of its configuration, or unhealthy or limited_capacity where the driver "
        "reports no details. Absent without problems.",
        "problem",
    ),
    GPU.gauge(
        "c2c_enabled",
        signal(Signal.C2C_MODE),
        "1 while the C2C link to a processor on the same module is enabled; absent on GPUs without.",
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "c2c_links",
        signal(Signal.C2C_LINKS),
        "C2C links to a processor on the same module; absent on GPUs without.",
        series=SeriesSet.FULL,
    ),
    GPU.gauge(
        "c2c_active_links",
        signal(Signal.C2C_LINKS_ACTIVE),
        "Active C2C links to a processor on the same module.",
        series=SeriesSet.FULL,
    ),
    GPU.counter(
        "c2c_errors",
        _c2c_errors,
        "Errors of the worst C2C link to a processor on the same module, by type: crc, replay, "
        "replay_back_to_back; absent on GPUs without such links.",
        "type",
        series=SeriesSet.FULL,
    ),
)
