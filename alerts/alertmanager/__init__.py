"""The Alertmanager configuration, made from the alerts and from who is to be told: routes, inhibition, messages."""

from __future__ import annotations

from alerts.alertmanager.files import files
from alerts.alertmanager.reader import DEFAULT, load

__all__ = ["DEFAULT", "files", "load"]
