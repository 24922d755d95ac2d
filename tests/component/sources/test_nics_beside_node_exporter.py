"""node_exporter's collectors infiniband and netclass read the same values from the same sysfs."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.simulate.sysfs import SysfsTree
from exporter.simulate.world import World
from exporter.sources.nics import read_nics
from tests.support.tools import tool

# Its name → what we read of a port; packets and what it has beyond that are not ours.
SAME = {
    "node_infiniband_port_data_received_bytes_total": lambda port: port.received,
    "node_infiniband_port_data_transmitted_bytes_total": lambda port: port.transmitted,
    "node_infiniband_link_downed_total": lambda port: port.link_downs,
    "node_infiniband_link_error_recovery_total": lambda port: port.errors["link_recovery"],
    "node_infiniband_symbol_error_total": lambda port: port.errors["symbol"],
    "node_infiniband_port_errors_received_total": lambda port: port.errors["receive"],
    "node_infiniband_local_link_integrity_errors_total": lambda port: port.errors["link_integrity"],
    "node_infiniband_port_discards_transmitted_total": lambda port: port.errors["transmit_discard"],
    "node_infiniband_state_id": lambda port: {"active": 4.0, "down": 1.0}[port.state],
    "node_infiniband_physical_state_id": lambda port: {"link_up": 5.0, "polling": 2.0}[port.physical_state],
}
FLAPS_FROM, DOWN_FROM, UNTIL = 20.0, 80.0, 100.0


@pytest.fixture(scope="module")
def sysfs(tmp_path_factory):
    """The adapters of a node of which one has flapped and gone down."""
    folder = tmp_path_factory.mktemp("sys")
    world = World("nic", fault_at=FLAPS_FROM)
    tree = SysfsTree(str(folder), world)
    tree.write(world.advance_to(UNTIL))
    assert UNTIL > DOWN_FROM
    return folder


@pytest.fixture(scope="module")
def exposed(sysfs):
    """What node_exporter says about the same folder, by name and labels."""
    collectors = ["--collector.disable-defaults", "--collector.infiniband", "--collector.netclass"]
    arguments = [f"--path.sysfs={sysfs}", "--web.listen-address=127.0.0.1:0", *collectors]
    environment = {**os.environ, "GOMAXPROCS": "1"}
    with subprocess.Popen(
        [tool("node_exporter"), *arguments], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            address = next(found[1] for line in process.stderr if (found := re.search(r"address=(127\S+)", line)))
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
                text = answer.read().decode()
        finally:
            process.kill()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def of(samples, name):
    return {
        (sample.labels.get("device"), sample.labels.get("port")): sample.value
        for sample in samples
        if sample.name == name
    }


@pytest.mark.parametrize("name", SAME)
def test_every_port_has_the_same_value(exposed, sysfs, name):
    ports = read_nics(str(sysfs)).ports
    assert len(ports) == 9
    assert {tuple(port.key): SAME[name](port) for port in ports} == of(exposed, name)


def test_the_rate_of_an_active_port_is_the_same(exposed, sysfs):
    theirs = of(exposed, "node_infiniband_rate_bytes_per_second")
    ours = {tuple(port.key): port.rate for port in read_nics(str(sysfs)).ports}
    assert [key for key, rate in ours.items() if rate is None] == [("mlx5_5", "1")]
    assert {key: rate for key, rate in ours.items() if rate is not None} == {
        key: rate for key, rate in theirs.items() if key != ("mlx5_5", "1")
    }


def test_the_carrier_of_the_ethernet_port_has_changed_as_often(exposed, sysfs):
    (port,) = [port for port in read_nics(str(sysfs)).ports if port.interface]
    theirs = of(exposed, "node_network_carrier_changes_total")
    assert theirs == {(port.interface, None): port.carrier_changes}


def test_the_fault_is_in_what_both_read(sysfs):
    failed = {port.key.device: port for port in read_nics(str(sysfs)).ports}["mlx5_5"]
    assert failed.link_downs > 2
    assert failed.errors["symbol"] > 1000
