"""The Alertmanager configuration, generated from the alerts and the receivers file: routes, inhibition, templates."""

from __future__ import annotations

from alerts.alertmanager.files import CONFIGURATION, files
from alerts.alertmanager.reader import DEFAULT, load

__all__ = ["CONFIGURATION", "DEFAULT", "files", "load"]
