"""XIDs of a card within the chosen time.

The first event of most codes begins its counter at 1, and no increase sees it: only the few that leave a card useless
stand at 0 before.  So the time of the newest counts as well, as in the alerts.
"""

from __future__ import annotations

from dashboards.variables import NODE, RANGE, RANGE_SECONDS, RATE_INTERVAL, RATE_INTERVAL_MILLISECONDS, selected
from exporter.catalog import metrics as m
from exporter.catalog.spec import Unit
from exporter.model.xid_catalog import FATAL
from exporter.promql import Expr, and_on, binary, increase, max_by, since, sum_by, unless

BY = ("instance", "gpu", "xid")
RESETTING = ", ".join(str(code) for code in sorted(FATAL))  # for texts: after these the card is of no use


def counted() -> Expr:
    """Count the XIDs of the chosen time, by card and code.

    Of a counter that is younger than the time, all is within it; of an event before the daemon's start there is the
    time alone, and it counts as one.
    """
    events = selected(m.GPU_XID_EVENTS_TOTAL)
    lately = since(selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS)) < RANGE_SECONDS
    young = and_on(unless(events, events.offset(RANGE)) > 0, lately, on=(*NODE, "uuid", "xid", "source"))
    rose = increase(events, RANGE) > 0
    return sum_by(young | rose, *BY) | (max_by(lately, *BY) * 0 + 1).as_unit(Unit.NONE)


def fresh() -> Expr:
    """Return the new XIDs of each moment, of the codes that occurred within the chosen time.

    0 where there is none: cells alone, without their neighbours, Grafana gives no width.
    """
    ago = since(max_by(selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS), *BY))
    rose = max_by(increase(selected(m.GPU_XID_EVENTS_TOTAL), RATE_INTERVAL), *BY) > 0
    just_now = binary("<", ago * 1000, RATE_INTERVAL_MILLISECONDS, boolean=True)
    return and_on(rose | just_now, ago < RANGE_SECONDS, on=BY)


def ago() -> Expr:
    """Return how long ago each code was seen last, with what to do about it."""
    newest = max_by(selected(m.GPU_XID_LAST_TIMESTAMP_SECONDS), *NODE, "uuid", "xid")
    said = binary("*", selected(m.GPU_XID_ACTION_INFO), since(newest), on=(*NODE, "uuid", "xid"), group_left=())
    return said.as_unit(Unit.SECONDS)
