"""What stops a build of the dashboards."""

from __future__ import annotations


class DashboardError(ValueError):
    """A board or panel that would be wrong in Grafana; the message names it."""
