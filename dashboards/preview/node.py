"""Run the daemon on one simulated node, with prices and the full set of series.

``python -m dashboards.preview.node SCENARIO NODE FAULT_AT``; the demo of the command line has neither prices nor
second nodes.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from exporter.cli.main import _log_to_stderr, _serve, _urls
from exporter.config.settings import EngineSettings, GatewaySettings, parse
from exporter.runtime.app import App, Driver
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
    _log_to_stderr(settings.log)
    node = SimulatedNode(scenario, node=number, seed=number, fault_at=fault_at, gateway=True)
    node.start()
    try:
        engines = tuple(
            EngineSettings(name=name, url=url, interval=1.0, timeout=0.8) for name, url in node.engine_urls
        )
        settings = replace(
            settings, engines=engines, discovery=replace(settings.discovery, processes=False),
            gateways=(GatewaySettings(name="edge", url=node.gateway_url or "", interval=1.0, timeout=0.8),),
        )  # fmt: skip
        driver = Driver(module="exporter.simulate.nvml", options=node.driver_options)
        return _serve(App(settings, driver=driver), said=_urls)
    finally:
        node.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
