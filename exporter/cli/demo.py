"""``shardwatch demo``: the daemon on a simulated node."""

from __future__ import annotations

import argparse
import sys

from msgspec.structs import replace

from exporter.cli import signals, streams
from exporter.cli.daemon import print_urls, serve
from exporter.cli.exit_codes import BAD_USAGE, OK
from exporter.cli.setup import log_to_stderr, read_settings
from exporter.config.settings import EngineSettings, GatewaySettings, Settings
from exporter.config.suggest import did_you_mean
from exporter.runtime.app import App, Driver
from exporter.simulate.node import NVML_MODULE, SimulatedNode
from exporter.simulate.records import Scenario
from exporter.simulate.scenarios import SCENARIOS

LISTEN = "127.0.0.1:9853"


def run(arguments: argparse.Namespace) -> int:
    """List the scenarios, or run one until stopped."""
    if arguments.list:
        streams.print_lines(*(f"{scenario.name:10} {scenario.summary}" for scenario in SCENARIOS))
        return OK
    scenarios = {scenario.name: scenario for scenario in SCENARIOS}
    scenario = scenarios.get(arguments.scenario)
    if scenario is None:
        message = did_you_mean(arguments.scenario, scenarios, f"unknown scenario {arguments.scenario!r}")
        print(f"shardwatch demo: {message}", file=sys.stderr)
        return BAD_USAGE
    if not scenario.faults and (arguments.fault_at, arguments.fault_until) != (None, None):
        arguments.command.error(f"scenario {scenario.name} has no fault that --fault-at and --fault-until could move")
    begins = [fault.at if arguments.fault_at is None else arguments.fault_at for fault in scenario.faults]
    if begins and arguments.fault_until is not None and arguments.fault_until <= min(begins):
        arguments.command.error("argument --fault-until: the fault would end before it begins")
    settings = read_settings(None, LISTEN if arguments.listen is None else arguments.listen)
    log_to_stderr(settings.log)
    node = SimulatedNode(
        scenario.name,
        seed=arguments.seed,
        node=arguments.node,
        fault_at=arguments.fault_at,
        fault_until=arguments.fault_until,
        gateway=True,
    )
    return serve_simulated(node, settings, guide(scenario, arguments.fault_at))


def guide(scenario: Scenario, fault_at: float | None = None) -> tuple[str, ...]:
    """Return what a scenario is about, what happens when, and what to watch, a sentence a line."""
    return (f"Scenario {scenario.name}: {scenario.summary}.", *scenario.guide(fault_at))


def serve_simulated(node: SimulatedNode, settings: Settings, lines: tuple[str, ...] = ()) -> int:
    """Run the daemon on a simulated node until stopped; ``lines`` are printed after the URLs."""
    signals.install_handlers()  # what is started from here on is stopped in order, so a stop signal has to wait
    node.start()
    try:
        engines = tuple(
            EngineSettings(name=name, url=url, interval=1.0, timeout=0.8) for name, url in node.engine_urls
        )
        gateway = GatewaySettings(name="edge", url=node.gateway_url or "", interval=1.0, timeout=0.8)
        discovery = replace(settings.discovery, processes=False)
        nics = settings.nics if node.sysfs is None else replace(settings.nics, sysfs=node.sysfs)
        settings = replace(settings, engines=engines, gateways=(gateway,), discovery=discovery, nics=nics)
        driver = Driver(module=NVML_MODULE, options=node.driver_options, cgroup=node.cgroup, pods=node.pods)
        app = App(settings, driver=driver)
        return serve(app, on_listening=lambda host, port: print_urls(host, port, lines))
    finally:
        node.stop()
