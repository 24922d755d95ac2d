"""Metrics of network adapters that carry RDMA: InfiniBand and RoCE."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporter.catalog.spec import NIC, NODE_NIC, ReadSamples, Sample, Unit
from exporter.model import Snapshot
from exporter.model.nic import NicState


def _number(value: Callable[[NicState], float | None]) -> ReadSamples:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for nic in snapshot.nics:
            number = value(nic)
            if number is not None:
                yield nic.port.key, float(number)

    return read


def _info(snapshot: Snapshot) -> Iterator[Sample]:
    for nic in snapshot.nics:
        port = nic.port
        about = (port.link_layer, port.interface, port.location.address, port.adapter, port.firmware, port.pkey)
        yield (*port.key, *about), 1.0


def _states(snapshot: Snapshot) -> Iterator[Sample]:
    for nic in snapshot.nics:
        if nic.port.state:
            yield (*nic.port.key, nic.port.state, nic.port.physical_state), 1.0


def _errors(snapshot: Snapshot) -> Iterator[Sample]:
    for nic in snapshot.nics:
        for kind, count in nic.port.errors.items():
            yield (*nic.port.key, kind), count


def _nearest(snapshot: Snapshot) -> Iterator[Sample]:
    labels = {card.facts.uuid: card.labels for card in snapshot.cards}
    for nic in snapshot.nics:
        for near in nic.nearest:
            if near.uuid in labels:
                yield (*nic.port.key, *labels[near.uuid], near.path), 1.0


def _event_counts(snapshot: Snapshot) -> Iterator[Sample]:
    for events in snapshot.nic_events:
        yield events.labels, float(events.count)


def _event_times(snapshot: Snapshot) -> Iterator[Sample]:
    for events in snapshot.nic_events:
        yield events.labels, events.last_unix_time


_EVENT_LABELS = ("pci_bus_id", "event")
_EVENTS = (
    "event: link_down, cable_unplugged, cable_error, high_temperature, insufficient_power, health, pci_error, "
    "transmit_timeout or command_timeout. Absent until the kernel log reports one."
)

NICS = (
    NIC.info(
        "port",
        _info,
        "Facts about the port of an InfiniBand or RoCE adapter: interface is that of Ethernet, pkey the first of its "
        "partition keys.",
        "link_layer",
        "interface",
        "pci_bus_id",
        "adapter",
        "firmware",
        "pkey",
    ),
    NIC.info(
        "port_state",
        _states,
        "Logical state of the port (active, down, init, armed) and physical state (link_up, polling, disabled, "
        "training, link_error_recovery).",
        "state",
        "physical_state",
    ),
    NIC.gauge("port_up", _number(lambda nic: nic.port.is_up), "1 if the port is active and its link is up, else 0."),
    NIC.gauge(
        "port_down",
        _number(lambda nic: nic.is_down),
        "1 if the port is not up although it was since the daemon's start, or although the same port of every equal "
        "adapter of the node (three at least) is; else 0, also for a port that is disabled or was never connected.",
    ),
    NIC.gauge(
        "port_rate_bytes_per_second",
        _number(lambda nic: nic.port.rate),
        "Rate of the link, bytes per second in each direction. Absent while the port is not active.",
    ),
    NIC.gauge(
        "port_rate_max_bytes_per_second",
        _number(lambda nic: nic.max_rate),
        "Best rate of the link since the daemon's start, bytes per second.",
    ),
    NIC.counter(
        "port_receive",
        _number(lambda nic: nic.port.received),
        "Bytes received over RDMA, and over Ethernet where the adapter counts both together.",
        unit=Unit.BYTES,
    ),
    NIC.counter(
        "port_transmit",
        _number(lambda nic: nic.port.transmitted),
        "Bytes sent over RDMA, and over Ethernet where the adapter counts both together.",
        unit=Unit.BYTES,
    ),
    NIC.counter("port_link_downs", _number(lambda nic: nic.port.link_downs), "Times that the link went down."),
    NIC.counter(
        "port_carrier_changes",
        _number(lambda nic: nic.port.carrier_changes),
        "Times that the carrier of the port's Ethernet interface appeared or vanished; two for each time down.",
    ),
    NIC.counter(
        "port_errors",
        _errors,
        "Errors of the port by type. Of the link: symbol, receive, remote_physical, link_integrity, buffer_overrun, "
        "link_recovery, transmit_discard. Of transport: ack_timeout, packet_sequence, out_of_sequence, implied_nak, "
        "icrc, retransmit. A type that the adapter does not count is absent.",
        "type",
    ),
    NIC.info(
        "nearest_gpu",
        _nearest,
        "GPUs with the shortest PCIe path to the adapter, in the words of gpu_peer_path_info: PIX, PXB, PHB, NODE, "
        "SYS. Absent where sysfs does not show both.",
        "gpu",
        "uuid",
        "path",
    ),
    NODE_NIC.counter(
        "driver_events",
        _event_counts,
        f"Faults that the mlx5 driver reported in the kernel log since the daemon's start, by PCI address; {_EVENTS}",
        *_EVENT_LABELS,
    ),
    NODE_NIC.gauge(
        "driver_event_last_timestamp",
        _event_times,
        "Unix time of the newest such message, also of one before the daemon's start in the kernel log; " + _EVENTS,
        *_EVENT_LABELS,
        unit=Unit.SECONDS,
    ),
)
