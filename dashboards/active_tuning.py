"""The figures that boards are made with: the alerts' defaults, or those of the file that the alerts were made with.

Boards are made while they are imported, and colours, promises and queries hold the figures from then on.  Whoever has
figures of their own must ``tune`` before the first board is imported; later is refused, since nothing would change.
"""

from __future__ import annotations

import sys

from alerts.tuning import Tuning
from dashboards.errors import DashboardError

_MADE_WITH = "dashboards.thresholds"  # who reads the figures, once
_tuning = Tuning()


def set_(tuning: Tuning) -> None:
    """Make the boards with these figures; BoardError when they are made already, with others."""
    global _tuning  # noqa: PLW0603 - one process makes one set of boards
    if _MADE_WITH in sys.modules and tuning != _tuning:
        raise DashboardError("the boards are made already, with other thresholds")
    _tuning = tuning


def get() -> Tuning:
    """Return the figures that hold."""
    return _tuning
