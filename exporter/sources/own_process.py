"""The daemon's own process: ``process_*`` as prometheus_client reads them, as text ready for a page."""

from __future__ import annotations

from prometheus_client import ProcessCollector
from prometheus_client.registry import CollectorRegistry

_COLLECTOR = ProcessCollector(registry=CollectorRegistry(auto_describe=False))


def exposition() -> dict[bool, str]:
    """Give the families as text 0.0.4 under False and as OpenMetrics under True."""
    text: dict[bool, list[str]] = {False: [], True: []}
    for family in _COLLECTOR.collect():
        for openmetrics, lines in text.items():
            title = family.name + ("_total" if family.type == "counter" and not openmetrics else "")
            lines.append(f"# HELP {title} {family.documentation}\n# TYPE {title} {family.type}\n")
            lines += [f"{sample.name} {sample.value!r}\n" for sample in family.samples]
    return {openmetrics: "".join(lines) for openmetrics, lines in text.items()}
