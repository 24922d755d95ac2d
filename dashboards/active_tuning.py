"""The tuning that the dashboards are built with: the alerts' defaults, or those of the alerts' thresholds file.

Dashboards are built when their modules are imported, and colours, SLOs and queries hold the figures from then on.
``set_`` must be called before the first of them is imported; later calls with another tuning are refused.
"""

from __future__ import annotations

import sys

from alerts.tuning import Tuning
from dashboards.errors import DashboardError

_READER = "dashboards.thresholds"  # imported once; it reads the tuning
_tuning = Tuning()


def set_(tuning: Tuning) -> None:
    """Set the tuning; raise DashboardError if the dashboards are already built with another one."""
    global _tuning  # noqa: PLW0603 - one process builds one set of dashboards
    if _READER in sys.modules and tuning != _tuning:
        raise DashboardError("the dashboards are already built with other thresholds")
    _tuning = tuning


def get() -> Tuning:
    """Return the tuning in force."""
    return _tuning
