"""The worker's thread for questions about two cards: when it asks, how it makes way, and what is kept of its answers."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from exporter.driver import protocol
from exporter.driver.daemon.registry import CardRegistry
from exporter.driver.protocol import WorkerOptions
from exporter.driver.worker import topology_thread, worker
from exporter.driver.worker.driver_thread import AvailableGpu
from exporter.driver.worker.topology_thread import TopologyThread
from exporter.model import CardFacts, CardReading, CardTopology, LinkEnd, Peer
from tests.support.waiting import until


class Gpu:
    def __init__(self, uuid, unavailable=False):
        self.uuid, self._unavailable, self.checks = uuid, unavailable, 0

    @property
    def unavailable(self):
        self.checks += 1
        return self._unavailable

    @unavailable.setter
    def unavailable(self, unavailable):
        self._unavailable = unavailable

    def available(self):
        return AvailableGpu(self.uuid, self.uuid) if self.unavailable is False else None


def checked_again(gpu, times=6):
    """Wait until the thread has checked several times whether there is something to ask."""
    before = gpu.checks
    until(lambda: gpu.checks >= before + times)


class Driver:
    """Counts passes by the ancestor question; ``gate`` holds it up, ``error`` is raised by it."""

    def __init__(self):
        self.asked, self.gate, self.error = [], threading.Event(), None
        self.gate.set()
        self.entered = threading.Event()

    def nvmlDeviceGetTopologyCommonAncestor(self, handle, other):  # noqa: N802
        self.asked.append((handle, other))
        self.entered.set()
        assert self.gate.wait(10)
        if self.error:
            raise self.error
        return 10


class Sent(list):
    def send(self, message):
        self.append(message)


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(topology_thread, "CHECK", 0.01)
    started = []

    def begin(driver, gpus):
        sent = Sent()
        thread = TopologyThread(driver, gpus, sent)
        thread.start()
        started.append((driver, thread))
        return thread, sent

    yield begin
    for driver, thread in started:
        thread.end()
        driver.gate.set()
    until(lambda: not any(running.name == "topology" for running in threading.enumerate()))


def test_it_waits_for_first_answers_and_asks_only_about_gpus_that_stand(start):
    late = Gpu("b", unavailable=None)
    driver, gpus = Driver(), [Gpu("a"), late, Gpu("c", unavailable=True)]
    _, sent = start(driver, gpus)
    checked_again(late)
    assert not driver.asked
    late.unavailable = False
    until(lambda: sent)
    assert sent[0] == protocol.TopologyRead(
        cards={
            "a": CardTopology(peers={"b": Peer(pci_path="PIX")}),
            "b": CardTopology(peers={"a": Peer(pci_path="PIX")}),
        }
    )
    checked_again(late)
    assert len(sent) == 1, "once is enough"


def test_a_gpu_that_hangs_from_the_start_is_not_waited_for_longer_than_that(start, monkeypatch):
    monkeypatch.setattr(topology_thread, "FIRST_ANSWERS", 0.1)
    _, sent = start(Driver(), [Gpu("a"), Gpu("b"), Gpu("c", unavailable=None)])
    until(lambda: sent)
    assert set(sent[0].cards) == {"a", "b"}


def test_a_gpu_that_comes_back_is_read_at_once(start):
    away = Gpu("c", unavailable=True)
    _, sent = start(Driver(), [Gpu("a"), Gpu("b"), away])
    until(lambda: sent)
    away.unavailable = False
    until(lambda: len(sent) == 2)
    assert set(sent[1].cards["a"].peers) == {"b", "c"}


def test_answers_that_were_not_final_are_asked_for_again(start, monkeypatch):
    monkeypatch.setattr(topology_thread, "RETRY", 0.05)
    driver = Driver()
    driver.error = type("E", (Exception,), {"value": 999})()
    gpus = [Gpu("a"), Gpu("b")]
    _, sent = start(driver, gpus)
    until(lambda: len(sent) >= 2)
    driver.error = None
    until(lambda: sent[-1].cards["a"].peers["b"].pci_path == "PIX")
    count = len(sent)
    checked_again(gpus[0])
    assert len(sent) == count


def test_it_makes_way_at_its_next_question_and_begins_anew_when_resumed(start):
    driver = Driver()
    driver.gate.clear()
    thread, sent = start(driver, [Gpu("a"), Gpu("b"), Gpu("c")])
    assert driver.entered.wait(10)
    assert thread.busy
    until(lambda: thread.call_seconds(time.monotonic()) > 0.02)
    thread.pause()
    driver.gate.set()
    until(lambda: not thread.busy)
    assert not sent and len(driver.asked) == 1 and thread.call_seconds(time.monotonic()) == 0
    thread.resume()
    until(lambda: sent)
    assert len(sent[0].cards) == 3


def test_a_driver_that_is_over_ends_the_pass_and_is_left_to_others_to_say(start):
    driver = Driver()
    driver.error = type("E", (Exception,), {"value": 1})()
    thread, sent = start(driver, [Gpu("a"), Gpu("b")])
    until(lambda: len(driver.asked) > 1)
    driver.error = None
    until(lambda: sent)
    assert not thread.busy


class Stuck:
    def __init__(self, seconds):
        self.seconds, self.busy, self.paused = seconds, True, 0

    def pause(self):
        self.paused += 1

    def resume(self):
        self.paused -= 1

    def call_seconds(self, _now):
        return self.seconds


@pytest.mark.parametrize(("seconds", "given_up"), [(worker.STUCK - 5, []), (worker.STUCK + 5, ["hung"])])
def test_a_new_initialisation_waits_for_a_question_but_not_for_ever(monkeypatch, seconds, given_up):
    monkeypatch.setattr(worker.time, "sleep", lambda _: None)
    failures = []
    sent = SimpleNamespace(send=lambda _: None, fail=lambda reason, _: failures.append(reason))
    driver_worker = worker.Worker(WorkerOptions(module="none"), sent)
    thread = Stuck(seconds)
    driver_worker._topology = thread
    driver_worker._initialise_again(SimpleNamespace())
    assert failures == given_up and thread.paused == 0


def test_what_is_known_of_a_gpu_outlives_the_worker_and_passes_without_it():
    registry, links = CardRegistry(), {0: LinkEnd(kind="switch")}
    facts = CardFacts(index=0, uuid="GPU-a")
    registry.on_initialised(1)
    registry.on_found(facts, 1.0)
    registry.on_topology(protocol.TopologyRead(cards={"GPU-a": CardTopology(links=links), "GPU-x": CardTopology()}))
    registry.on_driver_down()
    registry.on_initialised(1)
    registry.on_found(facts, 2.0)
    reading = CardReading(at=2.0, signals={})
    registry.on_read(protocol.CardRead(index=0, uuid="GPU-a", cycle=1, duration=0.1, reading=reading), 1e9)
    registry.on_topology(protocol.TopologyRead(cards={}))
    (state,) = registry.view(2.0, 5.0, "")
    assert state.topology == CardTopology(links=links)


class Blocking(Driver):
    """Blocks in questions of the cards named, until ``gate`` is set."""

    def __init__(self, *cards):
        super().__init__()
        self.blocks = cards
        self.gate.clear()

    def nvmlDeviceGetTopologyCommonAncestor(self, handle, other):  # noqa: N802
        self.asked.append((handle, other))
        assert handle not in self.blocks or self.gate.wait(10)
        return 10


@pytest.mark.parametrize("stuck", [["a"], ["a", "b"], ["a", "b", "c", "d"]])
def test_gpus_whose_questions_block_cost_their_own_answers_in_a_bounded_number_of_threads(start, monkeypatch, stuck):
    monkeypatch.setattr(topology_thread, "HANGS", 0.05)
    driver = Blocking(*stuck)
    gpus = [Gpu(uuid) for uuid in "abcdef"]
    thread, sent = start(driver, gpus)
    pass_count = min(len(stuck), topology_thread.MAX_HANGING)
    until(lambda: len(sent) > pass_count or (len(sent) == pass_count == topology_thread.MAX_HANGING))
    asking = set("abcdef") - set(stuck) if len(stuck) < topology_thread.MAX_HANGING else set()
    expected = {(uuid, peer) for uuid in asking for peer in "abcdef" if peer != uuid}
    until(lambda: {(u, peer) for m in sent for u, topology in m.cards.items() for peer in topology.peers} == expected)
    passes = [running for running in threading.enumerate() if running.name == "topology-pass"]
    assert len(passes) == pass_count and thread.busy and thread.call_seconds(time.monotonic()) > 0.05
    driver.gate.set()
    until(lambda: all(len(topology.peers) == 5 for topology in sent[-1].cards.values()) and len(sent[-1].cards) == 6)
    until(lambda: not thread.busy)
    count = len(sent)
    checked_again(gpus[0])
    assert len(sent) == count and not any(running.name == "topology-pass" for running in threading.enumerate())


def test_a_gpu_that_comes_back_during_the_pass_without_it_is_read_after_that_pass(start, monkeypatch):
    monkeypatch.setattr(topology_thread, "HANGS", 0.5)
    gates, entered = {uuid: threading.Event() for uuid in "abc"}, set()

    class Gated(Driver):
        def nvmlDeviceGetTopologyCommonAncestor(self, handle, other):  # noqa: N802
            entered.add(handle)
            assert gates[handle].wait(10)
            return 10

    gates["b"].set()
    thread, sent = start(Gated(), [Gpu(uuid) for uuid in "abc"])
    until(lambda: "c" in entered)  # the pass without a has come to c
    gates["a"].set()
    until(lambda: len(thread._passes) == 1)
    gates["c"].set()
    until(lambda: sent[-1].cards.keys() == set("abc"))
    assert sent[-1].cards["a"].peers.keys() == {"b", "c"}


def test_a_pair_that_was_not_read_this_time_keeps_what_is_known_of_it():
    registry, far, near = CardRegistry(), Peer(pci_path="SYS"), Peer(pci_path="PIX")
    registry.on_initialised(3)
    for index, uuid in enumerate("abc"):
        registry.on_found(CardFacts(index=index, uuid=uuid), 1.0)
    registry.on_topology(protocol.TopologyRead(cards={"a": CardTopology(peers={"b": far, "c": far, "gone": far})}))
    registry.on_topology(protocol.TopologyRead(cards={"a": CardTopology(peers={"b": near})}))
    assert registry.view(1.0, 5.0, "")[0].topology.peers == {"b": near, "c": far}
