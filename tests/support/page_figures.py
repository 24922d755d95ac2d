"""Our page taken apart and held to be strict: no series twice, no NaN, readable for Prometheus' own parsers."""

from __future__ import annotations

import math
import re
import subprocess
import time

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Figures:
    """One page: ``at`` is when it came (Unix time).  Made only of pages without repeated series and without NaN."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, time.time()
        self.rows: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for line in text.split("\n"):
            if not line or line.startswith("#"):
                continue
            match = _LINE.match(line)
            assert match, f"no sample: {line!r}"
            key = (match[1], tuple(_LABEL.findall(match[2] or "")))
            number = float(match[3])
            assert key not in self.rows, f"twice on one page: {line!r}"
            assert math.isfinite(number), f"not finite: {line!r}"
            self.rows[key] = number

    def all(self, name: str, **labels: str) -> list[float]:
        wanted = set(labels.items())
        return [
            value for (sample_name, have), value in self.rows.items() if sample_name == name and wanted <= set(have)
        ]

    def value(self, name: str, **labels: str) -> float:
        values = self.all(name, **labels)
        assert len(values) == 1, f"{name} {labels}: {values}"
        return values[0]

    def labels(self, name: str, label: str, **labels: str) -> set[str]:
        wanted = set(labels.items())
        return {dict(have)[label] for sample_name, have in self.rows if sample_name == name and wanted <= set(have)}

    def reason(self, engine: str) -> str:
        """Why a replica is down; empty when it is up."""
        reasons = self.labels("shardwatch_source_down_info", "reason", source=f"engine:{engine}")
        assert len(reasons) <= 1, reasons
        return reasons.pop() if reasons else ""

    def families_of(self, engine: str) -> set[str]:
        return {name for name, have in self.rows if dict(have).get("replica") == engine}


# All that may be said of a replica that is down.
HEALTH = {
    "llm_up",
    "llm_scrape_duration_seconds",
    "llm_data_age_seconds",
    "llm_verdict",
    "llm_restarts_total",
    "llm_certificate_expiry_timestamp_seconds",
    "gpu_replica_info",
    "shardwatch_replica_unassigned_info",
}


def strictly(text: str, openmetrics: str | None = None) -> None:
    """Read the page with prometheus_client's parsers, the strict one included."""
    assert list(parse_text(text))
    if openmetrics is not None:
        assert list(parse_openmetrics(openmetrics))


def promtool_is_content(promtool: str, page: str) -> None:
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
