"""The cause of a straggler as one number per GPU, so that a table's cell can show it as text."""

from __future__ import annotations

from dashboards.panels import ValueMapping
from dashboards.panels.panel import Colour
from dashboards.variables import selected
from exporter.catalog import metrics as m
from exporter.model.straggler import Cause
from exporter.model.text import Text
from exporter.promql import Expr

_WORDS = {
    Cause.POWER_BRAKE: Text("power brake", "功率制动"),
    Cause.THERMAL: Text("thermal", "过热"),
    Cause.POWER_CAP: Text("power cap", "功率上限"),
    Cause.CLOCK_LOCK: Text("clock locked", "频率被锁"),
    Cause.OTHER_TENANT: Text("other tenant", "其他租户"),
    Cause.PCIE: Text("PCIe", "PCIe"),
    Cause.NVLINK: Text("NVLink", "NVLink"),
    Cause.MEMORY_PRESSURE: Text("memory pressure", "显存压力"),
    Cause.UNKNOWN: Text("unknown cause", "原因不明"),
}
CAUSES = tuple(ValueMapping(place, _WORDS[cause], Colour.CRITICAL) for place, cause in enumerate(Cause, 1))


def cause() -> Expr:
    """Return the position of the cause in ``CAUSES`` for each straggler."""
    found: Expr | None = None
    for place, cause_ in enumerate(Cause, 1):
        waited = selected(m.GPU_STRAGGLER, cause=cause_.value) * place
        found = waited if found is None else found | waited
    assert found is not None  # Cause is not empty
    return found
