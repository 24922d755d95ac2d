"""XIDs of a GPU within the time range.

The counter of most codes starts at 1 with their first event, which no increase covers: only the fatal codes are
pre-initialised at 0. So the time of the newest event counts as well, as in the alerts.
"""

from __future__ import annotations

from dashboards.variables import NODE, RANGE, RANGE_SECONDS, RATE_INTERVAL, RATE_INTERVAL_MILLISECONDS, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.xid_catalog import FATAL
from exporter.promql import Expr, and_on, binary, increase, max_by, since, sum_by, unless

BY = ("instance", "gpu", "xid")
RESETTING = ", ".join(str(code) for code in sorted(FATAL))  # for texts: the GPU is unusable after these


def counted() -> Expr:
    """Return the number of XIDs in the time range, by GPU and code.

    A counter younger than the range counts whole; an event before the daemon's start has only a time, and counts as 1.
    """
    events = selected(m.GPU_XID_EVENTS_TOTAL)
    lately = since(selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS)) < RANGE_SECONDS
    young = and_on(unless(events, events.offset(RANGE)) > 0, lately, on=(*NODE, "uuid", "xid", "source"))
    rose = increase(events, RANGE) > 0
    return sum_by(young | rose, *BY) | (max_by(lately, *BY) * 0 + 1).as_unit(Unit.NONE)


def fresh() -> Expr:
    """Return the new XIDs at each step, of the codes that occurred in the time range.

    0 where there is none: Grafana gives isolated cells no width.
    """
    ago = since(max_by(selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS), *BY))
    rose = max_by(increase(selected(m.GPU_XID_EVENTS_TOTAL), RATE_INTERVAL), *BY) > 0
    just_now = binary("<", ago * 1000, RATE_INTERVAL_MILLISECONDS, boolean=True)
    return and_on(rose | just_now, ago < RANGE_SECONDS, on=BY)


def ago() -> Expr:
    """Return the time since each code was last seen, with the recommended action."""
    newest = max_by(selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS), *NODE, "uuid", "xid")
    said = binary("*", selected(m.GPU_XID_ACTION_INFO), since(newest), on=(*NODE, "uuid", "xid"), group_left=())
    return said.as_unit(Unit.SECONDS)
