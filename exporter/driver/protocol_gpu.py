"""How a card's facts and figures travel through the pipe: what JSON can hold out, and only what can be true back in.

Names of signals and reasons are enumerations that are texts, so JSON takes them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporter.driver.protocol_validate import count, flag, number, numbers, text
from exporter.model import CardFacts, CardProcess, CardReading, MigInstance, Missing, Signal

_SIGNALS = {signal.value: signal for signal in Signal}
_REASONS = {reason.value: reason for reason in Missing}


def plain_facts(facts: CardFacts) -> dict[str, Any]:
    """Make what JSON can hold."""
    plain = {name: getattr(facts, name) for name in CardFacts.__struct_fields__}
    if facts.instance is not None:
        plain["instance"] = {name: getattr(facts.instance, name) for name in MigInstance.__struct_fields__}
    return plain


def facts(body: Mapping[str, Any]) -> CardFacts:
    """Read what ``plain_facts`` wrote.  ValueError, TypeError, KeyError or AttributeError for anything else."""
    node = body["numa_node"]
    texts = {name: text(body[name]) for name in ("uuid", "name", "pci_bus_id", "serial", "vbios_version")}
    if not texts["uuid"]:
        raise ValueError
    return CardFacts(
        index=count(body["index"]),
        numa_node=None if node is None else count(node),
        mig=flag(body["mig"]),
        instance=None if body["instance"] is None else _instance(body["instance"]),
        **texts,
    )


def _instance(body: Mapping[str, Any]) -> MigInstance:
    return MigInstance(
        number=count(body["number"]),
        parent=text(body["parent"]),
        profile=text(body["profile"]),
        gpu_instance=count(body["gpu_instance"]),
        compute_instance=count(body["compute_instance"]),
    )


def plain_reading(reading: CardReading) -> dict[str, Any]:
    """Make what JSON can hold."""
    listed = reading.processes
    return {
        "at": reading.at,
        "signals": dict(reading.signals),
        "missing": dict(reading.missing),
        "clock_events": dict(reading.clock_events),
        "clock_event_seconds": dict(reading.clock_event_seconds),
        "policy_seconds": dict(reading.policy_seconds),
        "nvlink_up": dict(reading.nvlink_up),
        "nvlink_errors": dict(reading.nvlink_errors),
        "nvlink_errors_at": reading.nvlink_errors_at,
        "nvlink_bit_errors": dict(reading.nvlink_bit_errors),
        "c2c_errors": dict(reading.c2c_errors),
        "pipe_active": dict(reading.pipe_active),
        "traffic": [(*which, rate) for which, rate in reading.traffic.items()],
        "processes": None if listed is None else [(process.pid, process.memory) for process in listed],
    }


def reading(body: Mapping[str, Any]) -> CardReading:
    """Read what ``plain_reading`` wrote; raises as ``facts`` does."""
    listed, errors_at = body["processes"], body["nvlink_errors_at"]
    return CardReading(
        at=number(body["at"]),
        signals={_SIGNALS[name]: value for name, value in numbers(body["signals"]).items()},
        missing={_SIGNALS[name]: _REASONS[why] for name, why in body["missing"].items()},
        clock_events={name: flag(active) for name, active in body["clock_events"].items()},
        clock_event_seconds=numbers(body["clock_event_seconds"]),
        policy_seconds=numbers(body["policy_seconds"]),
        nvlink_up={count(int(link)): flag(up) for link, up in body["nvlink_up"].items()},
        nvlink_errors=numbers(body["nvlink_errors"]),
        nvlink_errors_at=None if errors_at is None else number(errors_at),
        nvlink_bit_errors=numbers(body["nvlink_bit_errors"]),
        c2c_errors=numbers(body["c2c_errors"]),
        pipe_active=numbers(body["pipe_active"]),
        traffic={(text(link), text(way)): number(rate) for link, way, rate in body["traffic"]},
        processes=None if listed is None else tuple(_process(*entry) for entry in listed),
    )


def _process(pid: Any, memory: Any) -> CardProcess:
    return CardProcess(pid=count(pid), memory=None if memory is None else number(memory))
