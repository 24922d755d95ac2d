"""Run the daemon on a simulated node with prices and a chosen set of series: ``live_node.py SCENARIO SET``."""

from __future__ import annotations

import argparse
import sys

from exporter.cli.main import _log_to_stderr, _on_simulated_node
from exporter.config.settings import parse
from exporter.runtime.app import App

CONFIG = """
listen: 127.0.0.1:0
series: {series}
costs: {{currency: USD, gpu_hour: {{NVIDIA H100 80GB HBM3: 2.5, NVIDIA H100 PCIe: 2.0}}}}
log: {{level: error}}
"""


def main(scenario: str, series: str) -> int:
    settings = parse(CONFIG.format(series=series), "live_node", {})
    _log_to_stderr(settings.log)
    asked = argparse.Namespace(scenario=scenario, seed=0, node=0, fault_at=3.0, fault_until=None)
    return _on_simulated_node(asked, settings, App)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
