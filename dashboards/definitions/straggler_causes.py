"""The cause of a straggler as one number per GPU, so that a table's cell can show it as text."""

from __future__ import annotations

from dashboards.panels import ValueMapping
from dashboards.panels.panel import Colour
from dashboards.variables import selected
from exporter.catalog import metrics as m
from exporter.diagnosis.cause_names import CAUSE_NAMES
from exporter.model.straggler import Cause
from exporter.promql import Expr

CAUSES = tuple(ValueMapping(place, CAUSE_NAMES[cause], Colour.CRITICAL) for place, cause in enumerate(Cause, 1))


def cause() -> Expr:
    """Return the position of the cause in ``CAUSES`` for each straggler."""
    found: Expr | None = None
    for place, cause_ in enumerate(Cause, 1):
        waited = selected(m.GPU_STRAGGLER, cause=cause_.value) * place
        found = waited if found is None else found | waited
    assert found is not None  # Cause is not empty
    return found
