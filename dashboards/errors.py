"""Errors of the dashboards' build."""

from __future__ import annotations


class DashboardError(ValueError):
    """A dashboard or panel is invalid; the message names it."""
