"""MIG instances in the registry of GPUs, and what a stand-in for the driver says of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from exporter.driver import protocol
from exporter.driver.daemon.registry import CardRegistry
from exporter.driver.nvml import library
from exporter.driver.nvml.errors import DeviceUnavailable
from exporter.driver.nvml.gpu import GpuReader
from exporter.driver.nvml.shared import SharedState
from exporter.model import CardFacts, CardReading, MigInstance, Missing, Signal
from tests.support.builders import Clock
from tests.support.fake_nvml import FakeDriver, NVMLError
from tests.support.simulated_driver import simulated_driver

UNIX_NOW = 5000.0


def instance_facts(number, uuid, parent="GPU-a"):
    instance = MigInstance(number=number, parent=parent, profile="1g", gpu_instance=number + 7, compute_instance=0)
    return CardFacts(index=0, uuid=uuid, instance=instance)


def read(at, memory=1.0):
    return CardReading(at=at, signals={Signal.MEMORY_USED: memory})


def instance_reading(facts, at):
    return protocol.InstanceReading(facts=facts, reading=read(at))


def registry_of(*instances, at=100.0):
    registry = CardRegistry()
    registry.on_initialised(1)
    registry.on_found(CardFacts(index=0, uuid="GPU-a", mig=True), at)
    registry.on_instances(
        protocol.InstancesRead(uuid="GPU-a", instances=tuple(instance_reading(facts, at) for facts in instances)),
        UNIX_NOW,
    )
    registry.on_read(protocol.CardRead(index=0, uuid="GPU-a", cycle=1, duration=0.1, reading=read(at)), UNIX_NOW)
    return registry


def shown(registry, now=100.5, down=""):
    return {state.facts.uuid: state for state in registry.view(now, 3.0, down)}


def test_instances_are_sorted_after_their_gpu_with_their_number_in_the_label():
    registry = registry_of(instance_facts(3, "MIG-a"), instance_facts(0, "MIG-z"))
    assert [state.labels[0] for state in registry.view(100.5, 3.0, "")] == ["0", "0:0", "0:3"]


def test_an_instance_that_is_not_listed_any_more_is_removed_and_not_lost():
    registry = registry_of(instance_facts(0, "MIG-a"), instance_facts(1, "MIG-b"))
    registry.on_instances(
        protocol.InstancesRead(uuid="GPU-a", instances=(instance_reading(instance_facts(1, "MIG-b"), 101.0),)),
        UNIX_NOW,
    )
    registry.check_hangs(101.0, 2.0)
    assert set(shown(registry)) == {"GPU-a", "MIG-b"} and shown(registry)["MIG-b"].status.up


def test_the_instances_of_another_gpu_are_left_alone():
    registry = registry_of(instance_facts(0, "MIG-a"))
    registry.on_instances(
        protocol.InstancesRead(
            uuid="GPU-b", instances=(instance_reading(instance_facts(0, "MIG-b", "GPU-b"), 100.0),)
        ),
        UNIX_NOW,
    )
    registry.on_instances(protocol.InstancesRead(uuid="GPU-b", instances=()), UNIX_NOW)
    assert set(shown(registry)) == {"GPU-a", "MIG-a"}


def test_an_instance_hangs_and_is_lost_with_its_gpu():
    registry = registry_of(instance_facts(0, "MIG-a"))
    registry.on_heartbeat(protocol.Heartbeat(cycle=2, busy={0: 2.5}), 103.0)
    registry.check_hangs(103.0, 2.0)
    assert {state.status.reason for state in shown(registry, 103.0).values()} == {"hung"}
    assert shown(registry, 103.0)["MIG-a"].reading is None
    registry.on_failed(protocol.CardFailed(index=0, uuid="GPU-a", cycle=2, reason="lost"), 104.0)
    assert shown(registry, 104.0)["MIG-a"].status.reason == "lost"


def test_a_gpu_on_which_mig_was_disabled_has_no_instances():
    registry = registry_of(instance_facts(0, "MIG-a"))
    registry.on_found(CardFacts(index=0, uuid="GPU-a"), 101.0)
    assert set(shown(registry)) == {"GPU-a"}


def test_a_gpu_that_does_not_report_its_uuid_now_is_known_by_its_index_in_spite_of_instances():
    registry = registry_of(instance_facts(0, "MIG-a"))
    registry.on_initialised(1)
    registry.on_failed(protocol.CardFailed(index=0, uuid="", cycle=0, reason="lost"), 101.0)
    assert shown(registry, 101.0)["GPU-a"].status.reason == "lost"


# ---- through the reader


class MigDriver(FakeDriver):
    """One MIG-enabled GPU; ``places``: number in the driver's list → (uuid, GPU instance)."""

    places = {1: ("MIG-one", 9), 4: ("MIG-two", 11)}

    def cards(self):
        return ["GPU-a", *(uuid for uuid, _ in self.places.values())]

    def _nvmlDeviceGetMigMode(self, uuid):
        return [1, 1]

    def _nvmlDeviceGetMaxMigDeviceCount(self, uuid):
        return 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, uuid, place):
        if place not in self.places:
            raise NVMLError(6)
        return self.places[place][0]

    def _nvmlDeviceGetGpuInstanceId(self, uuid):
        return dict(self.places.values())[uuid]

    def _nvmlDeviceGetComputeInstanceId(self, uuid):
        return 0

    def _nvmlDeviceGetName(self, uuid):
        return "Fake GPU MIG 1c.2g.20gb+me" if uuid == "MIG-two" else "Fake GPU"


def make_reader(driver):
    calls, facts = library.open_card(driver, 0)
    return GpuReader(driver, calls, facts, "590.48.01", SharedState())


def test_every_number_of_the_list_is_tried_and_holes_are_no_failure():
    instances = make_reader(MigDriver({})).instances.read(refresh=True)
    known = [instance.facts for instance in instances]
    assert [(facts.instance.number, facts.uuid, facts.instance.gpu_instance) for facts in known] == [
        (1, "MIG-one", 9), (4, "MIG-two", 11),
    ]  # fmt: skip
    assert [facts.instance.profile for facts in known] == ["", "1c.2g.20gb+me"]
    facts, reading = known[0], instances[0].reading
    assert reading.signals[Signal.MEMORY_TOTAL] == 80 * 2**30 and [p.pid for p in reading.processes] == [100]
    assert reading.missing[Signal.UTILIZATION] is Missing.MIG and facts.pci_bus_id == ""


def test_an_instance_that_was_deleted_and_stays_in_the_list_is_ignored_and_the_others_are_read():
    reader = make_reader(driver := MigDriver({}))
    assert len(reader.instances.read(refresh=True)) == 2
    driver.plan = {"at": {"MIG-one": {"*": {"error": 6}}}}
    assert [instance.facts.uuid for instance in reader.instances.read(refresh=False)] == ["MIG-two"]
    assert [instance.facts.uuid for instance in reader.instances.read(refresh=True)] == ["MIG-two"]
    driver.plan = {"at": {"MIG-two": {"*": {"error": 15}}}}
    assert [instance.facts.uuid for instance in reader.instances.read(refresh=True)] == ["MIG-one"]


def test_a_mig_enabled_gpu_without_permission_for_its_instances_has_none():
    driver = MigDriver({"calls": {"nvmlDeviceGetMigDeviceHandleByIndex": {"error": 4}}})
    reader = make_reader(driver)
    assert reader.instances.read(refresh=True) == ()
    reading = reader.read(slow=True)
    assert reading.signals[Signal.POWER] > 0 and reading.missing[Signal.INSTANCES] is Missing.NO_PERMISSION
    driver.plan = {}
    assert len(reader.instances.read(refresh=True)) == 2
    assert Signal.INSTANCES not in reader.read(slow=True).missing


def test_an_instance_without_permission_is_reported_as_refused_and_the_others_are_read():
    reader = make_reader(MigDriver({"at": {"MIG-one": {"nvmlDeviceGetUUID": {"error": 4}}}}))
    assert [instance.facts.uuid for instance in reader.instances.read(refresh=True)] == ["MIG-two"]
    assert reader.read(slow=True).missing[Signal.INSTANCES] is Missing.NO_PERMISSION


def test_old_memory_structures_serve_too():
    driver = MigDriver({})
    driver._nvmlDeviceGetMemoryInfo = lambda uuid, version=None: refuse(25) if version else SimpleNamespace(
        total=10.0, used=4.0, free=6.0
    )  # fmt: skip
    reading = make_reader(driver).instances.read(refresh=True)[0].reading
    assert reading.signals[Signal.MEMORY_USED] == 4.0
    assert reading.missing[Signal.MEMORY_RESERVED] is Missing.UNSUPPORTED


# ---- simulated


@pytest.fixture
def simulated():
    """The node of the scenario with a MIG-enabled GPU, a minute old, and its clock."""
    clock = Clock(60.0)
    driver = simulated_driver(clock, scenario="mig", pids={"small": (4321,)})
    facts, cards = library.initialise(driver)
    assert cards == 8
    return driver, clock, facts.driver_version


def test_the_simulated_mig_enabled_gpu_has_a_busy_half_and_an_idle_one(simulated):
    driver, clock, version = simulated
    calls, facts = library.open_card(driver, 7)
    assert facts.mig and not library.open_card(driver, 6)[1].mig
    reader = GpuReader(driver, calls, facts, version, SharedState())
    reader.instances.read(refresh=True, clock=clock)
    clock.tick(5.0)
    busy, idle = reader.instances.read(refresh=False, clock=clock)
    work, rest = busy.reading, idle.reading
    assert [read.facts.instance.profile for read in (busy, idle)] == ["3g.40gb"] * 2
    assert busy.facts.uuid.startswith("MIG-")
    assert [process.pid for process in work.processes] == [4321] and rest.processes == ()
    assert work.signals[Signal.SM_ACTIVE] > 0.05 > rest.signals[Signal.SM_ACTIVE]
    whole = reader.read(slow=True, clock=clock)
    assert whole.missing[Signal.SM_ACTIVE] is Missing.MIG and whole.signals[Signal.POWER] > 80
    assert whole.signals[Signal.MEMORY_USED] == pytest.approx(
        work.signals[Signal.MEMORY_USED] + rest.signals[Signal.MEMORY_USED]
    )
    with pytest.raises(DeviceUnavailable):
        library.open_card(driver, 8)  # instances have no index of their own


def test_a_simulated_instance_is_where_its_gpu_is(simulated):
    driver = simulated[0]
    card = driver.nvmlDeviceGetHandleByIndex(7)
    parts = [driver.nvmlDeviceGetMigDeviceHandleByIndex(card, place) for place in range(2)]
    places = {driver.nvmlDeviceGetPciInfo(handle).busId for handle in (card, *parts)}
    assert len(places) == 1


def refuse(code):
    raise NVMLError(code)
