"""The table of ports of network adapters."""

from __future__ import annotations

from exporter.model.nic import NicState
from exporter.web import values
from exporter.web.model import Level, PageCell, PageRow, PageTable
from exporter.web.node_tables import NodeTables
from exporter.web.values import ABSENT, clean


def adapters(node: NodeTables) -> PageTable:
    """Return one row for each port."""
    names = ("rate", "errors_count")
    return PageTable(
        id="adapters",
        heading=node.say("adapters"),
        columns=node.columns("adapter", "state", *names, "nearest_gpus", numeric=frozenset(names)),
        rows=tuple(_port(node, nic) for nic in node.snapshot.nics),
    )


def _port(node: NodeTables, nic: NicState) -> PageRow:
    port = nic.port
    name = f"{port.key.device}/{port.key.port}"
    is_slow = bool(port.is_up and port.rate and nic.max_rate and port.rate < nic.max_rate)
    errors = {kind: count for kind, count in port.errors.items() if count}
    gpus = [node.labels[near.uuid] for near in nic.nearest if near.uuid in node.labels]
    return PageRow(
        key=f"adapter-{name}",
        level=node.marks.get(name, Level.WARNING if nic.is_down else Level.NONE),
        cells=(
            PageCell(clean(name), clean(port.interface)),
            _state(node, nic),
            PageCell(
                values.gigabits(port.rate if port.is_up else None),
                node.say("instead_of").format(rate=values.gigabits(nic.max_rate)) if is_slow else "",
                Level.WARNING if is_slow else Level.NONE,
            ),
            PageCell(
                values.count(sum(port.errors.values()) if port.errors else None),
                clean(" ".join(f"{kind} {values.count(count)}" for kind, count in errors.items())),
            ),
            PageCell(values.ranges(gpus) or ABSENT, clean(next((near.path for near in nic.nearest), ""))),
        ),
    )


def _state(node: NodeTables, nic: NicState) -> PageCell:
    port = nic.port
    if port.is_up is None:
        return PageCell(ABSENT)
    if port.is_up:
        return PageCell(node.say("up"), level=Level.GOOD)
    why = clean((port.physical_state or port.state).replace("_", " "))
    return PageCell(node.say("down"), why, Level.WARNING) if nic.is_down else PageCell(node.say("unused"), why)
