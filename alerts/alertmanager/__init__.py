"""The Alertmanager configuration, generated from the alerts and the receivers file: routes, inhibition, templates."""

from __future__ import annotations

from alerts.alertmanager.files import files
from alerts.alertmanager.reader import DEFAULT, load

__all__ = ["DEFAULT", "files", "load"]
