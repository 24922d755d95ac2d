"""What Prometheus and Alertmanager of the stack are told: the generated rules, and this machine's addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SCRAPE_INTERVAL = "5s"


def rules(language: str) -> Path:
    """Return the generated rule file in a language (``en``, ``zh``)."""
    return ROOT / "alerts" / "generated" / language / "rules.yaml"


def notifications(language: str) -> Path:
    """Return Alertmanager's generated configuration in a language."""
    return ROOT / "alerts" / "generated" / "alertmanager" / language / "alertmanager.yaml"


def prometheus(*, rules: Path, daemon: str, alertmanager: str, own: str = "") -> dict[str, Any]:
    """Return Prometheus' configuration; ``daemon``, ``alertmanager`` and ``own``, where it is known, are host:port.

    The job must be called ``shardwatch``: rules that notice its absence name it.
    """
    return {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "scrape_timeout": "4s", "evaluation_interval": "15s"},
        "rule_files": [str(rules)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [
            _job("shardwatch", daemon),
            _job("alertmanager", alertmanager),
            *([_job("prometheus", own)] if own else []),
        ],
    }


def _job(name: str, target: str) -> dict[str, Any]:
    return {"job_name": name, "static_configs": [{"targets": [target]}]}


def alertmanager(generated: Path, *, receiver: str) -> dict[str, Any]:
    """Return the generated configuration with every channel led to ``receiver``, the URL of a webhook.

    Routes, groups, inhibitions and texts stay; a simulated fault notifies nobody outside of this machine.
    """
    import yaml  # noqa: PLC0415 - slow to import, and only needed here

    config: dict[str, Any] = yaml.safe_load(generated.read_text(encoding="utf-8"))
    config["templates"] = [str(generated.parent.absolute() / name) for name in config.get("templates", ())]
    webhook = {"url": receiver, "send_resolved": True, "max_alerts": 50}
    config["receivers"] = [{"name": entry["name"], "webhook_configs": [webhook]} for entry in config["receivers"]]
    return config
