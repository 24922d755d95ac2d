"""Run the daemon on a simulated node with prices and a chosen set of series: ``live_node.py SCENARIO SET``."""

from __future__ import annotations

import sys

from exporter.cli.demo import serve_simulated
from exporter.cli.setup import log_to_stderr
from exporter.config.settings import parse
from exporter.simulate.node import SimulatedNode

CONFIG = """
listen: 127.0.0.1:0
series: {series}
costs: {{currency: USD, gpu_hour: {{NVIDIA H100 80GB HBM3: 2.5, NVIDIA H100 PCIe: 2.0}}}}
log: {{level: error}}
"""


def main(scenario: str, series: str) -> int:
    settings = parse(CONFIG.format(series=series), "live_node", {})
    log_to_stderr(settings.log)
    return serve_simulated(SimulatedNode(scenario, fault_at=3.0, gateway=True), settings)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
