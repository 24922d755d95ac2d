"""Run the daemon on one simulated node, with prices and the full set of series.

``python -m dashboards.preview.node SCENARIO NODE FAULT_AT``. The demo command has neither prices nor a second node.
"""

from __future__ import annotations

import sys

from exporter.cli.demo import serve_simulated
from exporter.cli.setup import log_to_stderr
from exporter.config.settings import parse
from exporter.simulate.node import SimulatedNode

CONFIG = """
listen: 127.0.0.1:0
series: full
costs: {currency: USD, gpu_hour: {NVIDIA H100 80GB HBM3: 2.5, NVIDIA H100 PCIe: 2.0}}
log: {level: error}
"""


def main(scenario: str, number: int, fault_at: float) -> int:
    """Serve until SIGTERM; ``fault_at`` is in seconds from now."""
    settings = parse(CONFIG, "the preview", {})
    log_to_stderr(settings.log)
    return serve_simulated(
        SimulatedNode(scenario, node=number, seed=number, fault_at=fault_at, gateway=True), settings
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
